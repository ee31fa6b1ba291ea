"""A block table: in which blocks of a pool one sequence lies ("PagedAttention", arXiv 2309.06180, §4.2–4.4)."""

from array import array
from collections.abc import Iterable

import numpy as np

from kvcourse.counts import one_line, read_count
from kvcourse.errors import InputError
from kvcourse.storage.block_pool import NULL_BLOCK, BlockPool, blocks_for


def held_blocks(num_stored: int, window: int | None, block_size: int) -> int:
    """Blocks that a sequence of `num_stored` tokens holds: those of its window, and one more to crop back into."""
    return blocks_for(num_stored, block_size) - blocks_behind(num_stored, window, block_size)


def blocks_behind(num_stored: int, window: int | None, block_size: int) -> int:
    """Blocks of tokens that no query will read, nor one after a crop by up to `block_size` tokens.

    The query at position n = num_stored sees the positions from n - window + 1 on.
    """
    return 0 if window is None else max(0, num_stored + 1 - window - block_size) // block_size


class BlockTable:
    """The blocks of one sequence. The token at position p lies in `blocks[p // block_size]`, slot `p % block_size`.

    blocks: block numbers, in the order of the sequence; NULL_BLOCK where a block was freed behind the window.
    num_stored: tokens that count. `reserve` makes room for more, and `commit` lets them count.
    window: how many last tokens a query sees, itself included; None: all, so that nothing is freed.

    A refused call (InputError) changes nothing.
    """

    def __init__(self, pool: BlockPool, window: int | None = None) -> None:
        if not isinstance(pool, BlockPool):
            raise InputError(f"pool={one_line(pool)}: expected a BlockPool")
        self.pool, self.window = pool, None if window is None else read_count("window", window)
        self.blocks = array("i")
        self.num_stored = 0

    def missing(self, num_new: int) -> int:
        """How many more blocks `num_new` tokens need, apart from a copy of the tail."""
        num_new = read_count("num_new", num_new, least=0)
        more = blocks_for(self.num_stored + num_new, self.pool.block_size) - len(self.blocks)
        return max(0, more)

    @property
    def tail(self) -> int | None:
        """The block that holds tokens and into which the next token goes; None when that is a block of its own."""
        size = self.pool.block_size
        return self.blocks[self.num_stored // size] if self.num_stored % size else None

    def reserve(self, num_new: int) -> list[tuple[int, int]]:
        """Make room for `num_new` tokens after those that count, in blocks that nobody else reads.

        Returns the pairs (source, copy) of blocks whose content has to be copied before anything is written: at most
        one, the last block, when it is only partly filled and others share it (copy-on-write).
        Errors: PoolExhausted; the table is unchanged.
        """
        missing = self.missing(num_new)
        tail = self.tail if num_new else None
        copied = tail is not None and not self.pool.is_writable(tail)
        fresh = self.pool.allocate(missing + copied)
        copies = []
        if copied:
            copies.append((tail, fresh[0]))
            self.replace_tail(fresh.pop(0))
        self.blocks.extend(fresh)
        return copies

    def replace_tail(self, copy: int) -> None:
        """Put a block with the same contents, and the caller's reference, in the place of the tail.

        Errors: InputError for a table without a tail, or a block that nobody holds.
        """
        tail = self.tail
        if tail is None or not self.pool.references(copy):
            raise InputError(
                f"replace_tail({one_line(copy)}): expected a block allocated for it, and a tail that is partly filled"
            )
        self.blocks[self.num_stored // self.pool.block_size] = copy
        self.pool.free([tail])

    def commit(self, num_new: int) -> None:
        """Let `num_new` reserved tokens count, and give back blocks beyond them and behind the window.

        Errors: InputError when fewer were reserved.
        """
        num_new = read_count("num_new", num_new, least=0)
        if self.num_stored + num_new > len(self.blocks) * self.pool.block_size:
            raise InputError(
                f"commit({num_new}) after {self.num_stored} tokens: {len(self.blocks)} blocks of "
                f"{self.pool.block_size} do not hold them; reserve() first"
            )
        self.num_stored += num_new
        self.trim()

    def slots(self, first: int, count: int) -> np.ndarray:
        """Flat slots of the positions first … first + count - 1: block × block_size + slot, (count,) int64.

        Errors: InputError for positions that have no block.
        """
        first, count = read_count("first", first, least=0), read_count("count", count, least=0)
        if first + count > len(self.blocks) * self.pool.block_size:
            raise InputError(
                f"slots({first}, {count}): {len(self.blocks)} blocks of {self.pool.block_size} do not hold them; "
                "reserve() first"
            )
        positions = np.arange(first, first + count)
        blocks = np.frombuffer(self.blocks, dtype=np.int32).astype(np.int64)
        return blocks[positions // self.pool.block_size] * self.pool.block_size + (
            positions % self.pool.block_size
        )

    def adopt(self, blocks: list[int], num_stored: int) -> None:
        """Take over blocks, with the caller's reference to each, as those of an empty table.

        Errors: InputError for a table that is not empty, blocks that nobody holds, or more tokens than they hold.
        """
        num_stored = read_count("num_stored", num_stored, least=0)
        if self.blocks:
            raise InputError(
                f"this sequence has {self.num_stored} tokens already: adopt() needs an empty table"
            )
        blocks = list(blocks) if isinstance(blocks, Iterable) else [blocks]
        for block in blocks:
            if self.pool.references(block) == 0 and block != NULL_BLOCK:
                raise InputError(f"adopt(): block {block}: nobody holds it; allocate or touch it first")
        if num_stored > len(blocks) * self.pool.block_size:
            raise InputError(
                f"adopt(): {len(blocks)} blocks of {self.pool.block_size} do not hold {num_stored} tokens"
            )
        self.blocks, self.num_stored = array("i", blocks), num_stored

    def can_crop(self, n: int) -> bool:
        """Whether everything that a query at position n sees is still there."""
        first = 0 if self.window is None else max(0, n + 1 - self.window) // self.pool.block_size
        return NULL_BLOCK not in self.blocks[first : blocks_for(n, self.pool.block_size)]

    @property
    def least_crop(self) -> int:
        """The fewest tokens that a crop can keep, apart from none: `can_crop` holds from here on."""
        freed = self.blocks.count(NULL_BLOCK)  # from the front on
        return freed and freed * self.pool.block_size + self.window - 1

    def crop(self, n: int) -> None:
        """Keep the first n tokens and give the rest back. Errors: InputError for n beyond num_stored."""
        self.num_stored = read_count("crop: n", n, least=0, most=self.num_stored)
        self.trim()

    def resume(self, num_stored: int) -> None:
        """Let exactly `num_stored` tokens count, whatever an interrupted call has left, and give the rest back.

        Errors: InputError when they are not there any more.
        """
        if blocks_for(num_stored, self.pool.block_size) > len(self.blocks):
            raise InputError(
                f"{num_stored} tokens and {len(self.blocks)} blocks: an interrupted call has moved the others away; "
                "reset() the cache and compute them again"
            )
        self.num_stored = num_stored
        self.trim()

    def fork(self) -> "BlockTable":
        """A table of the same tokens, which shares all blocks."""
        other = BlockTable(self.pool, self.window)
        shared = self.blocks[: blocks_for(self.num_stored, self.pool.block_size)]
        other.blocks = array("i", self.pool.fork(shared))
        other.num_stored = self.num_stored
        return other

    def release(self) -> None:
        """Give every block back."""
        self.crop(0)

    def release_later(self) -> None:
        """As `release`, for a finaliser: the pool takes the blocks when it is next asked for something."""
        blocks, self.blocks, self.num_stored = self.blocks, array("i"), 0
        self.pool.return_later(blocks)

    def check(self) -> None:
        """Raise AssertionError unless the table holds what its tokens and the next query need."""
        assert len(self.blocks) >= blocks_for(self.num_stored, self.pool.block_size), "a token has no block"
        assert self.can_crop(self.num_stored), "a block of the window was freed"
        held = [block for block in self.blocks if block != NULL_BLOCK]
        assert list(self.blocks) == [NULL_BLOCK] * (len(self.blocks) - len(held)) + held, (
            "a hole in the table"
        )
        assert len(set(held)) == len(held), "a block twice in one table"
        assert all(self.pool.references(block) > 0 for block in held), "a free block in a table"

    def trim(self) -> None:
        """Give back blocks beyond the tokens that count, and behind the window."""
        needed = blocks_for(self.num_stored, self.pool.block_size)
        surplus = self.blocks[needed:]
        del self.blocks[needed:]
        behind = blocks_behind(self.num_stored, self.window, self.pool.block_size)
        # NULLs reach from the front to the first block that is still held.
        first = behind
        while first and self.blocks[first - 1] != NULL_BLOCK:
            first -= 1
        surplus = self.blocks[first:behind] + surplus
        self.blocks[first:behind] = array("i", [NULL_BLOCK] * (behind - first))
        self.pool.free(surplus)
