"""Put student copies of the notebooks into a learner's folder without ever touching work that is there."""

from dataclasses import dataclass
from pathlib import Path

from kvcourse.course.manifest import Manifest
from kvcourse.course.notebook import dump_notebook, read_notebook, write_text
from kvcourse.course.outline import COURSE_FILE, course_outline
from kvcourse.course.release.links import unlink
from kvcourse.course.release.student import student_notebook
from kvcourse.errors import InputError


@dataclass(frozen=True)
class Placed:
    """What happened to one notebook: `action` is written, kept, current or beside."""

    name: str
    action: str


def place_notebooks(manifest: Manifest, folder: Path, refresh: bool = False) -> list[Placed]:
    """Write the student copy of each chapter into `folder`; a notebook that exists is left alone.

    The outline of the course goes with them, for `kvcourse.course.progress`; it follows the course.
    With `refresh`, a chapter whose cells changed since the learner's copy was made is written beside it, as
    `NAME.RELEASE.ipynb`, where RELEASE is the start of the hash of the course's cells. Errors: InputError if
    `folder` is a file, or the folder of the course's own notebooks.
    """
    outline = folder / COURSE_FILE
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; give a folder for the student copies")
    if outline.is_dir() or (outline.parent.exists() and not outline.parent.is_dir()):
        raise InputError(f"{outline} cannot be written; move {outline.parent} away, or give another folder")
    if any((manifest.root / chapter.file).parent == folder.resolve() for chapter in manifest.chapters):
        raise InputError(f"{folder} holds the course's own notebooks; give another folder")
    placed = [
        _place(manifest, manifest.root / chapter.file, folder, refresh) for chapter in manifest.chapters
    ]
    write_text(outline, course_outline(manifest))
    return placed


def _place(manifest: Manifest, path: Path, folder: Path, refresh: bool) -> Placed:
    student = student_notebook(path)
    if folder.resolve().parent != manifest.root.resolve():  # the pages are not beside it
        unlink(student, manifest)
    target = folder / path.name
    if not target.exists():
        write_text(target, dump_notebook(student))
        return Placed(target.name, "written")
    if not refresh:
        return Placed(target.name, "kept")
    release = student["metadata"]["kvcourse"]["release"]
    if _release_of(target) == release:
        return Placed(target.name, "current")
    beside = folder / f"{path.stem}.{release[:8]}.ipynb"
    if beside.exists():
        return Placed(beside.name, "kept")
    write_text(beside, dump_notebook(student))
    return Placed(beside.name, "beside")


def _release_of(path: Path) -> str | None:
    """The release that a learner's file was made from, or None if the file no longer says so."""
    try:
        return read_notebook(path)["metadata"].get("kvcourse", {}).get("release")
    except InputError:
        return None
