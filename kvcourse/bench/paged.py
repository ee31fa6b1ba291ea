"""`kvcourse bench paged`: decode attention over pages in random order, next to a contiguous cache and the floor.

One new token per row attends to a cache of the shapes of real models, several ways in turn: by `kernels.paged_decode`
on blocks of several sizes that lie in random order in one pool; by `kernels.contiguous_decode` and by torch's
`scaled_dot_product_attention` on one contiguous array, which is what paging must not be slower than; and by the same
torch function after the pages are gathered into such an array, which is what one does without a kernel for pages. The
gathering is timed as it is mostly written, blocks by the table and then heads before tokens, which copies twice, and
at its cheapest, where table and heads are indexed at once, which copies once.

Every way has its own copy of the same tokens, so that each call finds its cache in memory and not in the processor's
caches, where the call before it left something else. The floor is the time to read each key and value once, at the
bandwidth measured on this machine.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch
from rich.console import Group
from rich.table import Table
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from tqdm import tqdm

from kvcourse.bench import machine, report
from kvcourse.bench.harness import Comparison, compare, format_seconds, render
from kvcourse.counts import read_count
from kvcourse.kernels import contiguous_decode, paged_decode

SDPA, KERNEL = "contiguous, SDPA", "contiguous, kernel"
GATHER, GATHER_ONCE = "gathered, SDPA", "gathered in one copy, SDPA"
BLOCK_SIZE, BLOCK_SIZES = 16, (1, 2, 4, 8, 16, 32, 64, 128, 256)


def paged(block_size: int) -> str:
    """The name of the arm that reads blocks of a size."""
    return f"paged, {block_size}"


@dataclass(frozen=True)
class Shape:
    """One layer's decode step: sequences, heads, and tokens in the cache of each sequence."""

    batch: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    context: int


SHAPES = {"SmolLM2-135M": Shape(8, 9, 3, 64, 4096), "Llama-3-8B": Shape(8, 32, 8, 128, 2048)}


@dataclass(frozen=True)
class Case:
    """One shape. Times in seconds for one layer, medians.

    floor: bytes of keys and values ÷ read bandwidth. difference: largest absolute difference between the output of
    any arm and SDPA's, whose values are of size 1, which says that they did the same work.
    """

    model: str
    shape: Shape
    timing: Comparison
    floor: float
    difference: float

    @property
    def over_sdpa(self) -> float:
        """Time of the paged kernel with blocks of BLOCK_SIZE ÷ that of SDPA on a contiguous cache."""
        return self.timing[paged(BLOCK_SIZE)].median / self.timing[SDPA].median

    @property
    def over_contiguous(self) -> float:
        """Time of the paged kernel with blocks of BLOCK_SIZE ÷ that of our kernel on a contiguous cache."""
        return self.timing[paged(BLOCK_SIZE)].median / self.timing[KERNEL].median

    def gathering_over_paged(self, arm: str = GATHER) -> float:
        """Time of gathering the pages and SDPA ÷ that of the paged kernel, both with blocks of BLOCK_SIZE."""
        return self.timing[arm].median / self.timing[paged(BLOCK_SIZE)].median

    def to_dict(self) -> dict[str, Any]:
        return {
            "model": self.model,
            **asdict(self.shape),
            "arms": {name: arm.to_dict() for name, arm in self.timing.arms.items()},
            "paged_over_sdpa": self.over_sdpa,
            "paged_over_contiguous": self.over_contiguous,
            "gathering_over_paged": self.gathering_over_paged(),
            "gathering_in_one_copy_over_paged": self.gathering_over_paged(GATHER_ONCE),
            "floor_s": self.floor,
            "paged_over_floor": self.timing[paged(BLOCK_SIZE)].median / self.floor,
            "max_difference": self.difference,
        }


class Report(report.CaseReport):
    """All cases of one run. Prints as a table."""

    benchmark = "paged"
    settings: ClassVar = {"block_size": BLOCK_SIZE}

    def __rich__(self) -> Group:
        return Group(*(self._table(case) for case in self.cases), machine.one_line())

    def _table(self, case: Case) -> Table:
        s = case.shape
        title = (
            f"{case.model}: batch {s.batch}, {s.num_heads}/{s.num_kv_heads} heads of {s.head_dim}, "
            f"{s.context:,} tokens, {self.where}"
        )
        table = report.table(title, ("arm", "median", "quartiles", "÷ SDPA", "÷ floor"), names=1)
        for name, arm in case.timing.arms.items():
            q1, q3 = arm.quartiles
            table.add_row(
                name,
                format_seconds(arm.median),
                f"{format_seconds(q1)} – {format_seconds(q3)}",
                f"{1 / case.timing.speedup(name):.2f}×",
                f"{arm.median / case.floor:.1f}×",
            )
        return table

    def __str__(self) -> str:
        return render(self)


