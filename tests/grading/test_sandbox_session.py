"""Sessions: names, remotes, errors, and that nothing is left of them."""

import contextlib
import gc
import os
import signal
import subprocess
import sys

import numpy as np
import psutil
import pytest
import torch
from sandboxed import SMALL, outcome, program, works

from kvcourse.course.grading.sandbox import Limits, Remote, Sandbox, Stopped, StudentError
from kvcourse.course.grading.sandbox.confine import in_words
from kvcourse.course.grading.sandbox.errors import Closed
from kvcourse.errors import InputError

SHELF = """
class Shelf:
    label = "empty"

    def __init__(self):
        self.items = []

    def add(self, item, times=1):
        self.items += [item] * times
        return self

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]

def total(shelf, extra=0):
    return sum(shelf.items) + extra
"""


def test_objects_stay_in_the_child_and_can_be_used(any_sandbox):
    with any_sandbox.session(program(SHELF), SMALL) as session:
        shelf = session.names.Shelf()
        assert (type(shelf), shelf.label, len(shelf)) == (Remote, "empty", 0)
        assert type(shelf.add(3, times=2)) is Remote
        assert (len(shelf), shelf[1], shelf.items, shelf[0:1]) == (2, 3, [3, 3], [3])
        assert session.names.total(shelf, extra=4) == 10
        assert session.names.total.fetch().__class__ is Remote


def test_put_gives_one_object_for_many_calls(sandbox):
    source = "def grow(t): t += 1\ndef same(a, b): return a is b"
    with sandbox.session(program(source), SMALL) as session:
        tensor = session.put(torch.zeros(2))
        session.names.grow(tensor)
        assert torch.equal(tensor.fetch(), torch.ones(2))
        assert session.names.same(tensor, tensor) is True
        assert session.names.same(torch.ones(1), torch.ones(1)) is False


def test_names_are_remote_even_for_plain_data(sandbox):
    with sandbox.session(program("packed = 5"), SMALL) as session:
        assert type(session.names.packed) is Remote
        assert session.names.packed.fetch() == 5
        with pytest.raises(StudentError, match="'int' object is not callable"):
            session.names.packed(1)
        with pytest.raises(StudentError, match="NameError: other is not defined"):
            _ = session.names.other


@pytest.mark.parametrize(
    "use",
    [bool, hash, iter, list, int, lambda r: r == r, lambda r: r != 1, lambda r: 1 in r, lambda r: r < 1],
)
def test_a_remote_is_never_taken_for_a_value(sandbox, use):
    with (
        sandbox.session(
            program("class Yes:\n  def __eq__(s, o): return True\nyes = Yes()"), SMALL
        ) as session,
        pytest.raises(TypeError, match="stays in its process"),
    ):
        use(session.names.yes)


def test_only_plain_data_can_be_sent(sandbox):
    with sandbox.session(program("def f(x): return 1"), SMALL) as session:
        with pytest.raises(TypeError, match="a set cannot be sent"):
            session.names.f({1})
        assert session.names.f(0) == 1


# ---- errors of the learner's code ------------------------------------------------------------------


def error_of(sandbox, *sources, first_line=1):
    with sandbox.session(program(*sources, first_line=first_line), SMALL) as session:
        with pytest.raises(StudentError) as caught:
            session.names.attempt()
        return caught.value


def test_errors_cite_the_line_of_the_cell(any_sandbox):
    error = error_of(any_sandbox, "def attempt():\n    first = [1][2]\n    return first", first_line=4)
    assert (error.kind, error.message) == ("IndexError", "list index out of range")
    assert error.where == "line 5 of cell 3: first = [1][2]"


def test_errors_cite_the_innermost_line_that_is_the_learners(sandbox):
    error = error_of(sandbox, "import torch\ndef attempt():\n    return torch.zeros(2).reshape(3)")
    assert (error.kind, error.where) == ("RuntimeError", "line 3 of cell 3: return torch.zeros(2).reshape(3)")


def test_a_syntax_error_is_told_at_every_use(sandbox):
    with sandbox.session(program("def attempt(:\n    pass"), SMALL) as session:
        for _ in range(2):
            with pytest.raises(StudentError) as caught:
                session.names.attempt()
            assert (caught.value.kind, caught.value.where[:16]) == ("SyntaxError", "line 1 of cell 3")


def test_annotations_stay_postponed_over_all_statements(sandbox):
    assert outcome(sandbox, "from __future__ import annotations\ndef attempt(x: Later): return 1", 0) == 1
    with sandbox.session(
        program("from __future__ import annotations", "def f(x: Later): return 1")
    ) as session:
        assert session.names.f(0) == 1


