"""`kvcourse bench pool`: what giving out and taking back a block costs, in a small pool and in a large one.

Tables of 1 to 8 blocks come and go at random in a pool that is about half full: a random table is given back, and one
of random length is taken instead. A block operation is one block given back or taken. The pool counts references and
checks every call; next to it a plain list does the least that could be done: it takes what is given back, and hands
out what it got last.

One thread does nothing but this, so its processor time is what counts, and other programs' turns do not.
"""

import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group
from tqdm import tqdm

from kvcourse.bench import machine, report
from kvcourse.bench.harness import Comparison, compare, format_seconds, render
from kvcourse.counts import read_count
from kvcourse.storage.block_pool import BlockPool

BLOCKS = (1_000, 100_000)
LARGEST_TABLE = 8
BLOCK_SIZE = 16  # the pool's cost does not depend on it
CALLS = 20_000  # of each, free and allocate, in one sample
POOL, LIST = "BlockPool", "list"

Trace = list[tuple[int, int]]  # (which table is given back, how many blocks are taken instead)


@dataclass(frozen=True)
class Case:
    """One size of pool. Times are in seconds for a whole trace of `operations` block operations."""

    num_blocks: int
    operations: int
    timing: Comparison

    def seconds(self, arm: str) -> float:
        """Median time of one block operation."""
        return self.timing[arm].median / self.operations

    def to_dict(self) -> dict[str, Any]:
        return {
            "num_blocks": self.num_blocks,
            "block_operations": self.operations,
            "ns_per_block_operation": {arm: self.seconds(arm) * 1e9 for arm in (POOL, LIST)},
            "over_list": self.seconds(POOL) / self.seconds(LIST),
            "arms": {name: arm.to_dict() for name, arm in self.timing.arms.items()},
        }


@dataclass(frozen=True)
class Report:
    """All sizes of one run. Prints as a table; `to_json` adds machine, versions and commit."""

    cases: tuple[Case, ...]

    def to_json(self) -> str:
        return report.to_json(
            "pool", self.cases[-1].timing.date, cases=[case.to_dict() for case in self.cases]
        )

    def __rich__(self) -> Group:
        headers = ("blocks in the pool", POOL, "÷ smallest pool", LIST, "BlockPool ÷ list")
        title = f"One block operation, in tables of 1–{LARGEST_TABLE} blocks"
        table = report.table(title, headers)
        for case in self.cases:
            table.add_row(
                f"{case.num_blocks:,}",
                format_seconds(case.seconds(POOL)),
                f"{case.seconds(POOL) / self.cases[0].seconds(POOL):.2f}×",
                format_seconds(case.seconds(LIST)),
                f"{case.seconds(POOL) / case.seconds(LIST):.1f}×",
            )
        return Group(table, machine.one_line())

    def __str__(self) -> str:
        return render(self)


def run(blocks: Sequence[int] = BLOCKS, repeats: int = 25, progress: bool | None = None) -> Report:
    """Time every size of pool, from the smallest on.

    Errors: InputError for a pool that cannot hold two tables, and for a number of repeats below 1.
    """
    repeats = read_count("repeats", repeats)
    sizes = sorted({read_count("blocks", size, least=2 * (LARGEST_TABLE + 1)) for size in blocks})
    bar = tqdm(
        sizes,
        desc="bench pool",
        delay=2,
        leave=False,
        file=sys.stderr,
        disable=None if progress is None else not progress,
    )
    return Report(tuple(measure(size, repeats, progress=progress) for size in bar))


def measure(num_blocks: int, repeats: int, calls: int = CALLS, progress: bool | None = None) -> Case:
    """One Case. Every round replays the same trace, on a pool and a list that are in the same state before it."""
    num_tables = num_blocks // (LARGEST_TABLE + 1)  # so few that any lengths fit

    def setup() -> tuple[Trace, BlockPool, list[list[int]], list[int], list[list[int]]]:
        rng = random.Random(num_blocks)
        pool = BlockPool(num_blocks, BLOCK_SIZE)
        blocks = pool.allocate(num_blocks - 1)
        rng.shuffle(blocks)  # a pool that has been in use: neighbours in a table lie anywhere
        pool.free(blocks)
        tables = [pool.allocate(rng.randint(1, LARGEST_TABLE)) for _ in range(num_tables)]
        trace = [(rng.randrange(num_tables), rng.randint(1, LARGEST_TABLE)) for _ in range(calls)]
        return trace, pool, tables, pool.free_order()[::-1], list(tables)

    timing = compare(
        {
            POOL: lambda trace, pool, tables, *_: replay(trace, pool, tables),
            LIST: lambda trace, _pool, _tables, free, tables: replay_on_list(trace, free, tables),
        },
        setup=setup,
        repeats=repeats,
        warmup=2,
        min_seconds=0,  # one call a round: it leaves the pool in another state
        baseline=LIST,
        clock=_processor_time(),
        title=f"pool of {num_blocks} blocks",
        progress=progress,
    )
    trace, _, tables, *_ = setup()
    return Case(num_blocks, operations(trace, list(map(len, tables))), timing)


def _processor_time() -> Callable[[], float]:
    """The clock of this thread's processor time; that of the wall where the system counts it too coarsely."""
    return time.thread_time if time.get_clock_info("thread_time").resolution <= 1e-6 else time.perf_counter


def operations(trace: Trace, lengths: list[int]) -> int:
    """Block operations of a trace that begins with tables of these lengths."""
    count = 0
    for which, length in trace:
        count += lengths[which] + length
        lengths[which] = length
    return count


def replay(trace: Trace, pool: BlockPool, tables: list[list[int]]) -> None:
    """A trace on the pool."""
    allocate, free = pool.allocate, pool.free
    for which, length in trace:
        free(tables[which])
        tables[which] = allocate(length)


def replay_on_list(trace: Trace, free: list[int], tables: list[list[int]]) -> None:
    """A trace on a list of free blocks, the last of which is given out first."""
    for which, length in trace:
        free += tables[which]
        tables[which] = free[: -length - 1 : -1]
        del free[-length:]
