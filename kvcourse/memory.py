"""Memory arithmetic: the exact bytes of a KV cache for any model, and what fits where.

Without a plan the numbers are ideal: every token stored once, nothing rounded. With a plan they are what its
storage allocates, and equal `KVCache.nbytes` to the byte.

`config` is anything that `kvcourse.attention.families.layout_of` takes: our ModelConfig, a transformers config, a
dict, a path to config.json, a built-in name such as "llama-3-8b", or a hub name. `dtype` is the number type of
the model: "bf16", "fp16", "fp32", "fp64" or a torch dtype. `codec` names a format of `kvcourse.codecs`; by default
it is the plan's, and full precision in `dtype` without a plan.
"""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kvcourse.attention.families import layout_of
from kvcourse.attention.layout import Field
from kvcourse.codecs.formats import CodecFormat, dtype_bytes, get_format
from kvcourse.errors import InputError
from kvcourse.parameters import parameter_count
from kvcourse.plan import Plan
from kvcourse.units import humanize, parse_bytes, parse_tokens

__all__ = [
    "Fit", "bytes_at", "bytes_per_token", "bytes_per_token_beyond_windows", "crossover_tokens", "fits", "humanize",
    "parameter_count", "parse_bytes", "parse_tokens", "weight_size",
]  # fmt: skip

LONGEST = 1 << 50  # tokens; a context that fits at this length is limited by something else than memory


def bytes_per_token(config: Any, plan: Any = None, dtype: Any = "bf16", *, codec: str | None = None) -> int:
    """Bytes that one more token adds in all layers together, before any window is full.

    Codecs with groups of tokens are counted in the long run; a fraction of a byte is rounded up.
    """
    return _growth(config, plan, dtype, codec, lambda field: True)


def bytes_per_token_beyond_windows(
    config: Any, plan: Any = None, dtype: Any = "bf16", *, codec: str | None = None
) -> int:
    """Bytes that one more token adds once every window is full: 0 when all layers slide."""
    return _growth(config, plan, dtype, codec, lambda field: field.window is None)


def bytes_at(
    config: Any,
    context: int,
    batch: int = 1,
    plan: Any = None,
    dtype: Any = "bf16",
    *,
    codec: str | None = None,
) -> int:
    """Bytes of `batch` sequences of `context` tokens each, all layers, metadata and fixed states included.

    plan: its storage decides the rounding. "paged": up to whole blocks. "contiguous": up to the capacity that
    the cache allocates. None: no rounding.
    Errors: InputError for a negative context, a batch below 1, more tokens than the plan's capacity or blocks
    hold, or a plan that drops tokens or shares them.
    """
    _check_count("context", context, 0)
    _check_count("batch", batch, 1)
    return batch * _request_size(config, plan, dtype, codec, batch)(context)


@dataclass(frozen=True)
class Fit:
    """What fits in a given memory next to the weights. All sizes in bytes.

    request_bytes: one request of `context` tokens. requests: how many of them fit. tokens: tokens that the whole
    room holds when it is filled with such requests, the part of a last one included. longest: the longest single
    request that fits, None when memory does not limit it (all layers have windows or fixed states), and never
    more than the plan's capacity or blocks hold.
    """

    gpu_bytes: int
    weight_bytes: int
    reserved_bytes: int
    room_bytes: int
    context: int
    request_bytes: int
    requests: int
    tokens: int
    longest: int | None


def fits(
    config: Any,
    gpu_bytes: int | str,
    context: int,
    plan: Any = None,
    dtype: Any = "bf16",
    *,
    codec: str | None = None,
    weight_bytes: int | None = None,
    parameters: int | None = None,
    reserve: float = 0.1,
) -> Fit:
    """What fits in `gpu_bytes` (a number, or "80GB", "24GiB") next to the weights.

    weight_bytes, or parameters × dtype, or neither for models that `parameter_count` counts. reserve: share of
    the memory that is kept for activations and the runtime.
    Errors: InputError when the weights alone do not fit, or their size is neither given nor countable.
    """
    gpu = parse_bytes(gpu_bytes)
    _check_count("context", context, 1)
    if not isinstance(reserve, int | float) or not 0 <= reserve < 1:
        raise InputError(f"reserve={reserve!r}: expected a share of the memory, at least 0 and below 1")
    weights = weight_size(config, dtype, weight_bytes, parameters)
    reserved = math.ceil(gpu * reserve)
    room = gpu - reserved - weights
    if room <= 0:
        raise InputError(
            f"the weights ({weights:,} bytes) and the reserve ({reserved:,}) fill the {gpu:,} bytes of memory: "
            "take more memory, several GPUs, or quantised weights (weight_bytes)"
        )
    size = _request_size(config, plan, dtype, codec)
    request = size(context)
    return Fit(
        gpu_bytes=gpu,
        weight_bytes=weights,
        reserved_bytes=reserved,
        room_bytes=room,
        context=context,
        request_bytes=request,
        requests=room // request,
        tokens=room * context // request,
        longest=_last(lambda tokens: size(tokens) <= room, plan),
    )


