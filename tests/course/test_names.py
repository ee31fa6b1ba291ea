"""What a cell reads and sets, compared with what running it needs and makes."""

import pytest

from kvcourse.course.names import names_of


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
        ("def f():\n    global g\n    g = 1", set(), {"f", "g"}),
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
    "source", ["results.append(f(1))", "results[0] = 1", "results.best = 1", "results.a.b[0].c(1)"]
)
def test_what_a_cell_may_change_in_place(source):
    assert names_of(source).touched == {"results"}


def test_imports_are_known():
    assert names_of("import torch\nfrom a import b as c").imported == {"torch", "c"}
