"""`kvcourse bench uptrain`: a real model converted to fewer kv heads or to latents, then trained on for a while.

Each arm is one conversion of the same model: to multi-query attention by the three ways that Ainslie et al. 2023
(GQA, §2.1 and figure 4) compare, and to multi-head latent attention with as many cached bytes as multi-query
attention. Perplexity on held-out text is measured before, on the way and after.

Training on a text also adapts a model to that kind of text. So the model that was not converted is trained as well,
for the same steps on the same windows: what an arm has not won back is its distance to that control, not to the
model as it was.

Only attention and norms are trained; a conversion touches nothing else, and it is cheap. All arms have one learning
rate; the factors of a latent are brought to even sizes first (`training.balance`), without which AdamW ruins them.
"""

import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Group
from torch import Tensor
from tqdm import tqdm

from kvcourse.attention.calibration import Calibration, calibrate
from kvcourse.attention.convert import fewer_heads, to_latent
from kvcourse.bench import machine, report
from kvcourse.bench.harness import render
from kvcourse.config import ModelConfig
from kvcourse.counts import read_count
from kvcourse.errors import InputError
from kvcourse.memory import bytes_per_token
from kvcourse.text import find_tokenizer, split_text, text_source
from kvcourse.training import Recipe, balance, held_out_loss, train

TRAINED = ("layers.*.self_attn.*", "layers.*layernorm.weight", "norm.weight")
# Of 2e-4, 5e-4 and 1e-3, the rate at which mean-pooled MQA fell fastest in its first steps; 1e-3 was unstable.
RECIPE = Recipe(steps=60, batch=1, context=256, learning_rate=5e-4, warmup=10)
MOMENTS = (0.0, 0.1, 0.3, 0.6, 1.0)  # shares of the steps after which perplexity is measured
HELD_OUT, CALIBRATION = 2048, 4096  # tokens
SAVE_EVERY = 20  # steps, each of which takes seconds
ROWS = 2  # windows measured at once: their logits are the largest tensor here

# Latents without training: cached values ÷ those of the model, and the part of them that is the rotary key.
CURVE = (
    (1, 1 / 2),
    (3 / 4, 1 / 4),
    (1 / 2, 1 / 4),
    (1 / 3, 1 / 8),
    (1 / 3, 1 / 4),
    (1 / 3, 1 / 2),
    (1 / 4, 1 / 4),
)


@dataclass(frozen=True)
class Conversion:
    """One arm. method: "control", a method of `fewer_heads`, or "low rank" (`to_latent`).

    num_kv_heads: after the conversion, None for as many as before; of a latent, the kv heads whose values it is as
    large as.
    """

    name: str
    attention: str
    method: str
    num_kv_heads: int | None = None

    def build(self, model: Any, calibration: Calibration) -> Any:
        """The converted model; always a new one."""
        config = model.config
        if self.num_kv_heads is None:
            return fewer_heads(model, config.num_kv_heads, "first")  # groups of one: an exact copy
        if self.method == "low rank":
            sizes = latent_sizes(config, self.num_kv_heads / config.num_kv_heads)
            return balance(to_latent(model, *sizes, calibration))
        return fewer_heads(model, self.num_kv_heads, self.method)


CONVERSIONS = {
    arm.name: arm
    for arm in (
        Conversion("not converted", "GQA", "control"),
        Conversion("MQA, mean", "MQA", "mean", num_kv_heads=1),
        Conversion("MQA, first", "MQA", "first", num_kv_heads=1),
        Conversion("MQA, random", "MQA", "random", num_kv_heads=1),
        Conversion("MLA, as MQA", "MLA", "low rank", num_kv_heads=1),
    )
}


@dataclass(frozen=True)
class Arm:
    """A converted model. curve: (steps trained, held-out perplexity). seconds: of training."""

    conversion: Conversion
    config: ModelConfig
    curve: tuple[tuple[int, float], ...]
    seconds: float

    @property
    def before(self) -> float:
        """Perplexity of the conversion without training."""
        return self.curve[0][1]

    @property
    def after(self) -> float:
        """Perplexity after all steps."""
        return self.curve[-1][1]

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.conversion.name,
            "attention": self.conversion.attention,
            "method": self.conversion.method,
            **_sizes(self.config),
            "ppl_before": self.before,
            "ppl_after": self.after,
            "curve": [{"step": step, "ppl": ppl} for step, ppl in self.curve],
            "seconds": self.seconds,
        }


