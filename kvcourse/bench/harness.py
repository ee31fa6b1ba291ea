"""A timing harness that can be believed: arms interleaved in one process, medians, spread, provenance.

Two programs timed one after the other are compared under different conditions: the clock of the processor,
the other users of the machine and the page cache all drift. Here every round runs every arm once, the order
rotates from round to round, and each arm of a round sees the same fresh inputs.
"""

import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console, RenderableType
from rich.table import Table
from tqdm import tqdm

from kvcourse.bench import machine
from kvcourse.bench.report import now
from kvcourse.counts import read_count
from kvcourse.errors import InputError

MIN_ROUNDS = 3  # a time budget never cuts below this: a median of fewer says nothing
MAX_INNER = 10_000


@dataclass(frozen=True)
class Arm:
    """Times of one arm. Every number is in seconds per call.

    samples: one per round, each the mean of `inner` consecutive calls.
    """

    name: str
    samples: tuple[float, ...]
    inner: int = 1

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def quartiles(self) -> tuple[float, float]:
        """First and third quartile; both are the sample itself when there is only one."""
        if len(self.samples) == 1:
            return self.samples[0], self.samples[0]
        q1, _, q3 = statistics.quantiles(self.samples, n=4, method="inclusive")
        return q1, q3

    @property
    def iqr(self) -> float:
        q1, q3 = self.quartiles
        return q3 - q1

    def to_dict(self) -> dict[str, Any]:
        q1, q3 = self.quartiles
        return {
            "median_s": self.median,
            "q1_s": q1,
            "q3_s": q3,
            "min_s": min(self.samples),
            "max_s": max(self.samples),
            "inner": self.inner,
            "samples_s": list(self.samples),
        }


@dataclass(frozen=True)
class Comparison:
    """Arms timed side by side. Prints as a table; `to_json` adds the machine, the versions and the commit."""

    arms: dict[str, Arm]
    baseline: str
    title: str = ""
    date: str = field(default_factory=now)

    def __getitem__(self, name: str) -> Arm:
        return self.arms[name]

    def speedup(self, name: str, over: str | None = None) -> float:
        """How many times faster `name` is than `over` (default: the baseline): the ratio of their medians."""
        return self.arms[over or self.baseline].median / self.arms[name].median

    def to_dict(self) -> dict[str, Any]:
        arms = {name: {**arm.to_dict(), "speedup": self.speedup(name)} for name, arm in self.arms.items()}
        return {
            "title": self.title,
            "baseline": self.baseline,
            "arms": arms,
            "date": self.date,
            **machine.provenance(),
        }

    def to_json(self, indent: int | None = 2) -> str:
        """The result with its provenance as JSON. Times are seconds per call; no host name and no path."""
        return json.dumps(self.to_dict(), indent=indent)

    def table(self) -> Table:
        table = Table(title=self.title or None, caption=machine.one_line())
        table.add_column("arm")
        for header in ("median", "quartiles", "min – max", "rounds × calls", f"speed ÷ {self.baseline}"):
            table.add_column(header, justify="right")
        for name, arm in self.arms.items():
            q1, q3 = arm.quartiles
            table.add_row(
                name,
                format_seconds(arm.median),
                f"{format_seconds(q1)} – {format_seconds(q3)}",
                f"{format_seconds(min(arm.samples))} – {format_seconds(max(arm.samples))}",
                f"{len(arm.samples)} × {arm.inner}",
                f"{self.speedup(name):.2f}×",
            )
        return table

    def __rich__(self) -> Table:
        return self.table()

    def __str__(self) -> str:
        return render(self.table())


