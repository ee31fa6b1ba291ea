"""Attention of one new token per row over a contiguous cache (the decode step)."""

from ..backends import attention_of, fastest
from .arguments import check_arguments
from .reference import attend_reference, merge_states
from .sdpa import attend_sdpa

__all__ = ["attend_reference", "choose_backend", "contiguous_decode", "merge_states"]

SMALL = 1 << 15  # key floats below which SDPA on the CPU is as fast as starting threads (measured)


def contiguous_decode(q, k, v, lengths, starts=None, scale=None, backend=None):
    """Attention of one new query per row over the valid slots of a contiguous cache.

    Query head h reads kv head `h // (num_heads // num_kv_heads)`. Slots outside the valid range never reach
    the result, whatever bits they hold. Strides are free: views of fused buffers need no copy.

    q: (batch, num_heads, head_dim), the new query of each row.
    k: (batch, num_kv_heads, capacity, head_dim), of q's dtype and device.
    v: (batch, num_kv_heads, capacity, v_head_dim), of q's dtype and device.
    lengths: (batch,) int32 or int64 on the CPU or q's device: the valid tokens of each row, 0 to capacity.
    starts: (batch,) like lengths, or None (zeros). Row b reads the slots `(starts[b] + i) % capacity`,
        i < lengths[b], so a ring buffer (sliding window) needs no reordering.
    scale: factor of the scores; None is `head_dim ** -0.5`.
    backend: "reference", "torch", "cpu" (numba) or "triton"; None chooses, see `choose_backend`.

    Returns (batch, num_heads, v_head_dim) in q.dtype; zeros for a row of length 0.

    Errors: ValueError when shapes, types or devices do not fit, scale is no finite number, a length on the CPU is
    outside 0 to capacity (lengths on a GPU are not read back to be checked), or the backend is unknown or not usable
    here.
    """
    check_arguments(q, k, v, lengths, starts, scale)
    scale = q.shape[-1] ** -0.5 if scale is None else float(scale)
    name = choose_backend(q, k, v, lengths) if backend is None else backend
    in_torch = {"reference": attend_reference, "torch": attend_sdpa}
    out = attention_of(__package__, name, (q, k, v), in_torch)(q, k, v, lengths, starts, scale)
    return out[0].to(q.dtype) if name == "reference" else out


def choose_backend(q, k, v, lengths):
    """The name of the fastest backend for these arguments of `contiguous_decode`.

    As `backends.fastest` says, but "torch" for a small cache on the CPU.
    """
    name = fastest((q,), (k, v))
    small = name == "cpu" and sum(lengths.tolist()) * k.shape[1] * k.shape[3] < SMALL
    return "torch" if small else name
