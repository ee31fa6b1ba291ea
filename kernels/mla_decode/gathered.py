"""Absorbed latent attention through torch's matrix products on gathered pages."""

import torch


def attend_gathered(q_latent, q_rope, latent_pages, rope_pages, block_table, seq_lens, scale):
    """The operation of `attend_reference` (same arguments) for any device and floating type, with gradients.

    Rows of equal length go in one call, others one by one. Slots beyond a length are cut off before they meet any
    arithmetic: a masked slot would still be read, and a NaN left in it would reach the result.

    Returns out (batch, num_heads, kv_lora_rank) in the type of q_latent and lse (batch, num_heads) in float32, or
    float64 where the input is float64.
    """
    block_table = block_table.to(q_latent.device)
    lengths = seq_lens.tolist()
    if lengths and lengths.count(lengths[0]) == len(lengths):
        return _attend_rows(q_latent, q_rope, latent_pages, rope_pages, block_table, lengths[0], scale)
    out = torch.empty_like(q_latent, memory_format=torch.contiguous_format)
    dtype = torch.float64 if q_latent.dtype == torch.float64 else torch.float32
    lse = torch.empty(q_latent.shape[:2], dtype=dtype, device=q_latent.device)
    for row, length in enumerate(lengths):
        one = slice(row, row + 1)
        out[one], lse[one] = _attend_rows(
            q_latent[one], q_rope[one], latent_pages, rope_pages, block_table[one], length, scale
        )
    return out, lse


def _attend_rows(q_latent, q_rope, latent_pages, rope_pages, block_table, length, scale):
    """Attention of some rows that all hold `length` tokens."""
    dtype = torch.float64 if q_latent.dtype == torch.float64 else torch.float32
    if length == 0:
        empty = torch.full(q_latent.shape[:2], -torch.inf, dtype=dtype, device=q_latent.device)
        return torch.zeros_like(q_latent), empty
    latents = _gather(latent_pages, block_table, length).to(dtype)  # (rows, length, kv_lora_rank)
    rope_keys = _gather(rope_pages, block_table, length).to(dtype)  # (rows, length, qk_rope_head_dim)
    scores = (q_latent.to(dtype) * scale) @ latents.mT  # (rows, num_heads, length)
    scores = torch.baddbmm(scores, q_rope.to(dtype) * scale, rope_keys.mT)
    out = torch.softmax(scores, -1) @ latents  # (rows, num_heads, kv_lora_rank)
    return out.to(q_latent.dtype), scores.logsumexp(-1)


def _gather(pages, block_table, length):
    """(rows, length, dims) of each row's tokens; a view where one row lies in one block."""
    block_size = pages.shape[1]
    used = -(-length // block_size)
    if used == 1:
        first = block_table[:, 0]
        return pages[int(first), None, :length] if len(first) == 1 else pages[first, :length]
    return pages[block_table[:, :used]].flatten(1, 2)[:, :length]
