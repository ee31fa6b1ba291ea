"""`kvcourse bench cache`: one decode step on KVCache, next to transformers' DynamicCache and the floor.

Both run the same weights (one copy in memory) in the same process. Each step reads one new token per row, and both
caches keep it, as in decoding, so "a context of n" is the middle of a few tokens around n. (Taking each token out
again would change what is measured: what DynamicCache pays for its next copy depends on the memory it just freed.)
Timed apart from the whole step is its KV part: storing the new K and V of every layer and attending to what is
stored, on tensors of the same shapes.

The floor is the time to read every byte that a step cannot avoid reading, the weights once and the K and V of every
row, at the bandwidth measured on this machine.
"""

import inspect
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from rich.console import Group
from torch import Tensor
from tqdm import tqdm

from kvcourse.attention.families import layout_of
from kvcourse.bench import machine, report
from kvcourse.bench.harness import Comparison, compare, format_seconds, render
from kvcourse.cache import KVCache
from kvcourse.errors import InputError
from kvcourse.model import Decoder
from kvcourse.plan import Plan

CONTEXTS, BATCHES, WARMUP = (256, 1024, 4096), (1, 8), 2
HEADERS = ("batch", "context", "KVCache", "transformers", "speedup", "floor", "÷ floor")
STEP, STEP_HF, KV, KV_HF = "step", "step, transformers", "KV part", "KV part, transformers"


@dataclass(frozen=True)
class Case:
    """One context and batch. Times in seconds per step, medians.

    floor: weight and KV bytes ÷ read bandwidth; kv_floor: KV bytes alone. difference: largest absolute difference
    of the logits of the two arms for the same token, which says that they did the same work.
    """

    context: int
    batch: int
    timing: Comparison
    floor: float
    kv_floor: float
    difference: float

    @property
    def step_speedup(self) -> float:
        """Tokens per second of KVCache ÷ those of DynamicCache."""
        return self.timing.speedup(STEP, over=STEP_HF)

    @property
    def kv_speedup(self) -> float:
        """Time of DynamicCache's KV part ÷ that of KVCache."""
        return self.timing.speedup(KV, over=KV_HF)

    def to_dict(self) -> dict[str, Any]:
        arms = {name: arm.to_dict() for name, arm in self.timing.arms.items()}
        return {
            "context": self.context,
            "batch": self.batch,
            "arms": arms,
            "tokens_per_second": {name: self.batch / self.timing[name].median for name in (STEP, STEP_HF)},
            "step_speedup": self.step_speedup,
            "kv_speedup": self.kv_speedup,
            "floor_s": self.floor,
            "kv_floor_s": self.kv_floor,
            "max_logit_difference": self.difference,
        }


class Report(report.CaseReport):
    """All cases of one run. Prints as a table."""

    benchmark = "cache"

    def __rich__(self) -> Group:
        step = report.table(f"one decode step, {self.where}", (*HEADERS, "tokens/s"))
        part = report.table("its KV part: storing and attending, all layers", HEADERS)
        for case in self.cases:
            row = (str(case.batch), f"{case.context:,}")
            rate = f"{case.batch / case.timing[STEP].median:.1f}"
            step.add_row(*row, *_cells(case, STEP, STEP_HF, case.floor), rate)
            part.add_row(*row, *_cells(case, KV, KV_HF, case.kv_floor))
        return Group(step, part, machine.one_line())

    def __str__(self) -> str:
        return render(self)


def _cells(case: Case, ours: str, theirs: str, floor: float) -> tuple[str, ...]:
    """Median of ours and theirs, their ratio, the floor, and how far ours is above it."""
    seconds = case.timing[ours].median
    return (
        format_seconds(seconds),
        format_seconds(case.timing[theirs].median),
        f"{case.timing.speedup(ours, over=theirs):.2f}×",
        format_seconds(floor),
        f"{seconds / floor:.1f}×",
    )


def run(
    model: Decoder,
    contexts: Sequence[int] = CONTEXTS,
    batches: Sequence[int] = BATCHES,
    repeats: int = 10,
    progress: bool | None = None,
) -> Report:
    """Time every context with every batch on `model`, whose device and dtype decide where and in what.

    Errors: InputError for an MLA model (`bench mla` times those), a context that leaves no positions for the new
    tokens, or numbers below 1.
    """
    if model.config.is_latent:
        raise InputError("this benchmark times keys and values per head; `kvcourse bench mla` times latents")
    positions = model.config.max_position_embeddings
    most = positions - repeats - 1
    for context in contexts:
        if not 1 <= context <= most:
            raise InputError(
                f"context {context}: expected 1 to {most}, the model's {positions} positions less the new tokens"
            )
    if min(batches) < 1:
        raise InputError(f"batch {min(batches)}: expected at least 1")
    twin = twin_of(model)
    bandwidth = machine.read_bandwidth(model.device.type)
    grid = [(context, batch) for batch in batches for context in contexts]
    disable = None if progress is None else not progress
    cases = [
        measure(model, twin, context, batch, repeats, bandwidth, progress)
        for context, batch in tqdm(
            grid, desc="bench cache", delay=2, leave=False, file=sys.stderr, disable=disable
        )
    ]
    return Report(tuple(cases), model.device.type, str(model.dtype).removeprefix("torch."), bandwidth)


