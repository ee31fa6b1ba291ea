"""Contiguous storage: one array per field and layer, a row per sequence, grown by doubling.

Slots of a full-attention layer are positions. A sliding-window layer is a ring: position p lies in slot
p mod slots, and the ring has one block more than the window, so that rolling back up to a block loses nothing.
"""

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from kvcourse.attention.layout import LayerLayout, Layout
from kvcourse.errors import InputError
from kvcourse.step import Step
from kvcourse.storage.base import Storage, Store


def capacity_for(
    tokens: int, window: int | None = None, block_size: int = 16, fixed: int | None = None
) -> int:
    """Slots per sequence that a layer holding `tokens` tokens has allocated.

    The one place where growth is decided: `block_size` slots, doubled until they suffice; never more than
    window + block_size in a sliding layer; `fixed` slots from the first token on when that is given.
    Errors: InputError for more tokens than `fixed` slots hold; a whole ring holds any number.
    """
    if tokens == 0:
        return 0
    slots = block_size if fixed is None else fixed
    while fixed is None and slots < tokens:
        slots *= 2
    ring = None if window is None else window + block_size
    if slots < tokens and (ring is None or slots < ring):
        raise InputError(
            f"{tokens} tokens do not fit: the plan fixes capacity={fixed}; "
            "give a larger capacity, or None to grow on demand"
        )
    return slots if ring is None else min(slots, ring)


