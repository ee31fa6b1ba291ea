"""The student copy of a notebook: solutions become stubs, and no output that depends on a solution stays."""

import ast
import copy
import json
import re
import symtable
from dataclasses import dataclass, field

from kvcourse.course.notebook import source_hash, tags
from kvcourse.errors import InputError

DROPPED_TAGS = frozenset({"solution", "hidden-test"})
SPOILING_TAGS = DROPPED_TAGS | {"exercise"}
WIDGET_STATE = "application/vnd.jupyter.widget-state+json"
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
DEFAULT_HINT = "your code goes here"

_BLOCK = re.compile(
    r"^(?P<indent>[ \t]*)### BEGIN SOLUTION(?P<hint>[^\n]*)\n.*?^[ \t]*### END SOLUTION[^\n]*$", re.M | re.S
)
_MAGIC = re.compile(r"^(\s*)[%!].*$", re.M)


def student_copy(notebook: dict, keep_widgets: bool = False) -> dict:
    """A copy of `notebook` for students; the original is not touched.

    Text between `### BEGIN SOLUTION` and `### END SOLUTION` becomes one line that raises NotImplementedError
    with the hint: what follows BEGIN SOLUTION on its line, else `metadata.kvcourse.hint` of the cell. Cells
    tagged `solution` or `hidden-test` go. Outputs go where a cell is an exercise, holds a solution, or uses
    (directly or through other cells) a name that such a cell defines or an object it changes. Widget state
    goes too; with `keep_widgets` (the book) what the remaining outputs show stays. Raises InputError for
    unbalanced markers and for a stub that is not valid Python.
    """
    student = copy.deepcopy(notebook)
    spoiled: set[str] = set()
    modules: set[str] = set()
    kept = []
    for index, cell in enumerate(student["cells"]):
        if cell["cell_type"] == "code":
            names = _names_of(cell["source"])
            modules |= names.imported
            stub = cell["source"] if tags(cell) & DROPPED_TAGS else _stub(cell, index)
            solves = bool(tags(cell) & SPOILING_TAGS) or stub != cell["source"]
            if solves or names.read & spoiled or not names.parsed:
                spoiled |= names.stored | (names.touched - modules)
                cell["outputs"], cell["execution_count"] = [], None
            else:
                spoiled -= names.stored  # new values, and no solution went into them
            cell["source"] = stub
        if not tags(cell) & DROPPED_TAGS:
            kept.append(cell)
    student["cells"] = kept
    _prune_widgets(student, keep_widgets)
    facts = {k: v for k, v in notebook["metadata"].get("kvcourse", {}).items() if k != "source_hash"}
    student["metadata"]["kvcourse"] = {**facts, "edition": "student", "release": source_hash(notebook)}
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
            ast.parse(_without_magics(stub))
        except SyntaxError as error:
            raise InputError(
                f"cell {index}: without its solution the cell is not valid Python"
                f" (line {error.lineno}: {error.msg}); move the markers"
            ) from error
    return stub


# ---- which cells depend on a solution --------------------------------------------------------------


@dataclass
class _Names:
    """Module-level names that a cell reads, assigns, imports, or may change in place (`touched`)."""

    read: set[str] = field(default_factory=set)
    stored: set[str] = field(default_factory=set)
    imported: set[str] = field(default_factory=set)
    touched: set[str] = field(default_factory=set)
    parsed: bool = True


def _names_of(source: str) -> _Names:
    names = _Names()
    try:
        source = _without_magics(source)
        tables, tree = [symtable.symtable(source, "cell", "exec")], ast.parse(source)
    except SyntaxError:
        names.parsed = False  # not understood, so its output is not trusted either
        return names
    while tables:
        table = tables.pop()
        tables += table.get_children()
        for symbol in table.get_symbols():
            top = table.get_type() == "module"
            if symbol.is_referenced() and (top or symbol.is_global()):
                names.read.add(symbol.get_name())
            if (symbol.is_assigned() or symbol.is_imported()) and (top or symbol.is_declared_global()):
                names.stored.add(symbol.get_name())
            if symbol.is_imported() and top:
                names.imported.add(symbol.get_name())
    for node in ast.walk(tree):
        assigns = isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load)
        calls = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        if assigns or calls:  # x.y = …, x[i] = …, x.append(…)
            names.touched.add(_base_name(node.func if calls else node))
    names.touched &= names.read
    return names


def _base_name(node: ast.AST) -> str | None:
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def _without_magics(source: str) -> str:
    return _MAGIC.sub(r"\1pass", source)


# ---- widgets ---------------------------------------------------------------------------------------


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
