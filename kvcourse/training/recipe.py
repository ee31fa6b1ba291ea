"""How a run trains, and what it saw."""

import math
from dataclasses import dataclass, field

from kvcourse.counts import check_positive, is_number, read_count
from kvcourse.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How to train. Two runs with the same recipe read the same windows in the same order.

    steps: weight updates. batch: windows a step. context: tokens a window, each of which predicts the next one.
    learning_rate: reached after `warmup` steps, then lowered along a cosine to `final` times itself (Loshchilov
    and Hutter 2017, SGDR, without restarts). weight_decay: AdamW's (Loshchilov and Hutter 2019), on matrices only.
    betas: AdamW's. clip: largest norm of all gradients together. seed: decides the windows.

    Errors: InputError for numbers out of range.
    """

    steps: int
    batch: int
    context: int
    learning_rate: float
    warmup: int = 20
    final: float = 0.1
    weight_decay: float = 0.1
    betas: tuple[float, float] = (0.9, 0.95)
    clip: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("steps", 1), ("batch", 1), ("context", 1), ("warmup", 0), ("seed", 0)):
            object.__setattr__(self, name, read_count(name, getattr(self, name), least=least))
        for name in ("learning_rate", "clip"):
            check_positive(name, getattr(self, name))
        for name in ("final", "weight_decay"):
            value = getattr(self, name)
            if not is_number(value) or value < 0:
                raise InputError(f"{name}={value!r}: expected a number of at least 0")
        for name in ("learning_rate", "clip", "final", "weight_decay"):
            # A number of numpy's would go into a training state, and not come back.
            object.__setattr__(self, name, float(getattr(self, name)))
        betas = self.betas if isinstance(self.betas, (list, tuple)) else ()
        if len(betas) != 2 or not all(is_number(beta) and 0 <= beta < 1 for beta in betas):
            raise InputError(f"betas={self.betas!r}: expected two numbers of at least 0 and below 1")
        object.__setattr__(self, "betas", tuple(map(float, betas)))

    @property
    def tokens_per_step(self) -> int:
        return self.batch * self.context

    def rate(self, step: int) -> float:
        """The learning rate of update number `step`, from 0."""
        if step < self.warmup:
            return self.learning_rate * (step + 1) / self.warmup
        done = (step - self.warmup) / max(1, self.steps - self.warmup)
        return self.learning_rate * (self.final + (1 - self.final) * (1 + math.cos(math.pi * done)) / 2)


@dataclass
class History:
    """What a run saw.

    losses: training nats per token, one a step. evaluations: (step, held-out nats per token), where step counts the
    updates made before. seconds: time spent, over all sittings.
    """

    losses: list[float] = field(default_factory=list)
    evaluations: list[tuple[int, float]] = field(default_factory=list)
    seconds: float = 0.0
