"""A pool of blocks at one moment: which sequence holds which block, how full each is, what is free."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from kvcourse.errors import InputError


class Counts(NamedTuple):
    """Blocks of a pool by what may happen to them; the null block is in none of them.

    used: some table holds them. cached: free, and the prefix index can still find them. clean: free, and nothing
    is known of them.
    """

    used: int
    cached: int
    clean: int


def counts(pool) -> Counts:
    """The Counts of a `kvcourse.storage.BlockPool`."""
    return Counts(pool.num_blocks - 1 - pool.num_free, pool.num_cached, pool.num_free - pool.num_cached)


@dataclass(frozen=True)
class PoolState:
    """What `paging.block_map` draws.

    num_blocks: of the pool, the null block among them. block_size: tokens in a block. tables: {sequence: its blocks
    in order}; 0 is the null block, in place of a block that was freed. lengths: {sequence: tokens stored}.
    cached: free blocks that the prefix index can still find.
    Errors: InputError for tables, lengths and cached blocks that cannot be true together.
    """

    num_blocks: int
    block_size: int
    tables: Mapping[str, Sequence[int]]
    lengths: Mapping[str, int]
    cached: frozenset[int] = frozenset()

    def __post_init__(self):
        if self.num_blocks < 2 or self.block_size < 1:
            found = f"num_blocks={self.num_blocks}, block_size={self.block_size}"
            raise InputError(f"{found}: expected the null block and at least one more, and a token in each")
        if set(self.tables) != set(self.lengths):
            raise InputError(
                f"tables of {sorted(self.tables)} and lengths of {sorted(self.lengths)}: expected the same sequences"
            )
        for name, table in self.tables.items():
            self._check_table(name, table, self.lengths[name])
        for block in self.cached:
            if block in self.owners or not 0 < block < self.num_blocks:
                raise InputError(f"cached block {block}: expected free blocks, 1 to {self.num_blocks - 1}")

    def _check_table(self, name, table, length):
        held = [block for block in table if block]
        outside = [block for block in held if not 0 < block < self.num_blocks]
        if outside or len(set(held)) < len(held):
            raise InputError(
                f"table of {name}: {list(table)}: expected blocks of 0 to {self.num_blocks - 1}, none twice"
            )
        if not 0 <= length <= len(table) * self.block_size:
            raise InputError(
                f"{name} stores {length} tokens in {len(table)} blocks of {self.block_size}: expected at most "
                f"{len(table) * self.block_size}; give a table that holds them"
            )

    @cached_property
    def owners(self) -> dict[int, tuple[str, ...]]:
        """{block: the sequences that hold it}, for the blocks that any holds."""
        found = {}
        for name, table in self.tables.items():
            for block in filter(None, table):
                found[block] = (*found.get(block, ()), name)
        return found

    @cached_property
    def filled(self) -> list[int]:
        """Tokens in each block, 0 to block_size."""
        tokens = [self.block_size if block in self.cached else 0 for block in range(self.num_blocks)]
        for name, table in self.tables.items():
            for place, block in enumerate(table):
                here = min(self.block_size, max(0, self.lengths[name] - place * self.block_size))
                tokens[block] = max(tokens[block], here) if block else 0
        return tokens

    @property
    def counts(self) -> Counts:
        """Blocks that are used, cached and clean."""
        used, cached = len(self.owners), len(self.cached)
        return Counts(used, cached, self.num_blocks - 1 - used - cached)

    @property
    def stored(self) -> int:
        """Tokens in the blocks that sequences hold, those of a shared block once."""
        return sum(self.filled[block] for block in self.owners)

    @property
    def utilisation(self) -> float:
        """Share of the slots in held blocks that store a token; 0 while no block is held."""
        return self.stored / (len(self.owners) * self.block_size) if self.owners else 0.0


def state_of(pool, tables: Mapping[str, Sequence[int]], lengths: Mapping[str, int]) -> PoolState:
    """The PoolState of a `kvcourse.storage.BlockPool` and of all block tables that hold its blocks.

    Errors: InputError when a block has more or fewer references than tables that hold it.
    """
    cached = (b for b in range(1, pool.num_blocks) if not pool.references(b) and pool.is_labelled(b))
    tables = {name: tuple(table) for name, table in tables.items()}
    state = PoolState(pool.num_blocks, pool.block_size, tables, dict(lengths), frozenset(cached))
    for block in range(1, pool.num_blocks):
        held, references = len(state.owners.get(block, ())), pool.references(block)
        if held != references:
            raise InputError(
                f"block {block} has {references} references and {held} of these tables hold it: expected as many; "
                "give the tables of all sequences"
            )
    return state
