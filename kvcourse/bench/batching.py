"""A simulated server with continuous batching: who runs in which step, under a memory that may be full.

First come, first served. A step gives each running request one token; a request that is admitted computes its whole
input in its first step; who is done leaves. When what runs cannot grow, the last admitted request loses its memory
and waits again, first in line, and computes all its tokens anew later (preemption by recomputation, as in vLLM).
Nobody is admitted in a step that had to preempt.

Steps in which nothing changes but one token a request are taken together, so that the time depends on the number of
requests and hardly on their lengths. All counts are exact integers.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from kvcourse.bench.allocators import Memory, Running
from kvcourse.bench.traces import Request
from kvcourse.errors import InputError


@dataclass
class Totals:
    """Token-steps: tokens, added up over steps. running: requests, added up over steps."""

    steps: int = 0
    running: int = 0
    stored: int = 0
    reserved: int = 0
    never: int = 0
    no_hole: int = 0


@dataclass
class Service:
    """What a server did. waiting: the steps in which a request waited; total: all steps with somebody running.

    idle: steps in which nobody ran. finished: indexes of the requests in the order in which they were done.
    """

    total: Totals = field(default_factory=Totals)
    waiting: Totals = field(default_factory=Totals)
    idle: int = 0
    generated: int = 0
    preemptions: int = 0
    recomputed: int = 0
    finished: list[int] = field(default_factory=list)


def serve(requests: Sequence[Request], memory: Memory, step_seconds: float | None = None) -> Service:
    """Serve all requests, in the order in which they arrive.

    step_seconds: how long a step takes, which places the arrivals between steps; None: all wait from the start, in
    the order given.

    Errors: InputError for a request that does not fit even when it is alone.
    """
    _check_fits(requests, memory)
    arrivals = [
        0 if step_seconds is None else math.ceil(request.arrival / step_seconds) for request in requests
    ]
    index = {}
    pending: deque[Running] = deque()
    for i in sorted(range(len(requests)), key=arrivals.__getitem__):
        run = Running(requests[i], arrivals[i])
        index[run] = i
        pending.append(run)
    waiting: deque[Running] = deque()
    running: list[Running] = []
    service, clock, preempted = Service(), 0, False
    while pending or waiting or running:
        while pending and pending[0].arrival <= clock:
            waiting.append(pending.popleft())
        while not preempted and waiting and memory.admit(waiting[0]):
            running.append(waiting.popleft())
        if not running:  # a step without work is no error: whoever comes next is served when it comes
            service.idle += pending[0].arrival - clock
            clock = pending[0].arrival
            continue
        steps = memory.steps(running, _steps_alike(running, pending, clock, preempted))
        _count(service, running, memory, steps, bool(waiting))
        memory.grow(running, steps - 1)
        clock += steps
        for run in running:
            run.done += steps
        done = [run for run in running if not run.left]
        running = [run for run in running if run.left]
        for run in done:
            memory.release(run)
            service.finished.append(index[run])
        preempted = _preempt(service, running, waiting, memory)
    return service


def _check_fits(requests: Sequence[Request], memory: Memory) -> None:
    for number, request in enumerate(requests):
        if not memory.fits(request):
            raise InputError(
                f"request {number} stores {request.most_stored:,} tokens and does not fit into a memory of "
                f"{memory.capacity:,}: give a larger capacity, or smaller blocks"
            )


def _steps_alike(running: list[Running], pending: deque[Running], clock: int, preempted: bool) -> int:
    """Steps until somebody is done or arrives, or, after a preemption, may be admitted again."""
    steps = 1 if preempted else min(run.left for run in running)
    return min(steps, pending[0].arrival - clock) if pending else steps


def _preempt(service: Service, running: list[Running], waiting: deque[Running], memory: Memory) -> bool:
    """Give each running request room for its next token; the last admitted make room while there is none.

    The first one always keeps its place, so every step makes progress, however small the memory is.
    """
    preempted = False
    while not memory.grow(running):
        victim = running.pop()
        memory.release(victim)
        waiting.appendleft(victim)
        service.preemptions += 1
        service.recomputed += victim.stored - 1  # its last token was not in memory yet
        preempted = True
    return preempted


def _count(service: Service, running: list[Running], memory: Memory, steps: int, is_waiting: bool) -> None:
    reserved, never = memory.reserved(running, steps)
    # Each stores one token more every step.
    stored = steps * sum(run.stored for run in running) + len(running) * (steps * (steps - 1) // 2)
    service.generated += steps * len(running)
    for totals in (service.total, service.waiting) if is_waiting else (service.total,):
        totals.steps += steps
        totals.running += steps * len(running)
        totals.stored += stored
        totals.reserved += reserved
        totals.never += never
        totals.no_hole += steps * memory.capacity - reserved if is_waiting else 0
