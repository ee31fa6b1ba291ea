"""The public tests of the course's own notebooks, and how a kernel shows them."""

import linecache
import re
import sys
import types
from pathlib import Path

import pytest
import torch
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

from kvcourse.course.names import names_of
from kvcourse.course.notebook import read_notebook, tags
from kvcourse.course.release.student import student_copy

ROOT = Path(__file__).resolve().parents[2]


def exercises():
    """(exercise cell, its stub, its public test) of every exercise of the course."""
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        notebook = read_notebook(path)
        stubs = {c["id"]: c["source"] for c in student_copy(notebook)["cells"]}
        tests = {c["metadata"]["kvcourse"]["id"]: c for c in notebook["cells"] if "public-test" in tags(c)}
        for cell in notebook["cells"]:
            if "exercise" in tags(cell):
                name = cell["metadata"]["kvcourse"]["id"]
                yield pytest.param(cell["source"], stubs[cell["id"]], tests.get(name), name, id=name)


@pytest.fixture
def printed(monkeypatch, capsys, tmp_path):
    """Run cells as in a notebook of a folder without a course; returns what they printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: object()))

    def run(*cells):
        namespace = {"__name__": "__main__", "torch": torch}
        for number, source in enumerate(cells):
            name = f"cell-{number}"
            linecache.cache[name] = (len(source), None, source.splitlines(True), name)
            exec(compile(source, name, "exec"), namespace)
        return capsys.readouterr().out

    return run


@pytest.mark.parametrize(("solution", "stub", "public", "name"), list(exercises()))
def test_solved_with_the_solution_and_not_with_the_stub(printed, solution, stub, public, name):
    assert public is not None, f"{name} has no public test"
    solved = printed(solution, public["source"])
    assert re.fullmatch(rf"{name}: solved, all \d+ cases pass\n", solved)
    assert [output["text"] for output in public["outputs"]] == [solved], "run `kvcourse book execute`"
    hint = re.search(r"NotImplementedError\(\"(.*)\"\)", stub)[1]
    told = printed(stub, public["source"])
    assert told.startswith(f"{name}: not solved yet\n")
    assert re.sub(r"\s+", " ", told).endswith(f"hint: {hint} ")
    assert printed(public["source"]).startswith(f"{name}: not checked\n")


@pytest.mark.parametrize(("solution", "stub", "public", "name"), list(exercises()))
def test_a_missing_return_fails_with_a_hint(printed, solution, stub, public, name):
    """The commonest mistake of all."""
    told = printed(re.sub(r"\breturn\b", "_ =", solution), public["source"])
    assert "is a `return` missing?" in re.sub(r"\s+", " ", told)


def test_the_report_on_the_learners_page_is_real(printed):
    mean_of_shares = """\
def empty_share(lengths, first=16):
    shares = []
    for length in lengths:
        slots = first
        while slots < length:
            slots *= 2
        shares.append(1 - length / slots)
    return sum(shares) / len(shares)
"""
    (public,) = (case.values[2] for case in exercises() if case.id == "ex-1-empty-share")
    told = printed(mean_of_shares, public["source"])
    assert f"```\n{told}```\n" in (ROOT / "book/how_to_work.md").read_text("utf-8")


@pytest.mark.parametrize("path", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_public_test_sets_no_name_that_another_cell_reads(path):
    """Or that cell would fail when it runs after the test."""
    cells = [cell for cell in read_notebook(path)["cells"] if cell["cell_type"] == "code"]
    names = [(names_of(cell["source"]), "public-test" in tags(cell)) for cell in cells]
    read = set().union(*(own.read | own.deferred for own, is_test in names if not is_test))
    stored = set().union(*(own.stored for own, is_test in names if is_test))
    assert stored & read == set()


def test_a_kernel_shows_the_report_and_goes_on(tmp_path):
    cells = [
        "from kvcourse import course",
        "def half(x):\n    return [1][x]",
        'with course.check("ex-1") as check:\n    check.call(half, 3, expected=1)',
        "import os\nos.environ['NBGRADER_EXECUTION'] = 'autograde'",
        'with course.check("ex-1") as check:\n    check.call(half, 3, expected=1)',
        'with course.check("ex-1") as check:\n    half(3)',
        'with course.check("ex-1") as check:\n    check.call(half, 0, expected=1)',
    ]
    notebook = new_notebook(cells=[new_code_cell(source) for source in cells])
    client = NotebookClient(notebook, kernel_name="python3", allow_errors=True,
                            resources={"metadata": {"path": str(tmp_path)}})  # fmt: skip
    client.execute()
    outputs = [cell["outputs"] for cell in notebook["cells"]]
    failed = (
        "ex-1: the case fails\n"
        "  ✗ half(3): your code raised IndexError: list index out of range\n"
        "    line 2 of the cell, in half: return [1][x]"
    )
    assert [(o["name"], o["text"]) for o in outputs[2]] == [("stdout", failed + "\n")]
    for output in (outputs[4], outputs[5]):
        assert [(o["output_type"], o["ename"]) for o in output] == [("error", "CheckFailed")]
    assert outputs[4][0]["traceback"] == failed.splitlines()
    assert outputs[5][0]["traceback"][0] == "ex-1: the test had to stop"
    assert [o["text"] for o in outputs[6]] == ["ex-1: solved, the case passes\n"]
