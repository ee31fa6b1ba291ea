"""Paged memory: pools, pages and prefix indexes for all layers of a model, which many caches can share."""

import secrets
from collections.abc import Sequence
from typing import Any

import torch

from kvcourse.attention.families import layout_of
from kvcourse.attention.layout import Layout
from kvcourse.codecs.base import Codec
from kvcourse.codecs.full_precision import FullPrecision
from kvcourse.counts import one_line, read_count
from kvcourse.errors import InputError, PoolExhausted
from kvcourse.placement import read_device, read_dtype
from kvcourse.storage.block_pool import MOST_BLOCKS, BlockPool
from kvcourse.storage.block_table import BlockTable
from kvcourse.storage.pages import Pages
from kvcourse.storage.prefix_index import PrefixIndex


class Group:
    """The layers of one window: they have one pool and one block table a sequence, and pages of their own.

    A block number means the same place in the pages of every layer of the group.
    """

    def __init__(self, window: int | None, layers: Sequence[int], num_blocks: int, block_size: int) -> None:
        self.window, self.layers = window, tuple(layers)
        self.pool = BlockPool(num_blocks, block_size)
        self.index: PrefixIndex | None = None
        self.pages: dict[int, dict[str, Pages]] = {layer: {} for layer in layers}

    def all_pages(self) -> list[Pages]:
        """The pages of all layers and fields."""
        return [pages for _, pages in self.named_pages()]

    def named_pages(self) -> list[tuple[str, Pages]]:
        """The pages of all layers and fields with a name: "layer.field"."""
        return [(f"{layer}.{name}", p) for layer, fields in self.pages.items() for name, p in fields.items()]

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy blocks in every layer: pairs of (source, copy)."""
        if pairs:
            source, target = zip(*pairs, strict=True)
            for pages in self.all_pages():
                pages.copy(source, target)


class PagedMemory:
    """Blocks for the tokens of a model, for all caches that are made with `KVCache(…, memory=this)`.

    config: the model's ModelConfig, or whatever `layout_of` takes. num_blocks: blocks of each pool, the null block
    included; a model whose layers differ in their window has a pool for each kind. block_size: tokens of a block.
    dtype, device: of the tensors that will be stored; dtype None: those of the first ones.
    codec: how they are written; None: as they are. grows: double the pools instead of being exhausted.
    seed: root of the hashes of prefixes, bytes; None draws one, so that nobody can craft collisions.
    token_granular: find prefixes that end inside a block, too (only where all layers have one window).

    Errors: InputError for sizes below 1 block to give out, a codec or dtype that cannot be stored, no memory.
    """

    def __init__(
        self,
        config: Any,
        num_blocks: int,
        block_size: int = 16,
        dtype: torch.dtype | None = torch.float32,
        device: torch.device | str = "cpu",
        *,
        codec: Codec | None = None,
        grows: bool = False,
        seed: bytes | None = None,
        token_granular: bool = False,
    ) -> None:
        num_blocks = read_count("num_blocks", num_blocks, least=2, most=MOST_BLOCKS)
        self.block_size = read_count("block_size", block_size, most=2**20)
        self.layout: Layout = layout_of(config)
        self.codec, self.grows, self.token_granular = codec or FullPrecision(), grows, token_granular
        if not isinstance(self.codec, Codec):
            raise InputError(f"codec={one_line(codec)}: expected what kvcourse.codecs.get() returns, or None")
        dtype, device = None if dtype is None else read_dtype(dtype), read_device(device)
        _check_layout(self.layout)
        windows = list(dict.fromkeys(layer.fields[0].window for layer in self.layout))
        if token_granular and len(windows) > 1:
            raise InputError(
                "token_granular=True for a model whose layers differ in their window: prefixes that end inside a "
                "block are found only where all layers have one; leave it out"
            )
        self.groups = [
            Group(
                window,
                [i for i, layer in enumerate(self.layout) if layer.fields[0].window == window],
                num_blocks,
                self.block_size,
            )
            for window in windows
        ]
        root = secrets.token_bytes(16) if seed is None else seed
        for group in self.groups:
            group.index = PrefixIndex(group.pool, seed=root, token_granular=token_granular)
        self.kind: tuple[torch.dtype, torch.device] | None = None
        if dtype is not None:
            self.prepare(dtype, device)

    @property
    def pools(self) -> list[BlockPool]:
        """The pool of each kind of layer."""
        return [group.pool for group in self.groups]

    @property
    def num_blocks(self) -> int:
        """Blocks of the largest pool, the null block included."""
        return max(pool.num_blocks for pool in self.pools)

    @property
    def nbytes(self) -> int:
        """Bytes of all pages, used or not, measured from the tensors; the null blocks are among them."""
        return sum(pages.nbytes for group in self.groups for pages in group.all_pages())

    def prepare(self, dtype: torch.dtype, device: torch.device) -> None:
        """Make the pages for tensors of this kind, once.

        Errors: InputError when they hold tensors of another kind, or there is no memory.
        """
        if self.kind is None:
            pages = [
                {
                    layer: {
                        field.name: Pages(
                            field, self.codec, group.pool.num_blocks, self.block_size, dtype, device
                        )
                        for field in self.layout[layer].fields
                    }
                    for layer in group.layers
                }
                for group in self.groups
            ]
            for group, made in zip(self.groups, pages, strict=True):
                group.pages = made
            self.kind = (dtype, device)
        elif self.kind != (dtype, device):
            raise InputError(
                f"tensors of {dtype} on {device} for a memory of {self.kind[0]} on {self.kind[1]}: use one memory a "
                "dtype and device"
            )

    def unprepare(self) -> None:
        """Take back a `prepare`, of a memory in which no tokens lie yet."""
        for group in self.groups:
            group.pages = {layer: {} for layer in group.layers}
        self.kind = None

    def reserve(
        self, tables: Sequence[Sequence[BlockTable]], num_stored: Sequence[int], num_new: Sequence[int]
    ) -> None:
        """Make room for `num_new[row]` tokens in every table, and copy what others share (copy-on-write).

        tables: of each group, one a row. num_stored: tokens of each row; what an interrupted call has left beyond
        them goes back first, since others may share it by now.
        Errors: PoolExhausted, or InputError where a pool that grows finds no memory; no table has changed.
        """
        sharing = []
        for group, rows in zip(self.groups, tables, strict=True):
            for table, length in zip(rows, num_stored, strict=True):
                table.resume(length)
            sharing.append(
                must_copy(group.pool, [table for table, new in zip(rows, num_new, strict=True) if new])
            )
            missing = sum(table.missing(new) for table, new in zip(rows, num_new, strict=True))
            self._require(group, missing + len(sharing[-1]))
        for group, rows, own in zip(self.groups, tables, sharing, strict=True):
            copies = group.pool.allocate(len(own))
            try:
                group.copy_blocks([(table.tail, copy) for table, copy in zip(own, copies, strict=True)])
            except BaseException:  # an interrupt too: no table may name a block without its contents
                group.pool.free(copies)
                raise
            for table, copy in zip(own, copies, strict=True):
                table.replace_tail(copy)
            for table, new in zip(rows, num_new, strict=True):
                table.reserve(new)

    def require(self, num_blocks: Sequence[int]) -> None:
        """See to it that so many blocks of each group are free. Errors: as in `reserve`."""
        for group, missing in zip(self.groups, num_blocks, strict=True):
            self._require(group, missing)

    def _require(self, group: Group, missing: int) -> None:
        """See to it that `missing` blocks are free."""
        pool = group.pool
        least = pool.num_blocks + missing - pool.num_free
        if pool.num_blocks < least <= MOST_BLOCKS and self.grows:
            self._grow(group, min(pool.num_blocks + max(pool.num_blocks, missing), MOST_BLOCKS))
        if missing > pool.num_free:
            remedy = "give a larger num_blocks"
            if least > MOST_BLOCKS:
                remedy = f"give a larger block_size: num_blocks is at most {MOST_BLOCKS}"
            raise PoolExhausted(
                f"{missing} blocks of {self.block_size} tokens are needed and {pool.num_free} are free, of "
                f"{pool.num_blocks - 1}: free or offload a sequence, or {remedy}"
            )

    def _grow(self, group: Group, num_blocks: int) -> None:
        """Add blocks to a pool and all its pages, or change nothing."""
        before = [pages.planes for pages in group.all_pages()]
        grown = [pages.grown(num_blocks) for pages in group.all_pages()]
        try:
            for pages, planes in zip(group.all_pages(), grown, strict=True):
                pages.planes = planes
            group.pool.grow(num_blocks)
        except BaseException:
            for pages, planes in zip(group.all_pages(), before, strict=True):
                pages.planes = planes
            raise

    def bump_version(self, kind: str, value: bytes) -> None:
        """Make every prefix with this extra key unfindable, for example ("adapter", b"…") that was loaded anew.

        Blocks that caches hold stay theirs; the others are free to be given out. Rows that were computed before must
        not be published afterwards.
        """
        for group in self.groups:
            group.index.bump_version(kind, value)

    def block_bytes(self, group: Group) -> int:
        """Bytes of one block in all layers of a group."""
        return sum(pages.nbytes for pages in group.all_pages()) // group.pool.num_blocks

    def check(self) -> None:
        """Raise AssertionError unless every pool and index is consistent."""
        for group in self.groups:
            group.pool.check()
            group.index.check()


def must_copy(pool: BlockPool, writers: Sequence[BlockTable]) -> list[BlockTable]:
    """The tables whose tail has to be copied before all write: of those that alone share a tail the last keeps it."""
    left: dict[int, int] = {}  # references to a tail once those before have their copies
    found = []
    for table in writers:
        tail = table.tail
        if tail is None or pool.is_writable(tail) or (left.get(tail) == 1 and not pool.is_labelled(tail)):
            continue
        left[tail] = left.get(tail, pool.references(tail)) - 1
        found.append(table)
    return found


def _check_layout(layout: Layout) -> None:
    for layer in layout:
        if layer.state_bytes or any(field.stride != 1 for field in layer.fields):
            raise InputError(
                "this model keeps states or compressed entries, which blocks of tokens do not describe: "
                "paged memory holds attention layers that keep an entry a token"
            )