def compare(
    arms: Mapping[str, Callable[..., Any]],
    *,
    setup: Callable[[], Any] | None = None,
    after: Mapping[str, Callable[[], Any]] | None = None,
    repeats: int = 15,
    warmup: int = 2,
    baseline: str | None = None,
    min_seconds: float = 1e-3,
    max_seconds: float | None = None,
    title: str = "",
    progress: bool | None = None,
    clock: Callable[[], float] = time.perf_counter,
    synchronize: Callable[[], Any] | None = None,
) -> Comparison:
    """Time `arms` against each other.

    arms: name to function. Called with what `setup` returned: nothing for None, several arguments for a tuple.
    setup: makes fresh inputs, once a round and outside the timed part. All arms of a round get the same ones, so
        an arm must not change its inputs.
    after: by arm, what undoes a call (a cache cropped back, say). Runs after every call, outside the timed part.
    repeats, warmup: measured and unmeasured rounds.
    baseline: the arm that the others are divided by; default: the first.
    min_seconds: an arm faster than this is called several times per sample, so that a sample lasts about this long.
    max_seconds: stop after the round in which this much time has passed, warm-up included (never before 3 rounds).
    progress: a bar on standard error after two seconds; default: only on a terminal.
    clock, synchronize: seconds now, and what waits for the device. Default: `time.perf_counter`, and
        `torch.cuda.synchronize` once CUDA is in use in this process.

    Errors: InputError for no arms, an unknown baseline or `after`, repeats < 1 or warmup < 0.
    """
    after = dict(after or {})
    baseline = _check(arms, after, baseline, repeats, warmup)
    wait = synchronize or cuda_synchronize
    names = list(arms)
    inner = dict.fromkeys(names, 1)
    samples: dict[str, list[float]] = {name: [] for name in names}
    start = clock()
    bar = tqdm(
        total=(warmup + repeats) * len(names),
        desc=title or "timing",
        unit="arm",
        delay=2,
        leave=False,
        file=sys.stderr,
        disable=None if progress is None else not progress,
    )
    with bar:
        for round_ in range(-warmup, repeats):
            if round_ >= MIN_ROUNDS and max_seconds is not None and clock() - start > max_seconds:
                break
            inputs = _as_arguments(setup() if setup else None)
            # Rotate: with a fixed order, one arm would always inherit the caches that another one left behind.
            first = round_ % len(names)
            for name in names[first:] + names[:first]:
                seconds = _time(arms[name], inputs, after.get(name), inner[name], clock, wait)
                if round_ >= 0:
                    samples[name].append(seconds)
                elif round_ == -1:
                    inner[name] = _inner_calls(seconds, min_seconds)
                bar.update()
    return Comparison(
        {name: Arm(name, tuple(samples[name]), inner[name]) for name in names}, baseline=baseline, title=title
    )


def _time(
    arm: Callable[..., Any],
    inputs: tuple[Any, ...],
    undo: Callable[[], Any] | None,
    calls: int,
    clock: Callable[[], float],
    wait: Callable[[], Any],
) -> float:
    """Seconds per call. With an `undo`, each call is timed alone, because the undo must stay outside."""
    blocks, per_block = (1, calls) if undo is None else (calls, 1)
    total = 0.0
    for _ in range(blocks):
        wait()
        start = clock()
        for _ in range(per_block):
            arm(*inputs)
        wait()
        total += clock() - start
        if undo is not None:
            undo()
    return total / calls


def _inner_calls(seconds: float, min_seconds: float) -> int:
    if seconds <= 0:
        return MAX_INNER
    return min(MAX_INNER, max(1, math.ceil(min_seconds / seconds)))


def _as_arguments(inputs: Any) -> tuple[Any, ...]:
    if inputs is None:
        return ()
    return inputs if isinstance(inputs, tuple) else (inputs,)


def _check(
    arms: Mapping[str, Any], after: Mapping[str, Any], baseline: str | None, repeats: int, warmup: int
) -> str:
    """The name of the baseline, once everything is seen to be well-formed."""
    if not arms:
        raise InputError("compare: no arms; pass at least one named function")
    for name in [*after, *([] if baseline is None else [baseline])]:
        if name not in arms:
            raise InputError(f"compare: {name!r} is not an arm; the arms are {', '.join(arms)}")
    for name, arm in [*arms.items(), *after.items()]:
        if not callable(arm):
            raise InputError(f"compare: {name!r} is a {type(arm).__name__}; pass a function")
    read_count("compare: repeats", repeats)
    read_count("compare: warmup", warmup, least=0)
    return next(iter(arms)) if baseline is None else baseline


def cuda_synchronize() -> None:
    """Wait for the GPU if this process uses one. Does not import torch or start CUDA by itself."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def format_seconds(seconds: float) -> str:
    """Three digits and the unit that suits: 12.3 ms."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= scale:
            return (
                f"{seconds / scale:.3g} {unit}" if seconds < 1000 * scale else f"{seconds / scale:.0f} {unit}"
            )
    return f"{seconds / 1e-9:.3g} ns"


def render(printable: RenderableType, width: int = 120) -> str:
    """A rich table, or anything else that rich prints, as plain text."""
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        console.print(printable)
    return capture.get()
