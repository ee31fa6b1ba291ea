"""A program does what the whole notebook does, on random notebooks and on the course's own; nothing breaks it."""

import ast
import contextlib
import copy

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from learner import ROOT, TASKS
from test_program_cells import ID, code, own

from kvcourse.course.grading.program import Unusable, program_of, required_names
from kvcourse.course.notebook import read_notebook
from kvcourse.course.release.student import student_copy

DATA, FUNCTIONS, TABLES = ("a", "b", "c"), ("f", "g", "answer"), ("t", "u")
ARGUMENTS = range(-2, 3)

data, functions, tables = st.sampled_from(DATA), st.sampled_from(FUNCTIONS[:2]), st.sampled_from(TABLES)
numbers = st.integers(-3, 3).map(str)


def expressions(names: tuple[str, ...]) -> st.SearchStrategy[str]:
    """Integer expressions over some names, the functions and the tables."""
    leaves = numbers | st.sampled_from(names)
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.builds("({} {} {})".format, inner, st.sampled_from("+-*"), inner),
            st.builds("{}({})".format, functions, inner),
            st.builds("{}.get({}, 0)".format, tables, inner),
            st.builds("sum({} for {} in ({}, 2))".format, inner, data, inner),
            st.builds("(lambda {}: {})({})".format, data, inner, inner),
        ),
        max_leaves=4,
    )


def indented(*lines: str) -> str:
    return "\n".join("    " + line.replace("\n", "\n    ") for line in lines)


values, bodies = expressions(DATA), expressions((*DATA, "x"))
assignments = st.one_of(
    st.builds("{} = {}".format, data, values),
    st.builds("{} += {}".format, data, values),
    st.builds("{}, {} = {}, {}".format, data, data, values, values),
    st.builds("{} = {{}}".format, tables),
    st.builds("{}[{}] = {}".format, tables, values, values),
    st.builds("from operator import mul as {}".format, data.map(lambda name: name + "_mul")),
)
definitions = st.one_of(
    st.builds("def {}(x):\n    return {}".format, functions, bodies),
    st.builds("def {}(x, y={}):\n    {} = y\n    return {}".format, functions, values, data, bodies),
    st.builds("def {}(x):\n    global {}\n    return {}".format, functions, data, bodies),
    st.builds("{} = lambda x: {}".format, functions, bodies),
    st.builds("class box:\n    {0} = {1}\n    def {0}_(self): return {0}".format, data, values),
)
blocks = st.builds(
    lambda head, body: f"{head}\n{indented(*body)}",
    st.builds("for {} in ({}, 1):".format, data, values) | st.builds("if {} > 0:".format, values),
    st.lists(assignments | st.builds("print({})".format, values), min_size=1, max_size=2),
) | st.builds(
    lambda body, name: f"try:\n{indented(body)}\nexcept ZeroDivisionError:\n{indented(f'{name} = 7')}",
    assignments,
    data,
)
experiments = st.one_of(
    st.builds("print({})".format, values),
    values,
    st.builds("seen.append({})".format, values),
    st.builds("assert [{}]".format, values),
)
statements = st.lists(assignments | definitions | blocks | experiments, min_size=1, max_size=4).map("\n".join)
START = "a, b, c, t, u, seen = 1, 2, 3, {}, {}, []\ndef f(x): return x\ndef g(x): return x"


@st.composite
def notebooks(draw) -> dict:
    """A notebook of definitions and experiments, the exercise's cell in it, and perhaps its test."""
    cells = [code(START), *map(code, draw(st.lists(statements, max_size=5)))]
    cells.append(own(f"{draw(statements)}\ndef answer(x):\n    return {draw(bodies)}\n{draw(statements)}"))
    cells += map(code, draw(st.lists(statements, max_size=2)))
    cells.append(code("print(answer(1))", "public-test", id=ID))
    cells += map(code, draw(st.lists(statements, max_size=2)))
    return {"cells": cells}


def results(space: dict) -> list:
    """What the exercise's function returns, or the kind of error."""
    found = []
    for argument in ARGUMENTS:
        try:
            found.append(space["answer"](argument))
        except Exception as error:
            found.append(type(error))
    return found


def after(sources: list[str]) -> dict:
    space = {"print": lambda *_: None, "__name__": "notebook"}
    for source in sources:
        exec(compile(source, "cell", "exec"), space)
    return space


