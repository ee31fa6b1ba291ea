"""Say in one line how a value differs from the one that was expected.

Values may come from code that nobody has read. So everything is decided by the exact type first, and only
types whose methods cannot be overridden are looked into; an object of any other class is named, never asked.
Nothing is broadcast or converted: a learner who returns another dtype, shape or kind is told so.
"""

import functools
import math
import sys
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from kvcourse.course.checks.arrays import array_difference, dtype_name
from kvcourse.errors import InputError

MAX_LINE = 240
MAX_VALUE = 60
MISSING_RETURN = "is a `return` missing?"  # what the learner who gets None has usually forgotten
NUMBERS = ("int", "float", "complex")

_class_name = type.__dict__["__name__"].__get__  # a metaclass could have its own __name__


def difference(got: Any, expected: Any, *, atol: float = 0.0, rtol: float = 0.0) -> str | None:
    """None if `got` is what was expected, else one line that says what differs first.

    Torch tensors, numpy arrays, numbers, bool, str, bytes, None, torch dtypes, and list, tuple and dict of these.
    Kind, dtype and shape must be exactly the same, with four exceptions: an int will do where a float is
    expected, numpy scalars count as numbers, a torch.Size as a tuple, a Parameter as a tensor. A bool is no int,
    and NaN equals only NaN. Numbers, also those inside, may differ by atol + rtol * |expected|. Errors: InputError
    for an expected value of another kind and for a tolerance that is not a finite number of at least 0.
    """
    for name, tolerance in (("atol", atol), ("rtol", rtol)):
        if type(tolerance) not in (int, float) or not 0 <= tolerance < math.inf:
            raise InputError(f"{name} is {tolerance!r}; expected a finite number of at least 0")
    found = _differ(got, expected, atol, rtol, "")
    return None if found is None else _cut(found, MAX_LINE)


def describe(value: Any) -> str:
    """The kind of a value in words: "a float32 tensor of shape (2, 3)", "the int 9", "a FusedCache object"."""
    value = _plain(value)
    kind = _kind(value)
    if kind in ("tensor", "array"):
        noun = "tensor" if kind == "tensor" else "numpy array"
        return f"{_with_article(dtype_name(value))} {noun} of shape {tuple(value.shape)}"
    if kind in ("list", "tuple"):
        return f"a {kind} of {len(value)} {'item' if len(value) == 1 else 'items'}"
    if kind == "dict":
        return f"a dict of {len(value)} {'entry' if len(value) == 1 else 'entries'}"
    if kind == "None":
        return "None"
    if kind is not None:
        return f"the {kind} {show(value)}"
    if type(value) is type:
        return f"the class {_safe_name(value)}"
    return f"{_with_article(_safe_name(type(value)))} object"


def show(value: Any, limit: int = MAX_VALUE) -> str:
    """A value as a learner would write it, in one line of at most `limit` characters: "tensor(2, 6)", "[1, 2, …]"."""
    return _cut(_shown(value, limit, 4), limit)


def _shown(value: Any, limit: int, depth: int) -> str:
    value = _plain(value)
    kind = _kind(value)
    if kind in ("tensor", "array"):
        return f"{kind}({', '.join(map(str, value.shape))})"
    if kind == "int":
        return str(value) if value.bit_length() < 128 else f"(an int of {value.bit_length():,} bits)"
    if kind in ("str", "bytes"):
        return repr(value[:limit])
    if kind in ("list", "tuple"):
        opening, closing = "[]" if kind == "list" else "()"
        items = (_shown(item, limit, depth - 1) for item in value) if depth else iter("…")
        comma = "," if kind == "tuple" and len(value) == 1 else ""
        return f"{opening}{_joined(items, limit)}{comma}{closing}"
    if kind == "dict":
        shown = (f"{_shown(k, limit, depth - 1)}: {_shown(v, limit, depth - 1)}" for k, v in value.items())
        return "{" + _joined(shown if depth else iter("…"), limit) + "}"
    return describe(value) if kind is None else repr(value)


def _joined(items: Iterator[str], limit: int) -> str:
    """Items with commas; those from the one on that would not fit in a line are one ellipsis."""
    text = next(items, "")
    for item in items:
        if len(text) + len(item) > limit - 7:  # what ", ", ", …" and two brackets take
            return f"{text}, …"
        text = f"{text}, {item}"
    return text


# ---- kinds -----------------------------------------------------------------------------------------


def _kind(value: Any) -> str | None:
    """The name of the exact type, or None for a class that is not one of ours."""
    own = type(value)
    return next(
        (name for known, name in _known("numpy" in sys.modules, "torch" in sys.modules) if own is known), None
    )


@functools.cache
def _known(numpy_is_loaded: bool, torch_is_loaded: bool) -> tuple[tuple[type, str], ...]:
    """(type, name) of what can be looked into. Where a library is not loaded, no value is of its types."""
    known = [(kind, kind.__name__) for kind in (bool, int, float, complex, str, bytes, list, tuple, dict)]
    known.append((type(None), "None"))
    if numpy_is_loaded:
        import numpy as np

        known.append((np.ndarray, "array"))
    if torch_is_loaded:
        import torch

        known += [(torch.Tensor, "tensor"), (torch.nn.Parameter, "tensor"), (torch.dtype, "dtype")]
    return tuple(known)


