"""Files that are no notebooks, or cannot be read: one clear line each, and what can be scored stays."""

import json
import os
import socket
import stat
from pathlib import Path

import pytest
from handed_in import FIRST, IDS, MANIFEST, SECOND, chapter, only_note, read, sources, write

from kvcourse.course.grading import members, submission
from kvcourse.course.grading.program import Unusable, program_of
from kvcourse.course.grading.submission import MAX_NOTES, read_submission
from kvcourse.course.notebook import tags

NAME = f"{FIRST}.ipynb"
GOOD = json.loads(chapter(FIRST))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a good notebook of chapter 1, to see that it is read whatever else there is."""
    return write(tmp_path / "handed_in", {f"{SECOND}.ipynb": chapter(SECOND, "y = 2")})


def note_beside(folder: Path, files: dict[str, bytes] | None = None) -> str:
    """The one note of a folder whose good notebook is read all the same."""
    found = read(write(folder, files or {}))
    assert sources(found) == {SECOND: "y = 2"}
    (note,) = found.notes
    return note


def nested(depth: int) -> bytes:
    return b'{"nbformat": 4, "cells": ' + b"[" * depth + b"]" * depth + b"}"


# ---- content ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "is empty; was the work saved?"),
        (b" \n ", "is empty; was the work saved?"),
        (b"print(1)", "is not a notebook: no JSON (line 1: Expecting value); save it in JupyterLab"),
        (b'{\n"cells": [', "is not a notebook: no JSON (line 2: "),
        (b"<!DOCTYPE html><html>", "is a web page, not a notebook; download the .ipynb file itself"),
        (b"{\n<<<<<<< HEAD\n=======\n>>>>>>> main\n}", "holds conflict markers of git (<<<<<<<)"),
        (b"[1, 2]", "is JSON, but not a notebook"),
        (b'"text"', "is JSON, but not a notebook"),
        (b"{}", "is not a notebook: it has no list of cells"),
        (b'{"nbformat": 4, "cells": {}}', "is not a notebook: it has no list of cells"),
        (b'{"nbformat": 4, "cells": []}', "has no cells; was the work saved?"),
        (b'{"nbformat": 4, "cells": [3, null]}', "has no cells; was the work saved?"),
        (b'{"nbformat": 3, "worksheets": []}', "has notebook format 3, expected 4; open it in JupyterLab"),
        (b'{"nbformat": 5, "cells": [{}]}', "has notebook format 5, expected 4"),
        (b'{"nbformat": "4\\u001b[2J", "cells": [{}]}', "has notebook format 4\\x1b[2J, expected 4"),
        (b'{"nbformat": {"a": [' + b"1," * 1000 + b'1]}, "cells": [{}]}', "has notebook format {'a': [1, 1, 1, "),
        (chapter(FIRST).replace(b"x = 1", b"x = \xff"), "is not UTF-8 text (byte 100"),
        (b"\xff\xfe" + "{}".encode("utf-16-le") + b"\x00", "is not UTF-16 text (byte "),
        (nested(100_000), "is no notebook that Jupyter wrote (RecursionError in its JSON)"),
        (b'{"nbformat": ' + b"9" * 5000 + b"}", "is no notebook that Jupyter wrote (ValueError in its JSON)"),
        (b"\x00" * 100, "is "),
        (bytes(range(256)), "is "),
    ],
    ids=range(22),
)  # fmt: skip
def test_what_is_no_notebook(folder, data, reason):
    assert note_beside(folder, {NAME: data}).startswith(f"{NAME} {reason}")


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-32"])
def test_other_encodings_are_read_where_that_is_safe(tmp_path, encoding):
    text = chapter(FIRST, "x = 'é'").decode().encode(encoding)
    found = read(write(tmp_path, {NAME: text}))
    assert sources(found) == {FIRST: "x = 'é'"}
    assert len(found.notes) == (encoding != "utf-8-sig")
    assert all("expected UTF-8; read all the same" in note for note in found.notes)


def test_a_newer_format_is_read(tmp_path):
    found = read(write(tmp_path, {NAME: json.dumps({**GOOD, "nbformat_minor": 9}).encode()}))
    assert list(found.notebooks) == [FIRST]
    assert found.notes == (f"{NAME} has notebook format 4.9, read as 4.5",)


@pytest.mark.parametrize(
    "change",
    [
        {"metadata": None}, {"metadata": []}, {"metadata": {"kvcourse": [1]}},
        {"metadata": {"kvcourse": {"chapter": []}}},
        {"nbformat_minor": 2}, {"cells": [None, "x", *GOOD["cells"]]}, {"cells": [{}, *GOOD["cells"]]},
        {"cells": [{"metadata": {"kvcourse": {"id": [1]}}}, *GOOD["cells"]]},
        {"cells": [{"cell_type": 4, "source": {}, "metadata": "x", "outputs": 3}, *GOOD["cells"]]},
        {"cells": [{"cell_type": "code", "source": ["x", 3, None], "metadata": None}, *GOOD["cells"]]},
        {"cells": [{**cell, "id": "same"} for cell in GOOD["cells"]]},
        {"cells": [{**cell, "metadata": {"tags": "exercise", "kvcourse": {"id": cell["metadata"]["kvcourse"]["id"]}}}
                   for cell in GOOD["cells"]]},
        {"cells": [{**cell, "metadata": {**cell["metadata"], "tags": [[], {}, 3, "a"]}} for cell in GOOD["cells"]]},
    ],
)  # fmt: skip
def test_parts_of_any_type(tmp_path, change):
    found = read(write(tmp_path, {NAME: json.dumps({**GOOD, **change}).encode()}))
    assert found.notes == ()
    for cell in found.notebooks[FIRST]["cells"]:
        assert isinstance(cell["source"], str)
        assert all(isinstance(tag, str) for tag in tags(cell))


def test_cells_keep_their_places_and_lose_their_outputs(tmp_path):
    outputs = [{"output_type": "stream", "text": "secret"}]
    cells = [
        None,
        {"cell_type": "markdown", "source": ["# A\n", "b"]},
        *({**c, "outputs": outputs} for c in GOOD["cells"]),
    ]
    book = read(write(tmp_path, {NAME: json.dumps({**GOOD, "cells": cells}).encode()})).notebooks[FIRST]
    assert [cell["cell_type"] for cell in book["cells"]] == ["raw", "markdown", *["code"] * len(IDS[FIRST])]
    assert book["cells"][1]["source"] == "# A\nb"
    assert "secret" not in json.dumps(book)
    with pytest.raises(Unusable, match="cell 2 defines nothing"):
        program_of(book, IDS[FIRST][0], ("share_saved",))


def test_text_of_a_learner_cannot_steer_a_terminal(tmp_path):
    name = "a\n\x1b[2J\u202e" + "x" * 150 + ".ipynb"
    note = only_note(write(tmp_path, {name: b""}))
    assert note.startswith("a \\x1b[2J\\u202ex")
    assert note.endswith("… is empty; was the work saved?")


def test_a_file_that_is_neither_notebook_nor_zip(tmp_path):
    write(tmp_path, {"x.py": b"print(1)", "book.json": chapter(FIRST)})
    assert only_note(tmp_path / "x.py") == "x.py is neither a notebook nor a zip; hand in .ipynb or .zip"
    assert list(read(tmp_path / "book.json").notebooks) == [FIRST]


def test_many_notes_are_cut(tmp_path):
    found = read(write(tmp_path, {f"{i:03}.ipynb": b"" for i in range(MAX_NOTES + 5)}))
    assert len(found.notes) == MAX_NOTES
    assert found.notes[-1] == "and 6 more of such notes"


# ---- size ------------------------------------------------------------------------------------------


def sparse(path: Path, size: int) -> None:
    with path.open("wb") as file:
        file.truncate(size)


def test_200_mb_are_not_read(folder, monkeypatch):
    sparse(folder / NAME, 200_000_000)
    opened = []
    real = members.os.fdopen
    monkeypatch.setattr(members.os, "fdopen", lambda *args: opened.append(Watched(real(*args))) or opened[-1])
    assert note_beside(folder) == f"{NAME} has 191 MiB, at most 32 are read; clear its outputs and save it"
    assert sum(file.bytes for file in opened) < 100_000


class Watched:
    """An open file that counts what is read."""

    def __init__(self, file):
        self.file, self.bytes = file, 0

    def __getattr__(self, name):
        return getattr(self.file, name)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()

    def read(self, size):
        self.bytes += size
        return self.file.read(size)


def test_many_notebooks_together_are_limited(tmp_path, monkeypatch):
    size = len(chapter(FIRST))
    monkeypatch.setattr(submission, "Budget", lambda: members.Budget(size=2 * size, notebooks=9, files=99))
    found = read(write(tmp_path, {f"{i}/{NAME}": chapter(FIRST) for i in range(4)}))
    assert list(found.notebooks) == [FIRST]
    assert sum("was not read: a submission may have" in note for note in found.notes) == 2


def test_a_hundred_notebooks_are_read_and_no_more(tmp_path):
    found = read(write(tmp_path, {f"{i:03}.ipynb": b"{}" for i in range(members.MAX_NOTEBOOKS + 1)}))
    assert "more of such notes" in found.notes[-1]
    files = {f"{i:03}/{NAME}": chapter(FIRST) for i in range(members.MAX_NOTEBOOKS + 1)}
    found = read(write(tmp_path / "second", files))
    assert f"100/{NAME} was not read: a submission may have 100 notebooks and 200 MiB" in found.notes


def test_very_many_files(folder, monkeypatch):
    monkeypatch.setattr(submission, "Budget", lambda: members.Budget(notebooks=9, files=50))
    write(folder, {f"data/{i}.csv": b"" for i in range(60)})
    found = read(folder)
    assert found.notes == ("handed_in has more than 20,000 files; hand in the notebooks only",)


# ---- what lies in a folder -------------------------------------------------------------------------


def test_notebooks_are_found_in_folders(tmp_path):
    found = read(
        write(tmp_path, {f"a/b/c/{NAME}": chapter(FIRST), f"a/d.ipynb/{SECOND}.ipynb": chapter(SECOND)})
    )
    assert list(found.notebooks) == [FIRST, SECOND]
    assert found.notes == ()


def test_folders_without_end(folder):
    write(folder, {"/".join(["d"] * 40) + f"/{NAME}": chapter(FIRST)})
    assert note_beside(folder) == "/".join(["d"] * 17) + " lies more than 16 folders deep: not read"


def test_links_are_not_followed(folder):
    outside = write(folder.parent / "outside", {NAME: chapter(FIRST, "stolen = 1")})
    (folder / NAME).symlink_to(outside / NAME)
    assert note_beside(folder) == f"{NAME} is a symbolic link, not a file: not read"
    (folder / NAME).unlink()
    (folder / "linked").symlink_to(outside)
    assert note_beside(folder) == "linked is a symbolic link: not followed"
    (folder / "linked").unlink()
    (folder / "around").symlink_to(folder)
    assert note_beside(folder) == "around is a symbolic link: not followed"


def test_pipes_and_sockets_are_never_opened(folder, monkeypatch):
    os.mkfifo(folder / "pipe.ipynb")
    monkeypatch.chdir(folder)  # the path of a socket must be short
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket.zip")
        found = read(folder)
    assert sources(found) == {SECOND: "y = 2"}
    assert found.notes == (
        "pipe.ipynb is a pipe, not a file: not read",
        "socket.zip is a socket, not a file: not read",
    )
    assert only_note(folder / "pipe.ipynb").startswith("pipe.ipynb is a pipe: not read")
    assert only_note(Path("/dev/zero")).startswith("zero is a device: not read")


def test_a_file_that_is_exchanged_for_a_pipe_does_not_hang(folder, monkeypatch):
    os.mkfifo(folder / NAME)
    monkeypatch.setattr(members, "kind_of", lambda path: None)
    assert note_beside(folder) == f"{NAME} is not a file: not read"


def test_files_and_folders_that_may_not_be_read(folder, monkeypatch):
    write(folder, {NAME: chapter(FIRST), "closed/x.ipynb": b"", f"open/{SECOND}.ipynb": b""})
    real_open, real_scan = os.open, os.scandir

    def refuse(real, part):
        def call(path, *args):
            if part in str(path):
                raise PermissionError(13, "Permission denied")
            return real(path, *args)

        return call

    monkeypatch.setattr(members.os, "open", refuse(real_open, FIRST))
    monkeypatch.setattr(members.os, "scandir", refuse(real_scan, "closed"))
    found = read(folder)
    assert sources(found) == {SECOND: "y = 2"}
    assert found.notes == (
        f"{NAME} cannot be read (Permission denied)",
        "closed cannot be read (Permission denied)",
        f"open/{SECOND}.ipynb is empty; was the work saved?",
    )


def test_what_is_gone_when_it_is_read(tmp_path):
    assert only_note(tmp_path / "x.ipynb") == "x.ipynb cannot be read (No such file or directory)"


def test_names_that_are_no_text(folder):
    (folder / os.fsdecode(b"\xff\xfe.ipynb")).write_bytes(chapter(FIRST))
    found = read(folder)
    assert list(found.notebooks) == [FIRST, SECOND]
    assert found.notes == ()


def test_a_name_may_be_given(folder):
    assert read_submission(folder, MANIFEST).name == "handed_in"
    assert read_submission(folder, MANIFEST, "Ann").name == "Ann"


def test_nothing_is_written(folder):
    write(folder, {NAME: b"{"})
    before = {
        path: (path.stat().st_mtime_ns, stat.S_IMODE(path.stat().st_mode)) for path in folder.rglob("*")
    }
    read(folder)
    assert {p: (p.stat().st_mtime_ns, stat.S_IMODE(p.stat().st_mode)) for p in folder.rglob("*")} == before
