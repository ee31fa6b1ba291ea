"""`kvcourse bench mla`: decode attention over latents in its two forms, next to the floor.

One new token per row attends to a latent cache of the shapes of DeepSeek's models. Absorbed, the queries are mapped
to the width of the latents and every head reads those: by `kernels.mla_decode` on pages in random order, and as plain
matrix products on one contiguous array. Expanded, all keys and values are made of the latents first, then attended
to. The absorbed form also needs two small projections of the new token, which are timed apart.

Every call finds its cache in memory, not in the processor's caches: in a model the other layers pass in between. So
each arm has its own copies of the same tokens, many enough that a copy has long been displaced when its turn comes.

The floor is the time to read each cached number once, at the bandwidth measured on this machine.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import cycle
from typing import Any, ClassVar

import torch
from rich.console import Group
from rich.table import Table
from torch import Tensor
from tqdm import tqdm

from kvcourse.attention.mla import UpProjection, expanded_attention
from kvcourse.bench import machine, report
from kvcourse.bench.harness import Comparison, compare, format_seconds, render
from kvcourse.counts import read_count
from kvcourse.kernels import mla_decode

CONTEXTS, BATCHES, BLOCK_SIZE = (512, 4096), (1, 4), 64
DISPLACED = 128 << 20  # bytes between two calls on the same copy: beyond the caches of one core's share
KERNEL, TORCH, EXPANDED, PROJECTIONS = "mla_decode", "absorbed, torch", "expanded, torch", "projections"


@dataclass(frozen=True)
class Shape:
    """The sizes of one layer's latent attention, by their names in config.json."""

    num_heads: int
    kv_lora_rank: int = 512
    qk_rope_head_dim: int = 64
    qk_nope_head_dim: int = 128
    v_head_dim: int = 128

    @property
    def scale(self) -> float:
        """Factor of the scores: the width of the keys decides it, never that of the latent."""
        return (self.qk_nope_head_dim + self.qk_rope_head_dim) ** -0.5


SHAPES = {"DeepSeek-V2-Lite": Shape(16), "DeepSeek-V3": Shape(128)}


@dataclass(frozen=True)
class Case:
    """One shape, context and batch. Times in seconds for one layer, medians.

    floor: bytes of latents and rope keys ÷ read bandwidth. difference: largest absolute difference between the
    outputs of the three forms, whose values are of size 1, which says that they did the same work.
    """

    model: str
    shape: Shape
    context: int
    batch: int
    timing: Comparison
    floor: float
    difference: float

    @property
    def speedup(self) -> float:
        """Time of the absorbed form in plain torch ÷ that of mla_decode."""
        return self.timing.speedup(KERNEL, over=TORCH)

    @property
    def speedup_over_expanded(self) -> float:
        """Time of the expanded form ÷ that of mla_decode and its projections together."""
        absorbed = self.timing[KERNEL].median + self.timing[PROJECTIONS].median
        return self.timing[EXPANDED].median / absorbed

    def to_dict(self) -> dict[str, Any]:
        return {
            "model": self.model,
            **asdict(self.shape),
            "context": self.context,
            "batch": self.batch,
            "arms": {name: arm.to_dict() for name, arm in self.timing.arms.items()},
            "speedup_over_absorbed_torch": self.speedup,
            "speedup_over_expanded_torch": self.speedup_over_expanded,
            "floor_s": self.floor,
            "over_floor": self.timing[KERNEL].median / self.floor,
            "max_difference": self.difference,
        }


class Report(report.CaseReport):
    """All cases of one run. Prints as a table."""

    benchmark = "mla"
    settings: ClassVar = {"block_size": BLOCK_SIZE}

    def __rich__(self) -> Group:
        models = dict.fromkeys(case.model for case in self.cases)
        return Group(*(self._table(model) for model in models), machine.one_line())

    def _table(self, model: str) -> Table:
        headers = (
            "batch", "context", KERNEL, "÷ floor", "absorbed", "speedup", "projections", "expanded", "speedup",
        )  # fmt: skip
        table = report.table(f"{model}, one layer's decode attention, {self.where}", headers)
        for case in self.cases:
            if case.model != model:
                continue
            seconds = {name: arm.median for name, arm in case.timing.arms.items()}
            table.add_row(
                str(case.batch),
                f"{case.context:,}",
                format_seconds(seconds[KERNEL]),
                f"{seconds[KERNEL] / case.floor:.1f}×",
                format_seconds(seconds[TORCH]),
                f"{case.speedup:.2f}×",
                format_seconds(seconds[PROJECTIONS]),
                format_seconds(seconds[EXPANDED]),
                f"{case.speedup_over_expanded:.1f}×",
            )
        return table

    def __str__(self) -> str:
        return render(self)


