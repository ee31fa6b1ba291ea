"""The student copy of a notebook: solutions become stubs, and no output that depends on a solution stays."""

import copy
import json
import re

from kvcourse.course.names import Names, names_of, parse
from kvcourse.course.notebook import release_hash, tags
from kvcourse.errors import InputError

DROPPED_TAGS = frozenset({"solution", "hidden-test"})
SPOILING_TAGS = DROPPED_TAGS | {"exercise"}
WIDGET_STATE = "application/vnd.jupyter.widget-state+json"
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
DEFAULT_HINT = "your code goes here"

_BLOCK = re.compile(
    r"^(?P<indent>[ \t]*)### BEGIN SOLUTION(?P<hint>[^\n]*)\n.*?^[ \t]*### END SOLUTION[^\n]*$", re.M | re.S
)


def student_copy(notebook: dict, keep_widgets: bool = False) -> dict:
    """A copy of `notebook` for students; the original is not touched.

    Text between `### BEGIN SOLUTION` and `### END SOLUTION` becomes one line that raises NotImplementedError
    with the hint: what follows BEGIN SOLUTION on its line, else `metadata.kvcourse.hint` of the cell. Cells
    tagged `solution` or `hidden-test` go. Outputs go where a cell is an exercise, holds a solution, or uses
    (directly or through other cells) a name that such a cell defines or an object it changes. Widget state
    goes too; with `keep_widgets` (the book) what the remaining outputs show stays. Errors: InputError for
    unbalanced markers and for a stub that is not valid Python.
    """
    student = copy.deepcopy(notebook)
    spoiled: set[str] = set()
    modules: set[str] = set()
    kept = []
    for index, cell in enumerate(student["cells"]):
        if cell["cell_type"] == "code":
            stub = cell["source"] if tags(cell) & DROPPED_TAGS else _stub(cell, index)
            names = _names_or_none(cell["source"])
            solves = bool(tags(cell) & SPOILING_TAGS) or stub != cell["source"]
            if solves or names is None or names.read & spoiled:
                cell["outputs"], cell["execution_count"] = [], None
                if names:
                    spoiled |= names.stored | (names.touched - modules)
            else:
                spoiled -= names.surely  # new values, and no solution went into them
            modules |= names.imported if names else set()
            cell["source"] = stub
        if not tags(cell) & DROPPED_TAGS:
            kept.append(cell)
    student["cells"] = kept
    _prune_widgets(student, keep_widgets)
    facts = {k: v for k, v in notebook["metadata"].get("kvcourse", {}).items() if k != "source_hash"}
    student["metadata"]["kvcourse"] = {**facts, "edition": "student", "release": release_hash(notebook)}
    return student


def _stub(cell: dict, index: int) -> str:
    """The source with each solution replaced by a raise; checked, since a student starts from it."""
    default = cell["metadata"].get("kvcourse", {}).get("hint", DEFAULT_HINT)

    def replace(match: re.Match) -> str:
        hint = match["hint"].strip(" :") or default
        return f"{match['indent']}raise NotImplementedError({json.dumps(hint, ensure_ascii=False)})"

    stub = _BLOCK.sub(replace, cell["source"])
    if "### BEGIN SOLUTION" in stub or "### END SOLUTION" in stub:
        raise InputError(
            f"cell {index}: BEGIN SOLUTION and END SOLUTION do not pair up, each on its own line"
        )
    if stub != cell["source"]:
        try:
            parse(stub)
        except SyntaxError as error:
            raise InputError(
                f"cell {index}: without its solution the cell is not valid Python"
                f" (line {error.lineno}: {error.msg}); move the markers"
            ) from error
    return stub


def _names_or_none(source: str) -> Names | None:
    """None for a cell that Python cannot parse: not understood, so its output is not trusted either."""
    try:
        return names_of(source)
    except SyntaxError:
        return None


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
