"""Build the book with Sphinx. The configuration is generated from `book.toml`; there is no conf.py to edit."""

import json
import pprint
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from kvcourse.course import source, vendor
from kvcourse.course.execute import is_stale
from kvcourse.course.manifest import Manifest, stem
from kvcourse.course.notebook import read_notebook, write_text
from kvcourse.errors import InputError

EXTENSIONS = (
    "myst_nb",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_external_toc",
    "sphinx_togglebutton",
    "sphinxcontrib.bibtex",
    "sphinx.ext.autodoc",
    "sphinx.ext.viewcode",
    "kvcourse.course.docstrings",
)
_REDIRECT = (
    '<!doctype html><html lang="{language}"><meta charset="utf-8"><title>{title}</title>'
    '<meta http-equiv="refresh" content="0; url={url}"><a href="{url}">{title}</a></html>\n'
)


def build_book(
    manifest: Manifest,
    out: Path | None = None,
    solutions: bool = False,
    offline: bool | None = None,
    executed: Path | None = None,
) -> Path:
    """Build the pages and return the folder they are in (default `_build/html`).

    The notebooks appear as student copies unless `solutions`, so that neither the pages nor the download button
    hold an answer. `offline` True needs the browser assets, False takes them from a CDN, None tries offline
    first. `executed` is a folder with the project's paths to take the notebooks from, as they were run on this
    machine; None takes the stored outputs. Errors: InputError if Sphinx warns about anything or the pages are not
    the ones of the manifest.
    """
    edition = "instructor" if solutions else "student"
    work = manifest.root / "_build" / "book" / edition
    out = out or manifest.root / "_build" / ("html-with-solutions" if solutions else "html")
    assets = offline_assets(offline)
    files = source.write_source(manifest, work / "source", solutions, vendor=assets, notebooks=executed)
    _remove_old_sources(work / "source", files)
    _report_stale(executed or manifest.root, manifest)
    write_settings(manifest, work / "source", assets is not None)
    _remove_old_pages(out, manifest)
    _run_sphinx(work, out)
    _check_pages(out, manifest)
    page = f"{stem(manifest.landing)}.html"
    if page != "index.html":
        text = _REDIRECT.format(language=manifest.language, title=manifest.title, url=page)
        (out / "index.html").write_text(text, "utf-8")
    return out


def offline_assets(offline: bool | None) -> Path | None:
    """The folder of fetched browser assets, with anywidget's own script, or None for the CDN."""
    if offline is False:
        return None
    try:
        folder = vendor.fetch()
    except InputError as error:
        if offline:
            raise
        print(f"browser assets come from a CDN, so pages need a network: {error}", file=sys.stderr)
        return None
    script = Path(metadata.distribution("anywidget").locate_file("anywidget/nbextension/index.js"))
    write_text(folder / "anywidget.js", script.read_text("utf-8"))
    write_text(folder / "widgets-config.js", vendor.WIDGETS_CONFIG)
    return folder


def table_of_contents(manifest: Manifest, api: bool = True) -> dict:
    """`_toc.yml` of Jupyter Book 1, which sphinx-external-toc reads too."""
    parts = []
    for part in manifest.parts:
        entries: list[dict] = [{"file": stem(entry.file)} for entry in (*part.chapters, *part.pages)]
        for entry in entries:
            if api and manifest.api_page and entry["file"] == stem(manifest.api_page):
                entry["sections"] = [{"file": stem(file)} for file in manifest.api_files]
        parts.append({"caption": part.title, "chapters": entries})
    return {"format": "jb-book", "root": stem(manifest.landing), "parts": parts}


def html_settings(manifest: Manifest, offline: bool) -> dict:
    """Sphinx settings about the look of the pages, the same for our build and for Jupyter Book 1."""
    settings = {
        "html_static_path": [source.ASSETS],
        "html_css_files": ["kvcourse.css"],
        "myst_enable_extensions": ["amsmath", "attrs_inline", "colon_fence", "deflist", "dollarmath"],
        "myst_heading_anchors": 3,
        "nb_execution_mode": "off",
        "bibtex_reference_style": "author_year",
    }
    if offline:
        settings["mathjax_path"] = vendor.MATHJAX
        settings["nb_ipywidgets_js"] = {script: {} for script in vendor.WIDGET_SCRIPTS}
    return settings


