"""Attention of one new token per row over pages that a block table finds (the decode step)."""

from ..backends import attention_of, fastest
from .arguments import check_arguments
from .gathered import attend_gathered
from .reference import attend_reference

__all__ = ["attend_reference", "choose_backend", "paged_decode"]

IN_TORCH = {"reference": attend_reference, "torch": attend_gathered}


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
    out, lse = attention_of(__package__, name, (q, k_pages, v_pages), IN_TORCH)(*arguments)
    out = out.to(q.dtype)
    return (out, lse) if return_lse else out


def choose_backend(q, k_pages, v_pages):
    """The name of the fastest backend for these arguments of `paged_decode`: see `backends.fastest`."""
    return fastest((q,), (k_pages, v_pages))
