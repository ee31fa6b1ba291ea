"""The release of the course for learners: student notebooks in a zip, the same bytes wherever it is made."""

import dataclasses
import hashlib
import io
import re
import zipfile
from dataclasses import dataclass
from pathlib import Path

from kvcourse.course.execute import is_stale
from kvcourse.course.manifest import Chapter, Manifest
from kvcourse.course.notebook import dump_notebook, read_notebook, tags, write_bytes
from kvcourse.course.outline import COURSE_FILE, course_outline
from kvcourse.course.release.handout import handout
from kvcourse.course.release.leaks import refuse_leaks
from kvcourse.course.release.links import unlink
from kvcourse.course.release.nbgrader import add_metadata
from kvcourse.course.release.student import student_notebook
from kvcourse.errors import InputError

# Stored, not deflated: what zlib makes of the same bytes differs between its versions.
COMPRESSION = zipfile.ZIP_STORED
TIME = (1980, 1, 1, 0, 0, 0)  # the first that a zip can name
MODE = 0o100644  # a plain file that its owner may write


@dataclass(frozen=True)
class Bundle:
    """A release that was written, and the sha256 of its bytes."""

    path: Path
    chapters: tuple[Chapter, ...]
    size: int
    sha256: str


def write_bundle(manifest: Manifest, out: Path, chapters: tuple[Chapter, ...], force: bool = False) -> Bundle:
    """Write the zip for learners, whole or not at all.

    Errors: InputError if `out` is no name for a zip, exists (without `force`) or cannot be written; as
    `bundle_files`; and if a line of any solution of the course can be found in it.
    """
    if out.is_dir():
        raise InputError(f"{out} is a folder; give the name of a zip, such as {out / 'release.zip'}")
    if out.suffix.lower() != ".zip":
        raise InputError(f"{out} does not end in .zip; give the name of a zip, such as {out.name}.zip")
    if out.exists() and not force:
        raise InputError(f"{out} exists; --force replaces it")
    files = bundle_files(manifest, chapters)
    sources = {Path(c.file).name: read_notebook(manifest.root / c.file) for c in manifest.chapters}
    refuse_leaks(sources, files)
    content = zip_bytes(files)
    write_file(out, content)
    return Bundle(out, chapters, len(content), hashlib.sha256(content).hexdigest())


def write_file(path: Path, content: bytes) -> None:
    """Write a file whole or not at all. Errors: InputError with the reason if that cannot be done."""
    try:
        write_bytes(path, content)
    except OSError as error:
        reason = "a folder of its path is a file" if isinstance(error, FileExistsError) else error.strerror
        raise InputError(f"{path} cannot be written: {reason}") from error


def bundle_files(manifest: Manifest, chapters: tuple[Chapter, ...]) -> dict[str, bytes]:
    """The files of a release by name: README.md, the student notebooks, and what `course.progress()` needs.

    Errors: InputError for a notebook whose stored outputs are not those of its code, an exercise with nothing
    that stands for its solution, and as `student_copy` and `nbgrader_metadata`.
    """
    parts = tuple(
        dataclasses.replace(part, chapters=tuple(c for c in part.chapters if c in chapters), pages=())
        for part in manifest.parts
    )
    released = dataclasses.replace(manifest, parts=parts)
    files = {"README.md": handout(released).encode(), COURSE_FILE: course_outline(released).encode()}
    for chapter in chapters:
        path = manifest.root / chapter.file
        notebook = read_notebook(path)
        student = student_notebook(path)
        try:
            _check(notebook)
            add_metadata(student, notebook, chapter)
        except InputError as error:
            raise InputError(f"{path.name}: {error}") from error
        unlink(student, manifest)
        if path.name in files:
            raise InputError(f"two chapters are named {path.name}; in a zip their names have to differ")
        files[path.name] = dump_notebook(student).encode()
    return files


def zip_bytes(files: dict[str, bytes]) -> bytes:
    """A zip of `files` in the order of their names. Nothing in it depends on time, place, user or Python."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", COMPRESSION) as archive:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name, TIME)
            entry.create_system = 3  # Unix, which Windows would not say
            entry.external_attr = MODE << 16
            archive.writestr(entry, files[name], COMPRESSION)
    return buffer.getvalue()


def _check(notebook: dict) -> None:
    """Refuse what would show an answer in a way that no copy can mend."""
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    counts = [cell["execution_count"] for cell in cells if cell["outputs"]]
    if counts and (is_stale(notebook) or None in counts or counts != sorted(set(counts))):
        raise InputError(
            "its outputs are not from a run of its code from top to bottom; run `kvcourse book execute`"
        )
    for index, cell in enumerate(notebook["cells"]):
        if "exercise" in tags(cell) and not re.search(
            "### BEGIN SOLUTION|NotImplementedError", cell["source"]
        ):
            raise InputError(
                f"cell {index}: an exercise with no solution between markers and nothing that raises"
                " NotImplementedError would be released as it is"
            )