def theme_options(manifest: Manifest) -> dict:
    """Buttons of the theme; those that need a public repository only where the manifest names one."""
    options = {"home_page_in_toc": True, "navbar_persistent": [], "use_download_button": True}
    if manifest.repository_url:
        options |= {
            "repository_url": manifest.repository_url,
            "repository_branch": manifest.repository_branch or "main",
            "use_repository_button": True,
        }
    return options


def write_settings(manifest: Manifest, folder: Path, offline: bool) -> None:
    """Write `conf.py` and `_toc.yml` into the source tree."""
    settings = {
        "project": manifest.title,
        "author": ", ".join(manifest.authors),
        "copyright": manifest.copyright,
        "language": manifest.language,
        "extensions": list(EXTENSIONS),
        "external_toc_path": "_toc.yml",
        "bibtex_bibfiles": list(manifest.bibliography),
        "smartquotes": False,  # in code and in docstrings a quote is a quote
        "autodoc_preserve_defaults": True,
        "add_module_names": False,
        "html_theme": "sphinx_book_theme",
        "html_title": manifest.title,
        "html_theme_options": theme_options(manifest),
        **html_settings(manifest, offline),
    }
    lines = [
        f"{name} = {pprint.pformat(value, width=100, sort_dicts=False)}" for name, value in settings.items()
    ]
    source.write_file(folder, "conf.py", '"""Generated from book.toml."""\n\n' + "\n".join(lines) + "\n")
    source.write_file(folder, "_toc.yml", json.dumps(table_of_contents(manifest), indent=1) + "\n")


def _run_sphinx(work: Path, out: Path) -> None:
    warnings = work / "warnings.txt"
    doctrees = work / "doctrees"
    command = [sys.executable, "-m", "sphinx", "-b", "html", "-q", "-W", "--keep-going"]
    command += ["-d", str(doctrees), "-w", str(warnings), str(work / "source"), str(out)]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace")
    if done.returncode == 0:
        return
    # Sphinx would stay quiet about these pages next time, since it reads only what changed.
    shutil.rmtree(doctrees, ignore_errors=True)
    text = warnings.read_text("utf-8").strip() if warnings.is_file() else ""
    print(text or done.stderr.strip(), file=sys.stderr)
    found = [line for line in text.splitlines() if "WARNING" in line or "ERROR" in line]
    raise InputError(f"the book was not built: {len(found)} warning(s) of Sphinx, printed above")


def _pages(out: Path) -> list[str]:
    """The pages that the last build into `out` made, from its search index."""
    index = out / "searchindex.js"
    if not index.is_file():
        return []
    return json.loads(index.read_text("utf-8").removeprefix("Search.setIndex(").removesuffix(")"))["docnames"]


def _report_stale(folder: Path, manifest: Manifest) -> None:
    for chapter in manifest.chapters:
        if is_stale(read_notebook(folder / chapter.file)):
            print(
                f"{chapter.file}: its code was not run since it changed; see kvcourse book execute",
                file=sys.stderr,
            )


def _remove_old_sources(folder: Path, wanted: set[Path]) -> None:
    """Files of an earlier build that no longer belong; the folder is ours, but the settings at its top stay."""
    for path in [path for path in folder.rglob("*") if path.is_file() and path.parent != folder]:
        if path not in wanted:
            path.unlink()


def _remove_old_pages(out: Path, manifest: Manifest) -> None:
    for name in set(_pages(out)) - {stem(file) for file in manifest.files}:
        (out / f"{name}.html").unlink(missing_ok=True)
        for copied in (out / "_sources").glob(f"{name}.*"):
            copied.unlink()


def _check_pages(out: Path, manifest: Manifest) -> None:
    expected = sorted(stem(file) for file in manifest.files)
    built = sorted(name for name in _pages(out) if (out / f"{name}.html").is_file())
    if built != expected:
        difference = sorted(set(built) ^ set(expected))
        raise InputError(
            f"the book has {len(built)} pages, expected {len(expected)}: {', '.join(difference)}"
        )