def _plain(value: Any) -> Any:
    """A numpy scalar as Python's own, a torch.Size as a tuple; anything else as it is."""
    own = type(value)
    if "torch" in sys.modules and own is sys.modules["torch"].Size:
        return tuple(value)
    if "numpy" in sys.modules:
        for scalar, convert in _numpy_scalars():
            if own is scalar:
                return convert(value)
    return value


@functools.cache
def _numpy_scalars() -> tuple[tuple[type, type], ...]:
    import numpy as np

    kinds = {"i": int, "u": int, "f": float, "c": complex}
    letters = np.typecodes["AllInteger"] + np.typecodes["AllFloat"]
    numbers = {np.dtype(letter).type: kinds[np.dtype(letter).kind] for letter in letters}
    return ((np.bool_, bool), (np.str_, str), *numbers.items())


def _safe_name(own: type) -> str:
    return _cut(ascii(_class_name(own))[1:-1], 40)


def _with_article(noun: str) -> str:
    return f"{'an' if noun[:1] in 'aeioAEIO' else 'a'} {noun}"


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


# ---- values ----------------------------------------------------------------------------------------


def _differ(got: Any, expected: Any, atol: float, rtol: float, where: str) -> str | None:
    got, expected = _plain(got), _plain(expected)
    kind, found = _kind(expected), _kind(got)
    at = f"at {where}: " if where else ""
    if kind is None:
        raise InputError(
            f"{at}{describe(expected)} cannot be expected; compare numbers, texts, tensors, arrays, or lists of them"
        )
    if found != kind and not (kind == "float" and found == "int"):
        advice = "; .item() makes a number of it" if kind in NUMBERS and _is_one_number(got) else ""
        return f"{at}expected {describe(expected)}, got {describe(got)}{advice}"
    if kind in ("tensor", "array"):
        told = array_difference(got, expected, atol, rtol)
        return told and f"{at}{told}"
    if kind in ("list", "tuple"):
        if len(got) != len(expected):
            return f"{at}expected {describe(expected)}, got {describe(got)}: {show(got)}"
        pairs = (
            _differ(g, e, atol, rtol, f"{where}[{i}]")
            for i, (g, e) in enumerate(zip(got, expected, strict=True))
        )
        return next((told for told in pairs if told is not None), None)
    if kind == "dict":
        return _dict_difference(got, expected, atol, rtol, where)
    if kind in NUMBERS:
        told = _number_difference(got, expected, atol, rtol)
        return told and f"{at}{told}"
    return None if got == expected else f"{at}expected {show(expected)}, got {show(got)}"


def _is_one_number(value: Any) -> bool:
    return _kind(value) in ("tensor", "array") and math.prod(value.shape) == 1


def _number_difference(got: Any, expected: Any, atol: float, rtol: float) -> str | None:
    if got == expected or (got != got and expected != expected):  # NaN is the number unequal to itself
        return None
    told = f"expected {show(expected)}, got {show(got)}"
    if not (atol or rtol) or not (_is_finite(got) and _is_finite(expected)):
        return told
    try:
        gap, allowed = abs(got - expected), atol + rtol * abs(expected)
    except OverflowError:  # an int larger than any float
        gap = abs(Fraction(got) - Fraction(expected))
        allowed = Fraction(atol) + Fraction(rtol) * abs(Fraction(expected))
    return None if gap <= allowed else f"{told}; difference {_short(gap)}, allowed {_short(allowed)}"


def _is_finite(number: Any) -> bool:
    return type(number) is int or (math.isfinite(number.real) and math.isfinite(number.imag))


def _short(number: Any) -> str:
    try:
        return f"{float(number):.3g}"
    except OverflowError:
        return "above every float"


def _dict_difference(got: dict, expected: dict, atol: float, rtol: float, where: str) -> str | None:
    at = f"at {where}: " if where else ""
    strange = next((key for key in got if not _is_plain_key(key)), None)
    if strange is not None:  # looking it up would call its own __hash__ and __eq__
        return f"{at}unexpected key: {describe(strange)}"
    found = {_with_kind(key): value for key, value in got.items()}
    wanted = {_with_kind(key): key for key in expected}
    for marked, key in wanted.items():
        if marked not in found:
            return f"{at}no entry {show(key)}; there are {show(list(got))}"
        told = _differ(found[marked], expected[key], atol, rtol, f"{where}[{show(key, 30)}]")
        if told is not None:
            return told
    extra = next((key for key in got if _with_kind(key) not in wanted), None)
    return None if len(found) == len(wanted) else f"{at}unexpected entry {show(extra)}"


def _is_plain_key(key: Any) -> bool:
    kind = _kind(_plain(key))
    return all(map(_is_plain_key, key)) if kind == "tuple" else kind not in (None, "tensor", "array")


def _with_kind(key: Any) -> tuple:
    """1, 1.0 and True are one and the same key to a dict, and are not to us."""
    key = _plain(key)
    kind = _kind(key)
    return (kind, tuple(map(_with_kind, key)) if kind == "tuple" else key)
