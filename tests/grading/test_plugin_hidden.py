"""Hidden tests take the place of the given ones, break without harm to others, and can build on the package's."""

import pytest
from learner import ROOT
from toy_course import grade, hand_in, make_course

SECRET = """\
import os

import pytest
from kvcourse.course.grading import expect


@pytest.mark.exercise("ex-0-double")
class TestSecret:
    @pytest.mark.points(0.5, hint="Numbers below zero.")
    def test_negative(self, student, reference):
        expect.agree(student.double, reference.double, -4)

    @pytest.mark.points(0.25, visibility="after_published")
    def test_a_bare_assertion(self, student):
        assert student.double(3) == 6

    @pytest.mark.points(0.25)
    def test_dies(self, student):
        os._exit(3)

    @pytest.mark.points(0.25)
    def test_broken_before(self, student):
        1 / 0

    @pytest.mark.points(0.25)
    def test_broken_reference(self, student, reference):
        expect.equal(student.double(1), 2)
        expect.agree(student.double, reference.double)

    @pytest.mark.points(0.25)
    def test_skipped(self, student):
        pytest.skip("not now")

    @pytest.mark.points(0.25)
    def test_with_a_list(self, student):
        assert student.double(3)[0] == 6
"""
OWN = """\
import pytest
from kvcourse.course.grading import expect
from kvcourse.course.grading import test_01_naive_cache as given
import torch


class TestMine(given.TestPackedPositions):
    @pytest.mark.points(0.5, visibility="after_due_date")
    def test_documents_with_different_numbers(self, student, reference):
        expect.agree(student.packed_positions, reference.packed_positions, torch.tensor([[4, 4, 2]]))
"""


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    """One right and one wrong submission, graded by two workers with hidden tests for the first exercise."""
    root = make_course(tmp_path_factory.mktemp("toy") / "course")
    (root / "secret").mkdir()
    (root / "secret/test_secret.py").write_text(SECRET)
    submissions = [hand_in(root / "right"), hand_in(root / "wrong", double="return [6]", total="return 0")]
    options = ("--hidden", str(root / "secret"))
    return grade(
        root / "records", submissions, *options, tests=(str(root / "graded"),), course=root, workers=2
    )


def test_the_hidden_tests_are_the_only_ones_of_their_exercise(toy):
    tests = {e.id: [o.test for o in e.outcomes] for e in toy.records["right"].exercises}
    assert tests["ex-1-total"] == ["test_lists"]
    assert tests["ex-0-double"][:2] == ["test_negative", "test_a_bare_assertion"]
    assert len(tests["ex-0-double"]) == 7


def test_hidden_is_what_they_are_unless_they_say_otherwise(toy):
    seen = {o.test: o.visibility for e in toy.records["right"].exercises for o in e.outcomes}
    assert (seen["test_negative"], seen["test_a_bare_assertion"]) == ("hidden", "after_published")
    assert seen["test_lists"] == "visible"


def test_outcomes_of_a_right_answer(toy):
    assert toy.outcomes("right") == {
        "test_negative": "passed",
        "test_a_bare_assertion": "passed",
        "test_dies": "not run",
        "test_broken_before": "broken test",
        "test_broken_reference": "broken test",
        "test_skipped": "broken test",
        "test_with_a_list": "failed",
        "test_lists": "passed",
    }


def test_outcomes_of_a_wrong_answer(toy):
    assert toy.earned("wrong") == {"ex-0-double": 0.25, "ex-1-total": 0}
    assert toy.outcomes("wrong")["test_broken_before"] == "broken test"
    assert toy.outcomes("wrong")["test_with_a_list"] == "passed"


def test_messages_say_whose_fault_it_is(toy):
    told = toy.messages("right")
    assert told["test_dies"] == "the process that ran this test ended without a result"
    assert told["test_broken_before"] == "ZeroDivisionError in the test: division by zero"
    assert told["test_broken_reference"].startswith("TypeError in the reference: ")
    assert told["test_skipped"].endswith("not now")
    assert told["test_with_a_list"].startswith("could not use your result: TypeError: ")
    assert toy.messages("wrong")["test_a_bare_assertion"].startswith("assert [6] == 6")


def test_the_exit_code_and_the_summary_name_broken_tests(toy):
    assert toy.code == 6, toy.output
    lines = [line for line in toy.output.splitlines() if line.startswith("broken test, ")]
    names = ["test_broken_before", "test_broken_reference", "test_skipped"]
    assert [line.rpartition(" ")[2] for line in lines] == names


def test_hidden_tests_can_build_on_the_tests_of_the_package(tmp_path):
    """Run as an instructor would: the package by name, one class of it taken over with one test replaced."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/test_mine.py").write_text(OWN)
    graded = grade(
        tmp_path / "records",
        [ROOT / "notebooks"],
        *("--hidden", str(tmp_path / "mine"), "--chapter", "1"),
        tests=("--pyargs", "kvcourse.course.grading"),
        course=ROOT,
    )
    assert graded.code == 0, graded.output
    record = graded.records["notebooks"]
    assert record.chapters == ("01_naive_cache",)
    assert record.earned == record.points == 9
    packed = {o.test: o.visibility for o in record.exercises[0].outcomes}
    assert packed.pop("test_documents_with_different_numbers") == "after_due_date"
    assert len(packed) == 4
    assert set(packed.values()) == {"hidden"}


def test_wrong_points_are_one_line_with_workers_too(tmp_path):
    root = make_course(tmp_path / "course")
    text = (root / "graded/test_toy.py").read_text()
    (root / "graded/test_toy.py").write_text(text.replace("points(1)", "points(2)"))
    submissions, tests = [hand_in(root / "right")], (str(root / "graded"),)
    graded = grade(root / "records", submissions, tests=tests, course=root, workers=2)
    assert (graded.code, graded.records) == (4, {}), graded.output
    assert [line for line in graded.output.splitlines() if line.startswith("ERROR: ex-1-total: ")]
    assert "Traceback" not in graded.output
