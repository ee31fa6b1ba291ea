"""The truth that every backend is tested against: absorbed latent attention in plain torch."""

import torch


def attend_reference(q_latent, q_rope, latent_pages, rope_pages, block_table, seq_lens, scale):
    """Attention of one new query per row over a paged latent cache, with its log-sum-exp.

    Computes in float64 where the input is float64 and in float32 otherwise.

    q_latent: (batch, num_heads, kv_lora_rank), queries with the key up-projection absorbed.
    q_rope: (batch, num_heads, qk_rope_head_dim), rotated queries.
    latent_pages: (num_blocks, block_size, kv_lora_rank), normed latents: keys and values at once.
    rope_pages: (num_blocks, block_size, qk_rope_head_dim), rotated keys that all heads share.
    block_table: (batch, max_blocks) integers; token i of row b lies in block `block_table[b, i // block_size]`.
    seq_lens: (batch,) integers, tokens of each row. scale: factor of the scores.

    Returns out (batch, num_heads, kv_lora_rank) and lse (batch, num_heads), the natural logarithm of the summed
    exponentials, both in the computing type. A row of length 0 gives zeros and -inf.
    """
    batch, num_heads, rank = q_latent.shape
    block_size = latent_pages.shape[1]
    dtype = torch.float64 if q_latent.dtype == torch.float64 else torch.float32
    out = torch.zeros(batch, num_heads, rank, dtype=dtype, device=q_latent.device)
    lse = torch.full((batch, num_heads), -torch.inf, dtype=dtype, device=q_latent.device)
    for row, length in enumerate(seq_lens.tolist()):
        if length == 0:
            continue
        tokens = torch.arange(length, device=block_table.device)
        blocks = block_table[row, tokens // block_size].to(latent_pages.device)  # (length,)
        slots = (tokens % block_size).to(latent_pages.device)
        latents = latent_pages[blocks, slots].to(dtype)  # (length, kv_lora_rank)
        rope_keys = rope_pages[blocks, slots].to(dtype)  # (length, qk_rope_head_dim)
        scores = q_latent[row].to(dtype) @ latents.T + q_rope[row].to(dtype) @ rope_keys.T
        scores = scores * scale  # (num_heads, length)
        out[row] = torch.softmax(scores, -1) @ latents
        lse[row] = scores.logsumexp(-1)
    return out, lse
