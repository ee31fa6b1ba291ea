"""Which statements of a notebook some names need: those that bind them, and what those read, to a fixed point."""

import builtins
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from kvcourse.course.grading.statements import Statement


@dataclass(frozen=True)
class Placed:
    """A statement and the position of its cell."""

    cell: int
    statement: Statement


class Dependencies:
    """The statements among `placed` that `names` need.

    `graded` is the cell that defines them. Statements up to the cell `end` count in order; those behind it count
    only for names that nothing before binds. What binds a name before it is surely bound anew is left out, unless
    something that runs before needs it: a notebook uses short names again and again. One of `names` is bound anew
    by the graded cell. After the call of `close`: `chosen` are positions in `placed`, `needed` names, `bound` those
    that a chosen statement binds.
    """

    def __init__(self, placed: list[Placed], names: tuple[str, ...], graded: int, end: int):
        self.placed, self.graded, self.end = placed, graded, end
        self.chosen: set[int] = set()
        self.needed: set[str] = set()
        self._users: dict[str, list[int]] = defaultdict(list)
        self.imported = {n for p in placed if p.statement.imports for n in p.statement.binds}
        self._anew: dict[str, int] = {}  # where a name is bound anew: what stands before does not count
        in_graded: dict[str, int] = {}
        for position, item in enumerate(placed):
            statement = item.statement
            for name in statement.binds | statement.changes | self._mutated(statement):
                self._users[name].append(position)
            if item.cell <= end and statement.surely:
                self._anew |= dict.fromkeys(statement.binds, position)
            if item.cell == graded and statement.defines in names:
                in_graded.setdefault(statement.defines, position)
        self._anew |= in_graded
        self._of_graded = set(in_graded)

    @property
    def bound(self) -> set[str]:
        statements = [self.placed[position].statement for position in self.chosen]
        return set().union(*(s.binds for s in statements if not s.deletes))

    def close(self, names: tuple[str, ...]) -> None:
        """Choose all that `names` need."""
        for position, item in enumerate(self.placed):
            if item.statement.always and item.cell <= self.end:
                self._choose(position)
        self._need(names)
        while earlier := self._read_before_defined():
            for name in earlier:
                del self._anew[name]
            self.needed -= earlier
            self._need(earlier)
        self._look_behind()

    def _mutated(self, statement: Statement) -> frozenset[str]:
        """A loop that fills a list defines it; `torch.add(…)` in a loop changes no module."""
        return statement.mutates - self.imported if statement.is_compound else frozenset()

    def _choose(self, position: int) -> frozenset[str]:
        self.chosen.add(position)
        return self.placed[position].statement.reads

    def _need(self, names: Iterable[str]) -> set[str]:
        """Need these names and what follows from them; returns those that were not needed before."""
        todo, fresh = list(names), set()
        while todo:
            name = todo.pop()
            if name in self.needed:
                continue
            self.needed.add(name)
            fresh.add(name)
            for position in self._users[name]:
                inside = self._anew.get(name, 0) <= position and self.placed[position].cell <= self.end
                if inside and position not in self.chosen:
                    todo += self._choose(position)
        return fresh

    def _read_before_defined(self) -> set[str]:
        """Names whose older value is needed, by what runs before they are bound anew."""
        earlier = set()
        for position in self.chosen:
            statement, cell = self.placed[position].statement, self.placed[position].cell
            for name in (statement.reads | statement.at_once) & self.needed & self._anew.keys():
                anew = self._anew[name]
                # A function may be called before; one of the graded cell is called when all of its names are there.
                called = cell < self.graded if name in self._of_graded else position < anew
                if called or (name in statement.at_once and position <= anew):
                    earlier.add(name)
        return earlier

    def _look_behind(self) -> None:
        """For what nothing up to `end` binds, take what later cells bind."""
        known = self.bound | set(dir(builtins))
        fresh = set(self.needed)
        while missing := fresh - known:  # only what is new: chains of thousands of names exist
            fresh = set()
            for name in sorted(missing):
                for position in self._users[name]:
                    item = self.placed[position]
                    if item.cell > self.end and position not in self.chosen and not item.statement.deletes:
                        fresh |= self._need(self._choose(position))
                        known |= item.statement.binds
        if self.needed - self.bound - set(dir(builtins)):  # perhaps a later `from x import *` binds it
            self.chosen |= {p for p, item in enumerate(self.placed) if item.statement.always}
