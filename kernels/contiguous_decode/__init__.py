"""Attention of one new token per row over a contiguous cache (the decode step)."""

from .arguments import check_arguments
from .reference import attend_reference, merge_states
from .sdpa import attend_sdpa

__all__ = ["attend_reference", "choose_backend", "contiguous_decode", "merge_states"]

BACKENDS = ("reference", "torch")


def contiguous_decode(q, k, v, lengths, starts=None, scale=None, backend=None):
    """Attention of one new query per row over the valid slots of a contiguous cache.

    Query head h reads kv head ``h // (num_heads // num_kv_heads)``. Slots outside the valid range never reach
    the result, whatever bits they hold. Strides are free: views of fused buffers need no copy.

    Args:
        q: (batch, num_heads, head_dim), the new query of each row.
        k: (batch, num_kv_heads, capacity, head_dim), of q's dtype and device.
        v: (batch, num_kv_heads, capacity, v_head_dim), of q's dtype and device.
        lengths: (batch,) int32 or int64 on the CPU or q's device: the valid tokens of each row, 0 to capacity.
        starts: (batch,) like lengths, or None (zeros). Row b reads the slots ``(starts[b] + i) % capacity``,
            i < lengths[b], so a ring buffer (sliding window) needs no reordering.
        scale: factor of the scores; None is ``head_dim ** -0.5``.
        backend: "reference", "torch", "cpu" (numba) or "triton"; None chooses, see ``choose_backend``.

    Returns:
        (batch, num_heads, v_head_dim) in q.dtype; zeros for a row of length 0.

    Raises:
        ValueError: shapes, types or devices do not fit, a length is outside 0 to capacity, or the backend is
            unknown or not usable here.
    """
    check_arguments(q, k, v, lengths, starts)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    name = choose_backend(q) if backend is None else backend
    if name == "torch":
        return attend_sdpa(q, k, v, lengths, starts, scale)
    if name == "reference":
        return attend_reference(q, k, v, lengths, starts, scale)[0].to(q.dtype)
    raise ValueError(f"backend is {name!r}: use one of {', '.join(BACKENDS)}, or None to choose")


def choose_backend(q):
    """The name of the fastest backend that can compute on q here."""
    return "torch"
