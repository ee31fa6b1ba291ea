"""Say in one line how two tensors, or two numpy arrays, differ: dtype, shape, NaN, then the elements."""

import sys
from typing import Any

from kvcourse.errors import InputError


def dtype_name(value: Any) -> str:
    """The dtype of a tensor or numpy array, without its library: float32."""
    return str(value.dtype).removeprefix("torch.") if _is_tensor(value) else value.dtype.name


def array_difference(got: Any, expected: Any, atol: float, rtol: float) -> str | None:
    """None if `got` has the dtype, shape and elements of `expected`; both are tensors, or both numpy arrays.

    Tensors are compared on the CPU and without their gradient. NaN belongs where NaN is expected. The rest may
    differ by atol + rtol * |expected|; infinities and bools must be the same. Errors: InputError if `expected` has
    no numbers to compare (a sparse tensor, an array of objects).
    """
    told = _form_difference(got, expected)
    if told is not None:
        return told
    if trouble := _no_elements(expected):
        raise InputError(f"{trouble} cannot be expected; compare dense tensors or arrays of numbers")
    if trouble := _no_elements(got):
        return f"expected a dense {'tensor' if _is_tensor(expected) else 'array'}, got {trouble}"
    return _element_difference(_as_numpy(got), _as_numpy(expected), atol, rtol)


def _is_tensor(value: Any) -> bool:
    return "torch" in sys.modules and type(value) in (
        sys.modules["torch"].Tensor,
        sys.modules["torch"].nn.Parameter,
    )


def _form_difference(got: Any, expected: Any) -> str | None:
    shapes, dtypes = (tuple(got.shape), tuple(expected.shape)), (dtype_name(got), dtype_name(expected))
    if shapes[0] == shapes[1]:
        return None if dtypes[0] == dtypes[1] else f"expected {dtypes[1]}, got {dtypes[0]}"
    noun = "a tensor" if _is_tensor(expected) else "an array"
    if dtypes[0] == dtypes[1]:
        return f"expected {noun} of shape {shapes[1]}, got shape {shapes[0]}"
    return f"expected {dtypes[1]} of shape {shapes[1]}, got {dtypes[0]} of shape {shapes[0]}"


def _no_elements(value: Any) -> str | None:
    """What stands in the way of reading the elements, if anything does."""
    if not _is_tensor(value):
        return None if value.dtype.kind in "biufc" else f"an array of {value.dtype.name}"
    torch = sys.modules["torch"]
    if value.is_nested or value.layout != torch.strided:
        return "a sparse or nested tensor"
    if value.is_quantized:
        return "a quantized tensor"
    return "a tensor without elements (device meta)" if value.is_meta else None


def _as_numpy(value: Any) -> Any:
    """The elements in a numpy type that holds each exactly: formats of less than 64 bits become float64."""
    if not _is_tensor(value):
        return value.astype("float64") if value.dtype.name in ("float16", "float32") else value
    torch = sys.modules["torch"]
    # Called on the class: an attribute of the object cannot come before the method then.
    value = torch.Tensor.cpu(torch.Tensor.detach(value))
    value = torch.Tensor.resolve_neg(torch.Tensor.resolve_conj(value))
    if torch.Tensor.is_complex(value):
        return torch.Tensor.numpy(torch.Tensor.to(value, torch.complex128))
    if torch.Tensor.is_floating_point(value):
        return torch.Tensor.numpy(torch.Tensor.to(value, torch.float64))
    return torch.Tensor.numpy(value)


# ---- elements --------------------------------------------------------------------------------------


def _element_difference(got: Any, expected: Any, atol: float, rtol: float) -> str | None:
    import numpy as np

    if got.dtype.kind in "fc":
        told = _nan_difference(np.isnan(got), np.isnan(expected), got, expected)
        if told is not None:
            return told
    unequal = (got != expected) & ~(np.not_equal(got, got) & np.not_equal(expected, expected))
    if got.dtype.kind == "b" or not (atol or rtol or got.dtype.kind in "fc"):
        return _first(unequal, got, expected)
    with np.errstate(all="ignore"):
        gap = _gap(got, expected)
        allowed = atol + rtol * np.abs(expected).astype(float)
        # Without the test for infinity, everything would be allowed where infinity is expected.
        wrong = unequal & ~((gap <= allowed) & np.isfinite(expected))
    if not wrong.any():
        return None
    place = np.unravel_index(np.argmax(np.where(wrong, gap, -1.0)), gap.shape)
    pair = _pair(got[place], expected[place])
    if np.isfinite(expected[place]) and (atol or rtol):
        pair = f"{pair}, allowed {allowed[place]:.3g}"
    if wrong.size == 1:
        return f"{pair}; difference {gap[place]:.3g}"
    return f"{_count(wrong)}; largest difference {gap[place]:.3g}{_at(place)}: {pair}"


def _gap(got: Any, expected: Any) -> Any:
    """|got - expected|. For integers without overflow: unsigned subtraction of the smaller from the larger."""
    import numpy as np

    if got.dtype.kind in "iu":
        larger, smaller = np.maximum(got, expected), np.minimum(got, expected)
        return (larger.astype(np.uint64) - smaller.astype(np.uint64)).astype(float)
    return np.abs(got - expected)


def _nan_difference(got_nan: Any, expected_nan: Any, got: Any, expected: Any) -> str | None:
    import numpy as np

    for wrong, text in (
        (got_nan & ~expected_nan, "got NaN"),
        (expected_nan & ~got_nan, "expected NaN, got a number"),
    ):
        if wrong.any():
            count = int(wrong.sum())
            place = _at(np.unravel_index(np.argmax(wrong), wrong.shape))
            more = f" and {count - 1:,} more of {wrong.size:,} places" if count > 1 else ""
            return f"{text}{place}{more}"
    return None


def _first(wrong: Any, got: Any, expected: Any) -> str | None:
    import numpy as np

    if not wrong.any():
        return None
    place = np.unravel_index(np.argmax(wrong), wrong.shape)
    pair = _pair(got[place], expected[place])
    return pair if wrong.size == 1 else f"{_count(wrong)}; the first{_at(place)}: {pair}"


def _count(wrong: Any) -> str:
    count = int(wrong.sum())
    return f"{count:,} of {wrong.size:,} elements {'differs' if count == 1 else 'differ'}"


def _at(place: tuple) -> str:
    return f" at [{', '.join(str(int(index)) for index in place)}]" if place else ""


def _pair(got: Any, expected: Any) -> str:
    """Both numbers with as many digits as it takes to tell them apart."""
    if got.dtype.kind in "biu":
        return f"expected {expected.item()}, got {got.item()}"
    for digits in (6, 9, 17):
        texts = [f"{x:.{digits}g}" for x in (expected, got)]
        if texts[0] != texts[1]:
            break
    return f"expected {texts[0]}, got {texts[1]}"
