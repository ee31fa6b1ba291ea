"""The scores of a batch in a terminal: a table that fits its width, and what an instructor should know."""

import re
from collections.abc import Iterable, Sequence

from kvcourse.course.grading.gradebook import notes_of
from kvcourse.course.grading.plain_text import one_line
from kvcourse.course.grading.record import Record, number, total

MAX_NAME, MIN_NAME = 32, 16  # columns of a name; the gradebook has it whole
MAX_NOTES = 20  # lines of notes; the gradebook has them all


def print_table(records: Sequence[Record], console, gradebook: str = "gradebook.csv") -> None:
    """Print the scores of `records`, in their order, to a rich console.

    One column an exercise if they fit, else one a chapter, else the totals only. Nothing in a name or a note is
    taken for markup, and control characters are shown escaped.
    """
    from rich.table import Table
    from rich.text import Text

    columns, legend = _columns(records, console.width)
    table = Table(show_footer=len(records) > 1, box=_box(console))
    room = max(4, min(MAX_NAME, console.width - _width(records, columns)))
    table.add_column("name", footer="mean", no_wrap=True, overflow="ellipsis", max_width=room)
    for heading, pick in columns:
        table.add_column(heading, footer=_mean(records, pick), justify="right", no_wrap=True)
    for record in records:
        cells = [_cell(pick(record)) for _, pick in columns]
        table.add_row(Text(one_line(record.name)), *(Text(cell) for cell in cells))
    console.print(table)
    for line in legend:
        console.print(Text(line, style="dim"), soft_wrap=True)
    # A broken test is not the student's affair, and the same for a whole class: the command tells it once.
    lines = [
        f"{one_line(record.name)}: {note}" for record in records for note in notes_of(record, ("stopped",))
    ]
    for line in lines[:MAX_NOTES]:
        console.print(Text(line), soft_wrap=True)
    if len(lines) > MAX_NOTES:
        console.print(Text(f"… and {len(lines) - MAX_NOTES} more notes in {gradebook}"), soft_wrap=True)


def _columns(records: Sequence[Record], width: int) -> tuple[list, list[str]]:
    """(heading, record -> (earned, points) or None) of each column but the name, and lines that explain them."""
    from rich.cells import cell_len

    exercises = {exercise.id: exercise for record in records for exercise in record.exercises}
    chapters = dict.fromkeys(exercise.chapter for exercise in exercises.values())
    short = _short({id: exercise.chapter for id, exercise in exercises.items()}, list(chapters))
    totals = [("total", lambda record: (record.earned, record.points))]
    fine = [(short[id], lambda record, id=id: _of(record, lambda e: e.id == id)) for id in exercises]
    coarse = [(_number_of(c), lambda record, c=c: _of(record, lambda e: e.chapter == c)) for c in chapters]
    name = min(MIN_NAME, max([len("name"), *(cell_len(one_line(record.name)) for record in records)]))
    legend = [f"{short[id]} {id}, {number(exercise.points)} points" for id, exercise in exercises.items()]
    if name + _width(records, [*fine, *totals]) <= width:
        return [*fine, *totals], legend
    if name + _width(records, [*coarse, *totals]) <= width:
        return [*coarse, *totals], [f"{_number_of(chapter)} {chapter}" for chapter in chapters]
    return totals, []


def _width(records: Sequence[Record], columns: Iterable) -> int:
    """What the columns take with the frame: three characters each beside the content."""
    return 5 + sum(
        3 + max([len(heading), *(len(_cell(pick(record))) for record in records)])
        for heading, pick in columns
    )


def _short(chapter_of: dict[str, str], chapters: list[str]) -> dict[str, str]:
    """A short heading an exercise: chapter and place, 1.2."""
    short = {}
    for id, chapter in chapter_of.items():
        place = sum(chapter_of[other] == chapter for other in short) + 1
        short[id] = f"{_number_of(chapter).removeprefix('ch ')}.{place}"
    return short


def _number_of(chapter: str) -> str:
    """`ch 1` of 01_naive_cache; a stem without a number stays whole."""
    found = re.match(r"0*(\d+)", chapter)
    return f"ch {found[1]}" if found else chapter


def _of(record: Record, wanted) -> tuple[float, float] | None:
    found = [exercise for exercise in record.exercises if wanted(exercise)]
    return (total(e.earned for e in found), total(e.points for e in found)) if found else None


def _cell(score: tuple[float, float] | None) -> str:
    return "" if score is None else f"{number(round(score[0], 2))}/{number(round(score[1], 2))}"


def _mean(records: Sequence[Record], pick) -> str:
    scores = [score[0] for record in records if (score := pick(record)) is not None]
    return f"{total(scores) / len(scores):.1f}" if scores else ""


def _box(console):
    """Lines that the terminal can show; without a terminal none but those under the heading."""
    from rich import box

    return box.ROUNDED if console.is_terminal else box.SIMPLE_HEAD
