"""The folder of grades: one assignment's records and what is made from them."""

import contextlib
import json
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kvcourse.course.grading.record import SEEDS, Record, read_record
from kvcourse.course.notebook import write_text
from kvcourse.errors import InputError

SCHEMA = 1
MARK = "grades.json"  # says that a folder is ours, with the seed and the chapters of its assignment
LOCK = ".lock"


@dataclass(frozen=True)
class Grades:
    """A folder of grades: `seed` and `chapters` are the same for every record that is written into it."""

    folder: Path
    seed: int
    chapters: tuple[str, ...]

    @property
    def records(self) -> Path:
        """The folder of records, NAME.json each."""
        return self.folder / "records"

    @property
    def gradebook(self) -> Path:
        """The table of all records."""
        return self.folder / "gradebook.csv"

    @property
    def log(self) -> Path:
        """What pytest said, if the grader broke in the last run."""
        return self.folder / "pytest.log"

    def read(self) -> list[Record]:
        """All records of the folder, ordered by name. Errors: InputError for a file that is not a record."""
        found = self.records.glob("*.json") if self.records.is_dir() else ()
        return in_order(read_record(path) for path in found if not path.name.startswith("."))

    def write(self, place: str, text: str) -> None:
        """Write a file of the folder, whole or not at all. Errors: InputError if the disk is full or read-only."""
        write_output(self.folder / place, text)


def write_output(path: Path, text: str) -> None:
    """Write a file, whole or not at all. Errors: InputError that names the file and says why it cannot be."""
    try:
        write_text(path, text)
    except OSError as error:
        raise InputError(
            f"{path} cannot be written: {error.strerror}; the records that are there are kept"
        ) from error


def in_order(records: Iterable[Record]) -> list[Record]:
    """Records by name, without regard to case; the order of all outputs."""
    return sorted(records, key=lambda record: (record.name.casefold(), record.name))


@contextlib.contextmanager
def open_grades(
    folder: Path, chapters: Sequence[str], seed: int | None = None, fresh: bool = False
) -> Iterator[Grades]:
    """A folder of grades, made if need be, for one batch at a time.

    Without a `seed`, the one of the folder is used, or drawn for a new folder. Errors: InputError if the folder
    holds something else, has another seed (unless `fresh`) or other chapters, or another batch is running in it.
    """
    import filelock

    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; give --out a folder")
    kept = _read_mark(folder)
    if kept is None and folder.is_dir() and any(path.name != LOCK for path in folder.iterdir()):
        raise InputError(f"{folder} holds something else than grades; give --out a new or an empty folder")
    if kept and kept.chapters != tuple(chapters):
        raise InputError(
            f"{folder} has the grades of {_listed(kept.chapters)}, these are of {_listed(chapters)};"
            " give another --out"
        )
    if kept and seed is not None and seed != kept.seed and not fresh:
        raise InputError(
            f"{folder} was graded with seed {kept.seed}; leave out --seed, give another --out, or --fresh to grade"
            " all again"
        )
    if seed is not None and seed >= SEEDS:
        raise InputError(f"--seed {seed}: expected a whole number from 0 to {SEEDS - 1}")
    if seed is None:
        seed = kept.seed if kept else secrets.randbelow(SEEDS)
    grades = Grades(folder, seed, tuple(chapters))
    try:
        grades.records.mkdir(parents=True, exist_ok=True)
        lock = filelock.FileLock(folder / LOCK, timeout=0)
        lock.acquire()
    except filelock.Timeout as error:
        raise InputError(f"another kvcourse grade is at work in {folder}; wait until it is done") from error
    except OSError as error:
        raise InputError(f"{folder} cannot be written: {error.strerror}; give another --out") from error
    with contextlib.ExitStack() as stack:
        stack.callback(lock.release)
        data = {"schema": SCHEMA, "seed": seed, "chapters": list(chapters)}
        grades.write(MARK, json.dumps(data, indent=1, sort_keys=True) + "\n")
        yield grades


def check_place(folder: Path, submissions: Iterable[Path], course: Path) -> None:
    """Refuse a folder of grades inside what is graded, or inside the course's own notebooks."""
    place = folder.resolve()
    for given in submissions:
        if given.is_dir() and place.is_relative_to(given.resolve()):
            raise InputError(f"{folder} lies inside the submissions in {given}; give --out a folder outside")
    if place.is_relative_to((course / "notebooks").resolve()):
        raise InputError(f"{folder} lies inside the course's notebooks; give another --out")


def _listed(chapters: Sequence[str]) -> str:
    return f"chapter{'s' if len(chapters) > 1 else ''} {', '.join(chapters)}"


def _read_mark(folder: Path) -> Grades | None:
    """What the folder says of itself, or None if it says nothing."""
    path = folder / MARK
    try:
        data = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read; give another --out") from error
    known = isinstance(data, dict) and data.get("schema") == SCHEMA
    if not known or not isinstance(data.get("seed"), int) or not isinstance(data.get("chapters"), list):
        raise InputError(f"{path} is not of this version of kvcourse; give another --out")
    return Grades(folder, data["seed"], tuple(map(str, data["chapters"])))
