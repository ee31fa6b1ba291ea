"""Where the new tokens of each sequence are written: from block tables to flat slots."""

import torch

from ..backends import require_tensors
from ..paging import check_integers, check_starts, shown


def slot_mapping(block_table, seq_lens, query_starts, block_size):
    """The flat slots of the new tokens of all rows, packed: what `store_kv` takes before `paged_prefill` attends.

    block_table: (batch, max_blocks) integers; the token at position p of row b lies in block
        `block_table[b, p // block_size]`, slot `p % block_size`.
    seq_lens: (batch,) integers, the tokens of each row, its new ones included.
    query_starts: (batch + 1,) integers: row b has `query_starts[b + 1] - query_starts[b]` new tokens, its last ones.
    block_size: tokens of a block.

    Returns (query_starts[-1],) int64 on the device of block_table, one slot for each new token.

    Errors: ValueError when shapes or types do not fit or, on the CPU, starts fall, or a new token lies before the
    first or past the last block of its row, or in a block below 0 (for which a slot of −1 would write nothing).
    """
    require_tensors(block_table=block_table, seq_lens=seq_lens, query_starts=query_starts)
    device, batch = block_table.device, len(seq_lens) if seq_lens.dim() else 0
    check_integers("seq_lens", seq_lens, "(batch,)", batch, device)
    check_integers("block_table", block_table, "(batch, max_blocks)", batch, device)
    check_integers("query_starts", query_starts, "(batch + 1,)", batch, device, more=1)
    if isinstance(block_size, bool) or not isinstance(block_size, int) or not 1 <= block_size < 2**31:
        raise ValueError(f"block_size is {shown(block_size)}: pass how many tokens a block holds, at least 1")
    if query_starts.device.type == "cpu":
        check_starts(query_starts)
    seq_lens, query_starts = (t.to(device, torch.int64) for t in (seq_lens, query_starts))
    counts = query_starts.diff()
    rows = torch.arange(batch, device=device).repeat_interleave(counts)
    offsets = seq_lens - query_starts[1:]  # position minus packed index, for each row
    positions = torch.arange(len(rows), device=device) + offsets[rows]
    if device.type == "cpu" and len(rows):
        _check_positions(block_table, rows, positions, block_size)
    blocks = block_table[rows, positions // block_size].long()
    return blocks * block_size + positions % block_size


def _check_positions(block_table, rows, positions, block_size):
    """Errors: ValueError unless the token at each position lies in a block that its row's table names."""
    capacity = block_table.shape[1] * block_size
    outside = (positions < 0) | (positions >= capacity)
    if outside.any():
        token = int(outside.int().argmax())
        raise ValueError(
            f"a new token of row {rows[token]} has position {positions[token]}: seq_lens must count the new tokens, "
            f"and the {block_table.shape[1]} blocks of a row of the table hold the positions 0 to {capacity - 1}"
        )
    named = block_table[rows, positions // block_size]
    if named.min() < 0:
        token = int(named.argmin())
        row, block = rows[token], positions[token] // block_size
        raise ValueError(
            f"block_table[{row}, {block}] is {named[token]}: position {positions[token]} of row {row} needs it, so "
            "allocate its block first"
        )
