"""Attention of new tokens over pages through torch's matrix products, one row after the other."""

import torch

# Scores that are held at a time: few enough for a CPU's caches, many enough to fill another device.
CPU_SCORES, DEVICE_SCORES = 1 << 20, 1 << 26


def attend_gathered(
    q, k_pages, v_pages, block_table, seq_lens, query_starts, scale, window=None, soft_cap=None
):
    """The operation of `attend_reference` (same arguments) for any device and floating type, with gradients.

    Each row's pages are gathered once, from the first token that a query may see; then a few queries at a time meet
    exactly the tokens up to the last of them. Slots beyond a length are cut off before they meet any arithmetic: a
    masked slot would still be read, and a NaN left in it would reach the result. No row's result depends on another
    row, which one call for rows of equal lengths could not promise.

    Returns out (num_tokens, num_heads, v_head_dim) in the type of q and lse (num_tokens, num_heads) in float32, or
    float64 where the input is float64.
    """
    dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
    block_table = block_table.to(q.device)
    starts = query_starts.tolist()
    outs, lses = [], []
    for row, length in enumerate(seq_lens.tolist()):
        count = starts[row + 1] - starts[row]
        if count == 0:
            continue
        first = 0 if window is None else max(0, length - count - window + 1)
        keys, values = (_gather(pages, block_table[row], first, length) for pages in (k_pages, v_pages))
        query = q[starts[row] : starts[row + 1]].to(dtype)
        row_out, row_lse = _attend_row(query, keys.to(dtype), values.to(dtype), scale, window, soft_cap)
        outs.append(row_out)
        lses.append(row_lse)
    if not outs:
        empty = torch.empty(0, q.shape[1], dtype=dtype, device=q.device)
        return q.new_empty(0, q.shape[1], v_pages.shape[-1]), empty
    return torch.cat(outs).to(q.dtype), torch.cat(lses)


def _gather(pages, table, first, length):
    """(num_kv_heads, length - first, dim) of the tokens of one row from position `first` on."""
    block_size = pages.shape[2]
    blocks = table[first // block_size : -(-length // block_size)]
    tokens = pages.transpose(0, 1)[:, blocks].flatten(1, 2)  # (num_kv_heads, whole blocks of tokens, dim)
    before = first % block_size
    return tokens[:, before : before + length - first]


def _attend_row(q, keys, values, scale, window, soft_cap):
    """Causal attention of the last tokens of a row.

    q: (count, num_heads, head_dim). keys, values: (num_kv_heads, tokens, dim) up to the last query's own.
    Returns out (count, num_heads, v_head_dim) and lse (count, num_heads).
    """
    count, num_heads, _ = q.shape
    num_kv_heads, tokens, _ = keys.shape
    held = CPU_SCORES if q.device.type == "cpu" else DEVICE_SCORES
    step = max(1, held // (num_heads * tokens))
    outs, lses = [], []
    for begin in range(0, count, step):
        end = min(count, begin + step)
        last = tokens - count + end  # tokens that the last of these queries sees
        first = 0 if window is None else max(0, tokens - count + begin - window + 1)
        # The query heads of a kv head are rows of one matrix: keys are neither repeated nor read twice.
        query = (q[begin:end] * scale).unflatten(1, (num_kv_heads, -1))  # (queries, kv heads, group, dim)
        query = query.transpose(0, 1)
        scores = query.flatten(1, 2) @ keys[:, first:last].mT  # (num_kv_heads, queries * group, tokens)
        if soft_cap is not None:
            scores = soft_cap * torch.tanh(scores / soft_cap)
        _mask(scores.unflatten(1, query.shape[1:3]), end - begin, last - first, window)
        out = torch.softmax(scores, -1) @ values[:, first:last]
        outs.append(out.unflatten(1, query.shape[1:3]).transpose(0, 1).flatten(1, 2))
        lses.append(scores.logsumexp(-1).unflatten(1, query.shape[1:3]).transpose(0, 1).flatten(1, 2))
    return torch.cat(outs), torch.cat(lses)


def _mask(scores, queries, tokens, window):
    """Sets to -inf, in place, the scores (num_kv_heads, queries, group, tokens) of tokens that a query may not see.

    The queries are the last of the tokens. Only the corners are touched, where some queries see a token and some not.
    """
    if queries == 1:
        return
    later = torch.ones(queries, queries, dtype=torch.bool, device=scores.device).triu(1)
    scores[..., tokens - queries :].masked_fill_(later[:, None], -torch.inf)
    if window is not None:
        # Query i has position tokens - queries + i and sees the tokens from tokens - queries + i - window + 1 on.
        begins = torch.arange(queries, device=scores.device)[:, None] + (tokens - queries - window + 1)
        unseen = max(0, tokens - window)  # tokens that the last query does not see
        earlier = torch.arange(unseen, device=scores.device) < begins
        scores[..., :unseen].masked_fill_(earlier[:, None], -torch.inf)
