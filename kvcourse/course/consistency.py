"""Whether `book.toml` and the files of the course agree."""

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

from kvcourse.course import notebook
from kvcourse.errors import InputError

if TYPE_CHECKING:
    from kvcourse.course.manifest import Chapter, Manifest

DEVICES = ("any", "cpu", "gpu")
NOTEBOOK_FOLDER = "notebooks"


def find_faults(manifest: "Manifest") -> list[str]:
    """One line for each difference between the manifest and the files: pages, notebooks, exercises, modules."""
    problems = []
    listed = [manifest.landing, *(entry.file for p in manifest.parts for entry in (*p.chapters, *p.pages))]
    for file in dict.fromkeys(listed):
        if listed.count(file) > 1:
            problems.append(f"{file}: listed twice")
        if not (manifest.root / file).is_file():
            problems.append(f"{file}: no such file")
    for file in manifest.bibliography:
        if not (manifest.root / file).is_file():
            problems.append(f"{file}: no such file")
    for path in sorted((manifest.root / NOTEBOOK_FOLDER).glob("*.ipynb")):
        if f"{NOTEBOOK_FOLDER}/{path.name}" not in listed:
            problems.append(f"{NOTEBOOK_FOLDER}/{path.name}: not listed")
    if manifest.api_page and manifest.api_page not in listed:
        problems.append(f"{manifest.api_page}: the API page is not listed in a part")
    problems += [f"API module {name}: not found" for name in manifest.api_modules if not _module_exists(name)]
    seen: dict[str, str] = {}
    for chapter in manifest.chapters:
        if chapter.device not in DEVICES:
            problems.append(
                f"{chapter.file}: device {chapter.device!r}, expected one of {', '.join(DEVICES)}"
            )
        for exercise in chapter.exercises:
            if exercise.id in seen:
                problems.append(f"{chapter.file}: exercise id {exercise.id!r} is also in {seen[exercise.id]}")
            seen.setdefault(exercise.id, chapter.file)
        if (manifest.root / chapter.file).is_file():
            problems += _check_notebook(manifest.root / chapter.file, chapter)
    return problems


def _check_notebook(path: Path, chapter: "Chapter") -> list[str]:
    """Differences between a notebook and its entry: the title and the exercises, in order."""
    try:
        content = notebook.read_notebook(path)
    except InputError as error:
        return [str(error)]
    problems = []
    if (title := notebook.title(content)) != chapter.title:
        problems.append(f"{chapter.file}: its heading is {title!r}, book.toml says {chapter.title!r}")
    expected = [(exercise.id, exercise.points) for exercise in chapter.exercises]
    if (found := notebook.exercises(content)) != expected:
        problems.append(
            f"{chapter.file}: exercises (id, points) are {found} in the notebook and {expected} in book.toml"
        )
    return problems


def _module_exists(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False
