"""Values as structure (what JSON can hold) and arrays, and back.

A value is data only if its type is exactly one of those below. An instance of a subclass, whose methods somebody may
have overridden, is an object and travels as a handle. `decode` takes nothing for granted: a learner's code may have
written what it reads.
"""

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from kvcourse.course.grading.sandbox.limits import MAX_ARRAYS
from kvcourse.course.grading.sandbox.wire import NUMPY, BadFrame, TooBig

MAX_DEPTH = 50
MAX_ITEMS = 500_000
MAX_ALIKE = 100  # keys of one dict with the same hash: each of them is compared with all others

DTYPES = {
    name: dtype
    for name in (
        "bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "bfloat16",
        "float32", "float64", "complex32", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2",
        "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu",
    )
    if isinstance(dtype := getattr(torch, name, None), torch.dtype)
}  # fmt: skip
_DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_SCALARS = {dtype.type: name for dtype, name in NUMPY.items()}
_BIG = 2**53  # beyond it, JSON numbers are not exact in every reader


class NotData(Exception):  # noqa: N818
    """A value that has no place on the wire: it holds itself, is nested too deep, or has an object as a key."""


Keep = Callable[[object], dict[str, Any]]
Find = Callable[[dict[str, Any]], object]


# ---- values to structure and arrays ----------------------------------------------------------------


