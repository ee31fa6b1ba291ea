"""Notebook files: read them, write them, and the few facts of a notebook that the course tools share."""

import hashlib
import json
import os
import tempfile
from pathlib import Path

from kvcourse.errors import InputError

TEST_TAGS = frozenset({"public-test", "hidden-test"})


def read_notebook(path: Path) -> dict:
    """A notebook (format version 4) with every source as one string, or an InputError that names the file."""
    import nbformat

    try:
        notebook = nbformat.reads(path.read_text("utf-8"), as_version=4)
    except OSError as error:
        raise InputError(f"{path.name} cannot be read: {error.strerror}") from error
    except Exception as error:  # nbformat raises a dozen kinds, all meaning the same to the reader
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(
            f"{path.name} is not a notebook ({reason[:120]}); save it again in JupyterLab"
        ) from error
    if not notebook.get("cells"):
        raise InputError(f"{path.name} has no cells")
    return notebook


def dump_notebook(notebook: dict) -> str:
    """The text of a notebook file: keys sorted and sources split in lines, so that diffs are small."""
    import nbformat

    return nbformat.writes(nbformat.from_dict(notebook), version=4).rstrip("\n") + "\n"


def write_text(path: Path, text: str) -> None:
    """Write a text file whole or not at all: an interrupted run leaves the old one as it was."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file whole or not at all, in a folder that is made if it is not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        mode = path.stat().st_mode & 0o777 if path.exists() else 0o644
        os.chmod(name, mode)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def source_hash(notebook: dict) -> str:
    """Sixteen hex digits over the code cells in order: prose can change without making outputs stale."""
    return _digest([cell["source"] for cell in notebook["cells"] if cell["cell_type"] == "code"])


def release_hash(notebook: dict) -> str:
    """Sixteen hex digits over all cells, prose included: what a learner's copy was made from."""
    return _digest([cell["source"] for cell in notebook["cells"]])


def _digest(sources: list[str]) -> str:
    return hashlib.sha256(json.dumps(sources).encode()).hexdigest()[:16]


def title(notebook: dict) -> str | None:
    """The first level-1 heading, or None."""
    markdown = (cell["source"] for cell in notebook["cells"] if cell["cell_type"] == "markdown")
    return next((found for text in markdown if (found := heading(text))), None)


def heading(text: str) -> str | None:
    """The first level-1 heading of a Markdown text, or None."""
    return next((line[2:].strip() for line in text.splitlines() if line.startswith("# ")), None)


def tags(cell: dict) -> set[str]:
    """The tags of a cell."""
    return set(cell["metadata"].get("tags", []))


def exercises(notebook: dict) -> list[tuple[str | None, int | None]]:
    """(id, points) of each cell tagged `exercise`, in order; None where `metadata.kvcourse` lacks it."""
    found = [c["metadata"].get("kvcourse", {}) for c in notebook["cells"] if "exercise" in tags(c)]
    return [(facts.get("id"), facts.get("points")) for facts in found]
