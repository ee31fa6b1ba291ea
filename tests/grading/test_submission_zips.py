"""Zips: the same as the folder, read in memory, and no trick of the format does any harm."""

import io
import os
import random
import stat
import struct
import unicodedata
import zipfile
from pathlib import Path

import pytest
from handed_in import FIRST, SECOND, chapter, only_note, read, sources, write, zipped

from kvcourse.course.grading import archive, members, submission

NAME, OTHER = f"{FIRST}.ipynb", f"{SECOND}.ipynb"
GOOD = {OTHER: chapter(SECOND, "y = 2")}


def info(name: str, mode: int = 0, flags: int = 0) -> zipfile.ZipInfo:
    found = zipfile.ZipInfo("x")
    found.filename, found.external_attr, found.flag_bits = name, mode << 16, flags
    found.compress_type = zipfile.ZIP_DEFLATED
    return found


def note_beside(path: Path) -> str:
    """The one note of a zip whose good notebook is read all the same."""
    found = read(path)
    assert sources(found) == {SECOND: "y = 2"}
    (note,) = found.notes
    return note


# ---- the same as the folder ------------------------------------------------------------------------


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("top", ["", "alice/", "a/b/c/"])
def test_a_zip_is_its_folder(tmp_path, top, method):
    files = {NAME: chapter(FIRST), f"später/{OTHER}": chapter(SECOND), "plot.png": b"png"}
    folder = read(write(tmp_path / "alice", files))
    extra = {"__MACOSX/._x.ipynb": b"junk", "alice/.ipynb_checkpoints/x.ipynb": b"junk", ".DS_Store": b"junk"}
    content = {**{top + name: data for name, data in reversed(files.items())}, **extra}
    packed = read(zipped(tmp_path / "alice.zip", content, method))
    assert folder.name == packed.name == "alice"
    assert packed.notebooks == folder.notebooks
    assert packed.digest == folder.digest
    assert packed.notes == folder.notes == ()


def test_a_folder_that_holds_the_zip_is_the_same(tmp_path):
    packed = read(zipped(tmp_path / "alice/work.zip", {f"work/{NAME}": chapter(FIRST)}))
    assert (
        read(tmp_path / "alice").digest
        == packed.digest
        == read(write(tmp_path / "b", {NAME: chapter(FIRST)})).digest
    )


def test_a_zip_is_known_by_its_content(tmp_path):
    assert list(read(zipped(tmp_path / "work", {NAME: chapter(FIRST)})).notebooks) == [FIRST]


@pytest.mark.parametrize("order", ["NFC", "NFD"])
def test_names_of_other_systems(tmp_path, order):
    digest = read(
        write(tmp_path / "plain", {f"é.{i}/x.ipynb": chapter(s) for i, s in enumerate((FIRST, SECOND))})
    ).digest
    names = [unicodedata.normalize(order, f"é.{i}") + "\\x.ipynb" for i in range(2)]
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as file:
        for name, stem in zip(names, (FIRST, SECOND), strict=True):
            file.writestr(info(name), chapter(stem))
    raw = data.getvalue().replace(b"\x00\x08\x08\x00", b"\x00\x00\x08\x00")  # without the flag for UTF-8
    (tmp_path / "x.zip").write_bytes(raw)
    found = read(tmp_path / "x.zip")
    assert list(found.notebooks) == [FIRST, SECOND]
    assert found.digest == digest


# ---- paths -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        f"/{NAME}", f"/etc/{NAME}", f"../{NAME}", f"a/../../{NAME}", f"..\\{NAME}", f"C:\\{NAME}", f"c:/{NAME}",
        f"\\\\server\\share\\{NAME}", f"a/..\\..\\{NAME}", "a/..",
    ],
)  # fmt: skip
def test_paths_that_lead_out(tmp_path, name):
    name = f"{name}/{NAME}" if name.endswith("..") else name
    path = zipped(tmp_path / "in/x.zip", [*GOOD.items(), (info(name), chapter(FIRST))])
    before = sorted(tmp_path.rglob("*"))
    assert note_beside(path).endswith(" has a path that leads out of the zip: not read")
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(("kind", "word"), [(stat.S_IFLNK, "a symbolic link"), (stat.S_IFIFO, "not a file")])
def test_links_and_pipes(tmp_path, kind, word):
    path = zipped(tmp_path / "x.zip", [*GOOD.items(), (info(NAME, kind | 0o777), b"/etc/passwd")])
    assert note_beside(path) == f"{NAME} is {word} in the zip: not read"


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_name_that_comes_twice(tmp_path):
    entries = [*GOOD.items(), (NAME, chapter(FIRST, "old")), (NAME, chapter(FIRST, "new"))]
    found = read(zipped(tmp_path / "x.zip", entries))
    assert sources(found) == {FIRST: "new", SECOND: "y = 2"}
    assert found.notes == (f"{NAME} is in the zip twice; the last one was read",)


