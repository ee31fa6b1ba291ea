"""The student copy of a notebook: solutions become stubs, and no output that depends on a solution stays."""

import copy
import json
import re
from pathlib import Path

from kvcourse.course.names import parse
from kvcourse.course.notebook import read_notebook, release_hash, tags
from kvcourse.course.release.markers import HIDDEN_TESTS, Block, replace_blocks
from kvcourse.course.release.spoilers import Spoilers
from kvcourse.errors import InputError

DROPPED_TAGS = frozenset({"solution", "hidden-test"})
SPOILING_TAGS = DROPPED_TAGS | {"exercise"}
WIDGET_STATE = "application/vnd.jupyter.widget-state+json"
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
DEFAULT_HINT = "your code goes here"

# Metadata that a learner's copy has a use for. Anything else may be an author's note, a time, a value.
_CELL_METADATA = frozenset(
    {"collapsed", "deletable", "editable", "jupyter", "mystnb", "scrolled", "slideshow", "tags"}
)
_NOTEBOOK_METADATA = frozenset({"authors", "kernelspec", "language_info", "mystnb", "title", "widgets"})
_EXERCISE_FACTS = ("id", "points")
_UPDATED_IN_PLACE = re.compile(r"\b(display_id|update_display)\b")


def student_notebook(path: Path) -> dict:
    """The student copy of the notebook at `path`, which it names as its chapter.

    Errors: InputError, with the file's name, if it cannot be read or made into a student copy.
    """
    notebook = read_notebook(path)
    try:
        return student_copy(notebook, chapter=path.stem)
    except InputError as error:
        raise InputError(f"{path.name}: {error}") from error


def student_copy(notebook: dict, keep_widgets: bool = False, chapter: str | None = None) -> dict:
    """A copy of `notebook` for students; the original is not touched.

    Text between `### BEGIN SOLUTION` and `### END SOLUTION` becomes one line that raises NotImplementedError
    with the hint: what follows BEGIN SOLUTION on its line, else `metadata.kvcourse.hint` of the cell; in a text
    cell it becomes the hint. Text between `### BEGIN HIDDEN TESTS` and `### END HIDDEN TESTS` goes, and so do cells
    tagged `solution` or `hidden-test`, and attachments and metadata that nothing needs. Outputs go where a cell is
    an exercise, holds a solution, or may show a value that came from one (see Spoilers). Widget state goes too;
    with `keep_widgets` (the book) what the remaining outputs show stays. `metadata.kvcourse` says the edition,
    the release, and the `chapter`: the name of the course's file without its suffix, if given. Errors: InputError
    for unbalanced markers and for a stub that is not valid Python.
    """
    student = copy.deepcopy(notebook)
    spoilers = Spoilers()
    code = []
    kept = []
    updates = False
    for index, cell in enumerate(student["cells"]):
        dropped = bool(tags(cell) & DROPPED_TAGS)
        stub = cell["source"] if dropped else _stub(cell, index)
        if cell["cell_type"] == "code":
            solves = bool(tags(cell) & SPOILING_TAGS) or stub != cell["source"]
            if spoilers.visit(cell["source"], solves):
                cell["outputs"], cell["execution_count"] = [], None
                updates |= bool(_UPDATED_IN_PLACE.search(cell["source"]))
            code.append(cell)
        cell["source"] = stub
        _prune_cell(cell)
        if not dropped:
            kept.append(cell)
    for index, cell in enumerate(code):
        if updates and _UPDATED_IN_PLACE.search(cell["source"]):
            cell["outputs"] = []
        if any(_is_live(output, cell) for output in cell["outputs"]) and spoilers.changed_later(index):
            cell["outputs"] = []
    student["cells"] = kept
    _prune_widgets(student, keep_widgets)
    facts = {k: v for k, v in notebook["metadata"].get("kvcourse", {}).items() if k != "source_hash"}
    facts |= {"chapter": chapter} if chapter else {}
    student["metadata"] = {k: v for k, v in student["metadata"].items() if k in _NOTEBOOK_METADATA}
    student["metadata"]["kvcourse"] = {**facts, "edition": "student", "release": release_hash(notebook)}
    return student


def _stub(cell: dict, index: int) -> str:
    """The source with each solution replaced by its hint; checked, since a student starts from it."""
    default = cell["metadata"].get("kvcourse", {}).get("hint", DEFAULT_HINT)
    is_code = cell["cell_type"] == "code"

    def replacement(block: Block) -> list[str]:
        if block.kind == HIDDEN_TESTS:
            return []
        hint = block.hint or default
        text = (
            f"raise NotImplementedError({json.dumps(hint, ensure_ascii=False)})" if is_code else f"*{hint}*"
        )
        return [block.indent + text]

    try:
        stub = replace_blocks(cell["source"], replacement)
    except InputError as error:
        raise InputError(f"cell {index}: {error}") from error
    if is_code and stub != cell["source"]:
        try:
            parse(stub)
        except SyntaxError as error:
            raise InputError(
                f"cell {index}: without its solution the cell is not valid Python"
                f" (line {error.lineno}: {error.msg}); move the markers"
            ) from error
    return stub


def _prune_cell(cell: dict) -> None:
    """Drop metadata that is not for learners, and attachments that the text no longer shows."""
    metadata = {k: v for k, v in cell["metadata"].items() if k in _CELL_METADATA}
    facts = cell["metadata"].get("kvcourse", {})
    if facts := {name: facts[name] for name in _EXERCISE_FACTS if name in facts}:
        metadata["kvcourse"] = facts
    cell["metadata"] = metadata
    if "attachments" in cell:
        shown = {k: v for k, v in cell["attachments"].items() if f"attachment:{k}" in cell["source"]}
        cell["attachments"] = shown
        if not shown:
            del cell["attachments"]


def _is_live(output: dict, cell: dict) -> bool:
    """True for an output that a later cell could have changed: a widget, or a display with a handle."""
    return WIDGET_VIEW in output.get("data", {}) or bool(_UPDATED_IN_PLACE.search(cell["source"]))


def _prune_widgets(notebook: dict, keep: bool) -> None:
    """Drop the state of widgets that no output shows; without `keep`, drop all state and the views of it."""
    state = notebook["metadata"].get("widgets", {}).get(WIDGET_STATE, {}).get("state", {})
    shown: list[str] = []
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code":
            continue
        if not keep:
            cell["outputs"] = [out for out in cell["outputs"] if WIDGET_VIEW not in out.get("data", {})]
        shown += [
            output["data"][WIDGET_VIEW]["model_id"]
            for output in cell["outputs"]
            if WIDGET_VIEW in output.get("data", {})
        ]
    needed: set[str] = set()
    while shown:
        model = shown.pop()
        if model in state and model not in needed:
            needed.add(model)
            shown += re.findall(r"IPY_MODEL_(\w+)", json.dumps(state[model]))
    if needed:
        notebook["metadata"]["widgets"][WIDGET_STATE]["state"] = {
            k: v for k, v in state.items() if k in needed
        }
    else:
        notebook["metadata"].pop("widgets", None)
