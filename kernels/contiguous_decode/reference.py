"""The truth that every backend is tested against: decode attention in plain torch."""

import torch


def attend_reference(q, k, v, lengths, starts=None, scale=None):
    """Attention of one new query per row over the valid slots of a contiguous cache, with its log-sum-exp.

    Computes in float64 where the input is float64 and in float32 otherwise.

    q: (batch, num_heads, head_dim), the new query of each row.
    k: (batch, num_kv_heads, capacity, head_dim).
    v: (batch, num_kv_heads, capacity, v_head_dim).
    lengths: (batch,) integers, valid tokens of each row.
    starts: (batch,) integers or None (zeros); row b reads slots `(starts[b] + i) % capacity`, i < lengths[b].
    scale: factor of the scores; None is `head_dim ** -0.5`.

    Returns out (batch, num_heads, v_head_dim) and lse (batch, num_heads), the natural logarithm of the summed
    exponentials, both in the computing type. A row of length 0 gives zeros and -inf.
    """
    batch, num_heads, head_dim = q.shape
    num_kv_heads, capacity = k.shape[1], k.shape[2]
    group = num_heads // num_kv_heads
    dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
    scale = head_dim**-0.5 if scale is None else scale
    out = torch.zeros(batch, num_heads, v.shape[-1], dtype=dtype, device=q.device)
    lse = torch.full((batch, num_heads), -torch.inf, dtype=dtype, device=q.device)
    starts = [0] * batch if starts is None else starts.tolist()
    for row, (start, length) in enumerate(zip(starts, lengths.tolist(), strict=True)):
        if length == 0:
            continue
        slots = (start + torch.arange(length, device=q.device)) % capacity
        query = q[row].to(dtype).unflatten(0, (num_kv_heads, group))  # (num_kv_heads, group, head_dim)
        keys = k[row][:, slots].to(dtype)  # (num_kv_heads, length, head_dim)
        values = v[row][:, slots].to(dtype)  # (num_kv_heads, length, v_head_dim)
        scores = query @ keys.mT * scale  # (num_kv_heads, group, length)
        out[row] = (torch.softmax(scores, -1) @ values).flatten(0, 1)
        lse[row] = scores.logsumexp(-1).flatten()
    return out, lse


def merge_states(out_a, lse_a, out_b, lse_b):
    """Attention over two disjoint sets of tokens, from the attention over each.

    The weight of each part is its share of the summed exponentials. The merge is commutative and associative,
    and the state of no tokens, (0, -inf), is its neutral element; +inf is read as no tokens too, because
    FlashAttention-2 reports an empty row so. Source: "FlashInfer" (arXiv 2501.01005), section 2.2.

    out_a, out_b: (…, v_head_dim). lse_a, lse_b: (…), natural logarithms. Returns out (…, v_head_dim) and lse (…).
    """
    lse_a = torch.where(lse_a == torch.inf, -torch.inf, lse_a)
    lse_b = torch.where(lse_b == torch.inf, -torch.inf, lse_b)
    top = torch.maximum(lse_a, lse_b)
    top = torch.where(top == -torch.inf, 0.0, top)  # both empty: -inf minus -inf would be NaN
    weight_a, weight_b = torch.exp(lse_a - top), torch.exp(lse_b - top)
    total = weight_a + weight_b
    share = torch.where(total > 0, 1 / total, 0.0)
    out = (weight_a * share)[..., None] * out_a + (weight_b * share)[..., None] * out_b
    return out, torch.log(total) + top