def test_names_that_differ_in_case_only(tmp_path):
    entries = {NAME.upper(): chapter(FIRST, "upper"), NAME: chapter(FIRST, "lower")}
    found = read(zipped(tmp_path / "x.zip", entries))
    assert sources(found) == {FIRST: "lower"}
    assert found.notes[0].startswith(f"2 notebooks of chapter {FIRST}")


@pytest.mark.parametrize("name", ["x\n\x1b[2J.ipynb", "\u202e.ipynb", "x" * 60_000 + ".ipynb"])
def test_names_without_reason(tmp_path, name):
    note = note_beside(zipped(tmp_path / "x.zip", [*GOOD.items(), (info(name), b"")]))
    assert note.endswith("is empty; was the work saved?")


def test_names_that_are_not_utf8(tmp_path):
    path = zipped(tmp_path / "x.zip", {**GOOD, "é.ipynb": b""})
    path.write_bytes(path.read_bytes().replace("é".encode(), b"\xff\xff"))
    assert only_note(path) == "x.zip is a zip with names that are not UTF-8; pack it again"


# ---- content ---------------------------------------------------------------------------------------


def test_an_encrypted_member(tmp_path):
    path = zipped(tmp_path / "x.zip", {**GOOD, NAME: chapter(FIRST)})
    data = bytearray(path.read_bytes())
    for magic, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.rindex(magic) + offset] |= 1
    path.write_bytes(data)
    assert note_beside(path) == f"{NAME} is encrypted; pack it without a password"


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_packed_in_an_unusual_way(tmp_path, method):
    path = zipped(tmp_path / "x.zip", GOOD)
    with zipfile.ZipFile(path, "a", method) as file:
        file.writestr(NAME, chapter(FIRST))
    assert note_beside(path) == f"{NAME} is packed in an unusual way; pack it as an ordinary zip"


def test_a_damaged_member(tmp_path):
    path = zipped(tmp_path / "x.zip", {NAME: chapter(FIRST), **GOOD})
    data = bytearray(path.read_bytes())
    start = data.index(NAME.encode()) + len(NAME)
    data[start : start + 20] = b"\xff" * 20
    path.write_bytes(data)
    assert note_beside(path) == f"{NAME} is damaged (error); pack it again"
    data[data.rindex(b"PK\x01\x02") + 16] ^= 0xFF  # the checksum of the second
    path.write_bytes(data)
    assert read(path).notes[1] == f"{OTHER} is damaged (BadZipFile); pack it again"


@pytest.mark.parametrize("keep", [0.02, 0.5, 0.99])
def test_a_truncated_zip(tmp_path, keep):
    path = zipped(tmp_path / "x.zip", {NAME: random.Random(0).randbytes(5000), **GOOD})
    data = path.read_bytes()
    path.write_bytes(data[: int(keep * len(data))])
    assert only_note(path) == "x.zip is not a whole zip file (BadZipFile); pack it again"


@pytest.mark.parametrize("data", [b"", b"PK", b"PK\x03\x04", b"Rar!\x1a\x07", b"7z\xbc\xaf", chapter(FIRST)])
def test_what_is_no_zip(tmp_path, data):
    path = write(tmp_path, {"x.zip": data}) / "x.zip"
    assert only_note(path) == "x.zip is not a whole zip file (BadZipFile); pack it again"


def test_an_empty_zip_and_one_without_notebooks(tmp_path):
    for files in ({}, {"readme.txt": b"x", "folder.ipynb/": b""}):
        assert (
            only_note(zipped(tmp_path / "x.zip", files))
            == "x.zip holds no notebook; hand in the .ipynb files"
        )


def test_a_zip_in_a_zip_is_not_opened(tmp_path):
    inner = zipped(tmp_path / "inner.zip", {NAME: chapter(FIRST)}).read_bytes()
    note = note_beside(zipped(tmp_path / "x.zip", {**GOOD, "inner.zip": inner}))
    assert note == "inner.zip is a zip in a zip: not opened; pack the notebooks themselves"


# ---- size ------------------------------------------------------------------------------------------


class Counted:
    """What archive.py reads of the members of zips."""

    def __init__(self, monkeypatch):
        self.bytes = 0
        real = zipfile.ZipExtFile.read

        def read(member, size=-1):
            data = real(member, size)
            self.bytes += len(data)
            return data

        monkeypatch.setattr(zipfile.ZipExtFile, "read", read)


