"""The weights of a model before training, and which of them train."""

import contextlib
import fnmatch
import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from kvcourse.counts import read_count
from kvcourse.errors import InputError


def initialise(model: Any, seed: int = 0) -> Any:
    """Give `model` the random weights that training starts from, in place, and return it.

    Matrices are normal with a standard deviation of 0.02, divided by √(2 · layers) where a block writes into the
    residual stream (Radford et al. 2019, GPT-2, §2.3); norms are 1 and biases 0. A weight depends on its name, its
    shape and the seed alone: models that differ in their attention start with the same embeddings.
    """
    seed = read_count("seed", seed, least=0)
    for name, weight in model.named_parameters():
        generator = torch.Generator().manual_seed(zlib.crc32(f"{seed}:{name}".encode()))
        if weight.dim() < 2:
            weight.data.fill_(0.0 if name.endswith("bias") else 1.0)
            continue
        writes = name.endswith(("o_proj.weight", "down_proj.weight"))
        spread = 0.02 / math.sqrt(2 * model.config.num_layers) if writes else 0.02
        weight.data.copy_(torch.randn(weight.shape, generator=generator, dtype=torch.float64) * spread)
    return model


def choose_weights(model: Any, patterns: Sequence[str]) -> dict[str, Tensor]:
    """The weights whose names match a pattern, by name.

    Errors: InputError for a pattern that names no weight, no pattern, and weights narrower than float32.
    """
    patterns = [patterns] if isinstance(patterns, str) else patterns
    if not isinstance(patterns, Sequence) or any(not isinstance(pattern, str) for pattern in patterns):
        raise InputError(f"parameters={patterns!r}: expected names of weights, * standing for anything")
    weights = dict(model.named_parameters())
    for pattern in patterns:
        if not any(fnmatch.fnmatchcase(name, pattern) for name in weights):
            raise InputError(
                f"parameters: no weight of the model is named {pattern!r}; the first is {next(iter(weights))!r}"
            )
    chosen = {
        name: weight
        for name, weight in weights.items()
        if any(fnmatch.fnmatchcase(name, p) for p in patterns)
    }
    if not chosen:
        raise InputError("parameters: nothing to train; give at least one pattern")
    narrow = sorted({str(w.dtype) for w in chosen.values() if w.dtype not in (torch.float32, torch.float64)})
    if narrow:
        raise InputError(
            f"the model is {narrow[0]}: small updates round to nothing there; train it in float32"
        )
    return chosen


@contextlib.contextmanager
def trainable(model: Any, chosen: Mapping[str, Tensor]) -> Iterator[None]:
    """Gradients for the chosen weights alone, and afterwards for those that had them before.

    Also where the caller has switched gradients off altogether.
    """
    before = {name: weight.requires_grad for name, weight in model.named_parameters()}
    try:
        for name, weight in model.named_parameters():
            weight.requires_grad_(name in chosen)
        with torch.enable_grad():
            yield
    finally:
        for name, weight in model.named_parameters():
            weight.requires_grad_(before[name])
            weight.grad = None
        model.eval()
