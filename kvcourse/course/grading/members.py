"""The notebook files of a submission, read without trust: nothing is followed, nothing is read past a limit."""

import os
import stat
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

MIB = 2**20
MAX_NOTEBOOK = 32 * MIB
MAX_SUBMISSION = 200 * MIB  # of all notebooks together, and of a zip
MAX_FILES = 20_000
MAX_NOTEBOOKS = 100
MAX_DEPTH = 16  # of folders in folders

IGNORED = frozenset({"__macosx", "__pycache__", "desktop.ini", "thumbs.db"})  # and all that begins with a dot
# Some browsers add the last part to the name of a file that they take for text.
NOTEBOOK_SUFFIXES = (".ipynb", ".ipynb.json", ".ipynb.txt")
_KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class Refused(Exception):  # noqa: N818 - it says what happened to the file
    """A file that was not read, with the reason."""


@dataclass(frozen=True)
class Member:
    """A notebook file: its name in the submission, with forward slashes, and its bytes, or why it has none."""

    name: str
    data: bytes = b""
    problem: str | None = None


@dataclass
class Budget:
    """What a submission may still have read; a folder and the zips in it share one."""

    size: int = MAX_SUBMISSION
    notebooks: int = MAX_NOTEBOOKS
    files: int = MAX_FILES

    def spend(self, size: int) -> None:
        """Account for one notebook of `size` bytes before it is read. Errors: Refused."""
        if size > MAX_NOTEBOOK:
            limit = MAX_NOTEBOOK // MIB
            raise Refused(
                f"has {size / MIB:,.0f} MiB, at most {limit} are read; clear its outputs and save it"
            )
        if self.notebooks == 0 or size > self.size:
            raise Refused(
                f"was not read: a submission may have {MAX_NOTEBOOKS} notebooks and {MAX_SUBMISSION // MIB} MiB"
            )
        self.notebooks -= 1
        self.size -= size

    def count(self) -> None:
        """Account for one file or folder of any kind. Errors: Refused."""
        self.files -= 1
        if self.files < 0:
            raise Refused(f"has more than {MAX_FILES:,} files; hand in the notebooks only")


def kind_of(path: Path) -> str | None:
    """None for a regular file, else what the path is, without following a link. Errors: Refused."""
    try:
        mode = path.lstat().st_mode
    except OSError as error:
        raise Refused(f"cannot be read ({error.strerror})") from error
    return None if stat.S_ISREG(mode) else _KINDS.get(stat.S_IFMT(mode), "no file")


def open_file(path: Path) -> BinaryIO:
    """A regular file, opened. Errors: Refused for all else; a pipe or a device is never opened."""
    if kind := kind_of(path):
        raise Refused(f"is {kind}, not a file: not read")
    flags = os.O_RDONLY | sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"))
    try:
        file = os.fdopen(os.open(path, flags), "rb")
    except OSError as error:
        raise Refused(f"cannot be read ({error.strerror})") from error
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):  # it may have been exchanged in the meantime
        return file
    file.close()
    raise Refused("is not a file: not read")


def read_member(path: Path, name: str, budget: Budget) -> Member:
    """A notebook file of a folder, or a member with a problem."""
    try:
        with open_file(path) as file:
            size = os.fstat(file.fileno()).st_size
            budget.spend(size)
            return Member(name, file.read(size))
    except Refused as refusal:
        return Member(name, problem=str(refusal))
    except OSError as error:
        return Member(name, problem=f"cannot be read ({error.strerror})")


def walk(root: Path, budget: Budget) -> Iterator[tuple[str, Path, str | None]]:
    """(name, path, problem) of each file, link or whatever else is below a folder, sorted; hidden ones are left out.

    A folder that cannot be read, or lies too deep, comes with its problem. Errors: Refused if there are too many.
    """
    todo = [(root, "", 0)]
    while todo:
        folder, prefix, depth = todo.pop()
        try:
            with os.scandir(folder) as entries:
                found = sorted(_counted(entries, budget), key=lambda entry: entry.name)
        except OSError as error:
            yield prefix[:-1], folder, f"cannot be read ({error.strerror})"
            continue
        folders = []
        for entry in found:
            name = prefix + entry.name
            if not entry.is_dir(follow_symlinks=False):
                yield name, Path(entry.path), None
            elif depth < MAX_DEPTH:
                folders.append((Path(entry.path), f"{name}/", depth + 1))
            else:
                yield name, Path(entry.path), f"lies more than {MAX_DEPTH} folders deep: not read"
        todo += reversed(folders)


def _counted(entries: Iterator[os.DirEntry], budget: Budget) -> Iterator[os.DirEntry]:
    for entry in entries:
        budget.count()
        if not is_ignored(entry.name):
            yield entry


def is_ignored(name: str) -> bool:
    """True for what systems and editors leave behind: hidden files, `__MACOSX`, caches."""
    return name.startswith(".") or name.lower() in IGNORED


def is_notebook(name: str) -> bool:
    """True for the name of a notebook file, in any case of letters."""
    return name.lower().endswith(NOTEBOOK_SUFFIXES)


def is_zip(name: str) -> bool:
    """True for the name of a zip file, in any case of letters."""
    return name.lower().endswith(".zip")


def same_spelling(name: str) -> str:
    """The name as all systems spell it: macOS keeps é as two code points."""
    return unicodedata.normalize("NFC", name)
