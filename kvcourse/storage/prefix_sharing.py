"""Prefixes that several sequences share: found in the index of every kind of layer, adopted without copying."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from kvcourse.counts import one_line
from kvcourse.errors import InputError
from kvcourse.storage.block_pool import NULL_BLOCK, BlockPool
from kvcourse.storage.block_table import blocks_behind
from kvcourse.storage.paged import PagedStorage
from kvcourse.storage.paged_memory import Group
from kvcourse.storage.prefix_hash import Chain, pack_tokens


def reuse(
    storage: PagedStorage,
    seen: Sequence[int],
    tokens: Sequence[Sequence[int]] | Tensor,
    extra_keys: Sequence[Any],
) -> tuple[int, ...]:
    """Let rows without tokens begin with prefixes that are stored. Returns the tokens that each row has then.

    tokens: of each row. At least one of them is always left to compute.
    Errors: InputError for rows that have tokens, another number of rows, or what are no tokens or keys; nothing is
    adopted, also after an interrupt.
    """
    rows = _read_rows(tokens, len(seen))
    for row, length in enumerate(seen):
        if length:
            raise InputError(
                f"reuse(): row {row} has {length} tokens already; reuse prefixes before the first step"
            )
    chains = [[group.index.chain(prompt, extra_keys) for group in storage.memory.groups] for prompt in rows]
    storage.reset()  # blocks of a step that was interrupted
    try:
        return tuple(_adopt(storage, row, own) for row, own in enumerate(chains))
    except BaseException:
        storage.reset()
        raise


def publish(
    storage: PagedStorage,
    seen: Sequence[int],
    tokens: Sequence[Sequence[int]] | Tensor,
    extra_keys: Sequence[Any],
) -> None:
    """Put the full blocks of every row into the indexes.

    tokens: of each row, at least as many as it has.
    Errors: InputError for fewer tokens, another number of rows, or what are no tokens or keys; nothing is indexed,
    also after an interrupt.
    """
    rows = _read_rows(tokens, len(seen))
    for row, (prompt, length) in enumerate(zip(rows, seen, strict=True)):
        if len(prompt) < length:
            raise InputError(
                f"publish(): row {row} has {length} tokens and {len(prompt)} were given: give all of them"
            )
        pack_tokens(prompt)  # also those that are not needed: text, or floats, are a mistake
    labelled: list[tuple[BlockPool, int]] = []
    try:
        for own in storage.rows:
            for prompt, length, table in zip(rows, seen, own.tables, strict=True):
                pool = own.group.pool
                labelled += [(pool, block) for block in table.blocks if not pool.is_labelled(block)]
                own.group.index.insert(prompt[:length], table.blocks, extra_keys)
    except BaseException:
        for pool, block in labelled:
            pool.unlabel(block)
        raise


def _adopt(storage: PagedStorage, row: int, chains: Sequence[Chain]) -> int:
    """Start one row with the longest prefix that all groups have. Returns its tokens.

    chains: of the prompt, one a group.
    """
    memory = storage.memory
    if memory.token_granular:
        (own,) = storage.rows
        hit = own.group.index.acquire(chains[0])
        # The block in which the prefix ends is another's: the first write copies it.
        own.tables[row].adopt([*hit.blocks, *([] if hit.source is None else [hit.source])], hit.num_tokens)
        return hit.num_tokens
    found = [_find(group, chain) for group, chain in zip(memory.groups, chains, strict=True)]
    runs = [_runs(blocks) for blocks in found]
    for num_blocks in range(min(map(len, found)), 0, -1):
        num_tokens = num_blocks * memory.block_size
        behind = [blocks_behind(num_tokens, group.window, memory.block_size) for group in memory.groups]
        if all(run[num_blocks] <= first for run, first in zip(runs, behind, strict=True)):
            for own, blocks, first in zip(storage.rows, found, behind, strict=True):
                needed = blocks[first:num_blocks]
                own.group.pool.touch(needed)
                own.tables[row].adopt([NULL_BLOCK] * first + needed, num_tokens)
            return num_tokens
    return 0


def _find(group: Group, chain: Chain) -> list[int | None]:
    """The stored blocks of a prompt: up to the first that is missing, or with gaps where a window forgives them."""
    found = []
    for i in range(max(0, chain.num_tokens - 1) // chain.block_size):
        block = group.index.find(chain, i)
        if block is None and group.window is None:
            break
        found.append(block)
    return found


def _runs(found: Sequence[int | None]) -> list[int]:
    """Of each number of blocks, 0 … all: from which block on none is missing among the first so many."""
    starts = [0]
    for number, block in enumerate(found, 1):
        starts.append(number if block is None else starts[-1])
    return starts


def _read_rows(tokens: Sequence[Sequence[int]] | Tensor, batch_size: int) -> list[list[int]]:
    try:
        rows = [
            row if isinstance(row, list) else list(row)
            for row in (tokens.tolist() if hasattr(tokens, "tolist") else tokens)
        ]
    except (TypeError, RuntimeError):  # a number, a row that is one; a tensor without numbers
        raise InputError(f"tokens={one_line(tokens):.80}: expected a list of tokens for each row") from None
    if len(rows) != batch_size:
        raise InputError(
            f"tokens of {len(rows)} rows for a cache of {batch_size}: give the tokens of each row"
        )
    return rows
