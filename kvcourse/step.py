"""One forward pass over a cache, until it counts."""

from dataclasses import dataclass, field

from torch import Tensor


@dataclass
class Step:
    """One forward pass: what is new, and the tensors that its layers share. It counts once it is committed."""

    past: tuple[int, ...]  # tokens seen before, per row
    new: tuple[int, ...]  # valid new tokens, per row
    width: int  # tokens in the input, padding included
    positions: Tensor  # (batch, width), -1 for padding
    announced: bool  # by begin(), so that its caller commits
    next_layer: int = 0
    shared: dict = field(default_factory=dict)  # masks and lengths, by window
    staged: list = field(default_factory=list)  # ring writes that wait for the commit

    def __post_init__(self) -> None:
        self.total = tuple(p + n for p, n in zip(self.past, self.new, strict=True))
        self.uniform = len(set(self.past)) == 1 and min(self.new) == self.width  # one past, no padding
