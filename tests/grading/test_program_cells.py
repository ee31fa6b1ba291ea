"""Which cell of a learner's notebook is graded, what the notes say, and what makes an exercise unusable."""

import pytest

from kvcourse.course.grading.program import Program, Unusable, program_of, required_names
from kvcourse.errors import InputError

ID = "ex-9-twice"
SOLVED = "def twice(x):\n    return 2 * x"
STUB = 'def twice(x):\n    """Doubles."""\n    raise NotImplementedError("add it to itself")'


def code(source, *tags, id=None, kind="code"):
    facts = {"kvcourse": {"id": id}} if id else {}
    return {"cell_type": kind, "source": source, "metadata": {"tags": list(tags), **facts}}


def own(source, *tags):
    """The cell of the exercise."""
    return code(source, "exercise", *tags, id=ID)


def program(*cells, names=("twice",)) -> Program:
    return program_of({"cells": list(cells)}, ID, names)


def call(found: Program, name="twice", argument=4):
    """What the program's function returns."""
    space = {}
    for piece in found.pieces:
        exec(compile(piece.source, piece.label, "exec"), space)
    return space[name](argument)


def labels(found: Program) -> list[str]:
    return [piece.label for piece in found.pieces]


def why_unusable(*cells, names=("twice",)) -> str:
    with pytest.raises(Unusable) as caught:
        program(*cells, names=names)
    text = str(caught.value)
    assert text.isprintable()
    assert len(text) < 300
    return text


# ---- the cell with the id --------------------------------------------------------------------------


def test_the_cell_with_the_id_counts_and_cells_count_from_0():
    found = program(code("# Title", kind="markdown"), own(SOLVED))
    assert (found.exercise, found.names, found.notes) == (ID, ("twice",), ())
    assert labels(found) == ["cell 1"]
    assert call(found) == 8


def test_an_untouched_stub_is_a_program_that_raises():
    found = program(own(STUB))
    assert found.notes == ()
    with pytest.raises(NotImplementedError, match="add it to itself"):
        call(found)


def test_of_two_cells_with_the_id_the_last_counts():
    found = program(own("def twice(x): return 'old'"), own(SOLVED))
    assert call(found) == 8
    assert found.notes == (f"{ID}: 2 cells carry this id; cell 1 was graded",)


def test_a_copy_that_is_a_stub_does_not_replace_an_answer():
    for cells in ((own(SOLVED), own(STUB)), (own(STUB), own(SOLVED))):
        found = program(*cells, code("twice(3)", "public-test", id=ID))
        assert call(found) == 8
        assert len(found.pieces) == 1
        assert "2 cells carry this id" in found.notes[0]


def test_a_test_cell_that_carries_the_id_is_not_the_exercise():
    found = program(own(SOLVED), code("def twice(x): return 0", "public-test", id=ID))
    assert found.notes == ()
    assert call(found) == 8


def test_a_test_cell_that_lost_its_tag_is_no_second_exercise():
    found = program(own(SOLVED), code("assert twice(1) == 2", id=ID))
    assert found.notes == ()


# ---- the answer is elsewhere -----------------------------------------------------------------------


def test_without_the_id_the_last_cell_that_defines_the_names_counts():
    found = program(code("def twice(x): return 'old'"), code(SOLVED), code("def other(): pass"))
    assert call(found) == 8
    assert found.notes == (f"{ID}: no cell carries this id; cell 1 defines twice and was graded",)


def test_without_the_id_a_stub_does_not_replace_an_answer():
    assert call(program(code(SOLVED), code(STUB))) == 8


def test_an_answer_below_the_stub_counts():
    found = program(own(STUB), code("twice(1)", "public-test", id=ID), code(SOLVED))
    assert call(found) == 8
    assert labels(found) == ["cell 2"]
    assert found.notes == (f"{ID}: cell 0 is a stub; cell 2 defines twice and was graded",)


def test_code_of_the_chapter_with_the_same_name_solves_nothing():
    found = program(code(SOLVED), own(STUB))
    assert labels(found) == ["cell 1"]


def test_a_renamed_function_counts_where_another_cell_has_the_name():
    found = program(own("def double(x): return 2 * x"), code("def twice(x): return double(x)"))
    assert call(found) == 8
    assert found.notes == (
        f"{ID}: cell 0 defines double, expected twice; cell 1 defines twice and was graded",
    )


def test_an_answer_below_a_broken_cell_counts():
    found = program(own("def twice(x:"), code(SOLVED))
    assert call(found) == 8
    assert "cell 0 is not valid Python (line 1" in found.notes[0]


