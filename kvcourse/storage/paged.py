"""Paged storage: the sequences of a cache as block tables over a `PagedMemory`."""

import weakref
from collections.abc import Sequence
from itertools import accumulate
from typing import NoReturn

import numpy as np
import torch
from torch import Tensor

from kvcourse.errors import InputError
from kvcourse.kernels import store_kv
from kvcourse.step import Step
from kvcourse.storage.base import Storage, Store
from kvcourse.storage.block_pool import NULL_BLOCK
from kvcourse.storage.block_table import BlockTable
from kvcourse.storage.paged_memory import Group, PagedMemory, must_copy
from kvcourse.storage.pages import Pages


class Rows:
    """The sequences of a cache in one group of layers: a block table each.

    What the layers of a group need in a step is made once and kept in `step.shared`, under the window's name.
    """

    def __init__(self, memory: PagedMemory, group: Group, tables: Sequence[BlockTable]) -> None:
        self.memory, self.group, self.tables = memory, group, list(tables)

    def slots(self, step: Step) -> Tensor:
        """Flat slots of the step's tokens, (batch × width,) int64; -1 for padding."""
        if ("slots", self.group.window) not in step.shared:
            slots = np.full((len(self.tables), step.width), -1)
            for row, (table, past, new) in enumerate(zip(self.tables, step.past, step.new, strict=True)):
                slots[row, step.width - new :] = table.slots(past, new)
            step.shared["slots", self.group.window] = (
                torch.from_numpy(slots).flatten().to(step.positions.device)
            )
        return step.shared["slots", self.group.window]

    def real(self, step: Step) -> Tensor:
        """Which of the batch × width tokens are no padding, in their order: (tokens,) int64."""
        if "real" not in step.shared:
            width = step.width
            rows = [np.arange((row + 1) * width - new, (row + 1) * width) for row, new in enumerate(step.new)]
            step.shared["real"] = torch.from_numpy(np.concatenate(rows)).to(step.positions.device)
        return step.shared["real"]

    def lengths(self, step: Step) -> Tensor:
        """Tokens of each row, the step's own included: (batch,) int32."""
        if "totals" not in step.shared:
            totals = torch.tensor(step.total, dtype=torch.int32)
            step.shared["totals"] = totals.to(step.positions.device)
        return step.shared["totals"]

    def starts(self, step: Step) -> Tensor:
        """Where the new tokens of each row begin when all are packed: (batch + 1,) int32."""
        if "starts" not in step.shared:
            starts = torch.tensor([0, *accumulate(step.new)], dtype=torch.int32)
            step.shared["starts"] = starts.to(step.positions.device)
        return step.shared["starts"]

    def table(self, step: Step) -> Tensor:
        """The block tables of all rows, (batch, most blocks of a row) int32, on the device of the positions."""
        if ("table", self.group.window) not in step.shared:
            table = np.zeros((len(self.tables), max(len(t.blocks) for t in self.tables)), dtype=np.int32)
            for row, one in enumerate(self.tables):
                table[row, : len(one.blocks)] = np.frombuffer(one.blocks, dtype=np.int32)
            step.shared["table", self.group.window] = torch.from_numpy(table).to(step.positions.device)
        return step.shared["table", self.group.window]

    def place(self, step: Step, position: Tensor) -> tuple[Tensor, Tensor]:
        """Block and slot of each position (rows, tokens); the null block for one that a row does not have."""
        size = self.memory.block_size
        table = self.table(step).long()
        column = position.div(size, rounding_mode="floor")
        inside = (position >= 0) & (column < table.shape[1])
        block = table.gather(1, column.clamp(0, table.shape[1] - 1))
        return torch.where(inside, block, NULL_BLOCK), position.remainder(size)


class PagedStore(Store):
    """One layer of a paged cache: the tables of its group, and its own pages."""

    def __init__(self, rows: Rows, layer: int, every: Sequence[Rows]) -> None:
        """every: the rows of all groups, for which the first layer of a step makes room at once."""
        self.rows, self.layer, self.every = rows, layer, every
        self.fields = rows.memory.layout[layer].fields
        self.window = rows.group.window

    @property
    def pages(self) -> dict[str, Pages]:
        """The pages of each field; empty until the first step."""
        return self.rows.group.pages[self.layer]

    @property
    def kind(self) -> tuple[torch.dtype, torch.device] | None:
        return self.rows.memory.kind

    def prepare(self, step: Step, dtype: torch.dtype, device: torch.device) -> None:
        self.rows.memory.prepare(dtype, device)
        if "reserved" not in step.shared:
            self.rows.memory.reserve([rows.tables for rows in self.every], step.past, step.new)
            step.shared["reserved"] = True

    def as_stored(self, new: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: self.pages[name].as_stored(x) for name, x in new.items()}

    def write(self, new: dict[str, Tensor], step: Step) -> None:
        slots = self.rows.slots(step)
        # (batch × width, heads, dim)
        tokens = {name: x.transpose(1, 2).flatten(0, 1) for name, x in new.items()}
        if tuple(new) == ("k", "v") and self.raw:
            store_kv(tokens["k"], tokens["v"], self.pages["k"].values, self.pages["v"].values, slots)
            return
        for name, x in tokens.items():
            self.pages[name].write(x, slots)

    @property
    def raw(self) -> bool:
        """Whether fused kernels can read the pages."""
        return all(pages.raw for pages in self.pages.values())

    def reads_as(self, dtype: torch.dtype) -> bool:
        """Whether fused kernels can read the pages as numbers of this dtype."""
        return self.raw and all(pages.values.dtype == dtype for pages in self.pages.values())

    def span(self, name: str, step: Step, first: int, last: int) -> Tensor:
        position = torch.arange(first, last, device=step.positions.device)
        return self.gather(name, step, position.expand(len(step.past), -1))

    def gather(self, name: str, step: Step, position: Tensor) -> Tensor:
        """The entries of a field at position (batch, tokens), zeros where a row has none.

        Returns (batch, heads, tokens, dim).
        """
        block, slot = self.rows.place(step, position)
        total = torch.tensor(step.total, device=position.device)[:, None]
        there = (block != NULL_BLOCK) & (position < total)
        # What lies in a slot that was never written, or freed by another sequence, may be anything, NaN too.
        return torch.where(there[:, None, :, None], self.pages[name].gather(block, slot), 0)


