"""The table in the terminal: it fits, it is complete, and no name steers the terminal."""

import io
import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from record_strategies import exercise, outcome, record, records
from rich.cells import cell_len
from rich.console import Console
from strategies import MANY

from kvcourse.course.grading.plain_text import one_line
from kvcourse.course.grading.table import print_table


def shown(some, width=100, terminal=False):
    """What is printed, without rich's own colours."""
    file = io.StringIO()
    console = Console(
        file=file, width=width, force_terminal=terminal, color_system=None, legacy_windows=False
    )
    print_table(some, console)
    return file.getvalue()


def course(*counts):
    """One exercise of one point for each count and chapter."""
    return [
        exercise(f"ex-{chapter}-number-{i}", f"{chapter:02}_name", [outcome("t", 1, "visible", "passed")])
        for chapter, count in enumerate(counts)
        for i in range(count)
    ]


@MANY
@given(st.lists(records(), min_size=1, max_size=4), st.integers(30, 120), st.booleans())
def test_nothing_steers_the_terminal_and_every_total_is_there(some, width, terminal):
    text = re.sub(r"\x1b\[[0-9;]*m", "", shown(some, width, terminal)) if terminal else shown(some, width)
    assert {c for c in text if unicodedata.category(c).startswith("C")} <= set("\n\u200c\u200d")
    for one in some:
        assert f"{one.earned}/{one.points}" in text


@pytest.mark.parametrize("width", [24, 40, 80, 200])
@pytest.mark.parametrize("counts", [(1,), (3, 4), (4,) * 10], ids=str)
def test_it_fits_the_terminal(width, counts):
    some = [record(course(*counts), name=name) for name in ("ada", "李" * 40, "[b]x[/b]", "y" * 90)]
    lines = shown(some, width, terminal=True).splitlines()
    table = [line for line in lines if line[:1] in "╭│├╰"]
    assert len(table) >= 6
    assert max(map(cell_len, table)) <= width


@pytest.mark.parametrize(
    ("width", "headings"),
    [(100, "name 0.1 0.2 1.1 1.2 1.3 total"), (46, "name ch 0 ch 1 total"), (26, "name total")],
)
def test_columns_become_fewer_in_a_narrow_terminal(width, headings):
    first = shown([record(course(2, 3), name="a" * 20)], width).split("\n")[1]
    assert " ".join(first.split()) == headings


def test_markup_and_emoji_codes_are_plain_text():
    name = "[red]x[/red] :smile: [/]"
    text = shown([record(course(1), name=name, notes=("[bold]n[/bold]",))])
    assert name in text
    assert f"{name}: [bold]n[/bold]" in text


def test_mean_of_a_class():
    full, none = course(1), [exercise("ex-0-number-0", "00_name", [outcome("t", 1, "visible", "failed")])]
    lines = shown([record(full, name="a"), record(none, name="b"), record(none, name="c")]).splitlines()
    assert [line.split() for line in lines if "mean" in line] == [["mean", "0.3", "0.3"]]


def test_notes_of_a_large_class_are_cut_and_say_where_the_rest_is():
    some = [record(name=f"s{i:03}", notes=(f"note {i}",)) for i in range(100)]
    lines = shown(some).splitlines()
    assert sum("note " in line for line in lines) == 20
    assert lines[-1] == "… and 80 more notes in gradebook.csv"
    assert sum(one_line(line).startswith("s0") and "0/0" in line for line in lines) == 100
