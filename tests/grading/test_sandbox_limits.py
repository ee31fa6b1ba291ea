"""Limits: whatever a program uses too much of costs its own session, with the reason, and nothing else."""

import os
import time
from contextlib import suppress
from dataclasses import replace

import psutil
import pytest
import torch
from sandboxed import SMALL, outcome, program, works

from kvcourse.course.grading.sandbox import Limits, SandboxError, Stopped, StudentError

CASES = {
    "spins": ("def attempt():\n  while True: pass", "used more than 1 s of CPU time"),
    "spins and does not listen": (
        "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\ndef attempt():\n  while True: pass",
        "used more than 1 s of CPU time",
    ),
    "spins while it is defined": ("while True: pass", "used more than 1 s of CPU time"),
    "a list without end": (
        "def attempt():\n  x = []\n  while True: x.append('x' * 2**20)",
        "needed more than 256.0 MiB of memory",
    ),
    "one large tensor": (
        "import torch\ndef attempt(): return torch.ones(2**30)",
        "needed more than 256.0 MiB of memory",
    ),
    "output without end": ("def attempt():\n  while True: print('x' * 1000)", "printed more than 128.0 KiB"),
    "output while it is defined": ("while True: print('x' * 1000)", "printed more than 128.0 KiB"),
    "errors without end": (
        "import sys\ndef attempt():\n  while True: sys.stderr.write('x' * 1000)",
        "printed more than 128.0 KiB",
    ),
    "a large reply": ("import torch\ndef attempt(): return torch.ones(2**20)", "sent back more than 1.0 MiB"),
    "a view of one number": (
        "import torch\ndef attempt(): return torch.ones(1).expand(10**12)",
        "sent back more than 1.0 MiB",
    ),
    "a long text": ("def attempt(): return 'x' * 2**21", "sent back more than 1.0 MiB"),
    "a list of many": ("def attempt(): return [0] * 10**6", "sent back more than 1.0 MiB"),
    "the same list many times over": (
        "def attempt():\n  x = [0] * 20\n  for _ in range(12): x = [x] * 20\n  return x",
        "sent back more than 1.0 MiB",
    ),
    "sys.exit": ("import sys\ndef attempt(): sys.exit(0)", "ended by itself (exit code 0)"),
    "sys.exit while it is defined": ("import sys\nsys.exit(3)", "ended by itself (exit code 3)"),
    "os._exit": ("import os\ndef attempt(): os._exit(7)", "ended by itself (exit code 7)"),
    "a text that exits": (
        "class E(Exception):\n  def __str__(s): raise SystemExit\ndef attempt(): raise E",
        "ended by itself (exit code 0)",
    ),
    "aborts": ("import os\ndef attempt(): os.abort()", "crashed (aborted)"),
    "a bad address": (
        "import torch\ndef attempt(): torch.as_strided(torch.zeros(1), (1,), (1,), 0).data_ptr()\n"
        "import faulthandler\ndef attempt(): faulthandler._sigsegv()",
        "crashed (segmentation fault)",
    ),
}
BOUNDS = replace(
    SMALL, cpu_seconds=1, wall_seconds=60, reply_bytes=2**20
)  # a busy machine gives little CPU time


@pytest.mark.parametrize(("source", "reason"), CASES.values(), ids=CASES)
def test_too_much_costs_the_session_and_says_why(sandbox, source, reason):
    got = outcome(sandbox, source, limits=BOUNDS)
    assert isinstance(got, Stopped), got
    assert got.reason == reason


@pytest.mark.parametrize("case", ["spins", "a list without end", "output without end", "os._exit"])
def test_limits_hold_with_less_of_a_kernel(any_sandbox, case):
    source, reason = CASES[case]
    assert str(outcome(any_sandbox, source, limits=BOUNDS)) == reason


def test_sleep_takes_wall_time(any_sandbox):
    source = "import time\ndef attempt(): time.sleep(60)"
    got = outcome(any_sandbox, source, limits=replace(SMALL, wall_seconds=0.5))
    assert str(got) == "took longer than 0.5 s"


def test_a_process_that_kills_itself(any_sandbox):
    got = outcome(any_sandbox, "import os, signal\ndef attempt(): os.kill(os.getpid(), signal.SIGKILL)")
    assert str(got) == "was ended by SIGKILL" or "'os.kill'" in got.message
    assert works(any_sandbox)


def test_every_use_of_a_stopped_session_tells_the_same(sandbox):
    with sandbox.session(program("import os\nx = 1\ndef attempt(): os._exit(1)"), SMALL) as session:
        for _ in range(2):
            with pytest.raises(Stopped, match="ended by itself"):
                session.names.attempt()


def test_the_wall_time_is_that_of_the_whole_session(sandbox):
    limits = replace(SMALL, wall_seconds=1)
    with sandbox.session(program("import time\ndef nap(): time.sleep(0.3)"), limits) as session:
        error = None
        for _ in range(4):
            try:
                session.names.nap()
            except Stopped as stopped:
                error = stopped
    assert str(error) == "took longer than 1 s"


def test_the_parent_may_take_its_time(sandbox):
    with sandbox.session(program("def attempt(): return 1"), replace(SMALL, wall_seconds=0.5)) as session:
        assert session.names.attempt() == 1
        deadline = time.monotonic() + 0.6
        while time.monotonic() < deadline:
            torch.ones(1000).sum()
        assert session.names.attempt() == 1


def test_output_is_cut(sandbox):
    source = "def attempt():\n  while True: print('x' * 999)"
    with sandbox.session(program(source), Limits()) as session, pytest.raises(Stopped, match=r"1\.0 MiB"):
        session.names.attempt()
    assert len(session.output) == 2**16