@torch.inference_mode()
def measure(
    model: Decoder, twin: Any, context: int, batch: int, repeats: int, bandwidth: float, progress: bool | None
) -> Case:
    """One Case: both caches filled with the same random K and V, then the four arms interleaved."""
    from transformers import DynamicCache
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    config, device, dtype = model.config, model.device, model.dtype
    layers = range(config.num_layers)
    ours, theirs = KVCache(config, Plan(), batch), DynamicCache(config=twin.config)

    def draw(heads: int, tokens: int) -> Tensor:
        return torch.randn(batch, heads, tokens, config.head_dim, device=device, dtype=dtype)

    # One step that compares, two calls a round: half of the measured ones below the context, half above.
    start = max(1, context - 1 - 2 * WARMUP - repeats)
    _fill(ours, theirs, draw(config.num_kv_heads, start), draw(config.num_kv_heads, start))
    keyword = _cache_keyword(twin)
    attention = SimpleNamespace(num_key_value_groups=config.group_size, is_causal=True)
    scale = config.head_dim**-0.5

    def setup() -> tuple[Tensor, ...]:
        token = torch.randint(config.vocab_size, (batch, 1), device=device)
        return token, draw(config.num_heads, 1), draw(config.num_kv_heads, 1), draw(config.num_kv_heads, 1)

    def step(token: Tensor, *_: Tensor) -> Tensor:
        return model(token, cache=ours)

    def step_hf(token: Tensor, *_: Tensor) -> Tensor:
        return twin(token, use_cache=True, **{keyword: theirs}).logits

    def kv(_: Tensor, q: Tensor, k: Tensor, v: Tensor) -> None:
        for layer in layers:
            ours.attend(layer, q, k, v)

    def kv_hf(_: Tensor, q: Tensor, k: Tensor, v: Tensor) -> None:
        for layer in layers:
            keys, values = theirs.update(k, v, layer)
            sdpa_attention_forward(attention, q, keys, values, None, scaling=scale)

    inputs = setup()
    difference = float((step(*inputs) - step_hf(*inputs)).abs().max())
    timing = compare(
        {STEP: step, STEP_HF: step_hf, KV: kv, KV_HF: kv_hf},
        setup=setup,
        repeats=repeats,
        warmup=WARMUP,
        min_seconds=0,  # one call a sample: every call makes the context one token longer
        baseline=STEP_HF,
        title=f"batch {batch}, context {context}",
        progress=progress,
    )
    read = kv_bytes(model, context, batch) / bandwidth
    return Case(context, batch, timing, weight_bytes(model) / bandwidth + read, read, difference)


def _fill(ours: KVCache, theirs: Any, keys: Tensor, values: Tensor) -> None:
    """Put the same K and V, each (batch, num_kv_heads, tokens, head_dim), into every layer of both caches."""
    for layer in range(ours.config.num_layers):
        ours.append(layer, keys, values)
        theirs.update(keys, values, layer)


def _cache_keyword(twin: Any) -> str:
    """The argument of forward() that takes the cache: transformers 5.24 renamed past_key_values to cache."""
    return "cache" if "cache" in inspect.signature(twin.forward).parameters else "past_key_values"


def kv_bytes(model: Decoder, context: int, batch: int) -> int:
    """Bytes of K and V that a step reads at `context` tokens; a sliding layer reads its window."""
    fields = [field for layer in layout_of(model.config) for field in layer.fields]
    return batch * model.dtype.itemsize * sum(field.entries(context) * field.values for field in fields)


def weight_bytes(model: Decoder) -> int:
    """Bytes of weights that a step reads: all of them, but of an embedding table of its own only single rows."""
    tied = model.lm_head.weight is model.embed_tokens.weight
    unread = 0 if tied else model.embed_tokens.weight.nbytes
    return sum(parameter.nbytes for parameter in model.parameters()) - unread


def twin_of(model: Decoder) -> Any:
    """transformers' model on the very tensors of `model`, with attention by torch's SDPA."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = model.config
    names = {
        "num_hidden_layers": "num_layers",
        "num_attention_heads": "num_heads",
        "num_key_value_heads": "num_kv_heads",
    }
    same = (
        "vocab_size", "hidden_size", "intermediate_size", "head_dim", "max_position_embeddings", "rms_norm_eps",
        "tie_word_embeddings", "attention_bias", "sliding_window",
    )  # fmt: skip
    rope = {"rope_theta": config.rope_theta, "rope_type": "default", **(config.rope_scaling or {})}
    values = {theirs: getattr(config, ours) for theirs, ours in names.items()} | {
        n: getattr(config, n) for n in same
    }
    kind = AutoConfig.for_model(
        config.model_type, rope_parameters=rope, layer_types=list(config.layer_types), **values
    )
    with torch.device("meta"):
        twin = AutoModelForCausalLM.from_config(kind, attn_implementation="sdpa", dtype=model.dtype)
    state = {
        name if name.startswith("lm_head") else f"model.{name}": t for name, t in model.state_dict().items()
    }
    twin.load_state_dict(state, assign=True, strict=True)
    if config.tie_word_embeddings:
        twin.lm_head.weight = twin.model.embed_tokens.weight
    # The rotary tables are buffers outside the state dict; on "meta" they hold nothing.
    twin.model.rotary_emb = type(twin.model.rotary_emb)(kind).to(model.device)
    return twin.eval().requires_grad_(False)
