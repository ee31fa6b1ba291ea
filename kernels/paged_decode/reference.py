"""The truth that every backend is tested against: decode attention over pages in plain torch."""

import torch


def attend_reference(q, k_pages, v_pages, block_table, seq_lens, scale=None, window=None, soft_cap=None):
    """Attention of one new query per row over the row's pages, with its log-sum-exp.

    Computes in float64 where the input is float64 and in float32 otherwise.

    q: (batch, num_heads, head_dim), the new query of each row.
    k_pages: (num_blocks, num_kv_heads, block_size, head_dim). v_pages: (…, v_head_dim).
    block_table: (batch, max_blocks) integers; token i of row b lies in slot `i % block_size` of block
        `block_table[b, i // block_size]`.
    seq_lens: (batch,) integers, tokens of each row, the query's own included.
    scale: factor of the scores; None is `head_dim ** -0.5`.
    window: how many of the last tokens the query sees, or None for all.
    soft_cap: c, for scores `c · tanh(score / c)`, or None.

    Returns out (batch, num_heads, v_head_dim) and lse (batch, num_heads), the natural logarithm of the summed
    exponentials, both in the computing type. A row of length 0 gives zeros and -inf.
    """
    batch, num_heads, head_dim = q.shape
    num_kv_heads, block_size = k_pages.shape[1], k_pages.shape[2]
    dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
    scale = head_dim**-0.5 if scale is None else scale
    out = torch.zeros(batch, num_heads, v_pages.shape[-1], dtype=dtype, device=q.device)
    lse = torch.full((batch, num_heads), -torch.inf, dtype=dtype, device=q.device)
    for row, length in enumerate(seq_lens.tolist()):
        if length == 0:
            continue
        first = 0 if window is None else max(0, length - window)
        tokens = torch.arange(first, length, device=block_table.device)
        blocks = block_table[row, tokens // block_size].to(q.device)  # (seen,)
        slots = (tokens % block_size).to(q.device)
        # Contiguous: a library may sum strided operands in another order, and a view must give the same bits.
        query = (
            q[row].to(dtype).contiguous().unflatten(0, (num_kv_heads, -1))
        )  # (num_kv_heads, group, head_dim)
        keys = (
            k_pages[blocks, :, slots].to(dtype).contiguous().transpose(0, 1)
        )  # (num_kv_heads, seen, head_dim)
        values = v_pages[blocks, :, slots].to(dtype).contiguous().transpose(0, 1)  # (…, v_head_dim)
        scores = query @ keys.mT * scale  # (num_kv_heads, group, seen)
        scores = scores if soft_cap is None else soft_cap * torch.tanh(scores / soft_cap)
        out[row] = (torch.softmax(scores, -1) @ values).flatten(0, 1)
        lse[row] = scores.logsumexp(-1).flatten()
    return out, lse
