"""Put student copies of the notebooks into a learner's folder without ever touching work that is there."""

from dataclasses import dataclass
from pathlib import Path

from kvcourse.course.manifest import Manifest
from kvcourse.course.notebook import dump_notebook, read_notebook, write_text
from kvcourse.course.student import student_copy
from kvcourse.errors import InputError


@dataclass(frozen=True)
class Placed:
    """What happened to one notebook: `action` is written, kept, current or beside."""

    name: str
    action: str


def place_notebooks(manifest: Manifest, folder: Path, refresh: bool = False) -> list[Placed]:
    """Write the student copy of each chapter into `folder`; a file that exists is left alone.

    With `refresh`, a chapter whose cells changed since the learner's copy was made is written beside it, as
    `NAME.RELEASE.ipynb`, where RELEASE is the start of the hash of the course's cells. Errors: InputError if
    `folder` is a file, or the folder of the course's own notebooks.
    """
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; give a folder for the student copies")
    if any((manifest.root / chapter.file).parent == folder.resolve() for chapter in manifest.chapters):
        raise InputError(f"{folder} holds the course's own notebooks; give another folder")
    return [_place(manifest.root / chapter.file, folder, refresh) for chapter in manifest.chapters]


def _place(path: Path, folder: Path, refresh: bool) -> Placed:
    try:
        student = student_copy(read_notebook(path))
    except InputError as error:
        raise InputError(f"{path.name}: {error}") from error
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
