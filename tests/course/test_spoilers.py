"""Outputs that an answer can have reached go, however it came there; outputs that it cannot have reached stay."""

import pytest
from nbformat.v4 import new_notebook, new_output
from toy_book import SOLUTION, code

from kvcourse.course.release.student import WIDGET_VIEW, student_copy


def outputs_left(*cells):
    """For each cell of the student copy: does it still have its output?"""
    return [bool(cell["outputs"]) for cell in student_copy(new_notebook(cells=list(cells)))["cells"]]


def test_outputs_that_depend_on_a_solution_go_and_others_stay():
    assert outputs_left(
        code("a = 1"),
        code(SOLUTION, "exercise"),
        code("b = double(a)"),
        code("c = b + 1"),
        code("print(a)"),
        code("c = 5"),
        code("print(c)"),
        code("print(b)"),
    ) == [True, False, False, False, True, True, True, False]


def test_a_solution_without_a_tag_and_an_exercise_without_a_solution_spoil_too():
    untagged = "### BEGIN SOLUTION\nfirst = 1\n### END SOLUTION"
    assert outputs_left(
        code(untagged),
        code("first"),
        code("second = 2", "exercise"),
        code("second"),
        code("'neither'"),
    ) == [False, False, False, False, True]


def test_a_name_that_may_keep_its_value_stays_spoiled():
    assert outputs_left(
        code(SOLUTION, "exercise"),
        code("x = double(1)"),
        code("if len('ab') > 3:\n    x = 0"),
        code("print(x)"),
        code("x = 0"),
        code("print(x)"),
    ) == [False, False, True, False, True, True]


def test_an_object_changed_with_a_solution_is_spoiled_but_a_module_is_not():
    assert outputs_left(
        code("import math"),
        code("rows = []"),
        code(SOLUTION, "exercise"),
        code("rows.append(double(3)); math.floor(double(1))"),
        code("rows"),
        code("math.pi"),
    ) == [True, True, False, False, False, True]


def test_a_loop_variable_of_a_test_does_not_spoil_a_later_loop():
    assert outputs_left(
        code(SOLUTION, "exercise"),
        code("for x in (1, 2):\n    assert double(x)"),
        code("for x in (3,):\n    print(x)"),
    ) == [False, False, True]


def test_what_cannot_be_parsed_is_not_trusted():
    assert outputs_left(code("this is ?")) == [False]
    assert outputs_left(
        code(SOLUTION, "exercise"), code("b = double(21)\nb?"), code("print(b)"), code("print(len('a'))")
    ) == [False, False, False, True]


@pytest.mark.parametrize("peek", ["locals()", "%whos", "dir()", "Out", "_1", "import __main__", "%history"])
def test_a_cell_that_sees_every_name_shows_nothing_after_a_solution(peek):
    assert outputs_left(code(peek), code(SOLUTION, "exercise"), code(peek), code("1")) == [
        True, False, False, True,
    ]  # fmt: skip


def test_a_function_that_calls_a_solution_spoils_when_it_is_called():
    """Defined before the exercise it shows nothing; called after it, directly or through another, it does."""
    assert outputs_left(
        code("def table():\n    return double(2)"),
        code("def page():\n    return table()"),
        code(SOLUTION, "exercise"),
        code("print(page())"),
        code("def table():\n    return 4"),
        code("print(page())"),
    ) == [True, True, False, False, True, True]


def test_a_module_that_a_solution_patches_is_spoiled():
    patch = "### BEGIN SOLUTION\nmath.floor = print\n### END SOLUTION"
    assert outputs_left(code("import math"), code(patch, "exercise"), code("math.pi"), code("1")) == [
        True, False, False, True,
    ]  # fmt: skip


def test_a_name_that_was_a_module_once_is_none_any_more():
    assert outputs_left(
        code("from time import time"),
        code("time = []"),
        code(SOLUTION, "exercise"),
        code("time.append(double(1))"),
        code("time"),
    ) == [True, True, False, False, False]


def test_a_function_that_may_set_a_name_later_does_not_clean_it():
    assert outputs_left(
        code(SOLUTION, "exercise"),
        code("x = double(1)"),
        code("def reset():\n    global x\n    x = 0"),
        code("print(x)"),
    ) == [False, False, True, False]


@pytest.mark.parametrize(
    ("shows", "changes", "kept"),
    [
        ("panel = Panel()\npanel", "panel.n = double(1)", False),
        ("panel = Panel()\npanel", "with panel:\n    double(1)", False),
        ("panel = Panel()\npanel", "fill(panel, double(1))", False),
        ("Box([inner])", "inner.n = double(1)", False),
        ("handle = display(1, display_id=True)", "handle.update(double(1))", False),
        ("display(1, display_id='a')", "update_display(double(1), display_id='a')", False),
        ("panel = Panel()\npanel", "other = double(1)", True),
        ("panel = Panel(size)\npanel", "other = double(size)", True),
    ],
)
def test_what_is_shown_before_a_solution_may_be_changed_after_it(shows, changes, kept):
    cells = [code("size = 2; inner = Panel()"), code(shows), code(SOLUTION, "exercise"), code(changes)]
    if "display" not in shows:
        cells[1]["outputs"] = [new_output("display_data", data={WIDGET_VIEW: {"model_id": "m"}})]
    student = student_copy(new_notebook(cells=cells), keep_widgets=True)
    assert bool(student["cells"][1]["outputs"]) == kept