@pytest.mark.parametrize(
    "source",
    [
        "twice = lambda x: 2 * x",
        "from functools import partial\nfrom operator import mul\ntwice = partial(mul, 2)",
        "if True:\n    def twice(x): return 2 * x",
        "try:\n    import no_such_module\nexcept ImportError:\n    def twice(x): return 2 * x",
        "class Twice:\n    def __call__(self, x): return 2 * x\ntwice = Twice()",
    ],
)
def test_any_way_to_bind_the_name_counts(source):
    assert call(program(own(source))) == 8


def test_names_may_be_spread_over_cells():
    found = program(own("def half(x): return x / 2"), code(SOLVED), names=("half", "twice"))
    assert call(found) == 8
    assert call(found, "half") == 2


# ---- unusable --------------------------------------------------------------------------------------


def test_a_missing_cell():
    expected = f"{ID}: its cell is missing and no other cell defines twice"
    assert why_unusable(code("x = 1")) == expected
    assert why_unusable() == expected


def test_a_renamed_function():
    cells = [code("x = 1"), own("def double(x): return 2 * x\ndef four(x): return 4")]
    assert why_unusable(*cells) == f"{ID}: cell 1 defines double, four, expected twice"
    assert why_unusable(own("")) == f"{ID}: cell 0 defines nothing, expected twice"


def test_one_of_two_names_is_missing():
    assert why_unusable(own(SOLVED), names=("twice", "half")) == f"{ID}: cell 0 does not define half"


def test_a_cell_that_became_text():
    cells = [code(SOLVED, "exercise", id=ID, kind="markdown")]
    assert why_unusable(*cells) == f"{ID}: cell 0 is a markdown cell, expected code that defines twice"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("x = 1\n\ndef twice(x:\n    return", "line 3: '(' was never closed"),
        ("def twice(x):\nreturn x", "line 2: "),
        ("def twice(x, x): return x", "line 1: duplicate argument 'x'"),
        ("def twice(x): pass\nreturn 3", "line 2: 'return' outside function"),
        ("def twice(x): pass\ny = await x", "line 2: 'await' outside function"),
        ("def twice(x): pass\x00", ""),
        ("def twice(x): return '\ud800'", ""),
        ("def twice(x): return " + "(" * 5000, "line 1: too many nested parentheses"),
        ("def twice(x): return " + "-" * 50_000 + "x", "nested too deeply"),
        ("twice = x" + ".a" * 40_000, "nested too deeply"),
        ("def twice(x): return " + "9" * 20_000, "line 1: "),
        ("def twice(x): pass\n" + "#" * 100_000, "100,019 characters, more than 100,000"),
    ],
)
def test_a_cell_that_python_cannot_compile(source, reason):
    text = why_unusable(own(source))
    assert text.startswith(f"{ID}: cell 0 is not valid Python (")
    assert reason in text


def test_code_without_end():
    cells = [code("x = 1\n" * 10_000) for _ in range(6)]
    assert "360,035 characters" not in why_unusable(*cells[:5], own(SOLVED + "\n" * 1000))
    assert "has 360,026 characters of code, at most 300,000 are read" in why_unusable(*cells, own("x" * 26))


@pytest.mark.parametrize(
    "notebook",
    [
        None, [], {}, {"cells": None}, {"cells": "x"}, {"cells": [None, 3, [], "x"]}, {"cells": [{}]},
        {"cells": [{"cell_type": "code", "source": 3, "metadata": None}]},
        {"cells": [{"cell_type": [], "source": [1, None], "metadata": {"tags": "exercise", "kvcourse": [ID]}}]},
        {"cells": [{"cell_type": "code", "source": "x", "metadata": {"tags": [[]], "kvcourse": {"id": {}}}}]},
    ],
)  # fmt: skip
def test_a_notebook_of_any_shape(notebook):
    with pytest.raises(Unusable, match="its cell is missing"):
        program_of(notebook, ID, ("twice",))


# ---- the names of the course's own notebook --------------------------------------------------------


def test_required_names_are_functions_and_classes_in_order():
    cells = [own("import a\nx = 1\nclass B: pass\n@a\ndef c():\n    def d(): pass\nasync def e(): pass")]
    assert required_names({"cells": cells}, ID) == ("B", "c", "e")


@pytest.mark.parametrize(
    ("cell", "reason"),
    [
        (own("x = 1"), "cell 0 of the course's notebook defines no function or class"),
        (own("def ("), "cell 0 of the course's notebook is not valid Python (line 1"),
        (code(SOLVED, "public-test", id=ID), "no cell of the course's notebook is tagged `exercise`"),
    ],
)
def test_a_course_without_the_exercise(cell, reason):
    with pytest.raises(InputError) as caught:
        required_names({"cells": [cell]}, ID)
    assert str(caught.value).startswith(f"{ID}: {reason}")
