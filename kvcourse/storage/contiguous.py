"""Contiguous storage: one array per field and layer, a row per sequence, grown by doubling.

Slots of a full-attention layer are positions. A sliding-window layer is a ring: position p lies in slot
p mod slots, and the ring has one block more than the window, so that rolling back up to a block loses nothing.
"""

from math import prod

import torch
from torch import Tensor

from kvcourse.attention.layout import LayerLayout
from kvcourse.errors import InputError


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


class ContiguousStore:
    """The fields of one layer for a batch of sequences.

    arrays: per field a tensor (batch, num_kv_heads, slots, head_dim), absent until the first `reserve`.
    slots: capacity per sequence; how much of it is filled is the cache's business.
    """

    def __init__(self, layer: LayerLayout, batch_size: int, block_size: int, fixed: int | None) -> None:
        self.fields = layer.fields
        self.window = layer.fields[0].window
        self.batch_size = batch_size
        self.block_size = block_size
        self.fixed = fixed
        self.arrays: dict[str, Tensor] = {}
        self.slots = 0

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays, filled or not."""
        return sum(array.untyped_storage().nbytes() for array in self.arrays.values())

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
            heads, dim = field.shape
            # Zeros, not empty: a masked slot is multiplied by zero, and zero times a stray NaN is NaN. An array made
            # in inference mode could not be written outside of it, and a cache outlives the forward that grows it.
            shape = (self.batch_size, heads, slots, dim)
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

    def gather(self, name: str, position: Tensor) -> Tensor:
        """The entries at position (batch, entries); a negative position reads a slot that the caller masks.

        Returns (batch, heads, entries, dim).
        """
        array = self.arrays[name]
        index = (position % self.slots)[:, None, :, None].expand(-1, array.shape[1], -1, array.shape[3])
        return array.gather(2, index)

    def clone(self) -> "ContiguousStore":
        """A copy that shares nothing."""
        other = ContiguousStore(LayerLayout(self.fields), self.batch_size, self.block_size, self.fixed)
        other.slots = self.slots
        with torch.inference_mode(False):  # as in `reserve`
            other.arrays = {name: array.clone() for name, array in self.arrays.items()}
        return other
