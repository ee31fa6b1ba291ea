"""What the operation accepts, checked before any kernel runs."""

import numpy as np

from ..backends import require_tensors
from ..paging import check_blocks, check_integers, check_options, check_pages, check_queries, check_starts


def check_arguments(
    q, k_pages, v_pages, block_table, seq_lens, query_starts, scale=None, window=None, soft_cap=None
):
    """Errors: ValueError, saying what to do, unless the arguments of `paged_prefill` fit together."""
    require_tensors(
        q=q, k_pages=k_pages, v_pages=v_pages, block_table=block_table, seq_lens=seq_lens, query_starts=query_starts
    )  # fmt: skip
    check_pages(k_pages, v_pages)
    check_queries(q, k_pages, v_pages, "num_tokens")
    check_options(scale, window, soft_cap)
    batch = len(seq_lens) if seq_lens.dim() else 0
    check_integers("seq_lens", seq_lens, "(batch,)", batch, q.device)
    check_integers("block_table", block_table, "(batch, max_blocks)", batch, q.device)
    check_integers("query_starts", query_starts, "(batch + 1,)", batch, q.device, more=1)
    if query_starts.device.type != "cpu":
        return
    check_starts(query_starts)
    counts = np.diff(query_starts.numpy())
    if counts.sum() != q.shape[0]:
        raise ValueError(
            f"query_starts ends with {counts.sum()} for {q.shape[0]} new tokens in q: let it end with {q.shape[0]}"
        )
    if seq_lens.device.type != "cpu":
        return
    lengths = seq_lens.numpy()
    num_blocks, block_size = k_pages.shape[0], k_pages.shape[2]
    capacity = block_table.shape[1] * block_size
    window = capacity if window is None else min(window, capacity)
    # A row without new tokens needs no block: all its entries lie before the first token needed.
    firsts = np.where(counts == 0, capacity, np.maximum(0, lengths - counts - (window - 1)))
    check_blocks(num_blocks, block_size, block_table, seq_lens, firsts)
    if (counts > lengths).any():
        row = int((counts > lengths).argmax())
        raise ValueError(
            f"row {row} has {counts[row]} new tokens and seq_lens[{row}] is {lengths[row]}: count the new tokens in "
            "seq_lens, and store their keys and values first"
        )
