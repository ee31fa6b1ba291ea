"""Notebooks for nbgrader follow the rules of its metadata, schema version 3, and lose nothing when it clears them.

The rules below are those that nbgrader 0.9.6 checks when it makes an assignment; its own run on these notebooks gave
full points for the reference, none for the stubs and part of them for some of the answers.
"""

import ast
import json
import re
from pathlib import Path

import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from toy_book import SOLUTION, edit

from kvcourse.cli import main
from kvcourse.course.manifest import Chapter, Exercise, read_manifest
from kvcourse.course.notebook import read_notebook
from kvcourse.course.release.nbgrader import add_metadata, instructor_source, nbgrader_metadata
from kvcourse.course.release.student import student_copy
from kvcourse.errors import InputError

ROOT = Path(__file__).resolve().parents[2]
MANIFEST = read_manifest(ROOT)
KEYS = {"schema_version", "grade_id", "grade", "solution", "locked", "task", "points", "cell_type"}


def chapter(*exercises):
    exercises = tuple(Exercise(name, points) for name, points in exercises)
    return Chapter("notebooks/a.ipynb", "A", 1, (), exercises=exercises)


def cell(source, tag, name=None):
    facts = {"kvcourse": {"id": name}} if name else {}
    output = new_output("stream", name="stdout", text="out")
    return new_code_cell(source, metadata={"tags": [tag], **facts}, outputs=[output], execution_count=1)


def notebook(*cells):
    return new_notebook(cells=list(cells))


def check_rules(cells):
    """What nbgrader refuses: other keys, wrong kinds, an id that is missing, odd or there twice, no points."""
    found = [(c, c["metadata"]["nbgrader"]) for c in cells if "nbgrader" in c["metadata"]]
    for c, facts in found:
        assert set(facts) <= KEYS
        assert facts["schema_version"] == 3
        assert all(type(facts[key]) is bool for key in ("grade", "solution", "locked", "task"))
        assert re.fullmatch(r"[a-zA-Z0-9_\-]+", facts["grade_id"])
        assert facts["cell_type"] == c["cell_type"] == "code"
        assert ("points" in facts) == facts["grade"]
        assert facts.get("points", 0) >= 0
        assert facts["grade"] != facts["solution"]  # tests are graded, answers are graded by them
        assert facts["locked"] == facts["grade"]
        assert not facts["task"]
    names = [facts["grade_id"] for _, facts in found]
    assert len(set(names)) == len(names)
    return [facts for _, facts in found]


def cleared(source):
    """What nbgrader makes of an answer: the lines from marker to marker become its own stub."""
    lines, inside = [], False
    for line in source.split("\n"):
        if "### BEGIN SOLUTION" in line:
            inside = True
            indent = line[: len(line) - len(line.lstrip())]
            lines += [f"{indent}# YOUR CODE HERE", f"{indent}raise NotImplementedError()"]
        elif "### END SOLUTION" in line:
            inside = False
        elif not inside:
            lines.append(line)
    return "\n".join(lines)


@pytest.mark.parametrize("entry", MANIFEST.chapters, ids=lambda entry: Path(entry.file).stem)
def test_the_real_chapters(entry):
    original = read_notebook(ROOT / entry.file)
    student = student_copy(original)
    plain = [dict(c["metadata"]) for c in student["cells"]]
    add_metadata(student, original, entry)
    facts = check_rules(student["cells"])
    assert [f["grade_id"] for f in facts if f["solution"]] == [exercise.id for exercise in entry.exercises]
    assert sum(f["points"] for f in facts if f["grade"]) == entry.points
    for c, before in zip(student["cells"], plain, strict=True):
        touched = c["metadata"].get("tags", []) in (["exercise"], ["public-test"])
        assert touched or c["metadata"] == before
    source = instructor_source(original, entry)
    assert check_rules(source["cells"]) == facts
    assert [c["id"] for c in source["cells"]] == [c["id"] for c in original["cells"]]
    for c, before in zip(source["cells"], original["cells"], strict=True):
        if "### BEGIN SOLUTION" in c["source"]:
            assert c["metadata"]["nbgrader"]["solution"]
            assert re.sub(r"#.*", "", c["source"]).split() == re.sub(r"#.*", "", before["source"]).split()
            hint = re.search(r"### BEGIN SOLUTION (.*)", before["source"])[1]
            stub = cleared(c["source"])
            ast.parse(stub)
            assert re.search(rf"^ *# {re.escape(hint)}\n *# YOUR CODE HERE\n *raise", stub, re.M)
        else:
            assert c["source"] == before["source"]
    assert not any(c.get("outputs") for c in source["cells"])
    assert "widgets" not in source["metadata"]


def test_tests_of_one_exercise_share_its_points():
    original = notebook(
        cell(SOLUTION, "exercise", "ex-a"),
        cell("double(1)", "public-test", "ex-a"),
        cell("double(2)", "public-test", "ex-a"),
        cell("double(3)", "hidden-test", "ex-a"),
        cell("double(4)", "public-test", "ex-a"),
    )
    facts = nbgrader_metadata(original, chapter(("ex-a", 3)))
    assert [facts[n].get("points") for n in range(5)] == [None, 0.75, 0.75, 0.75, 0.75]
    assert [facts[n]["grade_id"] for n in range(5)] == ["ex-a", *(f"ex-a-test-{n}" for n in range(1, 5))]
    student = student_copy(original)
    add_metadata(student, original, chapter(("ex-a", 3)))
    assert [f["grade_id"] for f in check_rules(student["cells"])] == [
        "ex-a", "ex-a-test-1", "ex-a-test-2", "ex-a-test-4",
    ]  # fmt: skip


