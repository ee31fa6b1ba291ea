"""What a hostile program can find in its own process, and what it gains by changing it: nothing."""

import os

import pytest
from sandboxed import outcome, works

from kvcourse.course.grading.sandbox import Sandbox, SandboxError, StudentError

# ---- secrets ---------------------------------------------------------------------------------------


def test_environment_is_scrubbed(any_sandbox, monkeypatch):
    monkeypatch.setenv("SECRET_OF_THE_PARENT", "x")
    source = "import os\ndef attempt(): return dict(os.environ), os.getcwd()"
    environment, here = outcome(any_sandbox, source)
    allowed = {
        "PATH",
        "HOME",
        "TMPDIR",
        "LANG",
        "LC_CTYPE",
        "MALLOC_ARENA_MAX",
        "CUDA_VISIBLE_DEVICES",
        "LD_LIBRARY_PATH",
    }
    assert {
        n for n in environment if not n.endswith("_NUM_THREADS") and not n.startswith("PYTHON")
    } <= allowed
    assert environment["HOME"] == environment["TMPDIR"] == here


def test_nothing_of_the_parent_is_in_the_child(sandbox):
    """No module of the tests, no value of this test, no file of it: in modules, frames, or among all objects."""
    source = """
import gc, sys, inspect, os
def attempt(start):
    word = start + "-of-this-test"
    texts = [o for o in gc.get_objects() if isinstance(o, (dict, list, tuple))]
    found = [1 for o in texts for v in (o.values() if isinstance(o, dict) else o) if type(v) is str and word in v]
    files = [f.filename for f in inspect.stack()]
    return len(found), sorted(sys.modules), files, sys.argv
"""
    held = ["expected-value-of-this-test"]  # the parent holds it; the child forked long after
    found, modules, files, arguments = outcome(sandbox, source, "expected-value")
    assert held
    assert found == 0
    assert not {"pytest", "_pytest", "hypothesis", "sandboxed", "conftest", __name__} & set(modules)
    assert not [
        name for name in modules if name.startswith("kvcourse.course.grading.") and "sandbox" not in name
    ]
    assert not [file for file in files if "tests" in file or "pytest" in file]
    assert arguments == [""]


def test_descriptors_are_those_of_the_session(any_sandbox):
    source = """
import os
def attempt():
    found = []
    for number in range(300):
        try: os.fstat(number)
        except OSError: continue
        found.append(number)
    return found
"""
    assert outcome(any_sandbox, source) == [0, 1, 2, 3, 4]


def test_the_hook_cannot_be_reached_from_its_refusal():
    """The traceback of a refusal shows frames of the hook; nothing in them leads to code that can be changed."""
    source = """
import types
def attempt():
    try: open("/etc/passwd")
    except PermissionError as error: trace = error.__traceback__
    found = []
    while trace:
        found += [k for k, v in trace.tb_frame.f_locals.items() if isinstance(v, (types.FunctionType, list, dict))
                  and trace.tb_frame.f_code.co_filename.endswith("audit.py") and k not in ("rest", "paths")]
        trace = trace.tb_next
    return found
"""
    with Sandbox(without=("namespaces", "landlock", "seccomp")) as box:
        assert outcome(box, source) == []
        assert isinstance(
            outcome(box, "import gc\ndef attempt(): return len(gc.get_objects())"), StudentError
        )


# ---- the learner's process against the session's code in it ----------------------------------------

LIES = {
    "allclose": "import torch\ntorch.allclose = torch.equal = lambda *a, **k: True",
    "json": 'import json\njson.dumps = lambda *a, **k: \'{"id": 1, "value": 9}\'',
    "builtins": "import builtins\nbuiltins.isinstance = lambda *a: True\nbuiltins.type = lambda x: int",
    "stdout": "import sys\nsys.stdout = sys.stderr = None",
    "numpy": "import numpy\nnumpy.savez = lambda *a, **k: None",
    "frames": "import sys\nframe = sys._getframe()\nwhile frame.f_back: frame = frame.f_back; frame.f_globals.clear",
    "atexit": "import atexit\natexit.register(print, 'passed')",
    "modules": "import sys\nfor name in list(sys.modules):\n  if 'sandbox' in name: del sys.modules[name]",
}


@pytest.mark.parametrize("source", LIES.values(), ids=LIES)
def test_patches_change_nothing_but_the_learners_own_values(sandbox, source):
    got = outcome(sandbox, f"{source}\ndef attempt(x): return x + 1", 1)
    assert got == 2 or isinstance(got, SandboxError)
    assert works(sandbox)


EQUALS = """
class Equal(int):
    def __eq__(self, other): return True
    def __reduce__(self): return (print, ("run in the parent",))
class Tensor(__import__("torch").Tensor):
    def __eq__(self, other): return True
def attempt():
    return [Equal(3), Tensor([1.0]), Equal, {"a": Equal(1)}]
"""


def test_subclasses_are_objects_and_no_data(any_sandbox, capfd):
    number, tensor, kind, table = outcome(any_sandbox, EQUALS)
    for value, name in ((number, "Equal"), (tensor, "Tensor"), (kind, "type"), (table["a"], "Equal")):
        assert repr(value) == f"<a {name} object of the learner>"
        with pytest.raises(TypeError):
            assert value == 3
    assert capfd.readouterr().out == ""


def test_a_session_leaves_no_count_for_the_next_one(sandbox):
    """What a hidden test gave to the program must not be told by the pid of its next session."""
    if not sandbox._zygote.means["namespaces"]:
        pytest.skip("pids are those of the whole machine, and move by themselves")
    if not os.access("/proc/sys/kernel/ns_last_pid", os.W_OK):
        pytest.skip("this system does not let a namespace choose its pids")
    source = """
import os
def attempt(count):
    for _ in range(count):
        if not (pid := os.fork()): os._exit(0)
        os.waitpid(pid, 0)
    return os.getpid()
"""
    assert len({outcome(sandbox, source, count) for count in (0, 40, 1, 0)}) == 1
