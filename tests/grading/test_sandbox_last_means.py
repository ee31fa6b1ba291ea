"""What is left to a hostile program where only Python's audit hook holds it: no easy way out."""

import contextlib
import os
from pathlib import Path

import pytest
from sandboxed import outcome

from kvcourse.course.grading.sandbox import Sandbox, StudentError


@pytest.fixture(scope="module", params=[("namespaces", "landlock"), ("namespaces", "landlock", "seccomp")])
def weak(request):
    """Sandboxes in which the hook closes the files."""
    with Sandbox(without=request.param) as box:
        yield box


@pytest.fixture
def open_folder(tmp_path):
    """A folder that anybody may read and change, with a file."""
    for folder in (tmp_path, *tmp_path.parents[:-2]):
        with contextlib.suppress(PermissionError):
            folder.chmod(folder.stat().st_mode | 0o011)
    tmp_path.chmod(0o777)
    (tmp_path / "secret").write_text("of others\n")
    return tmp_path


RUN = """
import os, sys
def attempt(folder):
    for name in ("subprocess", "_posixsubprocess"): sys.modules.pop(name, None)
    import _posixsubprocess
    read, write = os.pipe()
    errors = os.pipe()
    command = [b"/bin/cat", folder.encode() + b"/secret"]
    _posixsubprocess.fork_exec(command, command[:1], True, (errors[1],), None, None, -1, -1, -1, write, -1, -1,
                               *errors, True, False, -1, None, None, None, -1, None, True)
    os.close(write)
    return os.read(read, 100)
"""
WAYS = {
    "a program, by a module that is loaded anew": RUN,
    "a database": "import sqlite3\ndef attempt(folder):\n"
    "    with sqlite3.connect(folder + '/note') as base: base.execute('create table t(x)')",
    "lines of a terminal": "def attempt(folder):\n    import readline\n"
    "    readline.read_history_file(folder + '/secret')\n    return readline.get_history_item(1)",
    "another language": "def attempt(folder):\n    import tkinter\n    return tkinter.Tcl().eval('exec id')",
    "another database": "def attempt(folder):\n    import _gdbm\n    _gdbm.open(folder + '/note', 'n')",
}


@pytest.mark.parametrize("source", WAYS.values(), ids=WAYS)
def test_files_and_programs_stay_closed(weak, open_folder, source):
    got = outcome(weak, source, str(open_folder))
    assert isinstance(got, StudentError), got
    assert os.listdir(open_folder) == ["secret"]


def test_no_memory_outlives_a_session(weak):
    name = f"kvcourse-note-{os.getpid()}"
    source = """
import os
def attempt(name):
    import _posixshmem
    os.write(_posixshmem.shm_open(name, os.O_CREAT | os.O_RDWR, mode=0o666), b"x")
"""
    shared = Path("/dev/shm") / name
    try:
        assert isinstance(outcome(weak, source, f"/{name}"), StudentError)
        assert not shared.exists()
    finally:
        shared.unlink(missing_ok=True)
