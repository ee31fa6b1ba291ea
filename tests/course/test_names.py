"""What a cell reads and sets, compared with what running it needs and makes."""

import pytest

from kvcourse.course.names import EVERY_NAME, names_of


@pytest.mark.parametrize(
    ("source", "read", "surely"),
    [
        ("x = y", {"y"}, {"x"}),
        ("x = 1\nprint(x)", {"print"}, {"x"}),
        ("x = x + 1", {"x"}, {"x"}),
        ("x += 1", {"x"}, {"x"}),
        ("def f(a):\n    b = a + c\n    return b", {"c"}, {"f"}),
        ("for i in xs:\n    y = i\n    z = y", {"xs"}, set()),
        ("for i in xs:\n    y = i\nprint(y)", {"xs", "print", "y"}, set()),
        ("if a:\n    x = 1\nelse:\n    x = 2\nx", {"a"}, {"x"}),
        ("if a:\n    x = 1\nx", {"a", "x"}, set()),
        ("with a as b:\n    x = b\nx", {"a"}, {"b", "x"}),
        ("try:\n    x = 1\nexcept E:\n    x = 2\nx", {"x"}, set()),
        ("y = [x for x in xs]\nx", {"xs", "x"}, {"y"}),
        ("import numpy as np\nnp.ones(3)", set(), {"np"}),
        ("class A:\n    b = c", {"c"}, {"A"}),
        ("f = lambda a: a + b", {"b"}, {"f"}),
        ("def f():\n    global g\n    g = 1", set(), {"f"}),
        ("match a:\n    case 1:\n        x = 2", {"a"}, set()),
        ("%timeit g(h)\nx = 1", {"timeit", "g", "h"}, {"x"}),
        ("x = (7\n% y)", {"y"}, {"x"}),
    ],
)
def test_reads_and_sets(source, read, surely):
    names = names_of(source)
    assert names.read == read
    assert names.surely == surely
    assert names.surely <= names.stored


@pytest.mark.parametrize(
    "source",
    [
        "results.append(f(1))",
        "results[0] = 1",
        "results.best = 1",
        "results.a.b[0].c(1)",
        "with results: pass",
    ],
)
def test_what_a_cell_may_change_in_place(source):
    assert names_of(source).touched == {"results"}


@pytest.mark.parametrize(
    ("source", "changed"),
    [("torch.add = f", {"torch"}), ("rows[0].x += 1", {"rows"}), ("torch.add(f)", set()), ("del a.b", {"a"})],
)
def test_what_a_cell_changes_itself(source, changed):
    assert names_of(source).changed == changed


@pytest.mark.parametrize(
    "source",
    [
        "locals()", "globals()['x']", "dir()", "vars()", "%whos", "%who_ls int", "%history -n", "eval('x')", "_",
        "Out[3]", "_3", "_i3", "_oh", "get_ipython().user_ns", "sys.modules['__main__']", "import __main__",
        "inspect.currentframe().f_back", "def f():\n    return globals()",
    ],
)  # fmt: skip
def test_some_cells_see_every_name(source):
    assert EVERY_NAME in names_of(source).read


@pytest.mark.parametrize(
    "source", ["dir(x)", "vars(x)", "_ = 3", "_, a = b", "for _ in a: pass", "%time x", "x.modules()", "_a"]
)
def test_others_see_what_they_spell(source):
    assert EVERY_NAME not in names_of(source).read


def test_functions_read_their_names_when_they_are_called():
    names = names_of("a = b\ndef f(x):\n    return g(x) + a\nh = lambda: k\n[m for i in n if o]")
    assert names.deferred == {"g", "a", "k"}


def test_imports_are_known():
    assert names_of("import torch\nfrom a import b as c").imported == {"torch", "c"}
