"""One forward pass over a cache, until it counts."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from kvcourse.attention.gqa import causal_mask


@dataclass
class Step:
    """One forward pass: what is new, and the tensors that its layers share. It counts once it is committed."""

    past: tuple[int, ...]  # tokens seen before, per row
    new: tuple[int, ...]  # valid new tokens, per row
    width: int  # tokens in the input, padding included
    positions: Tensor  # (batch, width), -1 for padding
    announced: bool  # by begin(), so that its caller commits
    committing: bool = False  # from then on it can only be finished: rings lose what they held before
    next_layer: int = 0
    shared: dict = field(default_factory=dict)  # masks and lengths, by kind of layer
    staged: list = field(default_factory=list)  # ring writes that wait for the commit

    def __post_init__(self) -> None:
        self.total = tuple(p + n for p, n in zip(self.past, self.new, strict=True))
        self.uniform = len(set(self.past)) == 1 and min(self.new) == self.width  # one past, no padding

    @property
    def is_under_way(self) -> bool:
        """Whether somebody counts on it: it was announced, or a layer has stored its tokens."""
        return self.announced or self.next_layer > 0

    def mask(self, key_position: Tensor, window: int | None, first: int = 0) -> Tensor:
        """The mask for one kind of layer, made once: boolean (batch or 1, 1, width, keys).

        key_position: (batch or 1, keys), as in `causal_mask`. first: tells apart parts of the keys.
        """
        if ("mask", window, first) not in self.shared:
            rows = slice(1) if self.uniform else slice(None)  # equal rows share one mask
            mask = causal_mask(self.positions[rows], key_position[rows], window)
            self.shared["mask", window, first] = mask
        return self.shared["mask", window, first]

    def lengths(self, window: int | None, slots: int) -> tuple[Tensor, Tensor | None]:
        """What one query per row sees, made once: valid tokens of each row, and in a ring the slot of the first.

        Returns (batch,) int64 and (batch,) int64 or None, on the device of the positions.
        """
        if ("lengths", window) not in self.shared:
            total, device = torch.tensor(self.total), self.positions.device
            lengths = total if window is None else total.clamp(max=window)
            starts = None if window is None else ((total - lengths) % slots).to(device)
            self.shared["lengths", window] = (lengths.to(device), starts)
        return self.shared["lengths", window]