@given(notebooks())
@settings(max_examples=300)
@example(
    {"cells": [code(f"{START}\nfor a in (1, 2):\n    t[a] = 3"), own("def answer(x): return t.get(x, 0)")]}
)
def test_a_program_does_what_the_notebook_does_up_to_the_test(notebook):
    found = program_of(notebook, ID, ("answer",))
    positions = [(int(piece.label.removeprefix("cell ")), piece.first_line) for piece in found.pieces]
    assert positions == sorted(positions)
    for piece in found.pieces:
        (statement,) = ast.parse(piece.source).body
        assert not isinstance(statement, ast.Expr)
    tests = [i for i, cell in enumerate(notebook["cells"]) if "public-test" in cell["metadata"]["tags"]]
    cells = [cell["source"] for cell in notebook["cells"][: (tests or [len(notebook["cells"])])[0]]]
    try:
        whole = after(cells)
    except (Exception, RecursionError):
        return  # the learner's notebook does not run; what the program does then is not defined
    assert results(after([piece.source for piece in found.pieces])) == results(whole)


# ---- the course's own notebooks --------------------------------------------------------------------


@pytest.fixture(scope="module")
def course() -> dict[str, dict]:
    return {task.chapter: read_notebook(ROOT / f"notebooks/{task.chapter}.ipynb") for task in TASKS.values()}


@pytest.mark.parametrize("exercise", TASKS)
def test_the_course_s_own_notebook_gives_the_solution(course, exercise):
    notebook, task = course[TASKS[exercise].chapter], TASKS[exercise]
    names = required_names(notebook, exercise)
    found = program_of(notebook, exercise, names)
    assert found.notes == ()
    text = "\n".join(piece.source for piece in found.pieces)
    assert "load_model" not in text
    assert "kvcourse" not in text
    space = {}
    exec(text, space)
    exec(task.public_test, space)  # which asserts
    assert all(callable(space[name]) for name in names)


@pytest.mark.parametrize("exercise", TASKS)
def test_a_student_copy_gives_a_stub(course, exercise):
    notebook, task = course[TASKS[exercise].chapter], TASKS[exercise]
    found = program_of(student_copy(notebook), exercise, required_names(notebook, exercise))
    assert found.notes == ()
    stub = found.pieces[-1].source
    assert task.stub.rstrip().endswith(stub)  # an import that only the solution uses is left out
    assert stub.startswith(("def ", "class "))


# ---- whatever a learner or a broken tool makes of it -----------------------------------------------

junk = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text(max_size=5) | st.sampled_from([ID, "code", "exercise"]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(["source", "metadata", "tags", "kvcourse", "id", "cells"]), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


@given(st.data())
def test_any_shape_of_a_notebook_is_unusable_at_worst(course, data):
    task = data.draw(st.sampled_from(sorted(TASKS)))
    notebook = copy.deepcopy(dict(course[TASKS[task].chapter]))
    for _ in range(data.draw(st.integers(1, 6))):
        where = notebook
        while isinstance(where, dict | list) and where:
            keys = sorted(where) if isinstance(where, dict) else range(len(where))
            key = data.draw(st.sampled_from(keys))
            if not isinstance(where[key], dict | list) or data.draw(st.integers(0, 3)) == 0:
                where[key] = data.draw(junk)
                break
            where = where[key]
    with contextlib.suppress(Unusable):
        assert program_of(notebook, task, required_names(course[TASKS[task].chapter], task)).pieces


@given(st.text() | st.text("def answer(x):\n\t '\"{}=%!?@0\\#").map(lambda text: text[:200]))
@example("def answer(x): return f'{x!r:>{x}}'")
@example("\ufeffdef answer(x): return x")
@example("def answer(x): return x\\\n")
@example("def answer(x): return x\x0c\n")
@example("# coding: latin-1\ndef answer(x): return 'é'")
@example("# coding: nonsense\ndef answer(x): return x")
@example("type answer = int")
def test_any_source_is_unusable_at_worst(source):
    cells = [own(source), code("def answer(x): return 1", "hidden-test")]
    with contextlib.suppress(Unusable):
        assert program_of({"cells": cells}, ID, ("answer",)).pieces
