"""What a cache accepts, checked before anything is touched."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from kvcourse.errors import InputError
from kvcourse.storage.base import Store


def check_tensors(
    store: Store, batch_size: int, queries: Mapping[str, tuple[Any, int, int]], fields: Mapping[str, Any]
) -> dict[str, Tensor]:
    """The fields for one layer, each with a dimension for heads: (batch, heads, tokens, dim).

    queries: by name, with the heads and the dim that each must have. fields: by name, new entries for the store.
    Errors: InputError for what is no tensor, and for shapes, dtypes and devices that do not fit.
    """
    shapes = {field.name: field.shape for field in store.fields}
    expected = {name: (x, (heads, "tokens", dim)) for name, (x, heads, dim) in queries.items()}
    for name, x in fields.items():
        *heads, dim = shapes[name]
        expected[name] = (x, (*heads, "tokens", dim))
    first_name, first = next(iter(fields.items()))
    rank = len(expected[first_name][1]) + 1
    tokens = first.shape[-2] if isinstance(first, Tensor) and first.dim() == rank else "tokens"
    for name, (x, shape) in expected.items():
        shape = (batch_size, *(tokens if size == "tokens" else size for size in shape))
        names = "(batch, heads, tokens, dim)" if len(shape) == 4 else "(batch, tokens, dim)"
        if not isinstance(x, Tensor):
            raise InputError(f"{name} is a {type(x).__name__}: expected a tensor {names}")
        if x.layout is not torch.strided:
            raise InputError(f"{name} is a tensor of layout {x.layout}: expected a dense one; see to_dense()")
        if tuple(x.shape) != shape:
            raise InputError(f"{name} has shape {tuple(x.shape)}: expected {names} = {shape}")
        if x.dtype != first.dtype or x.device != first.device or not x.is_floating_point():
            raise InputError(
                f"{name} is {x.dtype} on {x.device} and {first_name} is {first.dtype} on {first.device}: "
                "expected one floating-point dtype and one device"
            )
    dtype, device = store.kind or (None, first.device)
    if device != first.device or dtype not in (None, first.dtype):
        raise InputError(
            f"{first_name} is {first.dtype} on {first.device}, but the cache holds {dtype or 'tensors'} on "
            f"{device}: use one cache per dtype and device"
        )
    return {name: x if x.dim() == 4 else x[:, None] for name, x in fields.items()}
