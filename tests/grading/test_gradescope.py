"""results.json against the rules of Gradescope's specification of autograders."""

import json

from hypothesis import given
from record_strategies import exercise, outcome, record, records
from strategies import MANY

from kvcourse.course.grading.gradescope import gradescope_json

VISIBILITY = {"hidden", "after_due_date", "after_published", "visible"}
FORMATS = {"text", "html", "simple_format", "md", "ansi"}
TOP = {
    "score": (int, float),
    "execution_time": (int, float),
    "output": str,
    "output_format": FORMATS,
    "test_output_format": FORMATS,
    "test_name_format": FORMATS,
    "visibility": VISIBILITY,
    "stdout_visibility": VISIBILITY,
    "extra_data": dict,
    "tests": list,
    "leaderboard": list,
}
TEST = {
    "score": (int, float),
    "max_score": (int, float),
    "status": {"passed", "failed"},
    "name": str,
    "name_format": FORMATS,
    "number": str,
    "output": str,
    "output_format": FORMATS,
    "tags": list,
    "visibility": VISIBILITY,
    "extra_data": dict,
}


def check(entry, rules):
    """Every field is one of the specification's and has a value that it allows."""
    for key, value in entry.items():
        rule = rules[key]
        assert value in rule if isinstance(rule, set) else isinstance(value, rule), (key, value)


def results(some):
    data = json.loads(gradescope_json(some))
    check(data, TOP)
    for test in data["tests"]:
        check(test, TEST)
    return data


@MANY
@given(records())
def test_format_and_sums(some):
    data = results(some)
    assert all("score" in test for test in data["tests"])  # needed, as there is no score at the top
    assert sum(test["score"] for test in data["tests"]) == some.earned
    assert sum(test["max_score"] for test in data["tests"]) == some.points
    assert len({test["number"] for test in data["tests"]}) == len(data["tests"])
    assert data["stdout_visibility"] == "hidden"
    assert gradescope_json(some).isascii()


@MANY
@given(records())
def test_hidden_tests_have_a_neutral_name_and_no_output(some):
    for test in results(some)["tests"]:
        if test["visibility"] == "hidden":
            assert test["name"].partition(": ")[2] == "hidden tests"
            assert "output" not in test


@MANY
@given(records())
def test_nothing_shown_at_once_tells_what_hidden_tests_gave(some):
    """The text at the top is seen at once: it must not depend on any outcome."""
    swapped = exercise("ex-1-number-0", "01_a", [outcome("t", 1, "hidden", "passed")])
    lost = exercise("ex-1-number-0", "01_a", [outcome("t", 1, "hidden", "failed")])
    texts = [results(record([part], notes=some.notes))["output"] for part in (swapped, lost)]
    assert texts[0] == texts[1]


def test_text_is_never_rendered_as_html():
    data = results(record(notes=("<b>note</b>",)))
    assert (data["output_format"], data["test_output_format"], data["test_name_format"]) == ("text",) * 3
    assert data["output"].startswith("<b>note</b>\n")


def test_a_whole_result():
    found = [
        outcome("test_it_grows", 1, "visible", "passed", "", "unused"),
        outcome("test_it_keeps", 0.5, "visible", "failed", "shape (1,)\nexpected (2,)", "Copy first."),
        outcome("test_late", 0.5, "after_due_date", "stopped", "10 s of CPU time", "of no use here"),
        outcome("test_secret", 1, "hidden", "passed"),
        outcome("test_broken", 1, "visible", "not run"),
    ]
    part = exercise("ex-1-fused-append", "01_a", found, ["defined twice"])
    data = results(record([part]))
    assert data["output"] == "ex-1-fused-append: defined twice\nGraded by kvcourse 0.1.0, seed 1234."
    name = "ex-1-fused-append: "
    common = {"max_score": 1, "visibility": "visible"}
    assert data["tests"] == [
        {"name": name + "it grows", "number": "1.1", "score": 1, "status": "passed", **common},
        {
            "name": name + "it keeps",
            "number": "1.2",
            "score": 0,
            "max_score": 0.5,
            "status": "failed",
            "visibility": "visible",
            "output": "failed: shape (1,)\nexpected (2,)\nHint: Copy first.",
        },
        {
            "name": name + "late",
            "number": "1.3",
            "score": 0,
            "max_score": 0.5,
            "status": "failed",
            "visibility": "after_due_date",
            "output": "stopped: 10 s of CPU time",
        },
        {
            "name": name + "broken",
            "number": "1.4",
            "score": 0,
            "status": "failed",
            **common,
            "output": "not run",
        },
        {
            "name": name + "hidden tests",
            "number": "1.5",
            "score": 1,
            "max_score": 1,
            "status": "passed",
            "visibility": "hidden",
        },
    ]