class Encoder:
    """Turns values into structure and collects their arrays; `keep` gives the structure for what is not data."""

    def __init__(self, keep: Keep, max_bytes: int) -> None:
        self.arrays: list[np.ndarray] = []
        self._keep = keep
        self._left = max_bytes
        self._items = 0
        self._open: set[int] = set()

    def encode(self, value: object) -> Any:
        """The structure of a value. Errors: TooBig, NotData."""
        self._items += 1
        if self._items > MAX_ITEMS:
            raise TooBig
        kind = type(value)
        if value is None or kind is bool:
            return value
        if kind is int:
            return value if -_BIG < value < _BIG else {"int": format(value, "x")}
        if kind is float:
            return value if math.isfinite(value) else {"float": repr(value)}
        if kind is str:
            self._spend(len(value))
            return value
        if kind in _ENCODERS:
            if id(value) in self._open:
                raise NotData(f"a {kind.__name__} that holds itself")
            if len(self._open) >= MAX_DEPTH:
                raise NotData(f"values nested more than {MAX_DEPTH} deep")
            self._open.add(id(value))
            try:
                return _ENCODERS[kind](self, value)
            finally:
                self._open.discard(id(value))
        if kind in _SCALARS:
            return {"scalar": self._array(np.asarray(value))}
        return self._keep(value)

    def _spend(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise TooBig

    def _array(self, array: np.ndarray) -> int:
        self._spend(array.nbytes)
        if len(self.arrays) >= MAX_ARRAYS:
            raise TooBig
        self.arrays.append(array)
        return len(self.arrays) - 1

    def _list(self, value: list | tuple) -> list:
        return [self.encode(item) for item in value]

    def _dict(self, value: dict) -> dict[str, Any]:
        pairs = []
        for key, item in value.items():
            code = self.encode(key)
            if type(code) is dict and ("object" in code or "remote" in code):
                raise NotData(f"a dict with a {type(key).__name__} as a key")
            pairs.append([code, self.encode(item)])
        return {"dict": pairs}

    def _tensor(self, value: torch.Tensor) -> dict[str, Any]:
        usual = value.layout is torch.strided and value.device.type == "cpu" and value.dtype in _DTYPE_NAMES
        if not usual or value.is_quantized:
            return self._keep(value)
        size = value.numel() * value.element_size()
        if size > self._left:  # before a broadcast view is made real
            raise TooBig
        plain = value.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
        data = plain.view(torch.uint8).numpy() if size else np.zeros(0, np.uint8)
        name = _DTYPE_NAMES[value.dtype]
        return {"tensor": self._array(data), "dtype": name, "shape": list(value.shape)}

    def _ndarray(self, value: np.ndarray) -> dict[str, Any]:
        if value.dtype not in NUMPY:
            return self._keep(value)
        if value.nbytes > self._left:
            raise TooBig
        return {"array": self._array(value)}


_ENCODERS: dict[type, Callable[[Encoder, Any], Any]] = {
    list: lambda e, v: e._list(v),
    tuple: lambda e, v: {"tuple": e._list(v)},
    dict: lambda e, v: e._dict(v),
    bytes: lambda e, v: {"bytes": e._array(np.frombuffer(v, np.uint8))},
    complex: lambda e, v: {"complex": [e.encode(v.real), e.encode(v.imag)]},
    slice: lambda e, v: {"slice": [e.encode(v.start), e.encode(v.stop), e.encode(v.step)]},
    range: lambda e, v: (
        {"range": [e.encode(v.start), e.encode(v.stop), e.encode(v.step)]} if _is_short(v) else e._keep(v)
    ),
    torch.Tensor: lambda e, v: e._tensor(v),
    torch.dtype: lambda e, v: {"dtype": _DTYPE_NAMES[v]} if v in _DTYPE_NAMES else e._keep(v),
    torch.Size: lambda e, v: {"size": [e.encode(n) for n in v]},
    np.ndarray: lambda e, v: e._ndarray(v),
}


# ---- structure and arrays to values ----------------------------------------------------------------


def decode(structure: Any, arrays: list[np.ndarray], find: Find) -> Any:
    """The value of a structure. `find` makes the value of a handle. Errors: BadFrame."""
    try:
        return _decode(structure, arrays, find, 0)
    except (
        KeyError,
        IndexError,
        TypeError,
        ValueError,
        AttributeError,
        OverflowError,
        RuntimeError,
    ) as error:
        raise BadFrame from error


def _decode(code: Any, arrays: list[np.ndarray], find: Find, depth: int) -> Any:
    if depth > 4 * MAX_DEPTH:
        raise BadFrame
    if type(code) is list:
        return [_decode(item, arrays, find, depth + 1) for item in code]
    if type(code) is not dict:
        return code
    (kind, content), *rest = code.items()
    if kind in ("object", "remote"):
        return find(code)
    if kind == "tensor":
        return _tensor(_take(arrays, content), code["dtype"], code["shape"])
    if rest:
        raise BadFrame
    if kind in ("tuple", "size", "slice", "range", "complex"):
        if type(content) is not list:
            raise BadFrame
        parts = [_decode(item, arrays, find, depth + 1) for item in content]
        return _BUILDERS[kind](parts)
    if kind == "dict":
        pairs = [[_decode(part, arrays, find, depth + 1) for part in pair] for pair in content]
        if max(Counter(hash(key) for key, _ in pairs).values(), default=0) > MAX_ALIKE:
            raise BadFrame
        return dict(pairs)
    return _LEAVES[kind](content, arrays)


def _take(arrays: list[np.ndarray], number: Any) -> np.ndarray:
    """An array, once: a reply cannot grow by naming one array many times."""
    if type(number) is not int or number < 0:
        raise BadFrame
    array, arrays[number] = arrays[number], None
    return array


def _tensor(array: np.ndarray, name: str, shape: list[int]) -> torch.Tensor:
    dtype = DTYPES[name]
    if any(type(n) is not int or n < 0 for n in shape) or len(shape) > 32 or array.dtype != np.uint8:
        raise BadFrame
    if array.ndim != 1 or math.prod(shape) * dtype.itemsize != array.size:
        raise BadFrame
    if not array.size:
        return torch.empty(shape, dtype=dtype)
    return torch.from_numpy(array).view(dtype).reshape(shape)


def _size(parts: list[Any]) -> torch.Size:
    if any(type(n) is not int for n in parts):
        raise BadFrame
    return torch.Size(parts)


def _range(parts: list[Any]) -> range:
    if [type(n) for n in parts] != [int, int, int]:
        raise BadFrame
    value = range(*parts)
    if not _is_short(value):
        raise BadFrame
    return value


def _is_short(value: range) -> bool:
    """Whether a test can make a list of it: three numbers can stand for more than any memory holds."""
    return not value[MAX_ITEMS:]


def _slice(parts: list[Any]) -> slice:
    if len(parts) != 3:
        raise BadFrame
    return slice(*parts)


def _of_floats(parts: list[Any]) -> complex:
    if [type(n) for n in parts] != [float, float]:
        raise BadFrame
    return complex(*parts)


def _float(text: Any, _: Any) -> float:
    return {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}[text]


def _int(text: Any, _: Any) -> int:
    return int(text, 16)


_BUILDERS: dict[str, Callable[[list[Any]], Any]] = {
    "tuple": tuple,
    "size": _size,
    "slice": _slice,
    "range": _range,
    "complex": _of_floats,
}
_LEAVES: dict[str, Callable[[Any, list[np.ndarray]], Any]] = {
    "int": _int,
    "float": _float,
    "bytes": lambda content, arrays: (
        _take(arrays, content).astype(np.uint8, casting="no", copy=False).tobytes()
    ),
    "array": lambda content, arrays: _take(arrays, content),
    "scalar": lambda content, arrays: _take(arrays, content).reshape(())[()],
    "dtype": lambda content, arrays: DTYPES[content],
}
