"""A script of requests, run on a real pool of blocks: what happens to its blocks at each step."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from kvcourse.errors import InputError, PoolExhausted
from kvcourse.figures.pool_state import PoolState, state_of
from kvcourse.storage.block_pool import BlockPool
from kvcourse.storage.block_table import BlockTable
from kvcourse.storage.prefix_index import PrefixIndex


@dataclass(frozen=True)
class Arrive:
    """A request with a prompt: its first `shared` tokens are those of all such prompts, then come `own` others."""

    name: str
    shared: int
    own: int


@dataclass(frozen=True)
class Decode:
    """One token more, for each sequence that runs or for one of them; `times` steps."""

    name: str | None = None
    times: int = 1


@dataclass(frozen=True)
class Fork:
    """A sequence goes on in two ways: `new` shares all blocks of `name`."""

    name: str
    new: str


@dataclass(frozen=True)
class Finish:
    """A sequence is done and gives its blocks back."""

    name: str


Operation = Arrive | Decode | Fork | Finish

# A pool of 24 blocks of 4 tokens fills, shares, copies, evicts, refuses, drains and finds a prefix again.
STORY: tuple[Operation, ...] = (
    Arrive("A", shared=10, own=3),
    Decode("A", times=4),
    Arrive("B", shared=10, own=4),
    Decode(times=1),
    Fork("B", "C"),
    Decode(times=2),
    Arrive("D", shared=0, own=21),
    Finish("A"),
    Arrive("E", shared=10, own=8),
    Finish("C"),
    Decode(times=2),
    Arrive("F", shared=10, own=21),
    Arrive("G", shared=0, own=26),
    Finish("D"),
    Arrive("G", shared=0, own=26),
    Decode(times=3),
    Finish("B"),
    Finish("F"),
    Finish("G"),
    Finish("E"),
    Arrive("H", shared=10, own=6),
    Decode(times=2),
)


@dataclass(frozen=True)
class Frame:
    """The pool after one step. said: what happened. touched: blocks that were given out, written, copied or freed."""

    said: str
    state: PoolState
    touched: tuple[int, ...] = ()


def random_script(seed: int, operations: int = 30) -> tuple[Operation, ...]:
    """A script drawn at random: requests come, go on, fork and finish. The same one for the same seed."""
    draw, running, names = random.Random(seed), [], iter(_names())
    script: list[Operation] = []
    for _ in range(operations):
        kind = draw.choices(("arrive", "decode", "fork", "finish"), (4, 6, 1, 2))[0] if running else "arrive"
        if kind == "decode":
            script.append(Decode(draw.choice([None, *running]), draw.randint(1, 3)))
        elif kind == "finish":
            script.append(Finish(running.pop(draw.randrange(len(running)))))
        else:
            name = next(names)
            shared = draw.choice((0, 10))
            script.append(
                Arrive(name, shared, draw.randint(1, 16))
                if kind == "arrive"
                else Fork(draw.choice(running), name)
            )
            running.append(name)
    return tuple(script)


def _names():
    """A, B, … Z, A1, B1, …"""
    for round in range(1000):
        for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ":
            yield letter + (str(round) if round else "")


def replay(script: Sequence[Operation], num_blocks: int, block_size: int, seed: int = 0) -> list[Frame]:
    """The pool before and after each step of a script; a Decode of several times is as many steps.

    A request that finds too few free blocks waits: nothing is taken, and what follows of it in the script does
    nothing until it arrives again. seed: of the tokens, which are never shown but decide what can be shared.
    Errors: InputError for an operation on a name that did not arrive, or that arrives while it runs.
    """
    run = _Run(num_blocks, block_size, seed)
    frames = [
        Frame(
            "The pool is empty: every block is free, apart from block 0, which is never given out.",
            run.state(),
        )
    ]
    for operation in script:
        for step in run.steps(operation):
            before, said = frames[-1].state, step()
            after = run.state()
            changed = [b for b in range(1, num_blocks) if _facts(before, b) != _facts(after, b)]
            frames.append(Frame(said, after, tuple(changed)))
    return frames


def _facts(state, block):
    return state.owners.get(block, ()), state.filled[block], block in state.cached


class _Run:
    """Sequences on one pool; each step changes tables and returns a sentence."""

    def __init__(self, num_blocks, block_size, seed):
        self.pool = BlockPool(num_blocks, block_size)
        self.index = PrefixIndex(self.pool, seed=str(seed).encode())
        self.draw = random.Random(seed)
        self.shared = []
        self.tables, self.tokens, self.waiting = {}, {}, set()

    def state(self):
        tables = {name: tuple(table.blocks) for name, table in self.tables.items()}
        return state_of(self.pool, tables, {name: table.num_stored for name, table in self.tables.items()})

    def steps(self, operation):
        """The steps of an operation, each a function that returns its sentence."""
        if isinstance(operation, Arrive):
            return [lambda: self.arrive(operation.name, operation.shared, operation.own)]
        if isinstance(operation, Decode):
            if operation.times not in range(1, 1000):
                raise InputError(f"{operation!r}: expected 1 to 999 times")
            return [lambda: self.decode(operation.name)] * operation.times
        if isinstance(operation, Fork):
            return [lambda: self.fork(operation.name, operation.new)]
        if isinstance(operation, Finish):
            return [lambda: self.finish(operation.name)]
        raise InputError(f"{operation!r}: expected Arrive, Decode, Fork or Finish")

    def fresh(self, count):
        return [self.draw.randrange(1 << 30) for _ in range(count)]

    def arrive(self, name, shared, own):
        if name in self.tables:
            raise InputError(
                f"{name} arrives while it runs: expected another name, or Finish({name!r}) first"
            )
        if shared < 0 or own < 0 or shared + own < 1:
            raise InputError(
                f"{name} arrives with {shared} + {own} tokens: expected counts from 0 on, and a token"
            )
        self.shared += self.fresh(shared - len(self.shared))
        prompt = self.shared[:shared] + self.fresh(own)
        hit, table = self.index.acquire(prompt), BlockTable(self.pool)
        table.adopt(list(hit.blocks), hit.num_tokens)
        left = len(prompt) - hit.num_tokens
        needed, labelled = table.missing(left), self.pool.num_labelled
        try:
            table.reserve(left)
        except PoolExhausted:
            free = self.pool.num_free
            table.release()
            self.waiting.add(name)
            said = f"{name} arrives with {len(prompt)} tokens and needs {_blocks(needed)}"
            return f"{said}. Only {free} {'is' if free == 1 else 'are'} free: it waits."
        table.commit(left)
        evicted = labelled - self.pool.num_labelled
        self.waiting.discard(name)
        self.tables[name], self.tokens[name] = table, prompt
        self.index.insert(prompt, table.blocks)
        said = f"{name} arrives with {len(prompt)} tokens"
        if hit.blocks:
            blocks = f"block{'s' if len(hit.blocks) > 1 else ''} {_listed(hit.blocks)}"
            said += f". Its first {hit.num_tokens} lie in {blocks} already; it takes {_blocks(needed)} more"
        else:
            said += f" and takes {_blocks(needed)}"
        return f"{said}.{_forgotten(evicted, needed)}"

    def decode(self, name):
        if name is not None and self.is_waiting(name):
            return f"{name} waits."
        if not self.tables:
            return "No sequence runs."
        wrote, waits, notes = [], [], []
        for each in [name] if name else list(self.tables):
            note = self.write(each)
            (waits if note is None else wrote).append(each)
            notes += [note] if note else []
        if wrote:
            notes.insert(
                0, f"{_listed(wrote)} {'writes a token' if len(wrote) == 1 else 'write a token each'}."
            )
        if waits:
            verb = "needs a block" if len(waits) == 1 else "need a block each"
            notes.append(f"{_listed(waits)} {verb}, and none is free.")
        return " ".join(notes)

    def write(self, name):
        """One token of a sequence. What is worth saying about it, if anything; None when there is no block for it."""
        table, size = self.tables[name], self.pool.block_size
        stored, labelled = table.num_stored, self.pool.num_labelled
        try:
            copies = table.reserve(1)
        except PoolExhausted:
            return None
        table.commit(1)
        self.tokens[name] += self.fresh(1)
        said, evicted = "", labelled - self.pool.num_labelled
        if table.num_stored % size == 0:
            self.index.insert(self.tokens[name], table.blocks)
        if stored % size == 0:
            said = (
                f"{name} had {stored} stored and {stored} % {size} = 0, so it took block {table.blocks[-1]}."
            )
        for source, copy in copies:
            said = f"{name} shared block {source}, so it wrote into a copy, block {copy}."
        return said + _forgotten(evicted, 1)

    def fork(self, name, new):
        if new in self.tables or new in self.waiting:
            raise InputError(f"{new} is there already: expected another name for the fork of {name}")
        if self.is_waiting(name):
            self.waiting.add(new)
            return f"{name} waits, and so does {new}."
        self.tables[new], self.tokens[new] = self.tables[name].fork(), list(self.tokens[name])
        return f"{new} is forked from {name}: its table names the same blocks, and nothing is copied."

    def finish(self, name):
        if self.is_waiting(name):
            self.waiting.discard(name)
            return f"{name} gives up."
        blocks = list(self.tables[name].blocks)
        self.tables.pop(name).release()
        del self.tokens[name]
        shared, cached = 0, 0
        for block in blocks:
            shared += self.pool.references(block) > 0
            cached += not self.pool.references(block) and self.pool.is_labelled(block)
        others = f" Others hold {shared} of them still." if shared else ""
        kept = f" {cached} can still be found by their prefix." if cached else ""
        return f"{name} is done and gives back {_blocks(len(blocks))}.{others}{kept}"

    def is_waiting(self, name):
        """Whether a sequence waits. Errors: InputError for one that neither waits nor runs."""
        if name not in self.tables and name not in self.waiting:
            raise InputError(f"{name} is not there: expected Arrive({name!r}, …) or a Fork to it before")
        return name in self.waiting


def _blocks(count):
    return "1 block" if count == 1 else f"{count} blocks"


def _listed(names):
    """A, B and C."""
    *most, last = map(str, names)
    return f"{', '.join(most)} and {last}" if most else last


def _forgotten(evicted, taken):
    if not evicted:
        return ""
    if taken == 1:
        return " It was cached: the index forgot what it held."
    if evicted == 1:
        return " One of these was cached: the index forgot what it held."
    return f" {evicted} of these were cached: the index forgot what they held."
