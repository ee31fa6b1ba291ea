"""The record: what is written can be read, canonical, and anything else is refused in one line."""

import contextlib
import dataclasses
import json
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from record_strategies import exercise, outcome, record, records
from strategies import FEW, MANY

from kvcourse.course.grading.record import Record, read_record, record_path, total, write_record
from kvcourse.errors import InputError

SOME = record(
    [
        exercise(
            "ex-1-one",
            "01_a",
            [outcome("test_x", 1.5, "visible", "passed"), outcome("y", 0.5, "hidden", "failed")],
        ),
        exercise("ex-1-two", "01_a", [outcome("test_z", 2, "visible", "stopped", "too slow", "less")]),
    ]
)


def refused(text):
    """The message that reading gives, which must be one line."""
    with pytest.raises(InputError) as caught:
        Record.from_json(text)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def places(value, path=()):
    """The path of every object and list entry inside a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, entry in items:
        yield (*path, key)
        yield from places(entry, (*path, key))


def parent_of(data, path):
    for key in path[:-1]:
        data = data[key]
    return data


@MANY
@given(records())
def test_what_is_written_is_read(some):
    text = some.to_json()
    assert Record.from_json(text) == some
    assert Record.from_json(text.encode()) == some
    assert Record.from_json(text).to_json() == text


@MANY
@given(records())
def test_totals_are_the_sums_of_the_parts(some):
    data = json.loads(some.to_json(), parse_float=Fraction)
    for part in data["exercises"]:
        assert part["points"] == sum(o["points"] for o in part["outcomes"])
        assert part["earned"] == sum(o["earned"] for o in part["outcomes"])
    assert data["points"] == sum(e["points"] for e in data["exercises"])
    assert data["earned"] == sum(e["earned"] for e in data["exercises"])


def test_thirds_and_tenths_add_up_to_what_people_expect():
    assert total([0.1] * 10) == 1
    assert total([1 / 3, 1 / 3, 1 / 3]) == 1
    thirds = record([exercise("ex-1-a", "01_a", [outcome("a", 1 / 3, "visible", "passed")] * 3)])
    assert Record.from_json(thirds.to_json()) == thirds


def test_text_is_sorted_ascii_and_ends_in_a_line_end():
    text = dataclasses.replace(SOME, name="José\x1b").to_json()
    assert text.isascii()
    assert text.endswith("}\n")
    assert text == json.dumps(json.loads(text), sort_keys=True, indent=1) + "\n"


def test_whole_points_give_the_same_bytes_as_floats():
    whole = [exercise("ex-1-a", "01_a", [outcome("a", 2, "visible", "passed")])]
    floats = [exercise("ex-1-a", "01_a", [outcome("a", 2.0, "visible", "passed")])]
    assert record(whole).to_json() == record(floats).to_json()


@pytest.mark.parametrize("path", list(places(json.loads(SOME.to_json()))), ids=str)
def test_a_missing_or_mistyped_part_is_refused(path):
    data = json.loads(SOME.to_json())
    is_field = isinstance(path[-1], str) and path[-2:-1] not in (("versions",), ("confinement",))
    if is_field:
        less = json.loads(SOME.to_json())
        del parent_of(less, path)[path[-1]]
        refused(json.dumps(less))
    for wrong in (None, True, [[]], {"a": 1}):
        parent_of(data, path)[path[-1]] = wrong
        refused(json.dumps(data))


@pytest.mark.parametrize("path", [(), ("exercises", 0), ("exercises", 1, "outcomes", 0)], ids=str)
def test_an_unknown_field_is_refused(path):
    data = json.loads(SOME.to_json())
    parent_of(data, (*path, ""))["grade"] = 1
    assert "unknown field 'grade'" in refused(json.dumps(data))


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("schema",), 2, "schema 2"),
        (("points",), 5, "it says 5, they add up to 4"),
        (("earned",), 2, "it says 2, they add up to 1.5"),
        (("exercises", 0, "points"), 3, "ex-1-one: points of its tests: it says 3, they add up to 2"),
        (("exercises", 0, "earned"), 2, "ex-1-one: points earned: it says 2, they add up to 1.5"),
        (("exercises", 0, "outcomes", 0, "earned"), 1, "passed, but"),
        (("exercises", 0, "outcomes", 1, "earned"), -1, "-1 earned, expected 0 to 0.5"),
        (("exercises", 0, "outcomes", 1, "earned"), 7, "7 earned, expected 0 to 0.5"),
        (("exercises", 0, "outcomes", 0, "outcome"), "great", "expected one of passed, failed"),
        (("exercises", 0, "outcomes", 0, "visibility"), "secret", "expected one of visible, hidden"),
        (("exercises", 1, "id"), "ex-1-one", "ex-1-one stands twice"),
        (("exercises", 0, "points"), 1e300, "out of range"),
    ],
)
def test_what_does_not_add_up_is_refused(path, value, said):
    data = json.loads(SOME.to_json())
    parent_of(data, path)[path[-1]] = value
    assert said in refused(json.dumps(data))


@FEW
@given(st.data())
def test_a_cut_or_damaged_file_is_refused_or_is_another_record(data):
    raw = SOME.to_json().encode()
    refused(raw[: data.draw(st.integers(0, len(raw) - 2))])
    at, byte = data.draw(st.integers(0, len(raw) - 1)), data.draw(st.integers(0, 255))
    damaged = raw[:at] + bytes([byte]) + raw[at + 1 :]
    with contextlib.suppress(InputError):
        found = Record.from_json(damaged)
        assert (found == SOME) == (found.to_json() == SOME.to_json())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        "[" * 100_000,
        '{"schema": NaN}',
        b"\xff\xfe",
        "1" * 5000,
    ],
)
def test_other_json_is_refused(text):
    refused(text)


def test_a_key_that_stands_twice_is_refused():
    assert "twice" in refused(SOME.to_json().replace('"seed": 1234', '"seed": 1, "seed": 1234'))


def test_file_is_named_after_the_submission_and_refusals_name_it(tmp_path):
    path = write_record(tmp_path / "records", SOME)
    assert path == record_path(tmp_path / "records", "ada") == tmp_path / "records" / "ada.json"
    assert read_record(path) == SOME
    path.write_text("{}")
    with pytest.raises(InputError, match=r"ada\.json is not a record .*schema None"):
        read_record(path)
    with pytest.raises(InputError, match=r"none\.json cannot be read: No such file"):
        read_record(tmp_path / "none.json")


def test_titles_are_words():
    assert outcome("test_a_b[1-x_y]", 1, "visible", "passed").title == "a b [1-x_y]"
    assert exercise("ex-12-fused-append", "12_a", []).title == "Fused append"
    assert exercise("quiz", "12_a", []).title == "Quiz"
