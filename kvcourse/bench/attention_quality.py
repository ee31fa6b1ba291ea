"""`kvcourse bench attention-quality`: models that differ only in their attention, trained side by side.

Every arm is a decoder on bytes of the same size (parameters equal within 1 %: what an arm saves in its projections
goes to its feed-forward layers) and is trained with the same budget: the same windows of text in the same order,
as many steps, the same learning rates. Multi-head latent attention (MLA) comes twice, with as many cached values a
token as the grouped-query and as the multi-query arm. Each arm is trained once for every seed, which decides the
initial weights and the windows; arms are compared within a seed, since a seed moves all of them together.

The models are small and see little text. What they say is which way each kind of attention moves the loss here, not
by how much it does in a large model.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Group

from kvcourse.bench import machine, report
from kvcourse.bench.harness import render
from kvcourse.bench.quality_setting import (
    ARMS,
    MHA,
    SIZES,
    Setting,
    configs_of,
    read_setting,
    values_per_token,
)
from kvcourse.config import ModelConfig
from kvcourse.errors import InputError
from kvcourse.model import Decoder
from kvcourse.parameters import parameter_count
from kvcourse.text import split_text, text_source
from kvcourse.training import initialise, train


@dataclass(frozen=True)
class Arm:
    """One kind of attention.

    loss: held-out nats per byte after training, one a seed. curves: the same on the way, as (step, loss) pairs.
    values_per_token: what a token leaves in the cache, all layers. seconds: of training, all seeds together.
    """

    name: str
    config: ModelConfig
    loss: tuple[float, ...]
    curves: tuple[tuple[tuple[int, float], ...], ...] = ()
    seconds: float = 0.0

    @property
    def attention(self) -> str:
        """MHA, GQA, MQA or MLA."""
        return self.name.partition(",")[0]

    @property
    def parameters(self) -> int:
        return parameter_count(self.config)

    @property
    def values_per_token(self) -> int:
        return values_per_token(self.config)

    @property
    def mean(self) -> float:
        return statistics.fmean(self.loss)

    def to_dict(self) -> dict[str, Any]:
        latent = self.config.is_latent
        kind = (
            {"rank": self.config.kv_lora_rank, "rope_dim": self.config.rope_dim}
            if latent
            else {"num_kv_heads": self.config.num_kv_heads}
        )
        return {
            "name": self.name,
            "attention": self.attention,
            **kind,
            "values_per_token": self.values_per_token,
            "parameters": self.parameters,
            "intermediate_size": self.config.intermediate_size,
            "loss": list(self.loss),
            "curves": [[{"step": step, "loss": loss} for step, loss in curve] for curve in self.curves],
            "seconds": self.seconds,
        }


@dataclass(frozen=True)
class Report:
    """Every arm of one run. Prints as a table; `to_json` adds machine, versions and commit."""

    arms: tuple[Arm, ...]
    setting: Setting
    text: str
    date: str = field(default_factory=report.now)

    def __getitem__(self, name: str) -> Arm:
        return next(arm for arm in self.arms if arm.name == name)

    def difference(self, name: str, over: str = MHA) -> tuple[float, float]:
        """Mean over the seeds of (loss of `name` − loss of `over`), and its standard error (nan for one seed)."""
        gaps = [a - b for a, b in zip(self[name].loss, self[over].loss, strict=True)]
        error = statistics.stdev(gaps) / math.sqrt(len(gaps)) if len(gaps) > 1 else math.nan
        return statistics.fmean(gaps), error

    def to_json(self) -> str:
        recipe = self.setting.recipe
        over = self.arms[0].name
        differences = {arm.name: self.difference(arm.name, over) for arm in self.arms}
        return report.to_json(
            "attention-quality",
            self.date,
            arms=[
                arm.to_dict()
                | {
                    f"difference_to_{over}": differences[arm.name][0],
                    "standard_error": None
                    if math.isnan(differences[arm.name][1])
                    else differences[arm.name][1],
                }
                for arm in self.arms
            ],
            steps=recipe.steps,
            seeds=list(range(self.setting.seeds)),
            bytes_per_step=recipe.tokens_per_step,
            model={name: getattr(self.setting, name) for name in SIZES},
            recipe={name: value for name, value in asdict(recipe).items() if name != "seed"},
            text=self.text,
        )

    def __rich__(self) -> Group:
        recipe, seeds = self.setting.recipe, self.setting.seeds
        budget = f"{recipe.steps} steps of {recipe.tokens_per_step:,} bytes"
        title = f"held-out nats per byte after {budget}, seeds: {seeds}"
        over = self.arms[0].name
        headers = ("attention", "values a token", "parameters", "loss", "over the seeds", f"− {over}")
        table = report.table(title, headers, names=1)
        for arm in self.arms:
            gap, error = self.difference(arm.name, over)
            table.add_row(
                arm.name, f"{arm.values_per_token:,}", f"{arm.parameters:,}", f"{arm.mean:.3f}",
                f"{min(arm.loss):.3f} – {max(arm.loss):.3f}",
                "" if arm.name == over else f"{gap:+.3f}" + ("" if math.isnan(error) else f" ± {error:.3f}"),
            )  # fmt: skip
        return Group(table, f"{self.text} · {machine.one_line()}")

    def __str__(self) -> str:
        return render(self)


def run(
    setting: str | Setting = "full",
    *,
    steps: int | None = None,
    seeds: int | None = None,
    arms: Sequence[str] = ARMS,
    folder: str | Path | None = None,
    progress: bool | None = None,
) -> Report:
    """Train every arm for every seed. "full" takes some fifteen minutes on two cores, "quick" a few seconds.

    steps, seeds: other numbers than the setting's. arms: some of `ARMS`; the others are compared to the first.
    folder: where runs are kept, so that an interrupted benchmark goes on where it was.

    Errors: InputError for an unknown setting or arm, numbers below 1, or a folder of another benchmark.
    """
    setting = read_setting(setting, steps, seeds)
    configs = configs_of(setting)
    for name in arms:
        if name not in configs:
            raise InputError(f"arm {name!r}: expected one of {', '.join(ARMS)}")
    if not arms:
        raise InputError("arms: nothing to train; name at least one")
    text = split_text()
    ids, held_out = list(text.train.encode()), list(text.held_out.encode())[: setting.held_out]
    histories: dict[str, list[Any]] = {name: [] for name in arms}
    for seed in range(setting.seeds):
        for name in arms:
            model = initialise(Decoder(configs[name]).requires_grad_(False).eval(), seed)
            recipe = replace(setting.recipe, seed=seed)
            place = report.folder_of(folder, name, str(seed))
            options = {"held_out": held_out, "evaluate_at": setting.moments, "progress": progress}
            history = train(model, ids, recipe, folder=place, title=f"{name}, seed {seed}", **options)
            histories[name].append(history)
    return Report(tuple(_arm(name, configs[name], histories[name]) for name in arms), setting, text_source())


def _arm(name: str, config: ModelConfig, histories: list[Any]) -> Arm:
    curves = tuple(tuple(history.evaluations) for history in histories)
    losses = tuple(curve[-1][1] for curve in curves)
    return Arm(name, config, losses, curves, sum(history.seconds for history in histories))
