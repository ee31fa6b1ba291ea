"""The truth that every backend is tested against: attention of new tokens over pages in plain torch."""

import torch


def attend_reference(
    q, k_pages, v_pages, block_table, seq_lens, query_starts, scale=None, window=None, soft_cap=None
):
    """Causal attention of the new tokens of several rows over the pages that hold their keys and values.

    Computes in float64 where the input is float64 and in float32 otherwise.

    q: (num_tokens, num_heads, head_dim), the new tokens of all rows, packed.
    k_pages: (num_blocks, num_kv_heads, block_size, head_dim).
    v_pages: (num_blocks, num_kv_heads, block_size, v_head_dim).
    block_table: (batch, max_blocks) integers; the token at position p of row b lies in block
        `block_table[b, p // block_size]`, slot `p % block_size`.
    seq_lens: (batch,) integers, tokens of each row, the new ones included.
    query_starts: (batch + 1,) integers; the new tokens of row b, its last ones, are q[query_starts[b] :
        query_starts[b + 1]]. Each sees the tokens before it and itself.
    scale: factor of the scores; None is `head_dim ** -0.5`. window: the most tokens that a token sees, itself
        included, or None. soft_cap: scores s become soft_cap * tanh(s / soft_cap), or None.

    Returns out (num_tokens, num_heads, v_head_dim) and lse (num_tokens, num_heads), the natural logarithm of the
    summed exponentials, both in the computing type.
    """
    num_tokens, num_heads, head_dim = q.shape
    num_kv_heads, block_size = k_pages.shape[1], k_pages.shape[2]
    dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
    scale = head_dim**-0.5 if scale is None else scale
    out = torch.zeros(num_tokens, num_heads, v_pages.shape[-1], dtype=dtype, device=q.device)
    lse = torch.full((num_tokens, num_heads), -torch.inf, dtype=dtype, device=q.device)
    starts = query_starts.tolist()
    for row, length in enumerate(seq_lens.tolist()):
        for token in range(starts[row], starts[row + 1]):
            position = length - starts[row + 1] + token
            first = 0 if window is None else max(0, position - window + 1)
            seen = torch.arange(first, position + 1, device=block_table.device)
            blocks = block_table[row, seen // block_size].to(q.device).long()  # (tokens,)
            slots = (seen % block_size).to(q.device)
            # Contiguous: a library may sum strided operands in another order, and a view must give the same bits.
            query = q[token].to(dtype).contiguous().unflatten(0, (num_kv_heads, -1))  # (…, group, head_dim)
            keys = k_pages[blocks, :, slots].to(dtype).contiguous().transpose(0, 1)  # (…, tokens, head_dim)
            values = v_pages[blocks, :, slots].to(dtype).contiguous().transpose(0, 1)  # (…, v_head_dim)
            scores = query @ keys.mT * scale  # (num_kv_heads, group, tokens)
            if soft_cap is not None:
                scores = soft_cap * torch.tanh(scores / soft_cap)
            out[token] = (torch.softmax(scores, -1) @ values).flatten(0, 1)
            lse[token] = scores.logsumexp(-1).flatten()
    return out, lse
