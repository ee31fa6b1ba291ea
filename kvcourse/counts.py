"""Whole numbers as callers give them."""

import operator
from typing import Any

from kvcourse.errors import InputError

MOST = (1 << 62) - 1  # what tensors can be indexed with


def read_count(name: str, value: Any, least: int = 1, most: int = MOST) -> int:
    """`value` as a plain int: an int, or what can stand for one (of numpy, a tensor of one integer); no bool.

    Errors: InputError, which calls the value `name`, for anything else and for a number outside least … most.
    """
    try:
        count = operator.index(value)
    except (TypeError, ValueError, RuntimeError):
        count = None
    if count is None or _is_bool(value) or not least <= count <= most:
        limit = f"at least {least}" if count is None or count < least or most == MOST else f"at most {most}"
        raise InputError(f"{name}={value!r}: expected a whole number of {limit}")
    return count


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool) or str(getattr(value, "dtype", "")).endswith("bool")
