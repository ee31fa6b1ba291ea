"""What learners hand in, in files: notebooks of any content, folders, zips."""

import json
import zipfile
from pathlib import Path

from learner import ROOT, TASKS

from kvcourse.course.grading.submission import Submission, read_submission
from kvcourse.course.manifest import Manifest, read_manifest

FIRST, SECOND = "00_start_here", "01_naive_cache"
MANIFEST: Manifest = read_manifest(ROOT)
IDS = {stem: [task.id for task in TASKS.values() if task.chapter == stem] for stem in (FIRST, SECOND)}


def notebook(*ids: str, source: str = "x = 1", metadata: dict | None = None) -> bytes:
    """A notebook with a cell for each exercise id, or one cell without."""
    cells = [
        {"cell_type": "code", "source": source, "metadata": {"tags": ["exercise"], "kvcourse": {"id": i}}}
        for i in ids
    ]
    cells = cells or [{"cell_type": "code", "source": source, "metadata": {}}]
    return json.dumps(
        {"nbformat": 4, "nbformat_minor": 5, "metadata": metadata or {}, "cells": cells}
    ).encode()


def chapter(stem: str, source: str = "x = 1") -> bytes:
    return notebook(*IDS[stem], source=source)


def sources(submission: Submission) -> dict[str, str]:
    """Chapter -> source of the first cell."""
    return {stem: book["cells"][0]["source"] for stem, book in submission.notebooks.items()}


def write(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def zipped(path: Path, files: dict[str, bytes] | list[tuple[str | zipfile.ZipInfo, bytes]], method=8) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in files.items() if isinstance(files, dict) else files:
            archive.writestr(name, data)
    return path


def read(path: Path) -> Submission:
    """Read a submission and check what holds for every one."""
    found = read_submission(path, MANIFEST)
    for line in (found.name, *found.notes):
        assert (
            line.replace("\u200c", "").replace("\u200d", "").isprintable()
        )  # joiners are part of a spelling
        assert 0 < len(line) < 400
    assert len(found.digest) == 64
    assert set(found.notebooks) <= set(IDS)
    json.dumps(found.notebooks)
    return found


def only_note(path: Path) -> str:
    """The one note of a submission without a notebook that counts."""
    found = read(path)
    assert found.notebooks == {}
    (note,) = found.notes
    return note
