"""`kvcourse bench concurrency`: 32 requests on a real model under one memory cap, one array a request or pages.

Both arms run the same server (`bench.serving`) on the same prompts; where they differ is the memory. "static" has a
row of the longest length for each request, as many as the cap holds. "paged" has a pool of as many bytes. Their
tokens are compared: paging must not change what the model says. So are the steps and preemptions with those of the
simulation (`bench.batching`). Beside the run stands what 32 requests take of large models (`bench.deployments`).
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Group
from rich.table import Table

from kvcourse import memory, text
from kvcourse.bench import allocators, machine, report, traces
from kvcourse.bench.batching import serve as simulate
from kvcourse.bench.deployments import Deployment, deploy
from kvcourse.bench.harness import format_seconds, render
from kvcourse.bench.serving import ArrayRoom, BlockRoom, Job, Room, Served, Server, serve
from kvcourse.bench.traces import Request
from kvcourse.config import SLIDING
from kvcourse.counts import read_count
from kvcourse.errors import InputError
from kvcourse.model import Decoder
from kvcourse.plan import Plan
from kvcourse.units import humanize

REQUESTS, ROWS, MAX_LENGTH, BLOCK_SIZE = 32, 4, 256, 16
SHORTER = 8  # lengths of ShareGPT ÷ 8, as 256 is 2,048 ÷ 8: the same proportions in a run of a minute
LARGE_RUN = 2000  # requests behind the arithmetic of large models
STATIC, PAGED = ARMS = ("static", "paged")


@dataclass(frozen=True)
class Report:
    """One run. Prints as tables; `to_json` adds machine, versions and commit.

    arms: by name, static and paged. simulated: (steps, preemptions) of each arm in the simulation. max_length: slots
    of a row. cap_bytes: the memory of either arm. requests, mean_input, mean_output: how many, and their tokens.
    """

    model: str
    arms: dict[str, Served]
    simulated: dict[str, tuple[int, int]]
    cap_bytes: int
    max_length: int
    block_size: int
    mean_input: float
    mean_output: float
    deployments: tuple[Deployment, ...] = ()
    date: str = field(default_factory=report.now)

    @property
    def requests(self) -> int:
        """How many were served."""
        return len(self.arms[STATIC].outputs)

    @property
    def identical(self) -> int:
        """Requests that got the same tokens in both arms."""
        pairs = zip(*(self.arms[name].outputs for name in ARMS), strict=True)
        return sum(static == paged for static, paged in pairs)

    @property
    def speedup(self) -> float:
        """Time of the static arm ÷ that of the paged one."""
        return self.arms[STATIC].seconds / self.arms[PAGED].seconds

    def to_dict(self) -> dict[str, Any]:
        """The run without its provenance, and without the tokens."""
        arms = {
            name: {
                "concurrency": served.concurrency,
                "most_at_once": max(served.running),
                "steps": served.steps,
                "preemptions": served.preemptions,
                "recomputed": served.recomputed,
                "seconds": served.seconds,
                "nbytes": served.nbytes,
                "simulated_steps": self.simulated[name][0],
                "simulated_preemptions": self.simulated[name][1],
                "running": list(served.running),
                "waiting": list(served.waiting),
            }
            for name, served in self.arms.items()
        }
        return {
            "model": self.model,
            "requests": self.requests,
            "mean_input": self.mean_input,
            "mean_output": self.mean_output,
            "cap_bytes": self.cap_bytes,
            "max_length": self.max_length,
            "block_size": self.block_size,
            "identical": self.identical,
            "speedup": self.speedup,
            "arms": arms,
            "deployments": [
                {**asdict(row), "bytes_of_32": row.bytes_of(REQUESTS)} for row in self.deployments
            ],
        }

    def to_json(self) -> str:
        """The run with machine, versions and commit."""
        return report.to_json("concurrency", self.date, **self.to_dict())

    def __rich__(self) -> Group:
        same = f"{self.identical} of {self.requests} requests got the same tokens in both arms"
        tables = [self._run()] + ([self._models()] if self.deployments else [])
        return Group(tables[0], same, *tables[1:], machine.one_line())

    def _run(self) -> Table:
        lengths = f"{self.requests} requests of {self.mean_input:.0f} + {self.mean_output:.0f} tokens"
        title = f"{self.model}: {lengths}, at most {self.max_length}, in {humanize(self.cap_bytes)}"
        headers = (
            "memory",
            "at once",
            "most",
            "steps",
            "preempted",
            "recomputed",
            "bytes",
            "time",
            "speedup",
        )
        table = report.table(title, headers, names=1)
        for name, served in self.arms.items():
            table.add_row(
                name,
                f"{served.concurrency:.1f}",
                str(max(served.running)),
                str(served.steps),
                str(served.preemptions),
                f"{served.recomputed:,}",
                humanize(served.nbytes),
                format_seconds(served.seconds),
                "" if name == STATIC else f"{self.speedup:.2f}×",
            )
        return table

    def _models(self) -> Table:
        headers = ("model", "GPUs", "policy", "a request", f"{REQUESTS} requests", "room", "fit at once")
        table = report.table(
            f"{REQUESTS} requests on large models, bf16, lengths of ShareGPT", headers, names=3
        )
        for row in self.deployments:
            sizes = row.request_bytes, row.bytes_of(REQUESTS), row.room_bytes
            gpus = f"{row.gpu_bytes / 1e9:.0f} GB"
            table.add_row(row.model, gpus, row.policy, *map(humanize, sizes), f"{row.at_once:,}")
        return table

    def __str__(self) -> str:
        return render(self)


def lengths(number: int = REQUESTS, max_length: int = MAX_LENGTH, seed: int = 1) -> list[Request]:
    """Requests whose lengths are those of ShareGPT ÷ 8, no more than `max_length` tokens together."""
    short = []
    for request in traces.draw("sharegpt", number, seed):
        inputs = max(1, round(request.input_length / SHORTER))
        outputs = max(1, round(request.output_length / SHORTER))
        inputs = min(inputs, max_length - 1)
        short.append(Request(0.0, inputs, min(outputs, max_length - inputs)))
    return short


def run(
    model: Decoder,
    requests: Sequence[Request] | None = None,
    rows: int = ROWS,
    max_length: int = MAX_LENGTH,
    block_size: int = BLOCK_SIZE,
    name: str = "",
    prompts: Sequence[Sequence[int]] | None = None,
    deployments: bool = True,
    progress: bool | None = None,
) -> Report:
    """Serve the requests in both arms, step by step in turns.

    requests: their lengths; 32 by default (`lengths`). rows, max_length: the static arm, whose bytes are the cap of
    both. prompts: token ids, of the requests' lengths; by default from `text.sample_text`, with a seed for each.
    deployments: add the arithmetic of large models.

    Errors: InputError for a model with sliding windows, a count below 1, a request longer than max_length, max_length
    longer than the model's, or prompts of other lengths.
    """
    if SLIDING in model.config.layer_types:
        raise InputError(
            "a model with sliding windows keeps fewer tokens than the simulation counts: take one without"
        )
    rows, block_size = read_count("rows", rows), read_count("block_size", block_size)
    max_length = read_count("max_length", max_length, least=2, most=model.config.max_position_embeddings)
    requests = lengths(max_length=max_length) if requests is None else list(requests)
    if not requests:
        raise InputError("no requests: give some, or None for 32 of a built-in distribution")
    longest = max(request.input_length + request.output_length for request in requests)
    if longest > max_length:
        raise InputError(f"a request of {longest} tokens: max_length={max_length} allows fewer; raise it")
    cap, block_bytes = _sizes(model, rows, max_length, block_size)
    num_blocks = cap // block_bytes  # the null block is paid for, too
    if num_blocks < 2:
        raise InputError(
            f"block_size={block_size:,}: memory for {rows} × {max_length} tokens holds {num_blocks} such blocks, and "
            "one is the null block: give smaller blocks or more rows"
        )
    paged = allocators.Paged(block_size).memory((num_blocks - 1) * block_size, max_length)
    static = allocators.MAX_LENGTH.memory(rows * max_length, max_length)
    simulated = {arm: simulate(requests, m) for arm, m in ((STATIC, static), (PAGED, paged))}
    rooms: dict[str, Room] = {
        STATIC: ArrayRoom(model, rows, max_length),
        PAGED: BlockRoom(model, num_blocks, block_size),
    }
    jobs = _jobs(model, requests, prompts)
    _warm_up(model, block_size)
    served = serve({arm: Server(model, room, _copies(jobs)) for arm, room in rooms.items()}, progress)
    return Report(
        model=name,
        arms=served,
        simulated={arm: (did.total.steps, did.preemptions) for arm, did in simulated.items()},
        cap_bytes=cap,
        max_length=max_length,
        block_size=block_size,
        mean_input=sum(request.input_length for request in requests) / len(requests),
        mean_output=sum(request.output_length for request in requests) / len(requests),
        deployments=deploy(traces.draw("sharegpt", LARGE_RUN)) if deployments else (),
    )


def _sizes(model: Decoder, rows: int, max_length: int, block_size: int) -> tuple[int, int]:
    """Bytes of the static arm, and of one block in all layers."""
    cap = memory.bytes_at(model.config, max_length, rows, Plan(capacity=max_length), model.dtype)
    return cap, memory.bytes_at(
        model.config, block_size, 1, Plan(storage="paged", block_size=block_size), model.dtype
    )


def _warm_up(model: Decoder, block_size: int) -> None:
    """First calls are slower: memory is touched, kernels are compiled."""
    for room in (ArrayRoom(model, 2, 8), BlockRoom(model, 9, max(8, block_size))):
        serve({"": Server(model, room, [Job([0, 1], 3), Job([2], 3)])}, progress=False)


def _copies(jobs: Sequence[Job]) -> list[Job]:
    return [Job(job.prompt, job.length) for job in jobs]


def _jobs(model: Decoder, requests: Sequence[Request], prompts: Sequence[Sequence[int]] | None) -> list[Job]:
    if prompts is None:
        prompts = [
            text.token_ids(
                model, text.sample_text(request.input_length, seed), max_tokens=request.input_length
            )
            for seed, request in enumerate(requests)
        ]
    given, expected = [len(prompt) for prompt in prompts], [request.input_length for request in requests]
    if given != expected:
        raise InputError(f"prompts of {given} tokens: expected those of the requests, {expected}")
    return [
        Job(list(prompt), request.output_length) for prompt, request in zip(prompts, requests, strict=True)
    ]
