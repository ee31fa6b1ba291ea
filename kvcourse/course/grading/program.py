"""Which code of a notebook an exercise needs: its definitions and what they use, never the experiments."""

from dataclasses import dataclass

from kvcourse.course.grading.dependencies import Dependencies, Placed
from kvcourse.course.grading.statements import NotPython, Statement, statements_of
from kvcourse.course.grading.untrusted import Cell, cells_of, short
from kvcourse.errors import InputError

MAX_CHARACTERS = 300_000  # of all code cells of a notebook; a chapter of the course has some 20,000
MAX_LINES = 20_000  # of the same; two letters can be a statement, which costs a thousand times their size


class Unusable(Exception):  # noqa: N818 - it says what the exercise is
    """An exercise that cannot be run, with one line that says why."""


@dataclass(frozen=True)
class Piece:
    """One top-level statement: its text, the cell that it is from ("cell 63"), and its first line there."""

    label: str
    first_line: int
    source: str


@dataclass(frozen=True)
class Program:
    """What to run for one exercise, in notebook order, and the names that it must define."""

    exercise: str
    names: tuple[str, ...]
    pieces: tuple[Piece, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Code:
    """A code cell that is no test, and its statements; `problem` says why it is not valid Python."""

    cell: Cell
    statements: tuple[Statement, ...] = ()
    problem: str | None = None

    def binds(self) -> set[str]:
        return set().union(*(s.binds for s in self.statements if not s.deletes))

    def is_stub(self, names: tuple[str, ...]) -> bool:
        return any(s.unsolved and s.binds & set(names) for s in self.statements)


def required_names(course_notebook: dict, exercise: str) -> tuple[str, ...]:
    """The functions and classes that the exercise's cell in the course's own notebook defines, in order.

    Errors: InputError if no cell tagged `exercise` has this id, or if it defines none.
    """
    for cell in cells_of(course_notebook):
        if "exercise" in cell.tags and cell.exercise == exercise:
            code = _code(cell)
            if names := [s.defines for s in code.statements if s.defines]:
                return tuple(dict.fromkeys(names))
            raise InputError(
                f"{exercise}: cell {cell.index} of the course's notebook "
                + (
                    f"is not valid Python ({code.problem})"
                    if code.problem
                    else "defines no function or class"
                )
            )
    raise InputError(f"{exercise}: no cell of the course's notebook is tagged `exercise` and has this id")


def program_of(notebook: dict, exercise: str, names: tuple[str, ...]) -> Program:
    """The code that `names` need, from the cell of `exercise`, with notes on what was decided.

    *Which cell.* The last one with this id in its metadata that defines the names and is no untouched stub. If all
    of them are stubs, a cell behind them that defines the names; if none defines them, any cell that does.

    *Which statements.* Those that bind a needed name, or set an attribute or item of it, starting from `names`, to
    a fixed point; what they read is needed too. Bare expressions, test cells and cells that are not valid Python
    never count; `from x import *` and `from __future__ import x` always do.

    *Which of several.* As after "restart and run all" up to the exercise's public test (if there is none behind it:
    up to the exercise itself), since that is where the learner saw it work: what is bound up to there counts, in
    order. Later cells count only for names that nothing up to there binds. A stub in another cell never replaces
    an answer.

    Errors: Unusable.
    """
    cells = cells_of(notebook)
    sources = [cell.source for cell in cells if cell.kind == "code"]
    lines = sum(1 + sum(map(source.count, "\n\r;")) for source in sources)
    for what, size, most in (
        ("characters", sum(map(len, sources)), MAX_CHARACTERS),
        ("lines", lines, MAX_LINES),
    ):
        if size > most:
            raise Unusable(f"{exercise}: the notebook has {size:,} {what} of code, at most {most:,} are read")
    codes = [_code(cell) for cell in cells if cell.kind == "code" and not cell.is_test]
    graded, notes = _graded(cells, codes, exercise, names)
    tests = [c.index for c in cells if c.is_test and c.exercise == exercise and c.index > graded.cell.index]
    placed = [
        Placed(code.cell.index, statement)
        for code in codes
        for statement in code.statements
        if not statement.is_expression
        and (code is graded or not (statement.unsolved and statement.binds & set(names)))
    ]
    part = Dependencies(placed, names, graded.cell.index, min(tests, default=graded.cell.index))
    part.close(names)
    if missing := [name for name in names if name not in part.bound]:
        raise Unusable(f"{exercise}: cell {graded.cell.index} does not define {', '.join(missing)}")
    chosen = [placed[position] for position in sorted(part.chosen)]
    notes += _replaced(chosen, graded, part.end, exercise, names)
    notes += _calls_left_out(codes, part, exercise, names)
    pieces = [Piece(f"cell {p.cell}", p.statement.first_line, p.statement.source) for p in chosen]
    return Program(exercise, tuple(names), tuple(pieces), tuple(notes))


def _code(cell: Cell) -> _Code:
    try:
        return _Code(cell, statements_of(cell.source))
    except NotPython as error:
        return _Code(cell, problem=str(error))


def _graded(
    cells: list[Cell], codes: list[_Code], exercise: str, names: tuple[str, ...]
) -> tuple[_Code, list[str]]:
    """The cell to grade, and why it is that one if it is not the obvious one. Errors: Unusable."""
    wanted = set(names)
    defining = [code for code in codes if code.binds() & wanted]
    own = [code for code in defining if code.cell.exercise == exercise]
    last = max((code.cell.index for code in own), default=-1)
    others = [code for code in defining if code.cell.exercise != exercise and code.cell.index > last]
    if not own and not others:
        raise Unusable(f"{exercise}: {_fault(cells, codes, exercise, names, alone=True)}")

    def rank(code: _Code) -> tuple[bool, bool, int, int]:
        is_own = code.cell.exercise == exercise
        return not code.is_stub(names), is_own, len(code.binds() & wanted), code.cell.index

    best = max(own + others, key=rank)
    if best.cell.exercise == exercise:
        many = f"{exercise}: {len(own)} cells carry this id; cell {best.cell.index} was graded"
        return best, [many] if len(own) > 1 else []
    fault = f"cell {last} is a stub" if own else _fault(cells, codes, exercise, names, alone=False)
    found = ", ".join(name for name in names if name in best.binds())
    return best, [f"{exercise}: {fault}; cell {best.cell.index} defines {found} and was graded"]


def _fault(cells: list[Cell], codes: list[_Code], exercise: str, names: tuple[str, ...], alone: bool) -> str:
    """What is wrong with the cell that carries the id, if there is one."""
    wanted = ", ".join(names)
    carriers = [cell for cell in cells if cell.exercise == exercise and not cell.is_test]
    if not carriers:
        return (
            f"its cell is missing and no other cell defines {wanted}" if alone else "no cell carries this id"
        )
    by_index = {code.cell.index: code for code in codes}
    for cell in carriers:
        if cell.index in by_index and (problem := by_index[cell.index].problem):
            return f"cell {cell.index} is not valid Python ({problem})"
    cell = carriers[0]
    if cell.index not in by_index:
        return f"cell {cell.index} is a {short(cell.kind, 20)} cell, expected code that defines {wanted}"
    defined = [s.defines for s in by_index[cell.index].statements if s.defines]
    return f"cell {cell.index} defines {short(', '.join(defined) or 'nothing')}, expected {wanted}"


def _replaced(
    chosen: list[Placed], graded: _Code, end: int, exercise: str, names: tuple[str, ...]
) -> list[str]:
    """A note if a cell between the exercise and its test binds its names anew."""
    anew = graded.binds() & set(names)
    later = [p for p in chosen if graded.cell.index < p.cell <= end and p.statement.binds & anew]
    return [
        f"{exercise}: cell {p.cell} defines {', '.join(sorted(p.statement.binds & anew))} again, before its test"
        for p in later[-1:]
    ]


def _calls_left_out(
    codes: list[_Code], part: Dependencies, exercise: str, names: tuple[str, ...]
) -> list[str]:
    """A note for each name that a bare call such as `table.append(3)` fills: it is not run."""
    data = part.needed & part.bound - part.imported - set(names)
    calls = {
        name: code.cell.index
        for code in codes
        if code.cell.index <= part.end
        for statement in code.statements
        if statement.is_expression
        for name in statement.mutates & data
    }
    return [
        f"{exercise}: cell {cell} changes {short(name, 40)} by a call, which is not run; only definitions are"
        for name, cell in sorted(calls.items())
    ]