def crossover_tokens(
    config: Any,
    plan: Any = None,
    dtype: Any = "bf16",
    *,
    codec: str | None = None,
    weight_bytes: int | None = None,
    parameters: int | None = None,
) -> int | None:
    """Tokens of one sequence from which on its KV cache is as large as the weights; None when it never is."""
    weights = weight_size(config, dtype, weight_bytes, parameters)
    size = _request_size(config, plan, dtype, codec)
    below = _last(lambda tokens: size(tokens) < weights, plan)
    return None if below is None or below == _most_tokens(plan) else below + 1


def _most_tokens(plan: Plan | None) -> int | None:
    """Tokens of the longest request that the plan has room for; None when it grows on demand."""
    if plan is None:
        return None
    return plan.capacity or (plan.num_blocks and (plan.num_blocks - 1) * plan.block_size)


def weight_size(
    config: Any, dtype: Any = "bf16", weight_bytes: int | None = None, parameters: int | None = None
) -> int:
    """Bytes of the weights: as given, or parameters × dtype, counted from the config when neither is given."""
    if weight_bytes is not None:
        _check_count("weight_bytes", weight_bytes, 0)
        return weight_bytes
    if parameters is None:
        parameters = parameter_count(config)
    _check_count("parameters", parameters, 0)
    return parameters * dtype_bytes(dtype)


def _format(plan: Any, codec: str | None) -> CodecFormat:
    if plan is not None and not isinstance(plan, Plan):
        raise InputError(
            f"plan is a {type(plan).__name__}: expected a kvcourse.Plan, or None for nothing rounded"
        )
    return get_format(codec if codec is not None else "auto" if plan is None else plan.codec)


def _growth(config: Any, plan: Any, dtype: Any, codec: str | None, counts: Callable[[Field], bool]) -> int:
    form, full = _format(plan, codec), dtype_bytes(dtype)
    return math.ceil(
        sum(
            form.bytes_per_entry(field.shape, field.name == "k", full) / field.stride
            for layer in layout_of(config)
            for field in layer.fields
            if counts(field)
        )
    )


def _request_size(
    config: Any, plan: Any, dtype: Any, codec: str | None, batch: int = 1
) -> Callable[[int], int]:
    """tokens -> bytes of one request. The config is read once, however often this is asked."""
    form, full, entries = _format(plan, codec), dtype_bytes(dtype), _rounding(plan, batch)
    layers = Counter(layout_of(config))

    def size(tokens: int) -> int:
        if tokens == 0:
            return 0
        return sum(
            times
            * (
                layer.state_bytes
                + sum(form.nbytes(entries(f, tokens), f.shape, f.name == "k", full) for f in layer.fields)
            )
            for layer, times in layers.items()
        )

    return size


def _rounding(plan: Any, batch: int) -> Callable[[Field, int], int]:
    """(field, tokens) -> entries that the plan's storage allocates for them, in each of `batch` sequences."""
    if plan is None:
        return lambda field, tokens: field.entries(tokens)
    for axis in ("sharing", "eviction"):
        if getattr(plan, axis) is not None:
            raise InputError(
                f"{axis}={getattr(plan, axis)!r}: what it stores depends on the traffic; "
                "size the plan without it, and measure the saving"
            )
    if plan.storage == "paged":
        return lambda field, tokens: _paged_entries(field, tokens, plan, batch)
    from kvcourse.storage.contiguous import capacity_for

    return lambda field, tokens: capacity_for(
        tokens // field.stride, field.window, plan.block_size, plan.capacity
    )


def _paged_entries(field: Field, tokens: int, plan: Plan, batch: int) -> int:
    from kvcourse.storage.block_table import held_blocks

    blocks = held_blocks(tokens // field.stride, field.window, plan.block_size)
    if plan.num_blocks is not None and batch * blocks > plan.num_blocks - 1:
        raise InputError(
            f"{batch} × {tokens} tokens fill {batch * blocks} blocks: the plan has num_blocks={plan.num_blocks}, one "
            "of them null; give more or larger blocks, or None to grow on demand"
        )
    return blocks * plan.block_size


def _last(holds: Callable[[int], bool], plan: Any) -> int | None:
    """The largest number of tokens for which `holds`, up to the plan's capacity; None when there is no limit.

    Sizes fall when a group of tokens closes, so they do not always rise. At whole groups they do, and the halves
    of a power of two are whole groups (of a power of two) until one group is left, inside which they rise again.
    """
    capacity = _most_tokens(plan)
    low, high = 0, capacity or LONGEST
    if holds(high):
        return capacity
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _check_count(name: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InputError(f"{name}={value!r}: expected a whole number of at least {least}")
