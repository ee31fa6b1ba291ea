"""Memories for the simulated server: arrays that are reserved at admission, or blocks from a pool.

A memory admits a request, grows what runs, and says how much of it is reserved. Sizes are in tokens.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from kvcourse.bench.holes import Holes
from kvcourse.bench.traces import Request
from kvcourse.counts import read_count
from kvcourse.errors import InputError
from kvcourse.storage.block_pool import BlockPool, blocks_for


@dataclass(eq=False, slots=True)
class Running:
    """A request in the server. done: tokens of output so far; held: what the memory gave it, None while it waits."""

    request: Request
    arrival: int = 0
    done: int = 0
    held: Any = None

    @property
    def stored(self) -> int:
        """Tokens that the next step needs in memory: the input, and every token of output so far."""
        return self.request.input_length + self.done

    @property
    def left(self) -> int:
        """Tokens of output still to come."""
        return self.request.output_length - self.done


class Memory(Protocol):
    """What the server asks of a memory."""

    capacity: int

    def admit(self, run: Running) -> bool:
        """Give a request room for what it stores now; False, and nothing changes, when there is none."""

    def grow(self, running: Sequence[Running], ahead: int = 0) -> bool:
        """Room for what each stores now and `ahead` tokens more; False, and nothing changes, when there is none."""

    def steps(self, running: Sequence[Running], most: int) -> int:
        """How many steps, at most `most`, all can take before the memory is full; at least 1 after `grow`."""

    def release(self, run: Running) -> None:
        """Take back all that a request holds."""

    def reserved(self, running: Sequence[Running], steps: int) -> tuple[int, int]:
        """Tokens reserved, and those of them that will never be used, added up over the next `steps` steps."""

    def fits(self, request: Request) -> bool:
        """Whether a request can be served to its end when it is alone."""


class ArrayMemory:
    """One contiguous array a request, of the size that the policy reserves when it is admitted.

    buddy: sizes are powers of two, rounded up, and begin at multiples of themselves, as a buddy allocator keeps them.
    """

    def __init__(self, capacity: int, reserve: Callable[[Request], int], buddy: bool = False) -> None:
        self.capacity, self.buddy = capacity, buddy
        self._reserve = reserve
        self.holes = Holes(capacity)

    def admit(self, run: Running) -> bool:
        """The first hole that holds what the policy reserves."""
        size = self._size(run.request)
        first = self.holes.take(size, size if self.buddy else 1)
        if first is None:
            return False
        run.held = (first, size)
        return True

    def grow(self, running: Sequence[Running], ahead: int = 0) -> bool:
        """Always: all room was reserved at admission."""
        return True

    def steps(self, running: Sequence[Running], most: int) -> int:
        """All of them."""
        return most

    def release(self, run: Running) -> None:
        """The array becomes a hole."""
        self.holes.give_back(*run.held)
        run.held = None

    def reserved(self, running: Sequence[Running], steps: int) -> tuple[int, int]:
        """The arrays, and what lies in them behind the ends of their requests."""
        total = sum(run.held[1] for run in running)
        return steps * total, steps * (total - sum(run.request.most_stored for run in running))

    def fits(self, request: Request) -> bool:
        """Whether the whole array holds what is reserved for it."""
        return self._size(request) <= self.capacity

    def _size(self, request: Request) -> int:
        size = self._reserve(request)
        return _rounded(size) if self.buddy else size


class BlockMemory:
    """Blocks of a `BlockPool`, taken as a request grows.

    watermark: share of the blocks that stays free at admission, for those that run to grow into (vLLM's default is
    1 %). whole: admit a request only when it and all that run can grow to their ends, which takes an oracle and
    never preempts.
    """

    def __init__(self, capacity: int, block_size: int, watermark: float = 0.01, whole: bool = False) -> None:
        self.capacity, self.block_size, self.whole = capacity, block_size, whole
        self.pool = BlockPool(capacity // block_size + 1, block_size)  # and the null block
        self._usable = self.pool.num_free
        self._spare = int(watermark * self._usable)
        self._running = 0
        self._promised = 0  # blocks that those admitted hold at their ends

    def admit(self, run: Running) -> bool:
        """Blocks for what it stores now, when enough others stay free."""
        needed, at_end = self._blocks(run.stored), self._blocks(run.request.most_stored)
        if self.whole:
            fits = self._promised + at_end <= self._usable
        else:  # a request that is alone has nobody to leave blocks to
            fits = needed + (self._spare if self._running else 0) <= self.pool.num_free
        if not fits:
            return False
        run.held = self.pool.allocate(needed)
        self._running += 1
        self._promised += at_end
        return True

    def grow(self, running: Sequence[Running], ahead: int = 0) -> bool:
        """A block for each request whose blocks are full; for `ahead` tokens perhaps several."""
        more = [self._blocks(run.stored + ahead) - len(run.held) for run in running]
        if sum(more) > self.pool.num_free:
            return False
        for run, blocks in zip(running, more, strict=True):
            if blocks:
                run.held += self.pool.allocate(blocks)
        return True

    def steps(self, running: Sequence[Running], most: int) -> int:
        """The largest number for which the free blocks suffice, by bisection."""
        stored = np.array([run.stored for run in running])
        room = self.pool.num_free + sum(len(run.held) for run in running)

        def fit(steps: int) -> bool:
            return int((-(-(stored + steps - 1) // self.block_size)).sum()) <= room

        if fit(most):
            return most
        low, high = 1, most
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fit(middle) else (low, middle)
        return low

    def release(self, run: Running) -> None:
        """All blocks go back to the pool."""
        self.pool.free(run.held)
        run.held = None
        self._running -= 1
        self._promised -= self._blocks(run.request.most_stored)

    def reserved(self, running: Sequence[Running], steps: int) -> tuple[int, int]:
        """Whole blocks as they are taken, and the slots of a last block behind the end of its request."""
        size = self.block_size
        before = np.array([run.stored - 1 for run in running])
        last = before + steps
        end = np.array([run.request.most_stored for run in running])
        blocks = self._summed(last) - self._summed(before)
        in_last_block = np.maximum(0, last - np.maximum(before, (end - 1) // size * size))
        unused = -end % size
        return size * int(blocks.sum()), int((in_last_block * unused).sum())

    def fits(self, request: Request) -> bool:
        """Whether all blocks together hold all its tokens."""
        return self._blocks(request.most_stored) <= self._usable

    def _blocks(self, tokens: int) -> int:
        return blocks_for(tokens, self.block_size)

    def _summed(self, tokens: np.ndarray) -> np.ndarray:
        """Blocks for 1 token, for 2, … for `tokens`, added up."""
        full, more = np.divmod(tokens, self.block_size)
        return self.block_size * full * (full + 1) // 2 + more * (full + 1)


@dataclass(frozen=True)
class Static:
    """A policy that reserves one array a request.

    reserve: (request, longest allowed) to tokens. buddy: as in `ArrayMemory`.
    """

    name: str
    reserve: Callable[[Request, int], int]
    buddy: bool = False
    kind: str = "static"
    block_size: None = None

    def memory(self, capacity: int, max_length: int) -> Memory:
        """An empty memory of this policy."""
        return ArrayMemory(capacity, lambda request: self.reserve(request, max_length), self.buddy)


@dataclass(frozen=True)
class Paged:
    """The policy that takes blocks as tokens come. watermark and whole as in `BlockMemory`."""

    block_size: int
    watermark: float = 0.01
    whole: bool = False
    kind: str = "paged"

    def __post_init__(self) -> None:
        object.__setattr__(self, "block_size", read_count("block_size", self.block_size))
        if not 0 <= self.watermark < 1:
            raise InputError(
                f"watermark={self.watermark!r}: expected a share of the blocks, at least 0 and below 1"
            )

    @property
    def name(self) -> str:
        """What reports call it."""
        return f"paged, {self.block_size}" + (", whole" if self.whole else "")

    def memory(self, capacity: int, max_length: int) -> Memory:
        """An empty memory of this policy."""
        return BlockMemory(capacity, self.block_size, self.watermark, self.whole)


def _rounded(tokens: int) -> int:
    """Up to a power of two."""
    return 1 << (tokens - 1).bit_length()


def _whole(request: Request, max_length: int) -> int:
    return max_length


def _power_of_two(request: Request, max_length: int) -> int:
    return min(request.input_length + _rounded(request.output_length), max_length)


def _exact(request: Request, max_length: int) -> int:
    return request.most_stored


# What the vLLM paper (arXiv 2309.06180, §6.1) compares with: Orca (Max), Orca (Pow2) and Orca (Oracle). There a buddy
# allocator places the arrays; first fit wastes less.
MAX_LENGTH = Static("max length", _whole)
POWER_OF_TWO = Static("power of two", _power_of_two)
ORACLE = Static("oracle", _exact)
STATIC = (MAX_LENGTH, POWER_OF_TWO, ORACLE)
BUDDY = (
    Static("power of two, buddy", _power_of_two, buddy=True),
    Static("oracle, buddy", _exact, buddy=True),
)
