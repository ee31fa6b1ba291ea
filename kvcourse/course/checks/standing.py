"""What the public checks said last about each exercise, kept in the learner's folder between kernels."""

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from kvcourse.course.manifest import read_manifest
from kvcourse.course.notebook import write_text
from kvcourse.course.outline import Place, find_place, outline_of
from kvcourse.errors import InputError

FILE = ".kvcourse/progress.json"
LOCK = ".kvcourse/progress.lock"
LOCK_SECONDS = 10
SCHEMA = 1

_memory: dict[Path | None, dict[str, "Standing | None"]] = {}  # what no file holds, by folder
_warned: set[Path] = set()


@dataclass(frozen=True)
class Standing:
    """So many of an exercise's public cases passed. An exercise without a standing is open."""

    passed: int
    cases: int

    @property
    def is_solved(self) -> bool:
        return self.passed == self.cases


def require_known(exercise_id: str) -> None:
    """InputError if the current folder belongs to a course whose `book.toml` does not have the exercise.

    A learner's folder is not asked: its notebooks may be older than its outline.
    """
    place = find_place()
    if place is None or not place.is_source:
        return
    try:
        known = outline_of(read_manifest(place.folder, files=False)).ids
    except InputError:  # `kvcourse book check` says what is wrong with it
        return
    if exercise_id not in known:
        raise InputError(
            f"book.toml has no exercise {exercise_id!r}; it has {', '.join(sorted(known)) or 'none'}"
        )


def keep_standing(exercise_id: str, standing: Standing | None) -> None:
    """Remember a result, None for open: in the learner's folder, elsewhere until the process ends.

    Never raises: where nothing can be written it says so once and keeps the result in memory.
    """
    place = find_place()
    folder = _store(place)
    unsaved = _memory.setdefault(folder, {})
    unsaved[exercise_id] = standing
    if folder is None:
        return
    try:
        with _locked(folder):
            kept = {**_read(folder), **unsaved}
            exercises = {key: asdict(value) for key, value in sorted(kept.items()) if value is not None}
            text = json.dumps({"schema": SCHEMA, "exercises": exercises}, indent=2) + "\n"
            write_text(folder / FILE, text)
        unsaved.clear()
    except (OSError, NotImplementedError) as error:  # the second: a file system without locks
        _say_once(folder, error)


def read_standings() -> dict[str, Standing]:
    """The standings of the folder that we are in, by exercise id. Never raises."""
    folder = _store(find_place())
    kept: dict[str, Standing | None] = {}
    if folder is not None and os.path.isfile(folder / FILE):
        try:
            with _locked(folder):
                kept = dict(_read(folder))
        except (OSError, NotImplementedError):  # a folder that cannot be written may still be read
            with contextlib.suppress(OSError, ValueError):
                kept = dict(_parse((folder / FILE).read_text("utf-8")))
    kept.update(_memory.get(folder, {}))
    return {key: value for key, value in kept.items() if value is not None}


def _store(place: Place | None) -> Path | None:
    """The folder with the file, None for memory: the course's own notebooks never write one."""
    return None if place is None or place.is_source else place.folder


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Two kernels read, change and write the file one after the other."""
    from filelock import FileLock

    with FileLock(folder / LOCK, timeout=LOCK_SECONDS):
        yield


def _read(folder: Path) -> dict[str, Standing]:
    """The file's content. A damaged file is moved aside and counts as empty. Errors: OSError."""
    path = folder / FILE
    try:
        return _parse(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError:
        number = 1
        while (aside := path.with_name(f"progress.damaged-{number}.json")).exists():
            number += 1
        os.replace(path, aside)
        _say(f"{FILE} was damaged; it is now {aside.name}, and progress is counted anew")
        return {}


def _parse(text: str) -> dict[str, Standing]:
    """The standings in the text of a file. Errors: ValueError for anything else."""
    try:
        data = json.loads(text)
        if data["schema"] != SCHEMA:
            raise ValueError(f"schema {data['schema']!r}")
        kept = {key: Standing(**value) for key, value in data["exercises"].items()}
        if not all(0 <= s.passed <= s.cases and s.cases > 0 for s in kept.values()):
            raise ValueError("more cases passed than there are")
        if not all(type(n) is int for s in kept.values() for n in (s.passed, s.cases)):
            raise ValueError("a count is not a whole number")
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(str(error)) from error
    return kept


def _say_once(folder: Path, error: Exception) -> None:
    if folder not in _warned:
        _warned.add(folder)
        reason = getattr(error, "strerror", None) or type(error).__name__
        _say(f"{FILE} cannot be written ({reason}); progress is kept until this kernel stops")


def _say(text: str) -> None:
    print(f"kvcourse: {text}", file=sys.stderr)
