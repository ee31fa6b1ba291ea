"""Decode attention through torch's matrix products on gathered pages."""

import torch


def attend_gathered(q, k_pages, v_pages, block_table, seq_lens, scale, window=None, soft_cap=None):
    """The operation of `attend_reference` (same arguments) for any device and floating type, with gradients.

    Rows go one by one, so that none depends on its batch mates. Slots that a row may not see are cut off before they
    meet any arithmetic: a masked slot would still be read, and a NaN left in it would reach the result.

    Returns out (batch, num_heads, v_head_dim) in the type of q and lse (batch, num_heads) in float32, or float64
    where the input is float64.
    """
    batch, num_heads, _ = q.shape
    block_size = k_pages.shape[2]
    dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
    block_table = block_table.to(q.device)
    out = torch.zeros(batch, num_heads, v_pages.shape[-1], dtype=q.dtype, device=q.device)
    lse = torch.full((batch, num_heads), -torch.inf, dtype=dtype, device=q.device)
    for row, length in enumerate(seq_lens.tolist()):
        if length == 0:
            continue
        first = 0 if window is None else max(0, length - window)
        blocks = block_table[row, first // block_size : -(-length // block_size)]
        seen = slice(first % block_size, first % block_size + length - first)
        keys = _gather(k_pages, blocks, seen).to(dtype)  # (num_kv_heads, seen, head_dim)
        query = (q[row].to(dtype) * scale).unflatten(0, (len(keys), -1))  # (num_kv_heads, group, head_dim)
        scores = query @ keys.mT  # (num_kv_heads, group, seen)
        scores = scores if soft_cap is None else soft_cap * torch.tanh(scores / soft_cap)
        values = _gather(v_pages, blocks, seen).to(dtype)  # (num_kv_heads, seen, v_head_dim)
        out[row] = (torch.softmax(scores, -1) @ values).flatten(0, 1).to(q.dtype)
        lse[row] = scores.logsumexp(-1).flatten()
    return out, lse


def _gather(pages, blocks, seen):
    """(num_kv_heads, tokens, dims) of the tokens that are seen, counted from the start of the first block."""
    return pages.transpose(0, 1)[:, blocks].flatten(1, 2)[:, seen]