def run(
    contexts: Sequence[int] = CONTEXTS,
    batches: Sequence[int] = BATCHES,
    repeats: int = 7,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    shapes: Mapping[str, Shape] = SHAPES,
    progress: bool | None = None,
) -> Report:
    """Time every shape, context and batch. Expanding DeepSeek-V3's cache takes 33 MFLOP a token: seconds on a CPU.

    Errors: InputError for a context, batch or number of repeats below 1.
    """
    repeats = read_count("repeats", repeats)
    grid = [
        (model, read_count("context", context), read_count("batch", batch))
        for model in shapes
        for batch in batches
        for context in contexts
    ]
    bandwidth = machine.read_bandwidth(device)
    bar = tqdm(
        grid,
        desc="bench mla",
        delay=2,
        leave=False,
        file=sys.stderr,
        disable=None if progress is None else not progress,
    )
    cases = [
        measure(model, shapes[model], context, batch, repeats, bandwidth, device, dtype, progress)
        for model, context, batch in bar
    ]
    return Report(tuple(cases), torch.device(device).type, str(dtype).removeprefix("torch."), bandwidth)


@torch.inference_mode()
def measure(
    model: str,
    shape: Shape,
    context: int,
    batch: int,
    repeats: int,
    bandwidth: float,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    progress: bool | None = None,
) -> Case:
    """One Case: the same tokens in pages and in one array, then the four arms interleaved."""
    heads, rank, rope_dim = shape.num_heads, shape.kv_lora_rank, shape.qk_rope_head_dim

    def draw(*size: int) -> Tensor:
        return torch.randn(*size, device=device, dtype=dtype)

    up = UpProjection(
        draw(heads, shape.qk_nope_head_dim, rank) * rank**-0.5,
        draw(heads, shape.v_head_dim, rank) * rank**-0.5,
    )
    tokens = draw(batch, context, rank + rope_dim)
    lengths = torch.full((batch,), context, dtype=torch.int32, device=device)
    pages, table = paged(tokens)
    next_pages, next_absorbed, next_expanded = copies(pages), copies(tokens), copies(tokens)

    def setup() -> tuple[Tensor, Tensor, Tensor]:
        q_nope = draw(batch, heads, 1, shape.qk_nope_head_dim)
        return q_nope, draw(batch, heads, 1, rope_dim), up.absorb(q_nope)

    def kernel(_: Tensor, q_rope: Tensor, q_latent: Tensor) -> Tensor:
        queries = q_latent[:, :, 0], q_rope[:, :, 0]
        fields = next(next_pages).split((rank, rope_dim), dim=-1)
        return mla_decode(*queries, *fields, table, lengths, shape.scale)[:, :, None]

    def absorbed(_: Tensor, q_rope: Tensor, q_latent: Tensor) -> Tensor:
        queries = torch.cat((q_latent, q_rope), dim=-1)[:, :, 0]  # (B, H, R + D_r)
        cached = next(next_absorbed)  # (B, S, R + D_r)
        weights = torch.softmax(queries @ cached.mT * shape.scale, dim=-1)  # (B, H, S)
        return (weights @ cached[..., :rank])[:, :, None]

    def expanded(q_nope: Tensor, q_rope: Tensor, _: Tensor) -> Tensor:
        fields = next(next_expanded).split((rank, rope_dim), dim=-1)
        return expanded_attention(q_nope, q_rope, *fields, up, shape.scale)

    def projections(q_nope: Tensor, _: Tensor, q_latent: Tensor) -> tuple[Tensor, Tensor]:
        return up.absorb(q_nope), up.project(q_latent)

    inputs = setup()
    right = expanded(*inputs)
    difference = max(float((up.project(form(*inputs)) - right).abs().max()) for form in (kernel, absorbed))
    timing = compare(
        {KERNEL: kernel, TORCH: absorbed, EXPANDED: expanded, PROJECTIONS: projections},
        setup=setup,
        repeats=repeats,
        warmup=1,
        min_seconds=0,
        baseline=TORCH,
        title=f"{model}, batch {batch}, context {context}",
        progress=progress,
    )
    return Case(model, shape, context, batch, timing, tokens.nbytes / bandwidth, difference)


def copies(cached: Tensor) -> Iterator[Tensor]:
    """Copies of a tensor in turn, for ever: as many as fill DISPLACED bytes."""
    number = max(2, -(-DISPLACED // cached.nbytes))
    return cycle(cached.expand(number, *cached.shape).clone(memory_format=torch.contiguous_format))


def paged(cached: Tensor) -> tuple[Tensor, Tensor]:
    """The tokens of every row cut into blocks that lie in random order in one pool.

    cached: (batch, tokens, kv_lora_rank + qk_rope_head_dim). Returns the pool (num_blocks, BLOCK_SIZE, …) and
    the block table (batch, blocks) int32.
    """
    batch, tokens, width = cached.shape
    used = -(-tokens // BLOCK_SIZE)
    padded = torch.nn.functional.pad(cached, (0, 0, 0, used * BLOCK_SIZE - tokens))
    order = torch.randperm(batch * used, device=cached.device)
    pages = torch.empty(batch * used, BLOCK_SIZE, width, dtype=cached.dtype, device=cached.device)
    pages[order] = padded.reshape(batch * used, BLOCK_SIZE, width)
    return pages, order.reshape(batch, used).int()
