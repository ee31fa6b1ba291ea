"""`kvcourse bench utilisation`: how much of the memory holds tokens, for one array a request and for pages.

Requests go through a simulated server with continuous batching (`bench.batching`) under one memory cap, once for each
policy (`bench.allocators`). The waste is sorted as in Fig. 2 of the vLLM paper (arXiv 2309.06180).
"""

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Group
from tqdm import tqdm

from kvcourse.bench import machine, report
from kvcourse.bench.allocators import BUDDY, STATIC, Paged, Static
from kvcourse.bench.batching import Service, serve
from kvcourse.bench.harness import render
from kvcourse.bench.traces import MODEL_LENGTH, Request
from kvcourse.counts import MOST, is_number, one_line, read_count
from kvcourse.errors import InputError

LATER, NEVER, NO_HOLE = WASTE = ("reserved for later", "reserved, never used", "no hole fits")
BLOCK_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
# What OPT-13B has left on a GPU of 40 GB in the vLLM paper (Table 1): 12 GiB, 800 KiB a token.
CAPACITY = 15_728


@dataclass(frozen=True)
class Arm:
    """What became of the memory under one policy.

    kind: "static" (one array a request, reserved at admission) or "paged". block_size: tokens, None when static.
    utilisation: share of the memory that holds tokens, averaged over the steps that count (`Utilisation`).
    waste: the other shares; with utilisation they add up to 1. "reserved for later": will hold tokens of its
    request; "reserved, never used": inside an array or a last block, beyond the request's end; "no hole fits": free,
    while a request waits that does not fit.
    concurrency: requests that run at once, on average. steps: forward passes until all were done. preemptions: how
    often a request lost its blocks. recomputed: tokens computed again for that. seconds: of the simulation.
    """

    name: str
    kind: str
    block_size: int | None
    utilisation: float
    concurrency: float
    waste: Mapping[str, float]
    steps: int = 0
    preemptions: int = 0
    recomputed: int = 0
    seconds: float = 0.0

    @property
    def of_reserved(self) -> float:
        """Tokens ÷ memory that requests hold: the utilisation without what is free."""
        held = self.utilisation + self.waste[LATER] + self.waste[NEVER]
        return self.utilisation / min(held, 1.0)  # shares add up to 1 but for rounding


@dataclass(frozen=True)
class Utilisation:
    """One run: the arms in the order of their policies.

    Only steps count in which a request waits, because then the memory is the limit; all steps, where none ever
    waits. max_length: tokens that a request may have at most. mean_input, mean_output: tokens. source: what the
    requests are.
    """

    arms: tuple[Arm, ...]
    capacity_tokens: int
    max_length: int
    requests: int
    mean_input: float = 0.0
    mean_output: float = 0.0
    source: str = ""
    date: str = field(default_factory=report.now)

    def __getitem__(self, name: str) -> Arm:
        for arm in self.arms:
            if arm.name == name:
                return arm
        raise InputError(f"arm {name!r}: expected one of {', '.join(arm.name for arm in self.arms)}")

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Utilisation":
        """A run that was stored, as `kvcourse.results.read("utilisation")` gives it."""
        names = ("capacity_tokens", "max_length", "requests", "mean_input", "mean_output", "source", "date")
        return cls(tuple(Arm(**arm) for arm in data["arms"]), **{name: data[name] for name in names})

    def to_json(self) -> str:
        """The run with machine, versions and commit."""
        figures = asdict(self)
        return report.to_json("utilisation", figures.pop("date"), **figures)

    def __rich__(self) -> Group:
        what = f"{self.requests:,} requests of {self.mean_input:,.0f} + {self.mean_output:,.0f} tokens"
        memory = f"memory for {self.capacity_tokens:,} tokens, at most {self.max_length:,} a request"
        shares = report.table(
            f"{what}\n{memory}", ("policy", "tokens", "for later", "never used", "no hole fits"), names=1
        )
        counts = report.table("", ("policy", "at once", "steps", "preempted", "recomputed"), names=1)
        for arm in self.arms:
            parts = arm.utilisation, *(arm.waste[kind] for kind in WASTE)
            shares.add_row(arm.name, *(f"{100 * share:.1f} %" for share in parts))
            numbers = arm.steps, arm.preemptions, arm.recomputed
            counts.add_row(arm.name, f"{arm.concurrency:.1f}", *(f"{n:,}" for n in numbers))
        return Group(shares, counts, *([self.source] if self.source else []), machine.one_line())

    def __str__(self) -> str:
        return render(self)