def test_a_bomb_is_stopped(tmp_path, monkeypatch):
    bomb = b" " * (members.MAX_NOTEBOOK - 1)
    path = zipped(tmp_path / "x.zip", {**GOOD, NAME: bomb})
    counted = Counted(monkeypatch)
    assert note_beside(path) == f"{NAME} unpacks to far more than a notebook does: not read"
    assert counted.bytes <= archive.HARMLESS + 2 * members.MIB


def test_a_bomb_of_many_members_is_stopped(tmp_path, monkeypatch):
    filler = random.Random(0).randbytes(members.MIB)  # does not pack, so that no ratio stops it
    notebook = chapter(FIRST) + filler
    path = zipped(tmp_path / "x.zip", {f"{i:03}.ipynb": notebook for i in range(9)}, zipfile.ZIP_STORED)
    limit = 3 * len(notebook)
    monkeypatch.setattr(submission, "Budget", lambda: members.Budget(size=limit, notebooks=99, files=99))
    counted = Counted(monkeypatch)
    found = read(path)
    assert sum("was not read: a submission may have" in note for note in found.notes) == 6
    assert counted.bytes <= limit


def test_a_size_that_is_not_the_true_one(tmp_path, monkeypatch):
    path = zipped(tmp_path / "x.zip", {**GOOD, NAME: b" " * (20 * members.MIB)})
    data = bytearray(path.read_bytes())
    for magic, offset in ((b"PK\x03\x04", 22), (b"PK\x01\x02", 24)):
        at = data.rindex(magic) + offset
        data[at : at + 4] = (100).to_bytes(4, "little")
    path.write_bytes(data)
    counted = Counted(monkeypatch)
    assert note_beside(path) == f"{NAME} is damaged (BadZipFile); pack it again"
    assert counted.bytes < 10_000


def test_a_size_over_the_limit_is_not_unpacked(tmp_path, monkeypatch):
    path = zipped(tmp_path / "x.zip", {**GOOD, NAME: b" " * (members.MAX_NOTEBOOK + 1)})
    counted = Counted(monkeypatch)
    assert note_beside(path).startswith(f"{NAME} has 32 MiB, at most 32 are read")
    assert counted.bytes < 10_000


def test_a_zip_over_the_limit_is_not_read(tmp_path):
    with (tmp_path / "x.zip").open("wb") as file:
        file.write(b"PK\x03\x04")
        file.truncate(members.MAX_SUBMISSION + 2**20)
    assert only_note(tmp_path / "x.zip") == "x.zip is a zip of 201 MiB, at most 200 are read"


def test_a_table_of_contents_over_the_limit_is_not_read(tmp_path, monkeypatch):
    path = zipped(tmp_path / "x.zip", {**GOOD, **{f"{i:0200}.csv": b"" for i in range(20)}})
    monkeypatch.setattr(archive, "MAX_DIRECTORY", 4000)
    assert only_note(path) == "x.zip has too many files; hand in the notebooks only"


def test_100_000_members(tmp_path):
    path = zipped(tmp_path / "x.zip", {"x.ipynb": b""})
    data = path.read_bytes()
    start, end = data.index(b"PK\x01\x02"), data.index(b"PK\x05\x06")
    table = data[start:end] * 100_000
    path.write_bytes(data[:start] + table + data[end : end + 12] + struct.pack("<LLH", len(table), start, 0))
    assert only_note(path) == "x.zip has more than 20,000 files; hand in the notebooks only"


def test_members_that_overlap(tmp_path):
    path = zipped(tmp_path / "x.zip", {NAME: chapter(FIRST), f"a/{NAME}": chapter(FIRST)})
    data = bytearray(path.read_bytes())
    second = data.rindex(b"PK\x01\x02")
    data[second + 42 : second + 46] = (0).to_bytes(4, "little")  # both begin at the first
    path.write_bytes(data)
    found = read(path)
    assert len(found.notes) >= 1


def test_a_link_to_a_zip_in_a_folder(tmp_path):
    outside = zipped(tmp_path / "outside.zip", {NAME: chapter(FIRST)})
    folder = write(tmp_path / "in", GOOD)
    os.symlink(outside, folder / "work.zip")
    assert note_beside(folder) == "work.zip is a symbolic link, not a file: not read"


@pytest.mark.parametrize("name", ["work.zip", NAME])
def test_a_disk_that_fails(tmp_path, monkeypatch, name):
    class Broken(io.BytesIO):
        def read(self, size=-1):
            raise OSError(5, "Input/output error")

    path = write(tmp_path, {name: b"PK"}) / name
    monkeypatch.setattr(submission, "open_file", lambda path: Broken())
    assert only_note(path) == f"{name} cannot be read (Input/output error)"