class ContiguousStore(Store):
    """The fields of one layer for a batch of sequences.

    dtype: of the arrays; None: that of the first tensors stored.
    arrays: per field a tensor (batch, heads, slots, dim), absent until the first `reserve`. A field without heads,
    such as MLA's latent, counts as one head.
    slots: capacity per sequence; how much of it is filled is the cache's business.
    highest: one past the furthest position that each row has written into a ring, also after a crop.
    """

    def __init__(
        self,
        layer: LayerLayout,
        batch_size: int,
        block_size: int,
        fixed: int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.fields = layer.fields
        self.window = layer.fields[0].window
        self.batch_size = batch_size
        self.block_size = block_size
        self.fixed = fixed
        self.dtype = dtype
        self.arrays: dict[str, Tensor] = {}
        self.slots = 0
        self.highest = (0,) * batch_size

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays, filled or not."""
        return sum(array.untyped_storage().nbytes() for array in self.arrays.values())

    @property
    def kind(self) -> tuple[torch.dtype | None, torch.device] | None:
        for array in self.arrays.values():
            return None if self.dtype else array.dtype, array.device
        return None

    def prepare(self, step: Step, dtype: torch.dtype, device: torch.device) -> None:
        self.reserve(max(step.total), self.dtype or dtype, device)

    def as_stored(self, new: dict[str, Tensor]) -> dict[str, Tensor]:
        return new if self.dtype is None else {name: x.to(self.dtype) for name, x in new.items()}

    def write(self, new: dict[str, Tensor], step: Step) -> None:
        if step.width > 1 and self.window is not None and max(step.past) > 0:
            # Into a ring only at the commit: these queries, and a step after an interruption, need what is there.
            step.staged.append((self, {name: x[:, :, -self.slots :].clone() for name, x in new.items()}))
        else:
            self.put(new, step)

    def put(self, new: dict[str, Tensor], step: Step) -> None:
        """Write the step's tokens into the arrays; the last ones, where a ring has no room for all."""
        columns = min(step.width, self.slots)
        new = {name: values[:, :, -columns:] for name, values in new.items()}
        if step.uniform:
            self.write_span(new, step.total[0] - columns)
        else:
            if ("ragged", columns) not in step.shared:
                positions = step.positions[:, -columns:]
                row, token = (positions >= 0).nonzero(as_tuple=True)
                step.shared["ragged", columns] = (row, token, positions[row, token])
            self.write_ragged(new, *step.shared["ragged", columns])
        if self.window is not None:
            self.highest = tuple(
                total if past == 0 else max(highest, total)
                for highest, past, total in zip(self.highest, step.past, step.total, strict=True)
            )

    def reserve(self, tokens: int, dtype: torch.dtype, device: torch.device) -> None:
        """Make room for `tokens` tokens per sequence. All fields grow or none: what was written stays.

        Errors: InputError for more tokens than a fixed capacity holds, or than there is memory for.
        """
        slots = capacity_for(tokens, self.window, self.block_size, self.fixed)
        if slots <= self.slots:
            return
        # A ring smaller than its window has never wrapped, so slots are positions here and a plain copy keeps them.
        grown = {}
        for field in self.fields:
            *heads, dim = field.shape
            # An array made in inference mode could not be written outside of it, and a cache outlives the forward
            # that grows it.
            shape = (self.batch_size, *(heads or [1]), slots, dim)
            try:
                with torch.inference_mode(False):
                    grown[field.name] = torch.zeros(shape, dtype=dtype, device=device)
            except RuntimeError as error:
                if device.type != "cpu" and not isinstance(error, torch.OutOfMemoryError):
                    raise  # a fault of the device that only shows here
                raise InputError(
                    f"no memory for {prod(shape) * dtype.itemsize:,} bytes of {slots:,} slots a row: give a "
                    "smaller capacity, block_size or batch, or fewer tokens"
                ) from None
            if self.arrays:
                grown[field.name][:, :, : self.slots] = self.arrays[field.name]
        self.arrays, self.slots = grown, slots

    def write_span(self, new: dict[str, Tensor], position: int) -> None:
        """Write the same positions of every sequence: new[name] is (batch, heads, tokens, dim)."""
        for name, values in new.items():
            array, tokens = self.arrays[name], values.shape[2]
            first = position % self.slots
            fits = min(tokens, self.slots - first)
            array[:, :, first : first + fits] = values[:, :, :fits]
            if fits < tokens:  # the ring wraps; callers never write more than one turn
                array[:, :, : tokens - fits] = values[:, :, fits:]

    def write_ragged(self, new: dict[str, Tensor], row: Tensor, token: Tensor, position: Tensor) -> None:
        """Write token[i] of sequence row[i] at position[i]; each index is (entries,)."""
        slot = position % self.slots
        for name, values in new.items():
            self.arrays[name][row, :, slot] = values[row, :, token]

    def span(self, name: str, step: Step, first: int, last: int) -> Tensor:
        array = self.arrays[name][:, :, first:last]
        if step.uniform:
            return array
        position = torch.arange(first, last, device=array.device)
        held = position < torch.tensor(step.total, device=array.device)[:, None]  # (batch, last - first)
        # Beyond a row's tokens lies what a cropped or reset one has left; the mask's zero times infinity is NaN.
        return torch.where(held[:, None, :, None], array, 0)

    def gather(self, name: str, position: Tensor) -> Tensor:
        """The entries at position (batch, entries), zeros for a negative one.

        Returns (batch, heads, entries, dim).
        """
        array = self.arrays[name]
        index = (position % self.slots)[:, None, :, None].expand(-1, array.shape[1], -1, array.shape[3])
        return torch.where(position[:, None, :, None] < 0, 0, array.gather(2, index))  # as in `span`

    def select(self, rows: Sequence[int]) -> "ContiguousStore":
        """A copy of these rows, in this order."""
        other = ContiguousStore(LayerLayout(self.fields), len(rows), self.block_size, self.fixed, self.dtype)
        other.slots = self.slots
        other.highest = tuple(self.highest[row] for row in rows)
        with torch.inference_mode(False):  # as in `reserve`
            other.arrays = {name: array[list(rows)] for name, array in self.arrays.items()}
        return other


class ContiguousStorage(Storage):
    """Arrays for every layer, each sequence in a row of its own.

    layout: of the model. fixed: slots to allocate per sequence at once; None grows on demand.
    dtype: as in ContiguousStore.
    """

    def __init__(
        self,
        layout: Layout,
        batch_size: int,
        block_size: int,
        fixed: int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.layers = [ContiguousStore(layer, batch_size, block_size, fixed, dtype) for layer in layout]

    @property
    def nbytes(self) -> int:
        """Bytes allocated for all layers and rows, measured from the arrays."""
        return sum(store.nbytes for store in self.layers)

    @property
    def capacity(self) -> int:
        return max(store.slots for store in self.layers)

    def require_room(self, totals: Sequence[int]) -> None:
        for store in self.layers:
            capacity_for(max(totals), store.window, store.block_size, store.fixed)

    def commit(self, step: Step) -> None:
        for store, new in step.staged:
            store.put(new, step)

    def trim(self) -> None:
        """Nothing to give back: arrays stay allocated."""

    def crop(self, before: Sequence[int], kept: Sequence[int]) -> None:
        for store in self.layers:
            for row, (now, then) in enumerate(zip(before, kept, strict=True)):
                oldest = store.highest[row] - store.slots
                if store.window is not None and then and max(0, then + 1 - store.window) < oldest:
                    raise InputError(
                        f"crop from {now} to {then} tokens: a layer with a window of {store.window} tokens keeps the "
                        f"last {store.slots}, and row {row} has written {store.highest[row]}; crop at most "
                        f"{store.block_size} tokens back, or reset() and compute again"
                    )
        for store in self.layers:
            store.highest = tuple(h if n else 0 for h, n in zip(store.highest, kept, strict=True))

    def select(self, rows: Sequence[int]) -> "ContiguousStorage":
        return self._of([store.select(rows) for store in self.layers])

    def join(self, others: Sequence["ContiguousStorage"]) -> "ContiguousStorage":
        parts = [self, *others]
        return self._of([join_stores([part.layers[i] for part in parts]) for i in range(len(self.layers))])

    def reset(self) -> None:
        for store in self.layers:
            store.highest = (0,) * store.batch_size

    def _of(self, layers: list[ContiguousStore]) -> "ContiguousStorage":
        other = ContiguousStorage((), 0, 1)
        other.layers = layers
        return other


def join_stores(stores: Sequence[ContiguousStore]) -> ContiguousStore:
    """One store of the rows of all, as many slots in each row as the longest has."""
    kinds = {(array.dtype, array.device) for store in stores for array in store.arrays.values()}
    if len(kinds) > 1:
        raise InputError(
            "these caches hold tensors of several dtypes or devices: only caches of one can be joined"
        )
    slots = max(store.slots for store in stores)
    joined = stores[0].select(())
    joined.batch_size = sum(store.batch_size for store in stores)
    joined.highest = sum((store.highest for store in stores), ())
    joined.slots, joined.arrays = 0, {}
    if kinds:
        ((dtype, device),) = kinds
        joined.reserve(slots, dtype, device)
        first = 0
        for store in stores:
            for name, array in store.arrays.items():
                # Slots are positions in every row with fewer slots than the longest, as in `reserve`.
                joined.arrays[name][first : first + store.batch_size, :, : store.slots] = array
            first += store.batch_size
    return joined
