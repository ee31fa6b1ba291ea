"""Answers to the exercises, and submissions that hold them: student copies of the course's own notebooks."""

import ast
import textwrap
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from kvcourse.course.manifest import read_manifest
from kvcourse.course.notebook import dump_notebook, read_notebook, tags
from kvcourse.course.release.student import student_copy

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Task:
    """An exercise of `book.toml`: its cells as the course has them and as a learner gets them."""

    id: str
    points: int
    chapter: str  # stem of the notebook
    solved: str
    stub: str
    public_test: str

    @property
    def function(self) -> ast.FunctionDef:
        """The function or method that the learner writes: the one that the stub leaves open."""
        return next(
            node
            for node in ast.walk(ast.parse(self.stub))
            if isinstance(node, ast.FunctionDef) and isinstance(node.body[-1], ast.Raise)
        )

    @property
    def arguments(self) -> str:
        """Names of the arguments, as a call writes them: "self, k, v"."""
        return ", ".join(argument.arg for argument in self.function.args.args)

    @property
    def target(self) -> str:
        """Where the function is found from the outside: "share_saved" or "FusedCache.append"."""
        for node in ast.parse(self.stub).body:
            if isinstance(node, ast.ClassDef) and self.function.name in {
                getattr(part, "name", None) for part in node.body
            }:
                return f"{node.name}.{self.function.name}"
        return self.function.name

    @property
    def solution(self) -> str:
        """The lines between the markers, not indented."""
        lines = self.solved.splitlines()
        first, last = (
            next(i for i, line in enumerate(lines) if line.strip().startswith(f"### {word} SOLUTION"))
            for word in ("BEGIN", "END")
        )
        return textwrap.dedent("\n".join(lines[first + 1 : last])) + "\n"

    def answered(self, body: str) -> str:
        """The learner's cell with `body` in place of the line that raises."""
        lines = self.stub.splitlines()
        (at,) = (i for i, line in enumerate(lines) if line.strip().startswith("raise NotImplementedError("))
        indent = lines[at][: len(lines[at]) - len(lines[at].lstrip())]
        lines[at : at + 1] = textwrap.indent(textwrap.dedent(body).strip("\n"), indent).splitlines()
        return "\n".join(lines)

    def changed(self, change: dict[str, str] | str) -> str:
        """The learner's cell with a new body, or with the course's after replacing texts that occur once."""
        if isinstance(change, str):
            return self.answered(change)
        body = self.solution
        for old, new in change.items():
            assert body.count(old) == 1, f"{self.id}: {old!r} occurs {body.count(old)} times in the solution"
            body = body.replace(old, new)
        return self.answered(body)


def _cells(notebook: dict, tag: str) -> dict[str, str]:
    """Sources of the cells with a tag, by exercise id."""
    return {c["metadata"]["kvcourse"]["id"]: c["source"] for c in notebook["cells"] if tag in tags(c)}


def _tasks() -> dict[str, Task]:
    tasks = {}
    for chapter in read_manifest(ROOT).chapters:
        notebook = read_notebook(ROOT / chapter.file)
        solved, public = _cells(notebook, "exercise"), _cells(notebook, "public-test")
        stubs = _cells(student_copy(notebook), "exercise")
        for exercise in chapter.exercises:
            tasks[exercise.id] = Task(
                exercise.id,
                exercise.points,
                PurePosixPath(chapter.file).stem,
                solved[exercise.id],
                stubs[exercise.id],
                public[exercise.id],
            )
    return tasks


TASKS = _tasks()


@dataclass(frozen=True)
class Mutant:
    """A small mistake that a learner makes.

    fails: name of the graded test that must fail. wrong_for: an expression whose value is not the one that the
    course's solution gives. change: texts to replace in the course's solution, or a whole new body.
    """

    name: str
    fails: str
    wrong_for: str
    change: dict[str, str] | str


@dataclass(frozen=True)
class Variant:
    """A right answer that is written in another way; `earlier` is a cell that stands before the exercise."""

    name: str
    body: str
    earlier: str = ""


@dataclass(frozen=True)
class Exploit:
    """A way to get points without solving an exercise, or to hurt the grader.

    body: takes the place of the line that raises, in a function or a method; `exploits.py` lists the marks in
    it. costly: it burns a whole limit in every test. at_definition: it also acts while the cell is loaded.
    everywhere: it is about what a test compares or knows, so it is tried on every exercise, always.
    """

    name: str
    body: str
    costly: bool = False
    everywhere: bool = False
    at_definition: bool = False


def write_submission(folder: Path, answers: dict[str, str], earlier: dict[str, str] | None = None) -> Path:
    """Write the student notebooks into `folder`, with `answers` (exercise id -> cell) and cells before them."""
    folder.mkdir(parents=True)
    for chapter in read_manifest(ROOT).chapters:
        notebook = student_copy(read_notebook(ROOT / chapter.file))
        for cell in list(notebook["cells"]):
            exercise = cell["metadata"].get("kvcourse", {}).get("id")
            if "exercise" not in tags(cell) or exercise not in answers:
                continue
            cell["source"] = answers[exercise]
            if earlier and exercise in earlier:
                added = {**cell, "id": f"{cell['id']}x", "metadata": {}, "source": earlier[exercise]}
                notebook["cells"].insert(notebook["cells"].index(cell), added)
        (folder / PurePosixPath(chapter.file).name).write_text(dump_notebook(notebook), "utf-8")
    return folder
