"""A server with continuous batching on a real model, small enough to be compared with the simulated one.

First come, first served, as in `bench.batching`, step by step: each running request gets one token, then those are
admitted for which there is room, each with one pass over its whole prompt, then those leave that are done. When a
paged memory is exhausted, the last admitted request loses its blocks, waits again, first in line, and is computed
anew. Decoding is greedy, and each request has its length of output fixed beforehand.
"""

import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from tqdm import tqdm

from kvcourse.cache import KVCache
from kvcourse.errors import PoolExhausted
from kvcourse.model import Decoder
from kvcourse.plan import Plan
from kvcourse.storage.block_pool import blocks_for
from kvcourse.storage.paged_memory import PagedMemory


@dataclass(eq=False)
class Job:
    """A request. prompt: token ids. length: tokens of output, at least 1. tokens: the output so far."""

    prompt: Sequence[int]
    length: int
    tokens: list[int] = field(default_factory=list)

    @property
    def text(self) -> list[int]:
        """Prompt and output so far: what a cache holds once the next token is known."""
        return [*self.prompt, *self.tokens]


class Room(Protocol):
    """The memory of one arm."""

    def admits(self, running: int, tokens: int) -> bool:
        """Whether a request with that many tokens may start next to `running` others."""

    def cache(self) -> KVCache:
        """An empty cache of one row."""

    def nbytes(self, cache: KVCache | None) -> int:
        """Bytes of the memory; `cache` holds all that run."""


class ArrayRoom:
    """An array of `capacity` slots a request, for at most `rows` requests."""

    def __init__(self, model: Decoder, rows: int, capacity: int) -> None:
        self.config, self.rows, self.plan = model.config, rows, Plan(capacity=capacity)

    def admits(self, running: int, tokens: int) -> bool:
        """Whether there are fewer than `rows`."""
        return running < self.rows

    def cache(self) -> KVCache:
        """One row, whose arrays are made when its first token comes."""
        return KVCache(self.config, self.plan)

    def nbytes(self, cache: KVCache | None) -> int:
        """Of the arrays of those that run."""
        return 0 if cache is None else cache.nbytes


class BlockRoom:
    """One `PagedMemory`. watermark: share of its blocks that admission leaves free while others run."""

    def __init__(self, model: Decoder, num_blocks: int, block_size: int, watermark: float = 0.01) -> None:
        self.memory = PagedMemory(model.config, num_blocks, block_size, model.dtype, model.device)
        self.config, self.plan = model.config, Plan(storage="paged", block_size=block_size)
        self.spare = int(watermark * (num_blocks - 1))

    def admits(self, running: int, tokens: int) -> bool:
        """Whether every pool has the blocks for it, and the spare ones."""
        needed = blocks_for(tokens, self.plan.block_size) + (self.spare if running else 0)
        return all(needed <= pool.num_free for pool in self.memory.pools)

    def cache(self) -> KVCache:
        """One row, whose blocks come from the shared memory."""
        return KVCache(self.config, self.plan, memory=self.memory)

    def nbytes(self, cache: KVCache | None) -> int:
        """Of all blocks, used or not, the null block among them."""
        return self.memory.nbytes


@dataclass(frozen=True)
class Served:
    """What a server did.

    running, waiting: requests that ran in each step, and that waited meanwhile. recomputed: tokens computed again
    after a preemption. nbytes: the most that the memory took. seconds: of the whole run. outputs: token ids of each
    request, in the order of the jobs.
    """

    running: tuple[int, ...]
    waiting: tuple[int, ...]
    preemptions: int
    recomputed: int
    nbytes: int
    seconds: float
    outputs: tuple[tuple[int, ...], ...]

    @property
    def steps(self) -> int:
        """Passes over what runs, until all were done."""
        return len(self.running)

    @property
    def concurrency(self) -> float:
        """Requests at once, averaged over the steps in which a request waits; over all, where none ever does."""
        counted = [n for n, others in zip(self.running, self.waiting, strict=True) if others] or self.running
        return sum(counted) / max(1, len(counted))