# ---- files -----------------------------------------------------------------------------------------

ONE_FILE = """
def attempt():
    with open("big", "wb") as file:
        while True: file.write(b"x" * 100_000)
"""
MANY_FILES = """
def attempt():
    n = 0
    while True:
        n += 1
        with open(str(n), "wb") as file: file.write(b"x" * 100_000)
"""
EMPTY_FILES = """
def attempt():
    n = 0
    while True:
        n += 1
        open(str(n), "wb").close()
"""


@pytest.mark.parametrize("source", [ONE_FILE, MANY_FILES, EMPTY_FILES], ids=["one", "many", "empty"])
def test_a_disk_cannot_be_filled(any_sandbox, source):
    got = outcome(any_sandbox, source, limits=replace(SMALL, cpu_seconds=60, wall_seconds=60))
    said = str(got)
    assert isinstance(got, SandboxError)
    assert "No space left" in said or "File too large" in said or "wrote more than" in said, said
    assert works(any_sandbox)


HARD_TO_REMOVE = """
import os
def attempt():
    os.makedirs("closed/inner")
    os.symlink("/", "link")
    os.symlink("closed", "closed/loop")
    open("closed/inner/file", "w").close()
    if hasattr(os, "mkfifo"): os.mkfifo("pipe")
    for _ in range(1500):
        os.mkdir("d" * 100); os.chdir("d" * 100)
    os.chmod(".", 0)
    os.chmod(HOME + "/closed/inner", 0)
    os.chmod(HOME + "/closed", 0)
    os.chmod(HOME, 0)
HOME = os.getcwd()
"""


def test_a_work_folder_that_resists_is_emptied(any_sandbox):
    outcome(any_sandbox, HARD_TO_REMOVE)
    assert outcome(any_sandbox, "import os\ndef attempt(): return os.listdir('.')") == []
    assert os.listdir(any_sandbox._zygote.work) == []


# ---- processes -------------------------------------------------------------------------------------

BOMB = """
import os
def attempt():
    while True:
        try: os.fork()
        except BlockingIOError: pass
"""
DAEMON = """
import os, time
def attempt():
    if os.fork(): return "left"
    os.setsid()
    if os.fork(): os._exit(0)
    while True: time.sleep(0.01)
"""
THREADS = """
import threading, time
def spin():
    while True: time.sleep(0.001)
for _ in range(3): threading.Thread(target=spin).start()
def attempt(): return "left"
"""


@pytest.mark.parametrize("source", [BOMB, DAEMON, THREADS], ids=["bomb", "daemon", "threads"])
def test_no_process_outlives_its_session(any_sandbox, source):
    with any_sandbox.session(program(source), replace(BOUNDS, wall_seconds=3)) as session:
        output = os.dup(session._channel._output)
        with suppress(Stopped, StudentError):
            assert session.names.attempt() == "left"
    assert is_at_end(output), "a process still holds the pipe"
    below = psutil.Process(any_sandbox._zygote.pid).children(recursive=True)
    assert len(below) == any_sandbox._zygote.means["namespaces"]
    assert works(any_sandbox)


def is_at_end(pipe):
    """Whether nobody can write to a pipe any more; closes it."""
    os.set_blocking(pipe, False)
    try:
        while os.read(pipe, 2**16):
            pass
        return True
    except BlockingIOError:
        return False
    finally:
        os.close(pipe)


def test_processes_are_counted(any_sandbox):
    source = "import os, time\ndef attempt():\n  for _ in range(100):\n    if not os.fork(): time.sleep(60)"
    got = outcome(any_sandbox, source)
    assert isinstance(got, StudentError)
    assert got.kind in ("BlockingIOError", "PermissionError")


def test_memory_is_counted_over_all_processes(sandbox):
    source = """
import os, time
def attempt():
    for _ in range(5):
        if not os.fork():
            x = b"x" * (2**26 + 2**25)
            time.sleep(60)
    time.sleep(60)
"""
    assert str(outcome(sandbox, source, limits=BOUNDS)) == "needed more than 256.0 MiB of memory"


def test_processes_that_grow_between_quick_calls(sandbox):
    """No call is slow enough to be watched by itself, the session is."""
    source = """
import os, time
for _ in range(5):
    if not os.fork():
        x = b"x" * (2**26 + 2**25)
        time.sleep(60)
def attempt(): time.sleep(0.1)
"""
    with sandbox.session(program(source), BOUNDS) as session, suppress(Stopped):
        for _ in range(50):
            session.names.attempt()
    assert str(session._error) == "needed more than 256.0 MiB of memory"


HOARDS = {
    "memory files": "for _ in range(60): os.truncate(os.memfd_create('x'), 2**20)",
    "shared memory": "from multiprocessing import shared_memory as s\n  s.SharedMemory(create=True, size=2**24)",
    "its own limits": "import resource\n  resource.setrlimit(resource.RLIMIT_CPU, (100, 100))",
}


@pytest.mark.parametrize("body", HOARDS.values(), ids=HOARDS)
def test_there_is_no_way_around_a_limit(sandbox, body):
    got = outcome(sandbox, f"import os\ndef attempt():\n  {body}")
    assert isinstance(got, StudentError)
    assert got.kind in ("PermissionError", "ValueError", "FileNotFoundError", "OSError")


def test_time_of_many_processes_adds_up(sandbox):
    source = "import os\ndef attempt():\n  for _ in range(2): os.fork()\n  while True: pass"
    got = outcome(sandbox, source, limits=BOUNDS)
    assert str(got) == "used more than 1 s of CPU time"
