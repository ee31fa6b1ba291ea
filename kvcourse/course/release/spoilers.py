"""Which outputs of a notebook may show an answer: those of cells that a solution's values can reach."""

import re
from collections import defaultdict
from dataclasses import dataclass, field

from kvcourse.course.names import EVERY_NAME, Names, names_of

_WORD = re.compile(r"[^\W\d]\w*")


@dataclass(frozen=True)
class _Visit:
    """What a cell did: made `stored`, could reach `sources` through what it shows, may have changed `touched`."""

    spoiled: bool
    read: frozenset[str]
    stored: frozenset[str]
    touched: frozenset[str]
    sources: frozenset[str]


@dataclass
class Spoilers:
    """Follows the code cells of a notebook in order, as they were run.

    A name is spoiled when a cell that holds a solution sets it, or a cell that uses a spoiled name; and when such
    a cell may change its object in place: by a method, an item, an attribute, or `with`. An object that a cell
    changes only by passing it to a function is not seen.
    """

    spoiled: set[str] = field(default_factory=set)
    _modules: set[str] = field(default_factory=set)
    _deferred: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    _origins: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    _solved: bool = False
    _visits: list[_Visit] = field(default_factory=list)

    def visit(self, source: str, solves: bool) -> bool:
        """True if the outputs of this cell may show an answer. `solves`: the cell itself holds one."""
        names = _names(source)
        understood = names is not None
        if names is None:
            words = set(_WORD.findall(source))
            names = Names(
                read=words, stored=words - self._modules if solves or words & self.spoiled else set()
            )
        reach = _closure(names.read, self._deferred)
        answers = solves or bool(reach & self.spoiled) or (self._solved and EVERY_NAME in reach)
        self._solved |= solves
        if answers:
            self.spoiled |= names.stored | (names.touched - self._modules) | names.changed
        else:
            self.spoiled -= names.surely  # new values, and no solution went into them
        self._remember(names, answers)
        return answers or not understood

    def changed_later(self, index: int) -> bool:
        """True if a cell that knew an answer may have changed what the cell of visit `index` shows."""
        shown = self._visits[index]
        return any(
            later.spoiled and (shown.stored & later.read or shown.sources & later.touched)
            for later in self._visits[index + 1 :]
        )

    def _remember(self, names: Names, answers: bool) -> None:
        self._modules = (self._modules - names.stored) | names.imported
        for table, new in ((self._deferred, names.deferred), (self._origins, names.read)):
            for name in names.stored - names.imported:
                table[name] = set(new) if name in names.surely else table[name] | new
        sources = _closure(names.read | names.stored, self._origins) - self._modules
        parts = (names.read, names.stored, names.touched - self._modules, sources)
        self._visits.append(_Visit(answers, *map(frozenset, parts)))


def _names(source: str) -> Names | None:
    """None for a cell that Python cannot parse: not understood, so its output is not trusted either."""
    try:
        return names_of(source)
    except SyntaxError:
        return None


def _closure(names: set[str], table: dict[str, set[str]]) -> set[str]:
    """`names`, and what they lead to, step by step."""
    reached, waiting = set(), list(names)
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting += table.get(name, ())
    return reached
