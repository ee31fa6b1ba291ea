"""`kvcourse bench heads`: what fewer kv heads are worth in decoding, one model in several versions side by side.

The versions are MHA (every kv head copied, the same function), the model as it is, MQA (one kv head, the mean of all)
and MLA. Their weights differ as little as their shapes allow, and speed depends on shapes alone, so MLA's projections
are random. Timed are the whole decode step and its KV part: storing what a new token leaves in every layer and
attending to what is stored, for MLA with the two projections of the absorbed form.

The floor is the time to read every byte that a step cannot avoid reading, at the bandwidth measured on this machine.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import psutil
import torch
from rich.console import Group
from rich.table import Table
from torch import Tensor
from tqdm import tqdm

from kvcourse.attention.families import layout_of
from kvcourse.bench import machine, report
from kvcourse.bench.cache import kv_bytes, weight_bytes
from kvcourse.bench.harness import Comparison, compare, format_seconds, render
from kvcourse.bench.versions import GQA, MHA, describe, versions_of
from kvcourse.cache import KVCache
from kvcourse.counts import read_count
from kvcourse.errors import InputError
from kvcourse.model import Decoder
from kvcourse.plan import Plan

CONTEXTS, BATCHES, WARMUP = (512, 1024, 2048, 4096), (1, 4, 16), 2
STEP, KV = "step", "KV part"


@dataclass(frozen=True)
class Case:
    """One context and batch. floors: by version, seconds of the whole step and of its KV part."""

    context: int
    batch: int
    timing: Comparison
    floors: dict[str, tuple[float, float]]

    def seconds(self, version: str, part: str = STEP) -> float:
        """Median seconds of one decode step (STEP) or of its KV part (KV)."""
        return self.timing[arm_of(version, part)].median

    def speedup(self, version: str, part: str = STEP) -> float:
        """Time of MHA ÷ that of a version."""
        return self.seconds(MHA, part) / self.seconds(version, part)

    def to_dict(self) -> dict[str, Any]:
        models = {
            name: {
                "step_s": self.seconds(name),
                "kv_s": self.seconds(name, KV),
                "step_speedup": self.speedup(name),
                "kv_speedup": self.speedup(name, KV),
                "step_floor_s": step,
                "kv_floor_s": part,
                "tokens_per_second": self.batch / self.seconds(name),
            }
            for name, (step, part) in self.floors.items()
        }
        spread = {name: list(arm.quartiles) for name, arm in self.timing.arms.items()}
        return {"context": self.context, "batch": self.batch, "models": models, "quartiles_s": spread}


@dataclass(frozen=True)
class Report:
    """All cases of one run. Prints as tables; `to_json` adds machine, versions and commit.

    models: what each version stores. left_out: (batch, context) whose caches would not fit into memory.
    difference: largest absolute difference of the logits of MHA and of the model as it is, for the same tokens.
    """

    models: tuple[dict[str, Any], ...]
    cases: tuple[Case, ...]
    left_out: tuple[tuple[int, int], ...]
    difference: float
    device: str
    dtype: str
    bandwidth: float

    def to_json(self) -> str:
        return report.to_json(
            "heads",
            self.cases[-1].timing.date,
            device=self.device,
            dtype=self.dtype,
            read_bytes_per_second=self.bandwidth,
            models=list(self.models),
            cases=[case.to_dict() for case in self.cases],
            left_out=[list(case) for case in self.left_out],
            max_logit_difference=self.difference,
        )

    def __rich__(self) -> Group:
        where = f"{self.dtype} on {self.device}, {self.bandwidth / 1e9:.1f} GB/s read"
        tables = [
            self._times(f"one decode step, {where}", STEP),
            self._times("its KV part: storing and attending, all layers", KV),
            self._above_floor(),
        ]
        left = ", ".join(f"{batch} × {context:,}" for batch, context in self.left_out)
        more = [f"left out, too large for the memory: {left}"] if left else []
        return Group(*tables, *more, machine.one_line())

    def _times(self, title: str, part: str) -> Table:
        """Seconds of every version, and how many times faster than MHA."""
        names = [model["name"] for model in self.models]
        headers = [header for name in names for header in (name, "speedup")[: 1 + (name != MHA)]]
        table = report.table(title, ("batch", "context", *headers))
        for case in self.cases:
            cells = []
            for name in names:
                cells.append(format_seconds(case.seconds(name, part)))
                cells += [] if name == MHA else [f"{case.speedup(name, part):.2f}×"]
            table.add_row(str(case.batch), f"{case.context:,}", *cells)
        return table

    def _above_floor(self) -> Table:
        names = [model["name"] for model in self.models]
        headers = [header for name in names for header in (name, "KV")]
        table = report.table("time ÷ floor, whole step and KV part", ("batch", "context", *headers))
        for case in self.cases:
            cells = []
            for name in names:
                floors = zip((STEP, KV), case.floors[name], strict=True)
                cells += [f"{case.seconds(name, part) / floor:.1f}×" for part, floor in floors]
            table.add_row(str(case.batch), f"{case.context:,}", *cells)
        return table

    def __str__(self) -> str:
        return render(self)


def arm_of(version: str, part: str) -> str:
    """The name of an arm: "GQA step"."""
    return f"{version} {part}"


def run(
    model: Decoder,
    contexts: Sequence[int] = CONTEXTS,
    batches: Sequence[int] = BATCHES,
    repeats: int = 10,
    progress: bool | None = None,
) -> Report:
    """Time the versions of `model` in every context with every batch, where their caches fit into memory together.

    Errors: InputError for an MLA model, a context that leaves no positions for the new tokens, numbers below 1, or
    when nothing fits.
    """
    positions, repeats = model.config.max_position_embeddings, read_count("repeats", repeats)
    if model.config.is_latent:
        raise InputError(
            "bench heads got an MLA model: it has no kv heads to change; pass one with keys and values"
        )
    grid = [
        (read_count("batch", batch), read_count("context", context, most=positions - repeats - WARMUP))
        for batch in batches
        for context in contexts
    ]
    models = versions_of(model)
    device, room = model.device.type, _room(model.device.type)
    fits = [case for case in grid if sum(kv_bytes(m, case[1], case[0]) for m in models.values()) <= room]
    if not fits:
        raise InputError(
            f"no caches of {grid} fit into {room / 1e9:.1f} GB: give shorter contexts or smaller batches"
        )
    bandwidth = machine.read_bandwidth(device)
    disable = None if progress is None else not progress
    cases = [
        measure(models, context, batch, repeats, bandwidth, progress)
        for batch, context in tqdm(
            fits, desc="bench heads", delay=2, leave=False, file=sys.stderr, disable=disable
        )
    ]
    left_out = tuple(case for case in grid if case not in fits)
    dtype = str(model.dtype).removeprefix("torch.")
    about = tuple(describe(name, version) for name, version in models.items())
    return Report(about, tuple(cases), left_out, _difference(models), device, dtype, bandwidth)


@torch.inference_mode()
def measure(
    models: dict[str, Decoder],
    context: int,
    batch: int,
    repeats: int,
    bandwidth: float,
    progress: bool | None,
) -> Case:
    """One Case: a filled cache a version, then both arms of every version interleaved.

    Every call keeps its token, as in decoding: a context of n is the middle of a few tokens around n.
    """
    start = max(1, context - 2 * WARMUP - repeats)
    plan = Plan(capacity=start + 2 * (WARMUP + repeats))
    caches = {name: KVCache(model.config, plan, batch) for name, model in models.items()}
    for name, cache in caches.items():
        new = _draw_fields(models[name], batch, start)
        for layer in range(cache.config.num_layers):
            cache.append(layer, *new)
    vocabulary = min(model.config.vocab_size for model in models.values())
    device = next(iter(models.values())).device

    def setup() -> tuple[Tensor, dict[str, tuple[Tensor, ...]]]:
        drawn = {name: (*_draw_queries(m, batch), *_draw_fields(m, batch, 1)) for name, m in models.items()}
        return torch.randint(vocabulary, (batch, 1), device=device), drawn

    arms: dict[str, Callable[..., Any]] = {}
    for name, model in models.items():
        arms[arm_of(name, STEP)] = lambda token, _, model=model, name=name: model(token, cache=caches[name])
        arms[arm_of(name, KV)] = lambda _, drawn, model=model, name=name: _attend(
            model, caches[name], drawn[name]
        )
    timing = compare(
        arms,
        setup=setup,
        repeats=repeats,
        warmup=WARMUP,
        min_seconds=0,  # one call a sample: every call makes the context one token longer
        baseline=arm_of(MHA, STEP),
        title=f"batch {batch}, context {context}",
        progress=progress,
    )
    floors = {}
    for name, model in models.items():
        read = kv_bytes(model, context, batch) / bandwidth
        floors[name] = weight_bytes(model) / bandwidth + read, read + _up_bytes(model) / bandwidth
    return Case(context, batch, timing, floors)


def _attend(model: Decoder, cache: KVCache, drawn: tuple[Tensor, ...]) -> None:
    """The KV part of one step: queries and new fields of every layer are the same tensors."""
    for layer, block in enumerate(model.layers):
        if model.config.is_latent:
            cache.attend_latent(layer, *drawn, block.self_attn.up)
        else:
            cache.attend(layer, *drawn)


def _draw_queries(model: Decoder, batch: int) -> tuple[Tensor, ...]:
    """Random queries of one token per row, as the cache takes them."""
    config = model.config
    dims = (config.qk_nope_head_dim, config.qk_rope_head_dim) if config.is_latent else (config.head_dim,)
    shapes = [(batch, config.num_heads, 1, dim) for dim in dims]
    return tuple(torch.randn(shape, device=model.device, dtype=model.dtype) for shape in shapes)


def _draw_fields(model: Decoder, batch: int, tokens: int) -> tuple[Tensor, ...]:
    """Random entries of one layer for some tokens per row, as the cache takes them."""
    fields = layout_of(model.config)[0].fields
    shapes = [(batch, *field.shape[:-1], tokens, field.shape[-1]) for field in fields]
    return tuple(torch.randn(shape, device=model.device, dtype=model.dtype) for shape in shapes)


def _up_bytes(model: Decoder) -> int:
    """Bytes of the projections that belong to MLA's KV part."""
    if not model.config.is_latent:
        return 0
    return sum(block.self_attn.kv_b_proj.weight.nbytes for block in model.layers)


@torch.inference_mode()
def _difference(models: dict[str, Decoder]) -> float:
    """Largest difference of the logits of MHA and GQA, 0 where the model has no GQA version."""
    if GQA not in models:
        return 0.0
    ids = torch.arange(1, 9, device=models[MHA].device)[None]
    return float((models[MHA](ids) - models[GQA](ids)).abs().max())


def _room(device: str) -> float:
    """Bytes that caches may take: half of what is free."""
    free = torch.cuda.mem_get_info()[0] if device == "cuda" else psutil.virtual_memory().available
    return 0.5 * free
