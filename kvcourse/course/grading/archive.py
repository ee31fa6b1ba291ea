"""The notebooks of a zip, read in memory under limits. Nothing is ever extracted to disk."""

import io
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator
from typing import BinaryIO

from kvcourse.course.grading.members import (
    MAX_SUBMISSION,
    MIB,
    Budget,
    Member,
    Refused,
    is_ignored,
    is_notebook,
    is_zip,
)

MAGIC = (b"PK\x03\x04", b"PK\x05\x06")  # of a zip with members, and of an empty one
MAX_DIRECTORY = 16 * MIB  # zipfile reads the table of contents at once
MAX_RATIO = 200  # a notebook packs 5 to 50 times; a zip bomb a thousand times
HARMLESS = 8 * MIB  # whatever the ratio: a cell that printed one line for a minute packs well too
_CHUNK = MIB
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # the others unpack without a limit on the step
_DAMAGED = (  # what zipfile raises for files that are not as they should be
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    OSError,
    ValueError,
    OverflowError,
    MemoryError,
    RuntimeError,  # NotImplementedError is one: a version or a flag that zipfile does not know
    LookupError,
)
_UTF8_FLAG, _ENCRYPTED_FLAG = 0x800, 0x1


def members_of(file: BinaryIO, budget: Budget) -> Iterator[Member]:
    """The notebooks of an open zip, sorted by name; of two with one name the last. Errors: Refused."""
    try:
        with zipfile.ZipFile(_Bounded(file)) as archive:
            yield from _members(archive, budget)
    except Refused:
        raise
    except UnicodeDecodeError as error:
        raise Refused("is a zip with names that are not UTF-8; pack it again") from error
    except _DAMAGED as error:
        raise Refused(f"is not a whole zip file ({type(error).__name__}); pack it again") from error


class _Bounded:
    """A file that refuses a single large read: the size of a table of contents is whatever the file says."""

    def __init__(self, file: BinaryIO):
        self._file = file
        self.seek, self.tell, self.seekable = file.seek, file.tell, file.seekable
        self.size = file.seek(0, io.SEEK_END)
        if self.size > MAX_SUBMISSION:
            limit = MAX_SUBMISSION // MIB
            raise Refused(f"is a zip of {self.size / MIB:,.0f} MiB, at most {limit} are read")

    def read(self, size: int = -1) -> bytes:
        if size > MAX_DIRECTORY or (size < 0 and self.size - self.tell() > MAX_DIRECTORY):
            raise Refused("has too many files; hand in the notebooks only")
        return self._file.read(size)


def _members(archive: zipfile.ZipFile, budget: Budget) -> Iterator[Member]:
    found: dict[str, zipfile.ZipInfo] = {}
    twice: set[str] = set()
    for info in archive.infolist():
        budget.count()
        name = _name(info)
        if info.is_dir() or any(is_ignored(part) for part in name.split("/") if part not in ("", "..")):
            continue
        if is_notebook(name) or is_zip(name):
            twice |= {name} & set(found)
            found[name] = info
    for name in sorted(found):
        if is_zip(name):
            yield Member(name, problem="is a zip in a zip: not opened; pack the notebooks themselves")
            continue
        try:
            yield Member(name, _read(archive, found[name], name, budget))
        except Refused as refusal:
            yield Member(name, problem=str(refusal))
        if name in twice:
            yield Member(name, problem="is in the zip twice; the last one was read")


def _name(info: zipfile.ZipInfo) -> str:
    """The member's name with forward slashes. Some programs write UTF-8 and do not say so."""
    name = info.filename
    if not info.flag_bits & _UTF8_FLAG:
        try:
            name = name.encode("cp437").decode("utf-8")
        except UnicodeError:
            name = info.filename
    return name.replace("\\", "/")


def _read(archive: zipfile.ZipFile, info: zipfile.ZipInfo, name: str, budget: Budget) -> bytes:
    """The bytes of one member, counted while they are unpacked: its header may lie. Errors: Refused."""
    if name.startswith("/") or ".." in name.split("/") or ":" in name.split("/")[0]:
        raise Refused("has a path that leads out of the zip: not read")
    mode = info.external_attr >> 16
    if stat.S_IFMT(mode) not in (0, stat.S_IFREG):
        raise Refused(f"is {'a symbolic link' if stat.S_ISLNK(mode) else 'not a file'} in the zip: not read")
    if info.flag_bits & _ENCRYPTED_FLAG:
        raise Refused("is encrypted; pack it without a password")
    if info.compress_type not in _METHODS:
        raise Refused("is packed in an unusual way; pack it as an ordinary zip")
    budget.spend(info.file_size)
    chunks, size = [], 0
    try:
        with archive.open(info) as member:
            while chunk := member.read(_CHUNK):
                size += len(chunk)
                if size > min(info.file_size, max(HARMLESS, MAX_RATIO * info.compress_size)):
                    raise Refused("unpacks to far more than a notebook does: not read")
                chunks.append(chunk)
    except Refused:
        raise
    except _DAMAGED as error:
        raise Refused(f"is damaged ({type(error).__name__}); pack it again") from error
    return b"".join(chunks)
