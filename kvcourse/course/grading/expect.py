"""What the tests of exercises say about a result: it is equal, or one line tells how it differs."""

import copy
import sys
from collections.abc import Callable
from typing import Any

from kvcourse.course.checks.compare import MISSING_RETURN, describe, difference, show
from kvcourse.course.grading.sandbox import Remote
from kvcourse.course.grading.sandbox.remote import kind_of

MAX_ARGUMENT = 120  # characters of one argument in a message
MAX_NUMBERS = 40  # a tensor of more is shown by its shape


class Unequal(AssertionError):  # noqa: N818 - it says what the result is
    """A result that is not the expected one; the text is one line for the learner."""


class NoExpectation(Exception):  # noqa: N818 - the test has none
    """The reference gave no value to compare with, so the test is broken, whatever the student's code does."""


def equal(got: Any, expected: Any, what: str = "") -> None:
    """`got` must be `expected`: its kind, dtype, shape and every element. `what` names it in the message."""
    close(got, expected, atol=0.0, rtol=0.0, what=what)


def close(got: Any, expected: Any, *, atol: float = 0.0, rtol: float = 0.0, what: str = "") -> None:
    """The same, but numbers may differ by atol + rtol * |expected|. Errors: Unequal with one line."""
    if type(got) is Remote:
        told = f"expected {describe(expected)}, got {_described(got)}"
    else:
        told = difference(got, expected, atol=atol, rtol=rtol)
        if told is not None and got is None:
            told = f"{told}; {MISSING_RETURN}"
    if told is not None:
        raise Unequal(f"{what}: {told}" if what else told)


def parts(got: Any, count: int, what: str = "") -> tuple:
    """The `count` values that a function returned together, as `a, b = …` would take them. Errors: Unequal."""
    torch = sys.modules.get("torch")
    kind = type(got)
    if kind in (tuple, list) or (torch is not None and kind is torch.Tensor and got.ndim > 0):
        if len(got) == count:
            return tuple(got)
        told = f"expected {count} values, got {len(got)}"
    else:
        told = f"expected {count} values, got {_described(got)}"
    raise Unequal(f"{what}: {told}" if what else told)


def agree(
    student: Callable, reference: Callable, *arguments: Any, atol: float = 0.0, rtol: float = 0.0
) -> None:
    """Both functions must give the same for the same arguments.

    The reference is called first. The message shows the call. Errors: Unequal, whatever the student's function
    raises, and NoExpectation if the reference raises.
    """
    try:
        expected = reference(*copy.deepcopy(arguments))
    except Exception as error:
        raise NoExpectation(f"{type(error).__name__} in the reference: {error}") from error
    close(student(*arguments), expected, atol=atol, rtol=rtol, what=call(reference.__name__, *arguments))


def call(name: str, *arguments: Any) -> str:
    """A call as text; a small tensor of integers is shown with its numbers."""
    return f"{name}({', '.join(map(_argument, arguments))})"


def _described(value: Any) -> str:
    return f"an object of type {kind_of(value)}" if type(value) is Remote else describe(value)


def _argument(value: Any) -> str:
    torch = sys.modules.get("torch")
    if torch is None or type(value) is not torch.Tensor:
        return show(value, MAX_ARGUMENT)
    if value.numel() > MAX_NUMBERS or value.is_floating_point():
        return describe(value).removeprefix("a ").removeprefix("an ")
    dtype = "" if value.dtype is torch.int64 else f", dtype={str(value.dtype).removeprefix('torch.')}"
    return f"tensor({show(value.tolist(), MAX_ARGUMENT)}{dtype})"