@pytest.mark.parametrize(
    ("body", "kind", "message"),
    [
        ("raise NotImplementedError('count the tokens')", "NotImplementedError", "count the tokens"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt", ""),
        ("raise Mine('x' * 1000)", "Mine", "x" * 300),
        ("raise Mute", "Mute", "(its message cannot be shown)"),
        ("raise Mine('\\x1b[2Jgone')", "Mine", "\N{REPLACEMENT CHARACTER}[2Jgone"),
    ],
)
def test_what_a_test_sees_of_an_exception(sandbox, body, kind, message):
    source = f"""
class Mine(BaseException): pass
class Mute(Exception):
    def __str__(self): raise ValueError
def attempt():
    {body}
"""
    error = error_of(sandbox, source)
    assert (error.kind, error.message) == (kind, message)


def test_an_exception_whose_text_never_ends_costs_its_time(sandbox):
    source = "class E(Exception):\n  def __str__(s):\n    while True: pass\ndef attempt(): raise E"
    limits = Limits(cpu_seconds=5, wall_seconds=0.5)
    assert str(outcome(sandbox, source, limits=limits)) == "took longer than 0.5 s"


# ---- the end of a session --------------------------------------------------------------------------


def test_use_after_close(sandbox):
    with sandbox.session(program(SHELF), SMALL) as session:
        shelf = session.names.Shelf()
    with pytest.raises(Closed, match="over"):
        shelf.add(1)


def test_output_is_kept(any_sandbox):
    source = (
        "import os, sys\ndef attempt():\n  print('one')\n  os.write(2, b'two')\n  return sys.stdin.read()"
    )
    with any_sandbox.session(program(source), SMALL) as session:
        assert session.names.attempt() == ""
    assert session.output == "one\ntwo"


def test_one_session_at_a_time(sandbox):
    with sandbox.session(program("x = 1"), SMALL), pytest.raises(RuntimeError, match="one session at a time"):
        sandbox.session(program("x = 2"), SMALL)
    assert works(sandbox)


def test_fifty_sessions_leave_nothing(any_sandbox):
    def held():
        gc.collect()
        zygote = any_sandbox._zygote
        below = psutil.Process(zygote.pid).children(recursive=True)
        return len(os.listdir("/proc/self/fd")), len(below), os.listdir(zygote.work)

    assert works(any_sandbox)
    before = held()
    for number in range(50):
        last = "x" if number % 5 else "os._exit(3)"
        source = f"import os\nopen('left', 'w')\ndef attempt(x): return {last}"
        got = outcome(any_sandbox, source, number)
        assert got == number if number % 5 else isinstance(got, Stopped)
    assert held() == before


def test_close_leaves_no_process_and_no_folder():
    box = Sandbox()
    assert works(box)
    folder, top = box._zygote.folder, psutil.Process(box._zygote.pid)
    everyone = [top, *top.children(recursive=True)]
    assert os.path.isdir(folder)
    box.close()
    box.close()
    assert not os.path.exists(folder)
    assert not any(process.is_running() for process in everyone)
    with pytest.raises(RuntimeError, match="closed"):
        box.session(program("x = 1"))


def test_a_parent_that_forgets_to_close_leaves_nothing():
    code = """
from kvcourse.course.grading.sandbox import Sandbox
box = Sandbox()
box.confinement
print(box._zygote.folder, box._zygote.pid)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    folder, pid = done.stdout.split()
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(int(pid)).wait(60)
    assert not os.path.exists(folder)


def test_a_zygote_that_dies_is_replaced():
    with Sandbox() as box:
        assert works(box)
        with box.session(program("import time\ndef attempt(): time.sleep(60)"), SMALL) as session:
            child = session.names.attempt
            for process in psutil.Process(box._zygote.pid).children():
                process.kill()
            with pytest.raises(Stopped):
                child()
        assert works(box)
        os.kill(box._zygote.pid, signal.SIGKILL)
        box._zygote._process.wait()  # dying, it may still take a session, and lose it
        assert works(box)


def test_the_number_of_a_dead_zygote_is_nobody_to_kill(monkeypatch):
    """The system may have given it to another process."""
    killed = []
    monkeypatch.setattr("kvcourse.course.grading.sandbox.reaper.stop_then_kill", killed.append)
    with Sandbox() as box:
        assert works(box)
        with box.session(program("def attempt(): return 1"), SMALL):
            os.kill(box._zygote.pid, signal.SIGKILL)
            box._zygote._process.wait()
    assert killed == []


def test_numbers_drawn_at_random_are_the_same_in_every_session(any_sandbox):
    source = """
import random, numpy, torch
def attempt(): return random.random(), numpy.random.rand(), torch.rand(1), list({"a", "b", "c", "d", "e"})
"""
    first, second = outcome(any_sandbox, source), outcome(any_sandbox, source)
    assert first == second


def test_what_it_needs_runs_inside(any_sandbox):
    source = """
import dataclasses, math, collections, torch, numpy as np
import kvcourse as kv
@dataclasses.dataclass
class Pair:
    a: int
def attempt():
    model = kv.tiny_model(num_layers=1, num_heads=2, num_kv_heads=1, head_dim=8, vocab_size=16, seed=0)
    cache = kv.KVCache(model.config, kv.Plan(), batch_size=1)
    return kv.generate(model, torch.arange(4)[None], max_new_tokens=2, cache=cache)
"""
    got = outcome(any_sandbox, source, limits=Limits())
    assert isinstance(got, torch.Tensor), got
    assert isinstance(
        outcome(any_sandbox, "import numpy as np\ndef attempt(): return np.linalg.inv(np.eye(3))"), np.ndarray
    )


def test_bad_arguments():
    with pytest.raises(InputError, match="without='magic'"):
        Sandbox(without=("magic",))


def test_windows_is_told_what_to_do(monkeypatch):
    monkeypatch.setattr("sys.platform", "win32")
    with pytest.raises(InputError, match="WSL"):
        Sandbox()


@pytest.mark.parametrize(
    ("means", "words"),
    [
        ({"namespaces": 1, "landlock": 0, "seccomp": 0}, "none (a network namespace)"),
        ({"namespaces": 0, "landlock": 0, "seccomp": 1}, "blocked sockets (by the kernel)"),
    ],
)
def test_what_keeps_from_the_network_reads_as_that(means, words):
    assert in_words(means, None).network == words


def test_confinement_says_what_was_used():
    with Sandbox(without=("namespaces", "landlock", "seccomp")) as box:
        words = box.confinement
    assert words.network == "blocked sockets (by Python only)"
    assert words.files == "blocked calls (by Python only: weak against native code)"
    assert words.processes == "process group"
