"""A notebook from someone else: bytes or JSON of any shape in, known types out.

nbformat is not used here: its validation raises a dozen kinds of errors and its conversion guesses.
"""

import json
from dataclasses import dataclass

from kvcourse.course.grading.plain_text import one_line
from kvcourse.course.notebook import TEST_TAGS

FORMAT, NEWEST_MINOR = 4, 5


class NotANotebook(ValueError):  # noqa: N818 - it says what the bytes are
    """Bytes that hold no notebook of format 4, with what they are instead."""


@dataclass(frozen=True)
class Cell:
    """One cell. `index` is its position among all cells, from 0; `exercise` is the id that it carries."""

    index: int
    kind: str
    source: str
    tags: frozenset[str]
    exercise: str | None

    @property
    def is_test(self) -> bool:
        return bool(self.tags & TEST_TAGS)


def short(text: object, limit: int = 100) -> str:
    """What a learner wrote, in a message: one line of at most `limit` characters, nothing that steers a terminal."""
    shown = one_line(str(text)[: 2 * limit])
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def parse_notebook(data: bytes) -> tuple[dict, tuple[str, ...]]:
    """The notebook that a file holds, cleaned, and what is odd about it. Errors: NotANotebook."""
    raw, notes = _json(data)
    if not isinstance(raw, dict):
        raise NotANotebook("is JSON, but not a notebook; hand in the .ipynb file itself")
    major = raw.get("nbformat", FORMAT)
    if major != FORMAT or isinstance(major, bool):
        raise NotANotebook(
            f"has notebook format {short(major, 20)}, expected 4; open it in JupyterLab and save it"
        )
    if not isinstance(raw.get("cells"), list):
        raise NotANotebook("is not a notebook: it has no list of cells; hand in the .ipynb file itself")
    if not cells_of(raw):
        raise NotANotebook("has no cells; was the work saved?")
    minor = raw.get("nbformat_minor", NEWEST_MINOR)
    if not isinstance(minor, int) or minor > NEWEST_MINOR:
        notes.append(f"has notebook format 4.{short(minor, 20)}, read as 4.{NEWEST_MINOR}")
    return cleaned(raw), tuple(notes)


def cells_of(notebook: object) -> list[Cell]:
    """The cells of a notebook, whatever types its parts have; what is no cell is left out, but counted."""
    cells = notebook.get("cells") if isinstance(notebook, dict) else None
    found = []
    for index, cell in enumerate(cells if isinstance(cells, list) else ()):
        if not isinstance(cell, dict):
            continue
        metadata = _dict(cell.get("metadata"))
        tags, exercise = metadata.get("tags"), _dict(metadata.get("kvcourse")).get("id")
        found.append(
            Cell(
                index,
                _str(cell.get("cell_type")) or "raw",
                _source(cell.get("source")),
                frozenset(tag for tag in tags if isinstance(tag, str))
                if isinstance(tags, list)
                else frozenset(),
                exercise if isinstance(exercise, str) else None,
            )
        )
    return found


def cleaned(notebook: dict) -> dict:
    """A copy with cells at their places, sources and ids of known types, and nothing else: no outputs."""
    facts = _dict(_dict(notebook.get("metadata")).get("kvcourse"))
    by_index = {cell.index: cell for cell in cells_of(notebook)}
    empty = {"cell_type": "raw", "source": "", "metadata": {}}
    cells = [_plain(by_index[i]) if i in by_index else empty for i in range(max(by_index, default=-1) + 1)]
    kept = {key: value for key in ("chapter", "release") if isinstance(value := facts.get(key), str)}
    return {
        "nbformat": FORMAT,
        "nbformat_minor": NEWEST_MINOR,
        "metadata": {"kvcourse": kept},
        "cells": cells,
    }


def _plain(cell: Cell) -> dict:
    facts = {"kvcourse": {"id": cell.exercise}} if cell.exercise is not None else {}
    metadata = {"tags": sorted(cell.tags), **facts}
    return {"cell_type": cell.kind, "source": cell.source, "metadata": metadata}


def _json(data: bytes) -> tuple[object, list[str]]:
    if not data.strip():
        raise NotANotebook("is empty; was the work saved?")
    notes = []
    encoding = json.detect_encoding(data)
    if not encoding.startswith("utf-8"):
        notes.append(f"is {encoding.upper()} text, expected UTF-8; read all the same")
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        raise NotANotebook(
            f"is not {encoding.removesuffix('-sig').upper()} text (byte {error.start}); save it in JupyterLab"
        ) from error
    try:
        return json.loads(text), notes
    except json.JSONDecodeError as error:
        raise NotANotebook(_not_json(text, error)) from error
    except (RecursionError, ValueError, MemoryError) as error:  # nested too deep; a number too long
        raise NotANotebook(
            f"is no notebook that Jupyter wrote ({type(error).__name__} in its JSON)"
        ) from error


def _not_json(text: str, error: json.JSONDecodeError) -> str:
    if text.lstrip()[:1] == "<" and not text.lstrip().startswith("<<<<<<<"):
        return "is a web page, not a notebook; download the .ipynb file itself"
    if "<<<<<<<" in text and ">>>>>>>" in text:
        return "holds conflict markers of git (<<<<<<<); merge it and hand it in again"
    return f"is not a notebook: no JSON (line {error.lineno}: {short(error.msg, 60)}); save it in JupyterLab"


def _source(value: object) -> str:
    if isinstance(value, list):
        return "".join(line for line in value if isinstance(line, str))
    return _str(value)


def _str(value: object) -> str:
    return value if isinstance(value, str) else ""


def _dict(value: object) -> dict:
    return value if isinstance(value, dict) else {}
