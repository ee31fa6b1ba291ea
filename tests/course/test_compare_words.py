"""What `compare.difference` says, and what `describe` and `show` make of a value."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_compare import NAN, VALUES

from kvcourse.course.checks.compare import MAX_LINE, describe, difference, show
from kvcourse.errors import InputError

T = torch.tensor
SAID = [
    (torch.zeros(6), torch.zeros(2, 6), "expected a tensor of shape (2, 6), got shape (6,)"),
    (torch.zeros(2), T([0, 0]), "expected int64, got float32"),
    (torch.zeros(1, 2), T([0, 0]), "expected int64 of shape (2,), got float32 of shape (1, 2)"),
    (np.zeros(2), np.zeros((2, 1)), "expected an array of shape (2, 1), got shape (2,)"),
    (T([[0, 1, 9], [3, 4, 8]]), T([[0, 1, 2], [3, 4, 5]]),
     "2 of 6 elements differ; the first at [0, 2]: expected 2, got 9"),
    (T([1.0, NAN, NAN]), T([1.0, 2.0, 3.0]), "got NaN at [1] and 1 more of 3 places"),
    (T([1.0]), T([NAN]), "expected NaN, got a number at [0]"),
    (T(3), T(4), "expected 4, got 3"),
    (T([0.1, 1e-9]), T([0.1, 0.0]),
     "1 of 2 elements differs; largest difference 1e-09 at [1]: expected 0, got 1e-09"),
    (9.0, 9, "expected the int 9, got the float 9.0"),
    (True, 1, "expected the int 1, got the bool True"),
    (T(9), 9, "expected the int 9, got an int64 tensor of shape (); .item() makes a number of it"),
    ([1], 9, "expected the int 9, got a list of 1 item"),
    (None, 9, "expected the int 9, got None"),
    (np.zeros(2), torch.zeros(2),
     "expected a float32 tensor of shape (2,), got a float64 numpy array of shape (2,)"),
    (torch.zeros(2).to_sparse(), torch.zeros(2), "expected a dense tensor, got a sparse or nested tensor"),
    (torch.zeros(2, device="meta"), torch.zeros(2),
     "expected a dense tensor, got a tensor without elements (device meta)"),
    ([1, [2, 4]], [1, [2, 3]], "at [1][1]: expected 3, got 4"),
    ([1, 2, 3], [1, 2], "expected a list of 2 items, got a list of 3 items: [1, 2, 3]"),
    ((1,), [1], "expected a list of 1 item, got a tuple of 1 item"),
    ({"a": 1}, {"a": 1, "b": 2}, "no entry 'b'; there are ['a']"),
    ({"a": 1, "c": 2}, {"a": 1}, "unexpected entry 'c'"),
    ({"a": [1.0]}, {"a": [2.0]}, "at ['a'][0]: expected 2.0, got 1.0"),
    ("ab", "abc", "expected 'abc', got 'ab'"),
    (torch.int32, torch.int64, "expected torch.int64, got torch.int32"),
]  # fmt: skip


@pytest.mark.parametrize(("got", "expected", "said"), SAID)
def test_the_line_says_what_differs(got, expected, said):
    assert difference(got, expected) == said


def test_the_line_with_a_tolerance():
    far = "1 of 2 elements differs; largest difference 0.25 at [1]: expected 2, got 2.25, allowed 1e-06"
    assert difference(T([1.0, 2.25]), T([1.0, 2.0]), atol=1e-6) == far
    assert difference(0.5, 0.75, atol=0.1) == "expected 0.75, got 0.5; difference 0.25, allowed 0.1"
    assert difference(10**400, 1.5, rtol=0.5).endswith("difference above every float, allowed 0.75")


@given(VALUES, VALUES)
def test_one_short_line(got, expected):
    long = ["x" * 500, 10**5000, "a\nb\u2028c", got, expected] * 50
    for told in (difference(got, long), difference(long, expected)):
        assert told is None or (len(told) <= MAX_LINE and len(told.splitlines()) == 1)
    assert len(show(long).splitlines()) == 1


def test_a_name_is_made_harmless():
    name = describe(type("a\n\x1b[31m" + "b" * 100, (), {})())
    assert name.isprintable()
    assert len(name) < 60


def test_describe():
    class Engine: ...

    assert describe(torch.zeros(2, 3)) == "a float32 tensor of shape (2, 3)"
    assert describe(np.zeros(2, "uint8")) == "a uint8 numpy array of shape (2,)"
    assert describe(T([1])) == "an int64 tensor of shape (1,)"
    assert [describe(v) for v in (9, True, None, "a", [1, 2], (1,), {1: 2})] == [
        *("the int 9", "the bool True", "None", "the str 'a'", "a list of 2 items", "a tuple of 1 item"),
        "a dict of 1 entry",
    ]
    assert describe(Engine()) == "an Engine object"
    assert describe(Engine) == "the class Engine"


def test_show():
    nested: list = [torch.zeros(2, 6), (1,), {"a": 1.5}]
    assert show(nested) == "[tensor(2, 6), (1,), {'a': 1.5}]"
    nested.append(nested)
    assert len(show(nested)) <= 60
    assert show(list(range(1000)), 16) == "[0, 1, 2, 3, …]"
    assert [show(v) for v in ([], (), {}, [[]], ((),))] == ["[]", "()", "{}", "[[]]", "((),)"]


@given(VALUES, st.integers(8, 60))
def test_a_short_value_is_shown_as_python_shows_it(value, limit):
    assert (
        show(value, limit) == repr(value)
        if len(repr(value)) <= limit - 8
        else len(show(value, limit)) <= limit
    )


@pytest.mark.parametrize(
    "expected", [{1}, object(), [object()], np.array([None]), torch.zeros(2).to_sparse()]
)
def test_what_cannot_be_expected_is_the_authors_fault(expected):
    got = [1] if isinstance(expected, list) else expected
    with pytest.raises(InputError, match="cannot be expected"):
        difference(got, expected)


@pytest.mark.parametrize("tolerance", [-1, NAN, float("inf"), "1", None, True])
def test_a_tolerance_must_be_a_number(tolerance):
    for name in ("atol", "rtol"):
        with pytest.raises(InputError, match=f"{name} is"):
            difference(1.0, 1.0, **{name: tolerance})