def run(
    block_sizes: Sequence[int] = BLOCK_SIZES,
    repeats: int = 15,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    shapes: Mapping[str, Shape] = SHAPES,
    progress: bool | None = None,
) -> Report:
    """Time every shape; blocks of BLOCK_SIZE are timed in any case.

    Errors: InputError for a block size or number of repeats below 1.
    """
    repeats = read_count("repeats", repeats)
    sizes = sorted({BLOCK_SIZE, *(read_count("block size", size) for size in block_sizes)})
    bandwidth = machine.read_bandwidth(device)
    bar = tqdm(
        shapes.items(),
        desc="bench paged",
        delay=2,
        leave=False,
        file=sys.stderr,
        disable=None if progress is None else not progress,
    )
    cases = [
        measure(model, shape, sizes, repeats, bandwidth, device, dtype, progress) for model, shape in bar
    ]
    return Report(tuple(cases), torch.device(device).type, str(dtype).removeprefix("torch."), bandwidth)


@torch.inference_mode()
def measure(
    model: str,
    shape: Shape,
    block_sizes: Sequence[int],
    repeats: int,
    bandwidth: float,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    progress: bool | None = None,
) -> Case:
    """One Case: the same tokens in arrays and in pages, then all arms interleaved."""

    def draw(*size: int) -> Tensor:
        return torch.randn(*size, device=device, dtype=dtype)

    tokens = draw(2, shape.batch, shape.num_kv_heads, shape.context, shape.head_dim)
    lengths = torch.full((shape.batch,), shape.context, dtype=torch.int32, device=device)
    again, to_gather, to_gather_once = tokens.clone(), *(in_pages(tokens, BLOCK_SIZE) for _ in range(2))
    arms: dict[str, Callable[[Tensor], Tensor]] = {
        SDPA: lambda q: _sdpa(q, *tokens),
        KERNEL: lambda q: contiguous_decode(q, *again, lengths),
        GATHER: lambda q: _sdpa(q, *gathered(*to_gather, shape.context)),
        GATHER_ONCE: lambda q: _sdpa(q, *gathered_in_one_copy(*to_gather_once, shape.context)),
    }
    for size in block_sizes:
        pages, table = in_pages(tokens, size)
        arms[paged(size)] = lambda q, pages=pages, table=table: paged_decode(q, *pages, table, lengths)

    def setup() -> Tensor:
        return draw(shape.batch, shape.num_heads, shape.head_dim)

    q = setup()
    right = arms[SDPA](q)
    difference = max(float((arm(q) - right).abs().max()) for arm in arms.values())
    timing = compare(
        arms,
        setup=setup,
        repeats=repeats,
        warmup=1,
        min_seconds=0,
        baseline=SDPA,
        title=model,
        progress=progress,
    )
    return Case(model, shape, timing, tokens.nbytes / bandwidth, difference)


def in_pages(tokens: Tensor, block_size: int) -> tuple[Tensor, Tensor]:
    """The tokens of every row cut into blocks that lie in random order in one pool.

    tokens: (2, batch, num_kv_heads, context, head_dim), keys and values. Returns the pages (2, num_blocks,
    num_kv_heads, block_size, head_dim) and the block table (batch, blocks) int32.
    """
    _, batch, heads, context, dim = tokens.shape
    used = -(-context // block_size)
    padded = torch.nn.functional.pad(tokens, (0, 0, 0, used * block_size - context))
    blocks = padded.unflatten(3, (used, block_size)).transpose(
        2, 3
    )  # (2, batch, used, heads, block_size, dim)
    order = torch.randperm(batch * used, device=tokens.device)
    pages = torch.empty(2, batch * used, heads, block_size, dim, dtype=tokens.dtype, device=tokens.device)
    pages[:, order] = blocks.flatten(1, 2)
    return pages, order.reshape(batch, used).int()


def gathered(pages: Tensor, table: Tensor, context: int) -> list[Tensor]:
    """Keys and values of `in_pages`, each (batch, num_kv_heads, context, head_dim), as it is mostly written."""
    return [field[table].transpose(1, 2).flatten(2, 3)[:, :, :context] for field in pages]


def gathered_in_one_copy(pages: Tensor, table: Tensor, context: int) -> list[Tensor]:
    """The same without the copy that puts heads before blocks: both are indexed at once."""
    heads = torch.arange(pages.shape[2], device=pages.device)[:, None]
    return [field[table[:, None], heads].flatten(2, 3)[:, :, :context] for field in pages]


def _sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return scaled_dot_product_attention(q[:, :, None], k, v, enable_gqa=True)[:, :, 0]
