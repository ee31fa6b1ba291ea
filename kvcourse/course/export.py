"""The book said again for Jupyter Book 1 (`_config.yml`, `_toc.yml`) and Jupyter Book 2 (`myst.yml`)."""

import json
import re
from pathlib import Path

from kvcourse.course import build, source
from kvcourse.course.manifest import Manifest
from kvcourse.course.notebook import dump_notebook, read_notebook, write_text
from kvcourse.errors import InputError

FORMATS = ("jb1", "myst")
_GLOSSARY = re.compile(r"(```\{glossary\}\n)(.*?)(\n```)", re.S)


def export_book(manifest: Manifest, format: str, folder: Path, offline: bool | None = False) -> Path:
    """Write a folder that `jupyter-book build FOLDER` (jb1) or `jupyter-book build` in it (myst) turns into a book.

    It holds copies of the pages and the student notebooks, so it can be published as it is. The pages from
    docstrings are not in it: they need the package itself, which those builders' environments may lack.
    """
    if format not in FORMATS:
        raise InputError(f"unknown format {format!r}; known: {', '.join(FORMATS)}")
    assets = build.offline_assets(offline) if format == "jb1" else None
    source.write_source(manifest, folder, api=False, vendor=assets)
    if format == "jb1":
        _write(folder, "_config.yml", jupyter_book_config(manifest, assets is not None))
        _write(folder, "_toc.yml", build.table_of_contents(manifest, api=False))
    else:
        _write(folder, "myst.yml", myst_config(manifest))
        for page in (manifest.landing, *(page.file for page in manifest.pages)):
            path = folder / page
            write_text(path, for_mystmd(path.read_text("utf-8")))
        for number, chapter in enumerate(manifest.chapters):
            content = read_notebook(folder / chapter.file)
            for cell in content["cells"]:  # identifiers have to differ in the whole project there
                cell["id"] = f"ch{number}-{cell['id']}"[:64]
            write_text(folder / chapter.file, dump_notebook(content))
    return folder


def jupyter_book_config(manifest: Manifest, offline: bool) -> dict:
    """`_config.yml` of Jupyter Book 1."""
    settings = build.html_settings(manifest, offline)
    del settings["nb_execution_mode"]  # the builder has its own setting for it
    config = {
        "title": manifest.title,
        "author": ", ".join(manifest.authors),
        "copyright": manifest.copyright,
        "only_build_toc_files": True,
        "execute": {"execute_notebooks": "off"},
        "bibtex_bibfiles": list(manifest.bibliography),
        "sphinx": {
            "config": {
                "language": manifest.language,
                "html_theme_options": build.theme_options(manifest),
                **settings,
            }
        },
    }
    if manifest.repository_url:
        config["repository"] = {
            "url": manifest.repository_url,
            "branch": manifest.repository_branch or "main",
        }
    return config


def myst_config(manifest: Manifest) -> dict:
    """`myst.yml` of Jupyter Book 2."""
    toc: list[dict] = [{"file": manifest.landing}]
    for part in manifest.parts:
        children = [{"file": entry.file} for entry in (*part.chapters, *part.pages)]
        toc.append({"title": part.title, "children": children})
    project = {
        "title": manifest.title,
        "authors": [{"name": name} for name in manifest.authors],
        "copyright": manifest.copyright,
        "bibliography": list(manifest.bibliography),
        "toc": toc,
    }
    if manifest.repository_url:
        project["github"] = manifest.repository_url
    return {"version": 1, "project": project, "site": {"template": "book-theme"}}


def for_mystmd(text: str) -> str:
    """Two directives that Jupyter Book 2 spells otherwise than Sphinx: `glossary` and `bibliography`."""
    text = _GLOSSARY.sub(lambda m: m[1] + re.sub(r"\n +", "\n: ", m[2]) + m[3], text)
    return text.replace("```{bibliography}\n:all:\n", "```{bibliography}\n")


def _write(folder: Path, name: str, content: dict) -> None:
    text = json.dumps(content, indent=1, ensure_ascii=False)  # JSON is YAML
    source.write_file(folder, name, text + "\n")
