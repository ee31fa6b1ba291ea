"""Student copies hold no solution, in source, output or widget state, and keep everything else."""

import ast
import json

import pytest
from conftest import SOLUTION
from hypothesis import given
from hypothesis import strategies as st
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from kvcourse.course.notebook import dump_notebook, release_hash
from kvcourse.course.student import WIDGET_STATE, WIDGET_VIEW, student_copy
from kvcourse.errors import InputError


def code(source, *tags, **facts):
    """A cell that was run and printed something."""
    metadata = {"tags": list(tags)} | ({"kvcourse": facts} if facts else {})
    output = new_output("stream", name="stdout", text=f"output of {source}")
    return new_code_cell(source, metadata=metadata, outputs=[output], execution_count=1)


def outputs_left(*cells):
    """For each cell of the student copy: does it still have its output?"""
    return [bool(cell["outputs"]) for cell in student_copy(new_notebook(cells=list(cells)))["cells"]]


def test_a_solution_becomes_a_hint():
    cell = student_copy(new_notebook(cells=[code(SOLUTION, "exercise")]))["cells"][0]
    assert cell["source"] == 'def double(x):\n    raise NotImplementedError("add the number to itself")'
    assert cell["outputs"] == []
    assert cell["execution_count"] is None


def test_the_hint_of_the_metadata_stands_in():
    source = "### BEGIN SOLUTION\nx = 1\n### END SOLUTION"
    assert (
        'NotImplementedError("think")'
        in student_copy(new_notebook(cells=[code(source, hint="think")]))["cells"][0]["source"]
    )
    assert "your code goes here" in student_copy(new_notebook(cells=[code(source)]))["cells"][0]["source"]


def test_the_original_is_not_touched():
    notebook = new_notebook(cells=[code(SOLUTION, "exercise")])
    before = dump_notebook(notebook)
    student_copy(notebook)
    assert dump_notebook(notebook) == before


def test_solutions_and_hidden_tests_go():
    cells = [
        new_markdown_cell("the answer", metadata={"tags": ["solution"]}),
        code("x = 1", "hidden-test"),
        code("y"),
    ]
    assert [cell["source"] for cell in student_copy(new_notebook(cells=cells))["cells"]] == ["y"]


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


def test_the_copy_says_which_release_it_was_made_from():
    """Of the whole notebook, so that another solution is another release; the hash of outputs does not carry over."""
    copies = []
    for answer in ("1", "2"):
        notebook = new_notebook(cells=[code(f"### BEGIN SOLUTION\nx = {answer}\n### END SOLUTION")])
        notebook["metadata"]["kvcourse"] = {"source_hash": "0123", "chapter": "first"}
        facts = student_copy(notebook)["metadata"]["kvcourse"]
        assert facts == {"chapter": "first", "edition": "student", "release": release_hash(notebook)}
        copies.append(facts["release"])
    assert copies[0] != copies[1]


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


@pytest.mark.parametrize(
    "source",
    [
        "### BEGIN SOLUTION\nx = 1",
        "x = 1\n### END SOLUTION",
        "### BEGIN SOLUTION\n### BEGIN SOLUTION\nx\n### END SOLUTION\n### END SOLUTION",
        "x = 1 ### BEGIN SOLUTION\ny = 2\n### END SOLUTION",
    ],
)
def test_unbalanced_markers_are_refused(source):
    with pytest.raises(InputError, match="cell 0: BEGIN SOLUTION and END SOLUTION do not pair up"):
        student_copy(new_notebook(cells=[code(source)]))


def test_a_stub_that_is_no_python_is_refused():
    source = "x = (\n### BEGIN SOLUTION\n1)\n### END SOLUTION"
    with pytest.raises(InputError, match="cell 0: without its solution the cell is not valid Python"):
        student_copy(new_notebook(cells=[code(source)]))


lines = st.lists(st.integers(0, 10**9).map(lambda n: f"secret_{n} = {n}"), min_size=1, max_size=4)


@given(
    before=lines,
    solution=lines,
    after=lines,
    indent=st.sampled_from(["", "    "]),
    hint=st.text("ab \"'\\{}", max_size=9),
)
def test_no_line_of_a_solution_is_left(before, solution, after, indent, hint):
    body = [f"### BEGIN SOLUTION {hint}", *(f"answer_{line}" for line in solution), "### END SOLUTION"]
    head = ["def f():"] if indent else []
    source = "\n".join(head + [indent + line for line in before + body + after])
    stub = student_copy(new_notebook(cells=[code(source)]))["cells"][0]["source"]
    ast.parse(stub)
    assert "answer" not in stub
    assert all(line in stub for line in before + after)


def widget_notebook():
    view = {WIDGET_VIEW: {"model_id": "shown"}, "text/plain": "Panel()"}
    hidden = {WIDGET_VIEW: {"model_id": "answer"}, "text/plain": "Panel()"}
    notebook = new_notebook(cells=[
        new_code_cell("Panel()", outputs=[new_output("display_data", data=view)]),
        new_code_cell(SOLUTION, metadata={"tags": ["exercise"]}, outputs=[new_output("display_data", data=hidden)]),
    ])  # fmt: skip
    state = {"shown": {"layout": "IPY_MODEL_layout"}, "layout": {}, "answer": {"n": 42}}
    notebook["metadata"]["widgets"] = {WIDGET_STATE: {"state": state, "version_major": 2}}
    return notebook


def test_widget_state_goes_with_its_views():
    student = student_copy(widget_notebook())
    assert "widgets" not in student["metadata"]
    assert student["cells"][0]["outputs"] == []


def test_the_book_keeps_only_the_widgets_that_are_shown():
    student = student_copy(widget_notebook(), keep_widgets=True)
    assert set(student["metadata"]["widgets"][WIDGET_STATE]["state"]) == {"shown", "layout"}
    assert "42" not in json.dumps(student["metadata"])
