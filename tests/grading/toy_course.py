"""A course with two small exercises, tests for them, and learners of many kinds; and pytest run over them."""

import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from kvcourse.course.grading import plugin
from kvcourse.course.grading.record import Record, read_record

BOOK = """\
schema = 1
[book]
title = "Toy course"
authors = ["A. Author"]
copyright = "2026"
landing = "book/index.md"
[[part]]
title = "Chapters"
[[part.chapter]]
file = "notebooks/00_first.ipynb"
title = "First"
minutes = 10
objectives = ["Double a number"]
exercises = [{ id = "ex-0-double", points = 2 }]
[[part.chapter]]
file = "notebooks/01_second.ipynb"
title = "Second"
minutes = 10
objectives = ["Add numbers"]
exercises = [{ id = "ex-1-total", points = 1 }]
"""
DOUBLE = "def double(x):\n    ### BEGIN SOLUTION add it to itself\n    return x + x\n    ### END SOLUTION"
TOTAL = (
    "def total(numbers):\n    ### BEGIN SOLUTION one by one\n    return sum(numbers)\n    ### END SOLUTION"
)
TESTS = """\
import pytest
from kvcourse.course.grading import expect


@pytest.mark.exercise("ex-0-double")
class TestDouble:
    @pytest.mark.points(0.5, hint="Twice three is six.")
    def test_small_numbers(self, student, reference, rng):
        expect.agree(student.double, reference.double, int(rng.integers(3, 90)))

    @pytest.mark.points(0.75)
    @pytest.mark.parametrize("size", [1000, 10**6])
    @pytest.mark.limits(cpu_seconds=1, wall_seconds=4)
    def test_large_numbers(self, student, reference, rng, size):
        expect.agree(student.double, reference.double, size + int(rng.integers(100)))


@pytest.mark.exercise("ex-1-total")
class TestTotal:
    @pytest.mark.points(1)
    def test_lists(self, student, reference, rng):
        expect.agree(student.total, reference.total, [int(n) for n in rng.integers(1, 9, 5)])
"""
RIGHT = {"double": "return 2 * x", "total": "return sum(numbers)"}


def make_course(root: Path) -> Path:
    """Write the course and its tests, in `graded`, into `root`."""
    for name, text in {"book.toml": BOOK, "book/index.md": "# Toy\n", "graded/test_toy.py": TESTS}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, "utf-8")
    write_notebook(root / "notebooks/00_first.ipynb", "First", "ex-0-double", 2, DOUBLE)
    write_notebook(root / "notebooks/01_second.ipynb", "Second", "ex-1-total", 1, TOTAL)
    return root


def write_notebook(path: Path, title: str, exercise: str, points: int, source: str) -> None:
    """A notebook with one exercise."""
    path.parent.mkdir(parents=True, exist_ok=True)
    facts = {"tags": ["exercise"], "kvcourse": {"id": exercise, "points": points}}
    cells = [new_markdown_cell(f"# {title}"), new_code_cell(source, metadata=facts)]
    for index, cell in enumerate(cells):
        cell["id"] = f"cell-{index}"
    nbformat.write(new_notebook(cells=cells), path)


def hand_in(folder: Path, double: str | None = RIGHT["double"], total: str | None = RIGHT["total"]) -> Path:
    """Write a submission with these bodies of the functions; None leaves the notebook out."""
    for body, head, number, title, exercise, points in (
        (double, "def double(x):", "00_first", "First", "ex-0-double", 2),
        (total, "def total(numbers):", "01_second", "Second", "ex-1-total", 1),
    ):
        if body is not None:
            source = head + "\n" + "".join(f"    {line}\n" for line in body.splitlines())
            write_notebook(folder / f"{number}.ipynb", title, exercise, points, source)
    return folder


@dataclass
class Graded:
    """What a run of pytest left: exit code, output, and the records by name."""

    code: int
    output: str
    records: dict[str, Record] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)

    def earned(self, name: str) -> dict[str, float]:
        """Points of a submission, by exercise."""
        return {exercise.id: exercise.earned for exercise in self.records[name].exercises}

    def outcomes(self, name: str) -> dict[str, str]:
        """Outcome of every test of a submission."""
        return {o.test: o.outcome for e in self.records[name].exercises for o in e.outcomes}

    def messages(self, name: str) -> dict[str, str]:
        """Message of every test of a submission."""
        return {o.test: o.message for e in self.records[name].exercises for o in e.outcomes}


def grade(
    records: Path,
    submissions: list[Path],
    *options: str,
    tests: tuple[str, ...],
    course: Path,
    workers: int = 0,
    seed: int = 3,
) -> Graded:
    """Run `tests` with pytest in a process of its own, with records in the new folder `records`."""
    ini = Path(plugin.__file__).with_name("pytest.ini")
    command = [sys.executable, "-m", "pytest", *tests, "-c", str(ini), "-n", str(workers)]
    command += ["--course", str(course), "--records", str(records), "--seed", str(seed), *options]
    command += [f"--submission={path}" for path in submissions]
    records.mkdir()
    done = subprocess.run(
        command,
        cwd=records,
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    paths = sorted(records.glob("*.json"))
    found = {record.name: record for record in map(read_record, paths)}
    return Graded(
        done.returncode, done.stdout + done.stderr, found, {path.name: path.read_bytes() for path in paths}
    )


def shown_numbers(text: str) -> list[int]:
    """The whole numbers in a message, by which two runs can be compared."""
    return [int(number) for number in re.findall(r"\d+", text)]