def test_the_other_kinds_of_cells_in_a_source():
    """Hidden tests get nbgrader's markers, answers in a cell of their own go, and a text keeps its hint only."""
    original = notebook(
        new_markdown_cell("Why?\n### BEGIN SOLUTION the mask\nBecause.\n### END SOLUTION"),
        cell(SOLUTION, "exercise", "ex-a"),
        cell("assert double(1) == 2", "public-test", "ex-a"),
        cell("assert double(3) == 6", "hidden-test", "ex-a"),
        cell("double(4)", "solution"),
        cell("### BEGIN SOLUTION\nx = 1\n### END SOLUTION", "other"),
    )
    source = instructor_source(original, chapter(("ex-a", 4)))
    check_rules(source["cells"])
    texts = [c["source"] for c in source["cells"]]
    assert texts[0] == "Why?\n*the mask*"
    assert texts[3] == "### BEGIN HIDDEN TESTS\nassert double(3) == 6\n### END HIDDEN TESTS"
    assert texts[4] == "### BEGIN SOLUTION\nx = 1\n### END SOLUTION"
    assert source["cells"][4]["metadata"]["nbgrader"]["solution"]
    assert source["metadata"]["kvcourse"]["chapter"] == "a"


@pytest.mark.parametrize(
    ("cells", "match"),
    [
        ([("exercise", "ex-a")], "cell 0: exercise 'ex-a' has no test that learners can run"),
        ([("exercise", "ex-a"), ("hidden-test", "ex-a")], "cell 0: exercise 'ex-a' has no test that learners can"),
        ([("public-test", "ex-a")], "exercise 'ex-a' is in book.toml, and no cell tagged exercise has it"),
        ([("exercise", "ex-a"), ("exercise", "ex-a")], "cell 1: exercise 'ex-a' is also in cell 0"),
        ([("exercise", "ex-a"), ("public-test", "ex-b")], r"cell 1: metadata.kvcourse.id is 'ex-b'; .*\(ex-a\)"),
        ([("exercise", "ex-a"), ("public-test", None)], r"cell 1: metadata.kvcourse.id is None"),
    ],
)  # fmt: skip
def test_cells_that_do_not_go_together(cells, match):
    with pytest.raises(InputError, match=match):
        nbgrader_metadata(notebook(*(cell("x", *entry) for entry in cells)), chapter(("ex-a", 1)))


def test_an_exercise_in_words_is_none():
    words = new_markdown_cell("Why?", metadata={"tags": ["exercise"], "kvcourse": {"id": "ex-a"}})
    with pytest.raises(InputError, match="cell 0: an exercise or test is a code cell, found a markdown cell"):
        nbgrader_metadata(notebook(words), chapter(("ex-a", 1)))


def test_ids_that_nbgrader_would_refuse():
    def metadata(*names):
        cells = [c for name in names for c in (cell("x", "exercise", name), cell("x", "public-test", name))]
        return nbgrader_metadata(notebook(*cells), chapter(*((name, 1) for name in names)))

    with pytest.raises(InputError, match="nbgrader takes letters, digits, - and _ in an id, found 'ex a'"):
        metadata("ex a")
    with pytest.raises(InputError, match="the id 'ex-test' is also that of cell"):
        metadata("ex", "ex-test")


def test_the_command(project, monkeypatch, capsys):
    monkeypatch.chdir(project)
    assert main(["release", "--nbgrader", "course", "--chapter", "1"]) == 0
    path = Path("course/source/01_second/01_second.ipynb")
    assert capsys.readouterr().out == f"{path}: with solutions, for nbgrader\n"
    assert "secret_sum" in path.read_text("utf-8")
    assert list(Path("course").rglob("*.ipynb")) == [path]
    before = path.read_bytes()
    assert main(["release", "out.zip", "--nbgrader", "course"]) == 2
    assert "01_second.ipynb exists; --force replaces it" in capsys.readouterr().err
    assert not Path("out.zip").exists()
    assert list(Path("course").rglob("*.ipynb")) == [path]
    assert main(["release", "out.zip", "--nbgrader", "course", "--force"]) == 0
    assert (path.read_bytes(), Path("out.zip").exists()) == (before, True)


def test_a_source_that_cannot_be_made_or_written(project, monkeypatch, capsys):
    monkeypatch.chdir(project)
    Path("file").write_text("x")
    assert main(["release", "--nbgrader", "file"]) == 2
    assert "cannot be written" in capsys.readouterr().err
    edit(project / "notebooks/01_second.ipynb", "### END SOLUTION", "### END")
    assert main(["release", "--nbgrader", "course"]) == 2
    assert "01_second.ipynb: cell 2: BEGIN SOLUTION" in capsys.readouterr().err
    assert not Path("course").exists()


def test_the_metadata_does_not_depend_on_what_json_makes_of_it():
    facts = nbgrader_metadata(
        notebook(cell("x", "exercise", "e"), cell("x", "public-test", "e")), chapter(("e", 2))
    )
    assert json.loads(json.dumps(list(facts.values()))) == list(facts.values())
    assert type(facts[1]["points"]) is int
