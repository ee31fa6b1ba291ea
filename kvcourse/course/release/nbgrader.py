"""Notebooks for nbgrader (https://nbgrader.readthedocs.io): its cell metadata, and the sources it releases from.

The metadata is its schema version 3: which cells learners answer, which cells test them, and for how many points.
"""

import copy
import re
from pathlib import Path

from kvcourse.course.manifest import Chapter, Manifest
from kvcourse.course.notebook import TEST_TAGS, dump_notebook, read_notebook, tags
from kvcourse.course.release.markers import HIDDEN_TESTS, SOLUTION, Block, find_blocks, replace_blocks
from kvcourse.course.release.student import DROPPED_TAGS, student_copy
from kvcourse.errors import InputError

SCHEMA_VERSION = 3

_GRADE_ID = re.compile(r"[A-Za-z0-9_-]+")


def nbgrader_metadata(notebook: dict, chapter: Chapter) -> dict[int, dict]:
    """nbgrader's metadata of the cells of a course notebook, by the index of the cell; other cells have none.

    A cell tagged `exercise` is an answer, graded by its tests; so is code outside exercises with a solution in it.
    Cells tagged `public-test` or `hidden-test` are tests; those of one exercise share its points evenly. Errors:
    InputError for a test or exercise that is no code or has no id of `chapter`, an id that is there twice or that
    nbgrader does not take, and an exercise without a public test.
    """
    points = {exercise.id: exercise.points for exercise in chapter.exercises}
    answers: dict[str, int] = {}
    tests: dict[str, list[int]] = {exercise: [] for exercise in points}
    others = []
    public = set()
    for index, cell in enumerate(notebook["cells"]):
        if tags(cell) & (TEST_TAGS | {"exercise"}):
            exercise = _exercise_of(cell, index, points)
            if "exercise" not in tags(cell):
                tests[exercise].append(index)
                public |= {exercise} if "public-test" in tags(cell) else set()
            elif exercise in answers:
                raise InputError(f"cell {index}: exercise {exercise!r} is also in cell {answers[exercise]}")
            else:
                answers[exercise] = index
        elif cell["cell_type"] == "code" and not tags(cell) & DROPPED_TAGS and find_blocks(cell["source"]):
            others.append(index)
    for exercise in points:
        if exercise not in answers:
            raise InputError(f"exercise {exercise!r} is in book.toml, and no cell tagged exercise has it")
        if exercise not in public:
            raise InputError(
                f"cell {answers[exercise]}: exercise {exercise!r} has no test that learners can run; tag one"
                f" public-test, with the id of the exercise in metadata.kvcourse"
            )
    metadata = {index: _answer(exercise) for exercise, index in answers.items()}
    metadata |= {index: _answer(f"solution-{number}") for number, index in enumerate(others, 1)}
    for exercise, cells in tests.items():
        for number, index in enumerate(cells, 1):
            name = f"{exercise}-test" + (f"-{number}" if len(cells) > 1 else "")
            metadata[index] = _test(name, points[exercise] / len(cells))
    _check_ids(metadata)
    return metadata


def add_metadata(student: dict, notebook: dict, chapter: Chapter) -> None:
    """Write nbgrader's metadata into a student copy of `notebook`. Errors: as `nbgrader_metadata`."""
    metadata = nbgrader_metadata(notebook, chapter)
    left = [index for index, cell in enumerate(notebook["cells"]) if not tags(cell) & DROPPED_TAGS]
    for index, cell in zip(left, student["cells"], strict=True):
        if index in metadata:
            cell["metadata"]["nbgrader"] = metadata[index]


def instructor_source(notebook: dict, chapter: Chapter) -> dict:
    """The notebook as `nbgrader generate_assignment` takes it: solutions between its markers, and its metadata.

    A hint, which our marker line carries and nbgrader would drop, becomes a comment above the marker. Hidden tests
    are marked as nbgrader does. Solution cells without an answer of a learner go, and so do outputs. Errors: as
    `nbgrader_metadata` and `student_copy`.
    """
    source = student_copy(notebook, chapter=chapter.stem)
    add_metadata(source, notebook, chapter)
    shown = iter(source["cells"])
    metadata = nbgrader_metadata(notebook, chapter)
    cells = []
    for index, cell in enumerate(notebook["cells"]):
        if "hidden-test" in tags(cell):
            hidden = copy.deepcopy(cell)
            hidden["metadata"] = {"nbgrader": metadata[index]}
            hidden["source"] = f"### BEGIN {HIDDEN_TESTS}\n{cell['source']}\n### END {HIDDEN_TESTS}"
            cells.append(hidden)
        elif "solution" not in tags(cell):
            cells.append(next(shown))
            if cell["cell_type"] == "code":
                cells[-1]["source"] = replace_blocks(cell["source"], _with_hint_above(cell["source"]))
    for cell in cells:
        if cell["cell_type"] == "code":
            cell["outputs"], cell["execution_count"] = [], None
    source["cells"] = cells
    source["metadata"].pop("widgets", None)
    return source


def source_files(
    manifest: Manifest, folder: Path, chapters: tuple[Chapter, ...], force: bool = False
) -> dict[Path, bytes]:
    """The files `FOLDER/source/CHAPTER/CHAPTER.ipynb`, where nbgrader looks, and their content.

    Errors: InputError if one exists (without `force`) and as `instructor_source`.
    """
    files: dict[Path, bytes] = {}
    for chapter in chapters:
        path = manifest.root / chapter.file
        target = folder / "source" / path.stem / path.name
        if target.exists() and not force:
            raise InputError(f"{target} exists; --force replaces it")
        try:
            files[target] = dump_notebook(instructor_source(read_notebook(path), chapter)).encode()
        except InputError as error:
            raise InputError(f"{path.name}: {error}") from error
    return files


def _exercise_of(cell: dict, index: int, points: dict[str, int]) -> str:
    if cell["cell_type"] != "code":
        raise InputError(
            f"cell {index}: an exercise or test is a code cell, found a {cell['cell_type']} cell"
        )
    exercise = cell["metadata"].get("kvcourse", {}).get("id")
    if exercise not in points:
        known = ", ".join(points) or "none"
        raise InputError(
            f"cell {index}: metadata.kvcourse.id is {exercise!r}; expected an exercise of this chapter ({known})"
        )
    return exercise


def _answer(name: str) -> dict:
    return {
        "schema_version": SCHEMA_VERSION,
        "grade_id": name,
        "grade": False,
        "solution": True,
        "locked": False,
        "task": False,
        "cell_type": "code",
    }


def _test(name: str, points: float) -> dict:
    points = int(points) if points == int(points) else points
    return {**_answer(name), "grade": True, "solution": False, "locked": True, "points": points}


def _check_ids(metadata: dict[int, dict]) -> None:
    seen: dict[str, int] = {}
    for index, facts in metadata.items():
        name = facts["grade_id"]
        if not _GRADE_ID.fullmatch(name):
            raise InputError(
                f"cell {index}: nbgrader takes letters, digits, - and _ in an id, found {name!r}"
            )
        if name in seen:
            raise InputError(f"cell {index}: the id {name!r} is also that of cell {seen[name]}")
        seen[name] = index


def _with_hint_above(source: str):
    lines = source.split("\n")

    def replacement(block: Block) -> list[str]:
        body = lines[block.first + 1 : block.last + 1]
        if block.kind != SOLUTION:
            return [lines[block.first], *body]
        comment = [f"{block.indent}# {block.hint}"] if block.hint else []
        return [*comment, f"{block.indent}### BEGIN {SOLUTION}", *body]

    return replacement
