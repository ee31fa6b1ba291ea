"""Attention of one new token per row over pages that a block table finds (the decode step)."""

import torch

from ..backends import found, require_cpu, require_triton, unknown
from .arguments import check_arguments
from .gathered import attend_gathered
from .reference import attend_reference

__all__ = ["attend_reference", "choose_backend", "paged_decode"]


def paged_decode(
    q,
    k_pages,
    v_pages,
    block_table,
    seq_lens,
    scale=None,
    window=None,
    soft_cap=None,
    backend=None,
    return_lse=False,
):
    """Attention of one new query per row over keys and values that lie in blocks anywhere in a pool.

    Query head h reads kv head `h // (num_heads // num_kv_heads)`, and every kv head is read once for its whole group.
    Slots that a row may not see never reach its result, whatever bits they hold, and where its blocks lie does not
    change a bit of it. Source: "PagedAttention" (arXiv 2309.06180), section 4.

    q: (batch, num_heads, head_dim), the new query of each row.
    k_pages: (num_blocks, num_kv_heads, block_size, head_dim), of q's dtype and device; any block_size of at least 1.
    v_pages: (num_blocks, num_kv_heads, block_size, v_head_dim), likewise. Strides are free: both may be views of one
        fused array.
    block_table: (batch, max_blocks) int32 or int64 on the CPU or q's device. Token i of row b lies in slot
        `i % block_size` of block `block_table[b, i // block_size]`. Entries of blocks that hold no token that the
        query sees are never followed: behind a window, too, they may be 0, −1 or anything.
    seq_lens: (batch,) int32 or int64 like block_table: tokens of each row, 0 to max_blocks * block_size. The query is
        at position seq_lens − 1: its own key and value are in the pages already.
    scale: factor of the scores; None is `head_dim ** -0.5`.
    window: the query sees the last `window` tokens, its own included; None is all.
    soft_cap: c, to turn each scaled score s into `c · tanh(s / c)` ("Gemma 2", arXiv 2408.00118); None is no cap.
    backend: "reference", "torch", "cpu" (numba) or "triton"; None chooses, see `choose_backend`.
    return_lse: also return the natural logarithm of the summed exponentials, which `merge_states` takes.

    Returns out (batch, num_heads, v_head_dim) in q.dtype, zeros for a row of length 0; with return_lse also lse
    (batch, num_heads), float32 (float64 for float64), -inf for a row of length 0.

    Errors: ValueError when shapes, types, devices or numbers do not fit, a length or a block that a row needs is out
    of range (on a GPU they are not read back to be checked), or the backend is unknown or not usable here.
    """
    check_arguments(q, k_pages, v_pages, block_table, seq_lens, scale, window, soft_cap)
    scale = q.shape[2] ** -0.5 if scale is None else float(scale)
    soft_cap = None if soft_cap is None else float(soft_cap)
    arguments = (q, k_pages, v_pages, block_table, seq_lens, scale, window, soft_cap)
    name = choose_backend(q, k_pages, v_pages) if backend is None else backend
    if name == "torch":
        out, lse = attend_gathered(*arguments)
    elif name == "reference":
        out, lse = attend_reference(*arguments)
    elif name == "cpu":
        require_cpu(q, k_pages, v_pages)
        from .cpu import attend_cpu  # when it is first used: numba takes a moment

        out, lse = attend_cpu(*arguments)
    elif name == "triton":
        require_triton(q, k_pages, v_pages)
        from .triton import attend_triton

        out, lse = attend_triton(*arguments)
    else:
        raise unknown(name)
    out = out.to(q.dtype)
    return (out, lse) if return_lse else out


def choose_backend(q, k_pages, v_pages):
    """The name of the fastest backend for these arguments of `paged_decode`.

    "triton" on a GPU; "cpu" for float32 on the CPU; "torch" for other types, where numba or Triton is missing, and
    where gradients are wanted, which the kernels do not compute.
    """
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (q, k_pages, v_pages)):
        return "torch"
    if q.is_cuda and q.dtype != torch.float64:
        return "triton" if found("triton") else "torch"
    strided = k_pages.stride(3) != 1 or v_pages.stride(3) != 1  # the CPU kernel would copy all the pages
    if q.device.type != "cpu" or q.dtype != torch.float32 or strided or not found("numba"):
        return "torch"
    return "cpu"
