"""Decode attention through torch's scaled_dot_product_attention, reading each kv head once."""

import torch
from torch.nn.functional import scaled_dot_product_attention


def attend_sdpa(q, k, v, lengths, starts, scale):
    """The operation of `attend_reference` (same arguments) for any device and floating type.

    The query heads that share a kv head become rows of one query matrix, so K and V are neither repeated nor
    read twice. Rows of equal start and length go in one call; others one by one, each on exactly its slots.
    There is never a mask: a masked slot is still read, and a NaN left in it would reach the result.

    Returns (batch, num_heads, v_head_dim) in q.dtype.
    """
    num_kv_heads, capacity = k.shape[1], k.shape[2]
    query = q.unflatten(1, (num_kv_heads, -1))  # (batch, num_kv_heads, group, head_dim)
    lengths = lengths.tolist()
    starts = [0] * len(lengths) if starts is None else [start % max(1, capacity) for start in starts.tolist()]
    if lengths and lengths.count(lengths[0]) == len(lengths) and starts.count(starts[0]) == len(starts):
        return _attend_slots(query, k, v, starts[0], lengths[0], scale).flatten(1, 2)
    out = q.new_empty(q.shape[0], q.shape[1], v.shape[-1])
    for row, (start, length) in enumerate(zip(starts, lengths, strict=True)):
        one = slice(row, row + 1)
        out[one] = _attend_slots(query[one], k[one], v[one], start, length, scale).flatten(1, 2)
    return out


def _attend_slots(query, k, v, start, length, scale):
    """Attention of (rows, num_kv_heads, group, head_dim) over `length` slots of the ring from `start`."""
    capacity = k.shape[2]
    if length == 0:
        return query.new_zeros(*query.shape[:3], v.shape[-1])
    if length == capacity:  # every slot; their order does not matter to attention
        start = 0
    if start + length <= capacity:
        k, v = k[:, :, start : start + length], v[:, :, start : start + length]
    else:
        k = torch.cat([k[:, :, start:], k[:, :, : start + length - capacity]], dim=2)
        v = torch.cat([v[:, :, start:], v[:, :, : start + length - capacity]], dim=2)
    return scaled_dot_product_attention(query, k, v, scale=scale)
