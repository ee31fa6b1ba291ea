"""The allocator of paged storage: which blocks are free, who holds the others, and which are kept to be found again.

PagedAttention (Kwon et al. 2023, arXiv 2309.06180, section 4.2) cuts the memory of a cache into blocks of equal size.
A sequence owns a table of block numbers, in the order of its tokens, wherever the blocks lie. Several tables may name
one block, which counts its references; it is free again when the last one is given back.

Free blocks are given out in the order of vLLM's free list. Blocks that nobody can find again come first, the last
one freed at the front, because it is likeliest to lie in a processor's caches. Labelled blocks, which a prefix index
can still find, come after all of those, the one freed longest ago first: a hot prefix outlives any number of prompts
that were used once. Of one table the tail is given out before the head, since a chain of prefixes without its head is
of no use.

vLLM keeps one doubly linked list. A stack of clean blocks and an ordered dictionary of the cached ones behind it give
the same order, also with O(1) for each operation, and run at the speed of Python's own C code.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from kvcourse.counts import one_line, read_count
from kvcourse.errors import InputError, PoolExhausted

NULL_BLOCK = 0
MOST_BLOCKS = 1 << 26  # a pool keeps numbers per block in Python


def blocks_for(num_tokens: int, block_size: int) -> int:
    """Blocks that `num_tokens` stored tokens fill: rounded up, so 0 for none."""
    num_tokens = read_count("num_tokens", num_tokens, least=0)
    return -(-num_tokens // read_count("block_size", block_size))


class BlockPool:
    """Blocks 1 … num_blocks − 1, given out and taken back. Block 0 is the null block, which is never given out.

    A table names the null block where it holds nothing (behind a sliding window, say): such entries are skipped.
    A block is *held* while it has references, *cached* while it has none but carries a label, and *clean* otherwise.

    num_blocks: with the null block, at least 1. block_size: tokens of a block.
    on_reuse: called with each labelled block that is given out again or unlabelled, once its label is gone and the
        pool is consistent: from then on it may be written, and an index forgets it.

    A refused call (InputError) changes nothing. For one thread; only `return_later` may be called amid another call.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = read_count("num_blocks", num_blocks, most=MOST_BLOCKS)
        self.block_size = read_count("block_size", block_size)
        self.on_reuse: Callable[[int], None] | None = None
        self._references = [0] * self.num_blocks
        self._labelled: set[int] = set()
        self._clean = list(range(self.num_blocks - 1, NULL_BLOCK, -1))  # the last one is given out first
        self._cached: OrderedDict[int, None] = OrderedDict()  # the first one is given out first
        self._returned: deque[Iterable[int]] = deque()  # tables that finalisers left; taken by the next call

    @property
    def num_free(self) -> int:
        """Blocks without references, clean and cached: what `allocate` can give."""
        self._take_returned()
        return len(self._clean) + len(self._cached)

    @property
    def num_cached(self) -> int:
        """Free blocks that still carry a label."""
        self._take_returned()
        return len(self._cached)

    @property
    def num_labelled(self) -> int:
        """Blocks that carry a label, held and cached."""
        return len(self._labelled)

    def free_order(self) -> list[int]:
        """All free blocks in the order in which they will be given out. O(num_free): to look at, not to decide by."""
        self._take_returned()
        return [*reversed(self._clean), *self._cached]

    def references(self, block: int) -> int:
        """How many tables hold the block; 0 for a free block and for the null block."""
        self._take_returned()
        return self._references[self._read_block(block)]

    def is_labelled(self, block: int) -> bool:
        """Whether the block stays findable after its last reference is gone."""
        return self._read_block(block) in self._labelled

    def is_writable(self, block: int) -> bool:
        """Whether its holder may write into it: one reference, and no label, for an index promises its contents."""
        self._take_returned()
        block = self._read_block(block)
        return self._references[block] == 1 and block not in self._labelled

    def allocate(self, n: int) -> list[int]:
        """Take `n` blocks, each with one reference: clean ones first, then cached ones, which lose their label.

        Errors: PoolExhausted when fewer are free.
        """
        if n.__class__ is not int or n < 0:
            n = read_count("allocate: n", n, least=0)
        if self._returned:
            self._take_returned()
        clean = self._clean
        left = len(clean) - n
        if left < 0:
            return self._allocate_cached(n, -left)
        blocks = clean[left:]
        del clean[left:]
        blocks.reverse()
        references = self._references
        for block in blocks:
            references[block] = 1
        return blocks

    def _allocate_cached(self, n: int, num_evicted: int) -> list[int]:
        if num_evicted > len(self._cached):
            raise PoolExhausted(
                f"allocate({n}): only {self.num_free} of {self.num_blocks - 1} blocks are free; "
                "free some first, wait until others do, or make the pool larger"
            )
        evicted = [self._cached.popitem(last=False)[0] for _ in range(num_evicted)]
        self._labelled.difference_update(evicted)
        blocks = self._clean[::-1] + evicted
        self._clean.clear()
        for block in blocks:
            self._references[block] = 1
        if self.on_reuse is not None:
            for block in evicted:
                self.on_reuse(block)
        return blocks

    def free(self, blocks: Iterable[int]) -> None:
        """Give back one reference on each block of one table, in the order of its tokens.

        Errors: InputError for a block that nobody holds (freed already), one that is not of this pool, one that
        the table names twice.
        """
        if self._returned:
            self._take_returned()
        self._free(self._read_list("free", blocks))

    def return_later(self, blocks: Iterable[int]) -> None:
        """As `free`, by the time that anybody asks: for finalisers, which run in the middle of any call."""
        self._returned.append(blocks)

    def _take_returned(self) -> None:
        while self._returned:
            self._free(list(self._returned.popleft()))

    def _free(self, table: list[int]) -> None:
        released = self._release(table)
        if self._labelled.isdisjoint(released):
            self._clean += released
            return
        self._clean += [block for block in released if block not in self._labelled]
        for block in reversed(released):
            if block in self._labelled:
                self._cached[block] = None

    def fork(self, blocks: Iterable[int]) -> list[int]:
        """A new table that shares every block with this one: one reference more on each; null entries stay null.

        Errors: as for `free`.
        """
        self._take_returned()
        table = self._read_list("fork", blocks)
        for block in self._read_held("fork", table):
            self._references[block] += 1
        return [int(block) for block in table]

    def touch(self, blocks: Iterable[int]) -> None:
        """One reference more on each block, held or cached; a cached one is not free any more.

        Errors: InputError for a clean block (its contents belong to nobody), and as for `free`.
        """
        self._take_returned()
        table = self._read_table("touch", blocks)
        for block in table:
            if not self._references[block] and block not in self._labelled:
                self._refuse("touch", block, "it is free and has no label; allocate it instead")
        for block in table:
            if not self._references[block]:
                del self._cached[block]
            self._references[block] += 1

    def label(self, block: int) -> None:
        """Mark a held block as findable: after its last `free` it is kept as long as possible. Again: no change.

        Errors: InputError for a block that nobody holds and for the null block.
        """
        self._take_returned()
        block = self._read_block(block)
        if not self._references[block] and block not in self._labelled:
            self._refuse("label", block, "only a block that someone holds has contents worth finding")
        self._labelled.add(block)

    def unlabel(self, block: int) -> None:
        """Take the label off. A cached block becomes clean, the next to be given out. Without a label: no change."""
        self._take_returned()
        block = self._read_block(block)
        if block not in self._labelled:
            return
        self._labelled.remove(block)
        if not self._references[block]:
            del self._cached[block]
            self._clean.append(block)
        if self.on_reuse is not None:
            self.on_reuse(block)

    def grow(self, num_blocks: int) -> None:
        """Make it `num_blocks` blocks in all. Those there are keep their numbers; new ones come after clean ones.

        Errors: InputError for fewer blocks than there are, or more than MOST_BLOCKS.
        """
        self._take_returned()
        old = self.num_blocks
        num_blocks = read_count("grow: num_blocks", num_blocks, least=old, most=MOST_BLOCKS)
        self._clean[:0] = range(num_blocks - 1, old - 1, -1)
        self._references += [0] * (num_blocks - old)
        self.num_blocks = num_blocks

    def check(self) -> None:
        """Prove that the pool is whole. Raises AssertionError with the invariant that is broken. O(num_blocks)."""
        self._take_returned()
        held = [block for block, count in enumerate(self._references) if count]
        free = self.free_order()
        assert len(self._references) == self.num_blocks, "one reference count per block"
        assert min(self._references) >= 0, "no reference count is negative"
        assert self._references[NULL_BLOCK] == 0, "the null block has no references"
        assert len(free) + len(held) + 1 == self.num_blocks, "free + held + null = all blocks"
        assert sorted([NULL_BLOCK, *free, *held]) == list(range(self.num_blocks)), (
            "free exactly when not referenced"
        )
        assert NULL_BLOCK not in self._labelled, "the null block has no label"
        assert self._labelled.difference(held) == set(self._cached), "cached = labelled and not referenced"

    def _release(self, table: list[int]) -> list[int]:
        """Take one reference off each block of a table. Returns those that have none left, in order."""
        references, num_blocks = self._references, self.num_blocks
        for place, block in enumerate(table):  # one pass for the usual table, whose blocks nobody else holds
            if block.__class__ is not int or not 0 < block < num_blocks or references[block] != 1:
                for earlier in table[:place]:
                    references[earlier] = 1
                break
            references[block] = 0
        else:
            return table
        released = []
        for block in self._read_held("free", table):
            references[block] -= 1
            if not references[block]:
                released.append(block)
        return released

    def _read_held(self, verb: str, blocks: Iterable[int]) -> list[int]:
        """The blocks of a table without its null entries: distinct, and each held by someone."""
        table = self._read_table(verb, blocks)
        for block in table:
            if not self._references[block]:
                self._refuse(verb, block, "nobody holds it: it was freed before, or never allocated")
        return table

    def _read_table(self, verb: str, blocks: Iterable[int]) -> list[int]:
        """The blocks of a table without its null entries: distinct, and each of this pool."""
        numbers = [self._read_block(block) for block in self._read_list(verb, blocks)]
        table = [block for block in numbers if block != NULL_BLOCK]
        if len(set(table)) != len(table):
            twice = next(block for block in table if table.count(block) > 1)
            why = "the table names it twice; pass the tables of several sequences one by one"
            self._refuse(verb, twice, why)
        return table

    def _read_list(self, verb: str, blocks: Iterable[int]) -> list[int]:
        try:
            return list(blocks)
        except TypeError:
            raise InputError(f"{verb}: blocks={one_line(blocks)}: expected a list of block numbers") from None

    def _read_block(self, block: Any) -> int:
        if block.__class__ is not int:
            block = read_count("block", block, least=0)
        if not 0 <= block < self.num_blocks:
            raise InputError(f"block {block} is not of this pool, whose blocks are 1 … {self.num_blocks - 1}")
        return block

    def _refuse(self, verb: str, block: int, why: str) -> NoReturn:
        raise InputError(f"{verb}: block {block}: {why}")