class PagedStorage(Storage):
    """Block tables for the rows of one cache, in a memory that other caches may share."""

    def __init__(self, memory: PagedMemory, tables: Sequence[Sequence[BlockTable]]) -> None:
        """tables: of each group of the memory, one table a row."""
        self.memory = memory
        self.rows = [Rows(memory, group, own) for group, own in zip(memory.groups, tables, strict=True)]
        stores = {
            layer: PagedStore(rows, layer, self.rows) for rows in self.rows for layer in rows.group.layers
        }
        self.layers = [stores[layer] for layer in range(len(stores))]
        # A cache that is dropped gives its blocks back: the memory may outlive it. The collector may run this amid a
        # call of the very pool.
        weakref.finalize(self, _release_later, self.rows).atexit = False

    @classmethod
    def empty(cls, memory: PagedMemory, batch_size: int) -> "PagedStorage":
        """Rows without tokens."""
        return cls(memory, [[BlockTable(g.pool, g.window) for _ in range(batch_size)] for g in memory.groups])

    @property
    def nbytes(self) -> int:
        """Bytes of the blocks that the rows hold, each counted once however many rows share it."""
        held = 0
        for rows in self.rows:
            blocks = set().union(*(table.blocks for table in rows.tables)) - {NULL_BLOCK}
            held += len(blocks) * self.memory.block_bytes(rows.group)
        return held

    @property
    def capacity(self) -> int:
        return max(len(table.blocks) * self.memory.block_size for rows in self.rows for table in rows.tables)

    def require_room(self, totals: Sequence[int]) -> None:
        if self.memory.grows:
            return
        missing = []
        for rows in self.rows:
            more = [
                max(0, total - table.num_stored) for table, total in zip(rows.tables, totals, strict=True)
            ]
            writers = [table for table, new in zip(rows.tables, more, strict=True) if new]
            # What a window will hold depends on the steps in which the tokens come; the first copies its tails.
            blocks = map(BlockTable.missing, rows.tables, more) if rows.group.window is None else ()
            missing.append(sum(blocks) + len(must_copy(rows.group.pool, writers)))
        self.memory.require(missing)

    def commit(self, step: Step) -> None:
        for rows in self.rows:
            for table, total in zip(rows.tables, step.total, strict=True):
                table.num_stored = total

    def trim(self) -> None:
        for rows in self.rows:
            for table in rows.tables:
                table.trim()

    def crop(self, before: Sequence[int], kept: Sequence[int]) -> None:
        for rows in self.rows:
            for row, (table, now, then) in enumerate(zip(rows.tables, before, kept, strict=True)):
                if not table.can_crop(then):
                    least = max(own.tables[row].least_crop for own in self.rows)  # of every kind of layer
                    raise InputError(
                        f"crop from {now} to {then} tokens: a layer with a window of {table.window} tokens has given "
                        f"back what row {row} needs; crop at most {now - least} tokens back, to {least}, or reset() "
                        "and compute again"
                    )
        for rows in self.rows:
            for table, then in zip(rows.tables, kept, strict=True):
                table.num_stored = then

    def select(self, rows: Sequence[int]) -> "PagedStorage":
        other = PagedStorage.empty(
            self.memory, len(rows)
        )  # which gives back what it has, if this is interrupted
        for own, theirs in zip(self.rows, other.rows, strict=True):
            for place, row in enumerate(rows):
                theirs.tables[place] = own.tables[row].fork()
        return other

    def join(self, others: Sequence["PagedStorage"]) -> "PagedStorage":
        parts = [self, *others]
        if any(part.memory is not self.memory for part in others):
            raise InputError(
                "these caches lie in different memories: only caches of one PagedMemory can be joined"
            )
        tables = [[table for part in parts for table in part.rows[i].tables] for i in range(len(self.rows))]
        joined = PagedStorage(self.memory, tables)
        for part in parts:  # the tables have gone to the new rows
            for rows in part.rows:
                rows.tables[:] = [BlockTable(rows.group.pool, rows.group.window) for _ in rows.tables]
        return joined

    def reset(self) -> None:
        for rows in self.rows:
            for table in rows.tables:
                table.num_stored = 0
        self.trim()

    def __getstate__(self) -> NoReturn:
        raise InputError(
            "a cache on pages cannot be pickled, since others use its memory, too: offload(path) it, and restore() "
            "Offloaded.open(path) there"
        )

    def check(self) -> None:
        """Raise AssertionError unless every table is consistent with its pool."""
        for rows in self.rows:
            for table in rows.tables:
                table.check()


def _release_later(every: Sequence[Rows]) -> None:
    for rows in every:
        for table in rows.tables:
            table.release_later()