class Server:
    """Serves jobs in the order given, one `step` after the other; their `tokens` are filled."""

    def __init__(self, model: Decoder, room: Room, jobs: Sequence[Job]) -> None:
        self.model, self.room, self.jobs = model, room, tuple(jobs)
        self.waiting, self.running = deque(jobs), []
        self.cache: KVCache | None = None  # a row for each running request
        self.preemptions = self.recomputed = self.nbytes = 0
        self.counts: list[tuple[int, int]] = []  # that ran, and that waited, in each step
        self.seconds = 0.0

    @property
    def is_done(self) -> bool:
        """Whether all jobs are at their ends."""
        return not self.waiting and not self.running

    @property
    def progress(self) -> float:
        """Share of all tokens that are there."""
        return sum(len(job.tokens) for job in self.jobs) / sum(job.length for job in self.jobs)

    @torch.inference_mode()
    def step(self) -> None:
        """A token for each request that runs at its end; nothing when all are done.

        Errors: PoolExhausted when a request does not fit even alone.
        """
        if self.is_done:
            return
        start = time.perf_counter()
        preempted = self._decode()
        try:
            if not preempted:
                self._admit()
            if not self.running:
                raise PoolExhausted(
                    "the first request in line does not fit into the memory: give it more blocks"
                )
        finally:
            # Those that run have their tokens, even if the next one cannot start: the step counts for them.
            if self.running:
                self.counts.append((len(self.running), len(self.waiting)))
                self.nbytes = max(self.nbytes, self.room.nbytes(self.cache))
                self._leave()
            self.seconds += time.perf_counter() - start

    def served(self) -> Served:
        """What has been done so far."""
        running = tuple(count for count, _ in self.counts)
        waiting = tuple(count for _, count in self.counts)
        outputs = tuple(tuple(job.tokens) for job in self.jobs)
        return Served(running, waiting, self.preemptions, self.recomputed, self.nbytes, self.seconds, outputs)

    def _decode(self) -> bool:
        """A token for each running request. Whether the memory was full, so that some had to make room."""
        preempted = False
        while self.running:
            last = torch.tensor([[job.tokens[-1]] for job in self.running], device=self.model.device)
            try:
                logits = self.model(last, self.cache, last_only=True)  # (batch, 1, vocab)
            except PoolExhausted:
                self._preempt()
                preempted = True
                continue
            for job, token in zip(self.running, logits[:, 0].argmax(-1).tolist(), strict=True):
                job.tokens.append(token)
            break
        return preempted

    def _preempt(self) -> None:
        """The last admitted request waits again. The first one never does, so each step makes progress."""
        if len(self.running) == 1:
            raise PoolExhausted("one request alone does not fit into the memory: give it more blocks")
        job = self.running.pop()
        self.waiting.appendleft(job)
        self.preemptions += 1
        self.recomputed += len(job.text) - 1  # its last token was not in the cache yet
        self.cache = self.cache.select(range(len(self.running)))

    def _admit(self) -> None:
        """Start waiting requests, in order, while there is room for the first of them; one that fails waits on."""
        while self.waiting and self.room.admits(len(self.running), len(self.waiting[0].text)):
            job, row = self.waiting[0], self.room.cache()
            text = torch.tensor([job.text], device=self.model.device)
            token = int(self.model(text, row, last_only=True)[0, 0].argmax())
            self.cache = row if self.cache is None else KVCache.cat([self.cache, row])
            self.running.append(self.waiting.popleft())
            job.tokens.append(token)

    def _leave(self) -> None:
        """Those that are done give back their memory."""
        stay = [row for row, job in enumerate(self.running) if len(job.tokens) < job.length]
        if len(stay) < len(self.running):
            self.cache = self.cache.select(stay) if stay else None
            self.running = [self.running[row] for row in stay]


def serve(servers: Mapping[str, Server], progress: bool | None = None) -> dict[str, Served]:
    """Run all servers to their ends, by turns: whoever has made the least of its tokens takes a step.

    So all of them meet the same conditions, whatever else the computer does meanwhile. Errors: as in `Server.step`.
    """
    bar = tqdm(
        total=sum(job.length for server in servers.values() for job in server.jobs),
        desc="serving",
        unit="token",
        delay=2,
        leave=False,
        file=sys.stderr,
        disable=None if progress is None else not progress,
    )
    with bar:
        while busy := [server for server in servers.values() if not server.is_done]:
            server = min(busy, key=lambda server: server.progress)
            server.step()
            bar.update(server.counts[-1][0])
    return {name: server.served() for name, server in servers.items()}
