"""Student copies hold no solution, in source, output or widget state, and keep everything else."""

import ast
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from toy_book import SOLUTION, code, edit

from kvcourse.course.notebook import dump_notebook, release_hash
from kvcourse.course.release.student import WIDGET_STATE, WIDGET_VIEW, student_copy, student_notebook
from kvcourse.errors import InputError


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


@pytest.mark.parametrize(
    "source",
    [
        "### BEGIN SOLUTION\nx = 1",
        "x = 1\n### END SOLUTION",
        "### BEGIN SOLUTION\n### BEGIN SOLUTION\nx\n### END SOLUTION\n### END SOLUTION",
        "x = 1 ### BEGIN SOLUTION\ny = 2\n### END SOLUTION",
        "# BEGIN SOLUTION\nx\n# END SOLUTION",
        "###BEGIN SOLUTION\nx\n###END SOLUTION",
        "### BEGIN SOLUTION\nx\n### END HIDDEN TESTS",
        "### Begin solution\nx\n### End solution",
        "### BEGIN SOLUTION\n### BEGIN HIDDEN TESTS\nx\n### END SOLUTION\n### END HIDDEN TESTS",
    ],
)
def test_unbalanced_markers_are_refused(source):
    with pytest.raises(InputError, match=r"cell 0: BEGIN (SOLUTION|HIDDEN TESTS) and END \1 do not pair up"):
        student_copy(new_notebook(cells=[code(source)]))


def test_a_stub_that_is_no_python_is_refused():
    source = "x = (\n### BEGIN SOLUTION\n1)\n### END SOLUTION"
    with pytest.raises(InputError, match="cell 0: without its solution the cell is not valid Python"):
        student_copy(new_notebook(cells=[code(source)]))


def test_hidden_tests_inside_a_cell_go():
    source = "assert double(1) == 2\n### BEGIN HIDDEN TESTS\nassert double(7) == 14\n### END HIDDEN TESTS"
    cells = student_copy(new_notebook(cells=[code(source)]))["cells"]
    assert (cells[0]["source"], cells[0]["outputs"]) == ("assert double(1) == 2", [])
    with pytest.raises(InputError, match="cell 0: BEGIN HIDDEN TESTS and END HIDDEN TESTS do not pair up"):
        student_copy(new_notebook(cells=[code(source.replace("END", "BEGIN"))]))


def test_an_answer_in_words_and_its_picture_go():
    answer = "### BEGIN SOLUTION think of the mask\nIt ![](attachment:a.png)\n### END SOLUTION"
    source = f"Why?\n{answer}\n![](attachment:b.png)"
    cell = new_markdown_cell(source, attachments={"a.png": {}, "b.png": {}, "c.png": {}})
    student = student_copy(new_notebook(cells=[cell]))["cells"][0]
    assert student["source"] == "Why?\n*think of the mask*\n![](attachment:b.png)"
    assert set(student["attachments"]) == {"b.png"}


def test_metadata_that_is_not_for_learners_goes():
    cell = code("x = 1", "hide-input", id="ex", points=2, hint="1", answer="1")
    cell["metadata"] |= {"execution": {"iopub.execute_input": "2026"}, "solution": "1", "jupyter": {}}
    notebook = new_notebook(cells=[cell], metadata={"varInspector": {"x": 1}, "title": "T"})
    student = student_copy(notebook)
    assert student["cells"][0]["metadata"] == {
        "tags": ["hide-input"],
        "jupyter": {},
        "kvcourse": {"id": "ex", "points": 2},
    }
    assert set(student["metadata"]) == {"title", "kvcourse"}


def test_a_student_copy_knows_its_chapter(project):
    copied = student_notebook(project / "notebooks/01_second.ipynb")
    assert copied["metadata"]["kvcourse"]["chapter"] == "01_second"
    edit(project / "notebooks/01_second.ipynb", "### END SOLUTION", "### THE END")
    with pytest.raises(InputError, match=r"^01_second.ipynb: cell 2: BEGIN SOLUTION"):
        student_notebook(project / "notebooks/01_second.ipynb")


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
