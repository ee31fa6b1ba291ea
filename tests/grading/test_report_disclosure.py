"""Nothing of a hidden test but its points reaches a student, in any output."""

import pytest
from hypothesis import given
from record_strategies import exercise, outcome, record, records, secret_records
from strategies import MANY

from kvcourse.course.grading.disclosure import STAGES, for_student
from kvcourse.course.grading.gradescope import gradescope_json
from kvcourse.course.grading.report import report_html
from kvcourse.errors import InputError


def pages(some):
    """Every text that a student can get from a record."""
    yield gradescope_json(some)
    yield from (report_html(some, "Course", {}, stage) for stage in STAGES)


@MANY
@given(secret_records())
def test_no_word_of_a_hidden_test_is_in_what_students_see(found):
    some, secrets = found
    for page in pages(some):
        assert [word for word in secrets if word in page] == []


@MANY
@given(records())
def test_points_stay_the_same(some):
    for stage in STAGES:
        shown = for_student(some, stage)
        assert (shown.earned, shown.points) == (some.earned, some.points)
        assert [(e.id, e.earned, e.points) for e in shown.exercises] == [
            (e.id, e.earned, e.points) for e in some.exercises
        ]


@MANY
@given(records())
def test_filtering_twice_changes_nothing(some):
    once = for_student(some)
    assert for_student(once) == once


def test_the_number_of_hidden_tests_does_not_show():
    one = [outcome("test_a", 2, "hidden", "passed", "m", "h")]
    two = [outcome("test_b", 1, "hidden", "passed"), outcome("test_c", 1, "hidden", "passed")]
    assert for_student(record([exercise("ex-1-a", "01_a", one)])) == for_student(
        record([exercise("ex-1-a", "01_a", two)])
    )


@pytest.mark.parametrize(
    ("stage", "shown"),
    [("open", {"v"}), ("due", {"v", "d"}), ("published", {"v", "d", "p"})],
)
def test_each_stage_shows_its_tests(stage, shown):
    found = [
        outcome("v", 1, "visible", "failed", "mv", "hv"),
        outcome("d", 1, "after_due_date", "failed", "md", "hd"),
        outcome("p", 1, "after_published", "failed", "mp", "hp"),
        outcome("h", 1, "hidden", "failed", "mh", "hh"),
    ]
    some = for_student(record([exercise("ex-1-a", "01_a", found)]), stage)
    names = {o.test for o in some.exercises[0].outcomes}
    assert names == shown | {"hidden tests"}
    assert {o.message for o in some.exercises[0].outcomes} == {f"m{name}" for name in shown} | {""}


def test_a_broken_test_does_not_show_why():
    found = [outcome("test_a", 1, "visible", "broken test", "NameError in the test: zq0secret", "zq1secret")]
    some = record([exercise("ex-1-a", "01_a", found)])
    for page in pages(some):
        assert "secret" not in page
        assert "not your mistake" in page


def test_the_folder_of_the_instructor_does_not_show():
    assert for_student(record(path="/home/teacher/zq0secret/ada.zip")).path == "ada.zip"


def test_an_unknown_stage_is_refused():
    with pytest.raises(InputError, match="stage 'late', expected one of open, due, published"):
        for_student(record(), "late")