@dataclass(frozen=True)
class Report:
    """All arms of one run. baseline: held-out perplexity of the model as it came, and its config.

    untrained: (config, perplexity) of latents of several sizes without training.
    """

    arms: tuple[Arm, ...]
    baseline: tuple[ModelConfig, float]
    untrained: tuple[tuple[ModelConfig, float], ...]
    recipe: Recipe
    text: str
    held_out: int
    matmul: str
    date: str = field(default_factory=report.now)

    def to_json(self) -> str:
        config, ppl = self.baseline
        return report.to_json(
            "uptrain",
            self.date,
            arms=[arm.to_dict() for arm in self.arms],
            baseline={"ppl": ppl, **_sizes(config)},
            conversion_curve=[{**_sizes(config), "ppl": ppl} for config, ppl in self.untrained],
            steps=self.recipe.steps,
            tokens_per_step=self.recipe.tokens_per_step,
            learning_rate=self.recipe.learning_rate,
            seed=self.recipe.seed,
            recipe=asdict(self.recipe),
            trained=list(TRAINED),
            held_out_tokens=self.held_out,
            float32_matmul_precision=self.matmul,
            text=self.text,
        )

    def __rich__(self) -> Group:
        recipe = self.recipe
        budget = (
            f"{recipe.steps} steps of {recipe.tokens_per_step} tokens, learning rate {recipe.learning_rate:g}"
        )
        title = f"held-out perplexity, before and after {budget}"
        arms = report.table(title, ("arm", "bytes a token", "before", "after"), names=1)
        config, ppl = self.baseline
        arms.add_row("the model as it is", f"{bytes_of(config):,}", f"{ppl:.2f}", "")
        for arm in self.arms:
            row = (f"{bytes_of(arm.config):,}", f"{arm.before:.2f}", f"{arm.after:.2f}")
            arms.add_row(arm.conversion.name, *row)
        curve = report.table("latents without training", ("rank", "rotary", "bytes a token", "perplexity"))
        for config, ppl in self.untrained:
            row = (f"{config.rope_dim}", f"{bytes_of(config):,}", f"{ppl:.2f}")
            curve.add_row(f"{config.kv_lora_rank}", *row)
        return Group(*([arms] if self.arms else []), *([curve] if self.untrained else []), machine.one_line())

    def __str__(self) -> str:
        return render(self)


def run(
    model: Any,
    *,
    recipe: Recipe = RECIPE,
    arms: Sequence[str] = tuple(CONVERSIONS),
    curve: Sequence[tuple[float, float]] = CURVE,
    held_out: int = HELD_OUT,
    calibration: int = CALIBRATION,
    folder: str | Path | None = None,
    progress: bool | None = None,
) -> Report:
    """Convert `model` (float32, with a tokenizer) in every way, and train every result by `recipe`.

    arms: names of `CONVERSIONS`. curve: (share of cached values, share of these that is rotary) of latents to
    measure without training. held_out: tokens measured. calibration: training tokens that `to_latent` sees,
    a window at least.
    folder: where runs are kept, so that an interrupted benchmark goes on where it was.

    Errors: InputError for an unknown arm, a text too short for these numbers, or a model that cannot be converted.
    """
    for name in arms:
        if name not in CONVERSIONS:
            raise InputError(f"arm {name!r}: expected one of {', '.join(CONVERSIONS)}")
    ids, measured = _texts(model, read_count("held_out", held_out))
    context = recipe.context
    rows = min(read_count("calibration", calibration, least=context), len(ids)) // context
    known = calibrate(model, ids[: rows * context].view(rows, context))
    moments = sorted({round(share * recipe.steps) for share in MOMENTS})
    done, untrained = [], []
    for name in arms:
        arm = CONVERSIONS[name]
        converted = arm.build(model, known)
        history = train(
            converted, ids, recipe, held_out=measured, evaluate_at=moments, parameters=TRAINED, rows=ROWS,
            folder=report.folder_of(folder, name), save_every=SAVE_EVERY, title=name, progress=progress,
        )  # fmt: skip
        points = tuple((step, math.exp(nats)) for step, nats in history.evaluations)
        done.append(Arm(arm, converted.config, points, history.seconds))
    disable = None if progress is None else not progress
    for share, rotary in tqdm(curve, desc="latents", leave=False, file=sys.stderr, disable=disable):
        latent = to_latent(model, *latent_sizes(model.config, share, rotary), known)
        untrained.append((latent.config, _perplexity(latent, measured, context)))
    return Report(
        tuple(done), (model.config, _perplexity(model, measured, context)), tuple(untrained), recipe, text_source(),
        len(measured) - 1, torch.get_float32_matmul_precision(),
    )  # fmt: skip


def latent_sizes(config: ModelConfig, share: float, rotary: float = 1 / 4) -> tuple[int, int]:
    """Rank and rotary width of latents that hold `share` of the values that the kv heads of `config` cache.

    rotary: the part of them that is the rotary key, whose width is even.
    """
    values = round(share * 2 * config.num_kv_heads * config.head_dim)
    rope_dim = max(2, 2 * round(rotary * values / 2))
    return values - rope_dim, rope_dim


def bytes_of(config: ModelConfig) -> int:
    """Bytes that a token leaves in the cache in float32."""
    return bytes_per_token(config, dtype="fp32")


def _texts(model: Any, held_out: int) -> tuple[Tensor, Tensor]:
    """Token ids of the text to train on, and held_out + 1 of the text to measure on."""
    text, tokenizer = split_text(), find_tokenizer(model)
    ids, measured = (
        torch.tensor(tokenizer.encode(part, add_special_tokens=False)) for part in (text.train, text.held_out)
    )
    if len(measured) <= held_out:
        raise InputError(f"held_out={held_out}: the held-out text has {len(measured)} tokens; give fewer")
    return ids, measured[: held_out + 1]


def _perplexity(model: Any, ids: Tensor, context: int) -> float:
    return math.exp(held_out_loss(model, ids, context, ROWS))


def _sizes(config: ModelConfig) -> dict[str, int]:
    if config.is_latent:
        kind = {"rank": config.kv_lora_rank, "rope_dim": config.rope_dim}
    else:
        kind = {"num_kv_heads": config.num_kv_heads}
    return {**kind, "bytes_per_token": bytes_of(config)}
