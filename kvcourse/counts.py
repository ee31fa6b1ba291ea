"""Numbers as callers give them."""

import operator
import sys
from typing import Any

from kvcourse.errors import InputError

MOST = (1 << 62) - 1  # what tensors can be indexed with


def read_count(name: str, value: Any, least: int = 1, most: int = MOST) -> int:
    """`value` as a plain int: an int, or what can stand for one (of numpy, a tensor of one integer); no bool.

    Errors: InputError, which calls the value `name`, for anything else and for a number outside least … most.
    """
    try:
        count = None if _is_bool(value) else operator.index(value)
    except (TypeError, ValueError, RuntimeError):
        count = None
    if count is None or not least <= count <= most:
        limit = f"at least {least}" if count is None or count < least or most == MOST else f"at most {most}"
        raise InputError(f"{name}={one_line(value)}: expected a whole number of {limit}")
    return count


def check_positive(name: str, value: Any, where: str = "") -> None:
    """Raise InputError, which calls the value `name` and says `where`, unless it is a finite number above 0."""
    if not is_number(value) or value <= 0:
        raise InputError(f"{name}={one_line(value)}{where}: expected a positive number")


def is_number(value: Any) -> bool:
    """Whether it is a finite number that a float can hold; no bool."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return abs(value) <= sys.float_info.max  # of NaN too, which is not


def one_line(value: Any) -> str:
    """What `repr` says, without the line breaks of a tensor or an array."""
    return " ".join(repr(value).split())


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool) or str(getattr(value, "dtype", "")).endswith("bool")
