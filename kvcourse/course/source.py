"""The source tree of the book: pages with their generated parts, notebooks, assets. All builders read it."""

import ast
import importlib.util
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from kvcourse.course.manifest import Chapter, Manifest
from kvcourse.course.notebook import dump_notebook, read_notebook, write_text
from kvcourse.course.release.leaks import refuse_leaks
from kvcourse.course.release.student import student_copy
from kvcourse.errors import InputError

MARK = "% kvcourse: "  # a Markdown comment line that a generated part replaces
ASSETS = "bookassets"  # the folder in the source tree that the pages' _static comes from


def write_source(
    manifest: Manifest,
    folder: Path,
    solutions: bool = False,
    api: bool = True,
    vendor: Path | None = None,
    notebooks: Path | None = None,
) -> set[Path]:
    """Write the source tree of the book into `folder`, with the paths that the project has. Returns its files.

    Notebooks are student copies unless `solutions`. `api` adds a page a public module, for builders that read
    docstrings. `vendor` holds browser assets to copy in; `notebooks` is where to take the notebooks from instead
    of the project. A file is written only if its content changed, so that an incremental build stays one. Errors:
    InputError, before anything is written, if pages or notebooks hold a line of a solution that they should not.
    """
    wanted: dict[Path, bytes] = {}
    for page in (manifest.landing, *(page.file for page in manifest.pages)):
        text = (manifest.root / page).read_text("utf-8")
        wanted[folder / page] = fill(text, manifest, page, api).encode()
    sources = {}
    for chapter in manifest.chapters:
        path = (notebooks or manifest.root) / chapter.file
        shown = sources[path.name] = read_notebook(path)
        try:
            if not solutions:
                shown = student_copy(shown, keep_widgets=True, chapter=path.stem)
        except InputError as error:
            raise InputError(f"{chapter.file}: {error}") from error
        shown["metadata"].setdefault("language_info", {"name": "python", "pygments_lexer": "ipython3"})
        wanted[folder / chapter.file] = dump_notebook(shown).encode()
    if not solutions:
        refuse_leaks(sources, {str(path.relative_to(folder)): content for path, content in wanted.items()})
    if api:
        for file, module in zip(manifest.api_files, manifest.api_modules, strict=True):
            wanted[folder / file] = _api_page(module).encode()
    for file in manifest.bibliography:
        wanted[folder / file] = (manifest.root / file).read_bytes()
    for origin, place in ((manifest.root / manifest.assets, ASSETS), (vendor, f"{ASSETS}/vendor")):
        for path in sorted(origin.rglob("*")) if origin else ():
            if path.is_file() and "vendor" not in path.relative_to(origin).parts:
                wanted[folder / place / path.relative_to(origin)] = path.read_bytes()
    for path, content in wanted.items():
        if not path.is_file() or path.read_bytes() != content:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    return set(wanted)


def fill(text: str, manifest: Manifest, page: str, api: bool) -> str:
    """Replace each line `% kvcourse: NAME` by its generated part. Errors: InputError for an unknown name."""
    lines = []
    for line in text.splitlines():
        if line.startswith(MARK):
            name = line.removeprefix(MARK).strip()
            if name not in _PARTS:
                raise InputError(
                    f"{page}: unknown generated part {name!r}; known: {', '.join(sorted(_PARTS))}"
                )
            line = _PARTS[name](manifest, page, api)
        lines.append(line)
    return "\n".join(lines) + "\n"


def write_file(folder: Path, name: str, text: str) -> None:
    """Write a configuration file at the top of the source tree if it changed."""
    path = folder / name
    if not path.is_file() or path.read_text("utf-8") != text:
        write_text(path, text)


# ---- generated parts -------------------------------------------------------------------------------


def _chapters(manifest: Manifest, page: str, api: bool) -> str:
    """A table of the chapters, then what each teaches."""
    rows = ["| | Chapter | Minutes | Exercises | Points |", "|--:|---|--:|--:|--:|"]
    for number, chapter in enumerate(manifest.chapters):
        link = f"[{chapter.title}]({_link(page, chapter.file)})"
        rows.append(
            f"| {number} | {link} | {chapter.minutes} | {len(chapter.exercises)} | {chapter.points} |"
        )
    minutes = sum(chapter.minutes for chapter in manifest.chapters)
    count = sum(len(chapter.exercises) for chapter in manifest.chapters)
    rows.append(f"| | **Together** | **{minutes}** | **{count}** | **{manifest.points}** |")
    blocks = [_objectives(number, chapter, page) for number, chapter in enumerate(manifest.chapters)]
    return "\n".join(rows) + "\n\n" + "\n\n".join(blocks)


def _objectives(number: int, chapter: Chapter, page: str) -> str:
    needs = " It needs a GPU." if chapter.device == "gpu" else ""
    head = f"**[{number}. {chapter.title}]({_link(page, chapter.file)})** After this chapter you can:{needs}"
    return head + "\n\n" + "\n".join(f"- {objective}" for objective in chapter.objectives)


def _planned(manifest: Manifest, page: str, api: bool) -> str:
    first = len(manifest.chapters)
    lines = [f"{i}. **{entry.title}.** {entry.about}" for i, entry in enumerate(manifest.planned, first)]
    return "\n".join(lines)


def _api(manifest: Manifest, page: str, api: bool) -> str:
    """A table of the public modules; its links, and the contents, only where the pages are."""
    rows = ["| Module | What it holds |", "|---|---|"]
    for file, module in zip(manifest.api_files, manifest.api_modules, strict=True):
        name = f"[`{module}`]({_link(page, file)})" if api else f"`{module}`"
        rows.append(f"| {name} | {_summary(module)} |")
    return "\n".join(rows)


def _claims(manifest: Manifest, page: str, api: bool) -> str:
    from kvcourse.course.ledger import claims_markdown

    return claims_markdown([f"[{c.title}]({_link(page, c.file)})" for c in manifest.chapters])


_PARTS: dict[str, Callable[[Manifest, str, bool], str]] = {
    "chapters": _chapters,
    "planned": _planned,
    "api": _api,
    "claims": _claims,
}


def _api_page(module: str) -> str:
    return (
        f"# {module}\n\n```{{eval-rst}}\n.. automodule:: {module}\n"
        "   :members:\n   :member-order: bysource\n```\n"
    )


def _summary(module: str) -> str:
    """The first line of a module's docstring, read without importing the module."""
    spec = importlib.util.find_spec(module)
    text = ast.get_docstring(ast.parse(Path(spec.origin).read_text("utf-8"))) or ""
    return text.partition("\n\n")[0].replace("\n", " ").replace("|", "\\|")


def _link(page: str, target: str) -> str:
    """The relative path from a page to another file of the book."""
    up = len(PurePosixPath(page).parent.parts)
    return "../" * up + target
