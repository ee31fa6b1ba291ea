"""Attention of one new token per row over a contiguous cache (the decode step)."""

import torch

from ..backends import found, require_cpu, require_triton, unknown
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

    Errors: ValueError when shapes, types or devices do not fit, a length on the CPU is outside 0 to capacity
    (lengths on a GPU are not read back to be checked), or the backend is unknown or not usable here.
    """
    check_arguments(q, k, v, lengths, starts)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    name = choose_backend(q, k, v, lengths) if backend is None else backend
    if name == "torch":
        return attend_sdpa(q, k, v, lengths, starts, scale)
    if name == "cpu":
        require_cpu(q, k, v)
        from .cpu import attend_cpu  # when it is first used: numba takes a moment

        return attend_cpu(q, k, v, lengths, starts, scale)
    if name == "triton":
        require_triton(q, k, v)
        from .triton import attend_triton

        return attend_triton(q, k, v, lengths, starts, scale)
    if name == "reference":
        return attend_reference(q, k, v, lengths, starts, scale)[0].to(q.dtype)
    raise unknown(name)


def choose_backend(q, k, v, lengths):
    """The name of the fastest backend for these arguments of `contiguous_decode`.

    "triton" on a GPU; "cpu" for float32 on the CPU unless the cache is small; "torch" for other types, where numba or
    Triton is missing, and where gradients are wanted, which the kernels do not compute.
    """
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        return "torch"
    if q.is_cuda and q.dtype != torch.float64:
        return "triton" if found("triton") else "torch"
    strided = k.stride(3) != 1 or v.stride(3) != 1
    if q.device.type != "cpu" or q.dtype != torch.float32 or strided or not found("numba"):
        return "torch"
    return "torch" if sum(lengths.tolist()) * k.shape[1] * k.shape[3] < SMALL else "cpu"
