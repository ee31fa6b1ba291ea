"""gradebook.csv: what an independent reader finds in it, and what a spreadsheet must not compute."""

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from record_strategies import NASTY, exercise, outcome, record, records
from strategies import MANY

from kvcourse.course.grading.gradebook import gradebook_csv, notes_of
from kvcourse.course.grading.plain_text import one_line


def rows(text):
    return list(csv.DictReader(io.StringIO(text, newline=""), strict=True))


def text_of(cell):
    """A text as it was before it was made harmless."""
    return cell[1:] if cell.startswith("'") and cell[1:2] and cell[1] in "=+-@＝＋－＠" else cell


@MANY
@given(st.lists(records(), max_size=4))
def test_numbers_are_those_of_the_records(some):
    text = gradebook_csv(some)
    found = rows(text)
    assert len(found) == len(some)
    for row, one in zip(found, some, strict=True):
        assert text_of(row["name"]) == one_line(one.name)
        assert (float(row["total"]), float(row["points"])) == (one.earned, one.points)
        scores = {part.id: part.earned for part in one.exercises}
        for column in set(row) - {"name", "total", "points", "notes"}:
            assert row[column] == "" if column not in scores else float(row[column]) == scores[column]
        assert set(scores) <= set(row)
    text.encode()


@MANY
@given(st.lists(records(), max_size=3))
def test_no_cell_starts_a_formula_or_holds_a_control_character(some):
    for row in csv.reader(io.StringIO(gradebook_csv(some), newline=""), strict=True):
        for cell in row:
            assert not cell.startswith(tuple("=+-@\t\r＝＋－＠"))
            assert not any(ord(c) < 32 or c == "\x7f" for c in cell)


@pytest.mark.parametrize("name", [*NASTY, "=HYPERLINK(1)", " =1", "+1", "-1", "\t=1", "＝1"])
def test_names_survive_but_for_the_quote(name):
    (row,) = rows(gradebook_csv([record(name=name)]))
    assert text_of(row["name"]) == one_line(name)


def test_columns_follow_the_course_and_rows_the_records():
    one = record([exercise("ex-1-b", "01_a", [outcome("t", 1.5, "visible", "passed")])], name="b")
    two = record(
        [exercise("ex-1-a", "01_a", [outcome("t", 1, "visible", "failed")])], name="a", notes=("cut, off",)
    )
    text = gradebook_csv([one, two], ["ex-1-a", "ex-1-b", "ex-9"], {"b": "old"})
    assert text == ('name,ex-1-a,ex-1-b,total,points,notes\r\nb,,1.5,1.5,1.5,old\r\na,0,,0,1,"cut, off"\r\n')


def test_notes_tell_what_was_stopped_or_broken():
    found = [
        outcome("t", 1, "visible", "stopped", "10 s of CPU time"),
        outcome("u", 1, "hidden", "stopped", "10 s of CPU time"),
        outcome("v", 1, "visible", "broken test", "NameError:\nx"),
        outcome("w", 1, "visible", "failed", "other"),
    ]
    some = record([exercise("ex-1-b", "01_a", found, ["defined twice"])], notes=("no chapter 0",))
    assert notes_of(some) == [
        "no chapter 0",
        "ex-1-b: defined twice",
        "ex-1-b: stopped: 10 s of CPU time",
        "ex-1-b: broken test: NameError: x",
    ]


def test_notes_say_once_why_exercises_were_not_run():
    gone = [outcome(name, 1, "visible", "not run", "no notebook of chapter 0") for name in ("t", "u")]
    parts = [exercise("ex-0-a", "00_a", gone), exercise("ex-0-b", "00_a", gone)]
    some = [outcome("t", 1, "visible", "passed"), outcome("u", 1, "visible", "not run", "left out")]
    done = exercise("ex-1-a", "01_a", some)
    said = "not run: no notebook of chapter 0"
    assert notes_of(record([*parts, done])) == [said]
    assert notes_of(record(parts)) == [said]
    assert notes_of(record(parts, notes=("not a notebook",))) == ["not a notebook"]
    assert notes_of(record([*parts, done], notes=("cut",))) == ["cut", said]


def test_what_a_hidden_test_said_is_left_to_the_record():
    found = [outcome("secret_name", 1, "hidden", "broken test", "KeyError: secret_input")]
    (note,) = notes_of(record([exercise("ex-1-b", "01_a", found)]))
    assert note == "ex-1-b: broken test: a hidden test; its record says why"
