"""A small course in a temporary folder: two notebooks, a landing page, a glossary, one documented module."""

from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

BOOK = """\
schema = 1
[book]
title = "Toy course"
authors = ["A. Author"]
copyright = "2026"
landing = "book/index.md"
bibliography = ["book/references.bib"]
[book.api]
page = "book/api.md"
modules = ["kvcourse.errors"]
[[part]]
title = "Chapters"
[[part.chapter]]
file = "notebooks/00_first.ipynb"
title = "First"
minutes = 10
objectives = ["Print a number"]
[[part.chapter]]
file = "notebooks/01_second.ipynb"
title = "Second"
minutes = 20
objectives = ["Double a number"]
exercises = [{ id = "ex-double", points = 3 }]
[[part]]
title = "Reference"
[[part.page]]
file = "book/glossary.md"
[[part.page]]
file = "book/api.md"
[[planned]]
title = "Third"
about = "Halve a number."
"""
PAGES = {
    "book/index.md": "# Toy course\n\n% kvcourse: chapters\n\n## Planned\n\n% kvcourse: planned\n",
    "book/glossary.md": "# Glossary\n\n```{glossary}\ntoken\n  A number {cite:p}`one`.\n\nkey\n  A vector.\n```\n\n"
    "```{bibliography}\n:all:\n```\n",
    "book/api.md": "# Package\n\n% kvcourse: api\n",
    "book/references.bib": "@article{one, title={One}, author={Author, A.}, journal={J}, year={2020}}\n",
    "bookassets/kvcourse.css": "/* empty */\n",
}
WIDGET = """\
import anywidget
import traitlets


class Number(anywidget.AnyWidget):
    _esm = "export default {render({model, el}) {el.textContent = 'widget-' + 'alive-' + model.get('n')}}"
    n = traitlets.Int(7).tag(sync=True)


Number()"""
SOLUTION = """\
def double(x):
    ### BEGIN SOLUTION add the number to itself
    secret_sum = x + x
    return secret_sum
    ### END SOLUTION"""


def make_project(root: Path) -> Path:
    """Write the small course into `root`."""
    for name, text in {"book.toml": BOOK, **PAGES}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, "utf-8")
    exercise = {"tags": ["exercise"], "kvcourse": {"id": "ex-double", "points": 3}}
    test = {"tags": ["public-test"], "kvcourse": {"id": "ex-double"}}
    write(root / "notebooks/00_first.ipynb", [
        new_markdown_cell("# First\n\nThe number $x^2$."),
        new_code_cell("print('one'); print('two')\n6 * 7"),
        new_code_cell(WIDGET),
    ])  # fmt: skip
    write(root / "notebooks/01_second.ipynb", [
        new_markdown_cell("# Second"),
        new_code_cell("shown = 'kept output'\nprint(shown)"),
        new_code_cell(SOLUTION, metadata=exercise),
        new_code_cell("print('answer', double(21))", metadata=test),
        new_code_cell("print(shown.upper())"),
    ])  # fmt: skip
    return root


def write(path: Path, cells: list) -> Path:
    """Write a notebook with fixed cell ids."""
    for index, cell in enumerate(cells):
        cell["id"] = f"cell-{index}"
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(new_notebook(cells=cells), path)
    return path


def edit(path: Path, old: str, new: str) -> None:
    """Replace text that must be there."""
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new), "utf-8")


def code(source, *tags, **facts):
    """A cell that was run and printed something."""
    metadata = {"tags": list(tags)} | ({"kvcourse": facts} if facts else {})
    output = new_output("stream", name="stdout", text=f"output of {source}")
    return new_code_cell(source, metadata=metadata, outputs=[output], execution_count=1)