def run(
    requests: Sequence[Request],
    policies: Sequence[Static | Paged] | None = None,
    capacity_tokens: int | None = None,
    max_length: int | None = None,
    step_seconds: float | None = None,
    source: str = "",
    progress: bool | None = None,
) -> Utilisation:
    """Serve the same requests once for each policy.

    policies: of `bench.allocators`; by default all that reserve arrays, and pages of 1 to 256 tokens.
    max_length: what the model allows; default: 2,048, or the power of two that holds the longest request.
    capacity_tokens: the memory; default: 15,728 as in the vLLM paper, or eight times a max_length above 2,048.
    step_seconds: the time of a step, which makes requests arrive when they say; None: all wait from the start.

    Errors: InputError for no requests, no policy, a request above max_length, or a memory below it.
    """
    requests = list(requests)
    if not requests:
        raise InputError("no requests: draw some, or read a trace that has some")
    policies = (*STATIC, *BUDDY, *map(Paged, BLOCK_SIZES)) if policies is None else tuple(policies)
    if not policies:
        raise InputError("no policies: expected some of kvcourse.bench.allocators")
    if step_seconds is not None and (not is_number(step_seconds) or step_seconds <= 0):
        raise InputError(f"step_seconds={one_line(step_seconds)}: expected a positive number of seconds")
    longest = max(request.input_length + request.output_length for request in requests)
    if max_length is None:
        max_length = max(MODEL_LENGTH, 1 << (longest - 1).bit_length())
    max_length = read_count("max_length", max_length, most=MOST >> 32)
    if longest > max_length:
        raise InputError(f"a request of {longest:,} tokens: max_length={max_length:,} allows fewer; raise it")
    if capacity_tokens is None:
        capacity_tokens = CAPACITY if max_length <= MODEL_LENGTH else 8 * max_length
    capacity_tokens = read_count("capacity_tokens", capacity_tokens, most=MOST >> 32)
    if capacity_tokens < max_length:
        raise InputError(
            f"capacity_tokens={capacity_tokens:,}: a request may have {max_length:,} tokens; give at least as many, "
            "or a smaller max_length"
        )
    bar = tqdm(
        policies,
        desc="bench utilisation",
        unit="policy",
        delay=2,
        leave=False,
        file=sys.stderr,
        disable=None if progress is None else not progress,
    )
    arms = tuple(measure(requests, policy, capacity_tokens, max_length, step_seconds) for policy in bar)
    mean_input = sum(request.input_length for request in requests) / len(requests)
    mean_output = sum(request.output_length for request in requests) / len(requests)
    return Utilisation(arms, capacity_tokens, max_length, len(requests), mean_input, mean_output, source)


def measure(
    requests: Sequence[Request],
    policy: Static | Paged,
    capacity_tokens: int,
    max_length: int,
    step_seconds: float | None = None,
) -> Arm:
    """One Arm: the server's counts as shares of the memory."""
    start = time.perf_counter()
    service = serve(requests, policy.memory(capacity_tokens, max_length), step_seconds)
    return _arm(policy, service, time.perf_counter() - start)


def _arm(policy: Static | Paged, service: Service, seconds: float) -> Arm:
    totals = service.waiting if service.waiting.steps else service.total
    whole = totals.reserved + totals.no_hole
    later = totals.reserved - totals.stored - totals.never
    return Arm(
        name=policy.name,
        kind=policy.kind,
        block_size=policy.block_size,
        utilisation=totals.stored / whole,
        concurrency=totals.running / totals.steps,
        waste={LATER: later / whole, NEVER: totals.never / whole, NO_HOLE: totals.no_hole / whole},
        steps=service.total.steps,
        preemptions=service.preemptions,
        recomputed=service.recomputed,
        seconds=seconds,
    )
