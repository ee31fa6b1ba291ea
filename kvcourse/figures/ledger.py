"""The ledger of generation: rows, attention cells and FLOPs of each forward pass, with and without a cache.

The same arithmetic as `work` in arithmetic.mjs. A multiplication and an addition count as two FLOPs; norms,
rotations and the softmax are left out.
"""

from dataclasses import asdict, dataclass

from kvcourse.config import ModelConfig
from kvcourse.errors import InputError


@dataclass(frozen=True)
class WorkCost:
    """FLOPs of one token's products with the weights of all layers (per_token), of one query meeting one key in
    all heads and layers (per_cell), and of the output head, which only the last token needs (per_step).
    """

    per_token: int
    per_cell: int
    per_step: int

    @classmethod
    def of(cls, config: ModelConfig) -> "WorkCost":
        """The costs of a decoder of the Llama family."""
        hidden, queries = config.hidden_size, config.num_heads * config.head_dim
        keys = config.num_kv_heads * config.head_dim
        weights = hidden * (queries + 2 * keys) + queries * hidden + 3 * hidden * config.intermediate_size
        return cls(
            per_token=2 * config.num_layers * weights,
            per_cell=4 * config.num_layers * queries,  # a score, and its share of the output
            per_step=2 * hidden * config.vocab_size,
        )

    def as_dict(self) -> dict[str, int]:
        return asdict(self)


@dataclass(frozen=True)
class Work:
    """rows of K and V computed, attention cells (one query meeting one key, counted once for all heads), FLOPs."""

    rows: int
    cells: int
    flops: int


def work(prompt: int, steps: int, cached: bool, cost: WorkCost) -> Work:
    """All work of `steps` forward passes after a prompt of `prompt` tokens; the first pass is the prefill.

    Errors: InputError when prompt or steps is below 1.
    """
    if prompt < 1 or steps < 1:
        raise InputError(f"got a prompt of {prompt} tokens and {steps} steps; expected at least 1 of each")
    lengths = range(prompt, prompt + steps)
    if cached:
        rows = prompt + steps - 1
        cells = prompt * (prompt + 1) // 2 + sum(lengths[1:])
    else:
        rows = sum(lengths)
        cells = sum(length * (length + 1) // 2 for length in lengths)
    return Work(rows, cells, rows * cost.per_token + cells * cost.per_cell + steps * cost.per_step)
