"""What every storage can do for a cache, and every store for one of its layers."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from kvcourse.attention.layout import Field
from kvcourse.step import Step


class Store(ABC):
    """Where one layer of a cache keeps its tokens.

    fields: what a token stores. window: how many last tokens a query sees, itself included; None: all.
    """

    fields: tuple[Field, ...]
    window: int | None

    @property
    @abstractmethod
    def kind(self) -> tuple[torch.dtype | None, torch.device] | None:
        """Dtype (None: any) and device of the tensors that can be stored; None while any can."""

    @abstractmethod
    def prepare(self, step: Step, dtype: torch.dtype, device: torch.device) -> None:
        """Make room for the tokens of a step; what was stored stays, also when there is no room."""

    @abstractmethod
    def as_stored(self, new: dict[str, Tensor]) -> dict[str, Tensor]:
        """New entries, (batch, heads, tokens, dim) each, with the rounding that storing them brings."""

    @abstractmethod
    def span(self, name: str, step: Step, first: int, last: int) -> Tensor:
        """A field at the positions first … last - 1 of every row, (batch, heads, last - first, dim).

        For layers without a window. What a row has not is zero.
        """

    @abstractmethod
    def write(self, new: dict[str, Tensor], step: Step) -> None:
        """Store the tokens of a step, or leave in `step.staged` what has to wait for the commit."""


class Storage(ABC):
    """Where all layers of a cache keep their tokens: one `Store` a layer, and what the layers share.

    layers: the stores. Row numbers and tokens per row are those of the cache.
    """

    layers: Sequence[Store]

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes that the rows occupy."""

    @property
    @abstractmethod
    def capacity(self) -> int:
        """Slots of the row and layer that has most."""

    # commit, crop and reset say which tokens count. The cache takes note of it, and then calls `trim`: whatever
    # interrupts that, both agree.

    @abstractmethod
    def require_room(self, totals: Sequence[int]) -> None:
        """See whether every row can grow to so many tokens; nothing is reserved.

        Errors: InputError, or PoolExhausted for a pool that has too few free blocks now.
        """

    @abstractmethod
    def commit(self, step: Step) -> None:
        """Let a step count."""

    @abstractmethod
    def trim(self) -> None:
        """Give back the room of tokens that do not count, or not any more."""

    @abstractmethod
    def crop(self, before: Sequence[int], kept: Sequence[int]) -> None:
        """Keep the first `kept[row]` of `before[row]` tokens of every row.

        Errors: InputError when a window has lost what that needs; nothing is cropped.
        """

    @abstractmethod
    def select(self, rows: Sequence[int]) -> "Storage":
        """A storage of these rows, in this order: independent of this one, and of itself where a row is repeated."""

    @abstractmethod
    def join(self, others: Sequence["Storage"]) -> "Storage":
        """A storage of the rows of this one and of the others, which may be given up."""

    @abstractmethod
    def reset(self) -> None:
        """Forget every token, and give back its room."""
