"""The record of one graded submission: the only thing that reports, gradebooks and `regrade` read.

A record holds no times, so the same submission, tests and seed give the same bytes.
"""

import dataclasses
import hashlib
import json
import math
import re
import types
import typing
from dataclasses import dataclass
from pathlib import Path

from kvcourse.course.grading.plain_text import file_name
from kvcourse.course.manifest import Manifest
from kvcourse.course.notebook import read_notebook, write_text
from kvcourse.errors import InputError

SCHEMA = 1
PACKAGES = ("kvcourse", "torch", "numpy")
NO_NOTEBOOK = "no notebook of chapter "  # why an exercise was not run: this and the chapter
OUTCOMES = ("passed", "failed", "stopped", "not run", "broken test")
VISIBILITIES = ("visible", "hidden", "after_due_date", "after_published")
SEEDS = 2**32  # seeds are whole numbers below it

_SHARED = ("checks/arrays.py", "checks/compare.py", "names.py")  # what the grader uses of kvcourse.course
# Files of this package that come after a score and so cannot change one.
_AFTER = frozenset(
    f"{name}.py"
    for name in (
        *("batch", "disclosure", "gradebook", "grades", "gradescope", "pytest_run", "regrade"),
        *("report", "scheduling", "summary", "table"),
    )
)


@dataclass(frozen=True)
class Outcome:
    """What one test said. `message` tells what differed, `hint` what to try; both are plain text."""

    test: str
    points: float
    earned: float
    outcome: str
    visibility: str = "visible"
    message: str = ""
    hint: str = ""

    @property
    def title(self) -> str:
        """The test's name as words."""
        name, bracket, case = self.test.removeprefix("test_").partition("[")
        return f"{name.replace('_', ' ')} {bracket}{case}".strip()


@dataclass(frozen=True)
class ExerciseScore:
    """One exercise: its points are those of `book.toml` and the sum of its tests' points."""

    id: str
    chapter: str
    points: float
    outcomes: tuple[Outcome, ...]
    notes: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """The id as words: `ex-1-fused-append` is "Fused append"."""
        words = re.sub(r"^ex-\d+-", "", self.id).replace("-", " ").strip()
        return words[:1].upper() + words[1:]

    @property
    def earned(self) -> float:
        """The points that its tests gave."""
        return total(outcome.earned for outcome in self.outcomes)


@dataclass(frozen=True)
class Record:
    """A submission's score and all that is needed to come to it again: digest, bundle, seed and versions."""

    name: str
    path: str
    digest: str
    bundle: str
    seed: int
    versions: dict[str, str]
    confinement: dict[str, str]
    chapters: tuple[str, ...]
    exercises: tuple[ExerciseScore, ...]
    notes: tuple[str, ...] = ()

    @property
    def points(self) -> float:
        """What could be earned."""
        return total(exercise.points for exercise in self.exercises)

    @property
    def earned(self) -> float:
        """What was earned."""
        return total(exercise.earned for exercise in self.exercises)

    def to_json(self) -> str:
        """The canonical text: keys sorted, ASCII, totals included so that other programs need not add up."""
        data = dataclasses.asdict(self) | {"schema": SCHEMA, "points": self.points, "earned": self.earned}
        for exercise, score in zip(data["exercises"], self.exercises, strict=True):
            exercise["earned"] = score.earned
        return json.dumps(_plain(data), sort_keys=True, indent=1, allow_nan=False) + "\n"

    @staticmethod
    def from_json(text: str | bytes) -> "Record":
        """Read what `to_json` wrote. Errors: InputError with one line for anything else, sums included."""
        return _record(_parse(text))


def number(points: float) -> int | float:
    """Points as people write them: 2, not 2.0."""
    return int(points) if float(points).is_integer() else float(points)


def total(points: typing.Iterable[float]) -> int | float:
    """The sum, free of rounding noise: ten times 0.1 is 1."""
    return number(round(math.fsum(points), 9))


def record_path(folder: Path, name: str) -> Path:
    """Where the record of the submission called `name` lies in a folder of records."""
    return folder / f"{file_name(name)}.json"


def write_record(folder: Path, record: Record) -> Path:
    """Write a record, whole or not at all, into a folder of records. Returns its file."""
    path = record_path(folder, record.name)
    write_text(path, record.to_json())
    return path


def read_record(path: Path) -> Record:
    """The record in a file. Errors: InputError that names the file."""
    try:
        return Record.from_json(path.read_bytes())
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    except InputError as error:
        raise InputError(f"{path} is not a record of a graded submission: {error}") from error


def current_versions() -> dict[str, str]:
    """The versions that a record names: those of Python and of the packages that computed the score."""
    import platform
    from importlib.metadata import version

    return {"python": platform.python_version()} | {name: version(name) for name in PACKAGES}


def bundle_hash(manifest: Manifest, hidden: Path | None = None) -> str:
    """The sha256, in hex, of all that decides a score apart from the submission and the seed.

    That is this package up to the record, what it shares with the notebooks' checks, the files of the hidden
    tests, the code of the course's own notebooks (the references), the points of the exercises and the version of
    kvcourse. Line ends do not count, so a checkout on another system has the same hash. Errors: InputError for an
    unreadable notebook.
    """
    from importlib.metadata import version

    here = Path(__file__).parent
    files = {f"grading/{path.relative_to(here).as_posix()}": path for path in here.rglob("*.py")}
    files = {name: path for name, path in files.items() if name.removeprefix("grading/") not in _AFTER}
    files |= {name: here.parent / name for name in _SHARED}
    if hidden is not None:
        files |= {f"hidden/{path.relative_to(hidden).as_posix()}": path for path in _hidden_files(hidden)}
    parts: list[object] = [["kvcourse", version("kvcourse")]]
    for name in sorted(files):
        content = files[name].read_bytes().replace(b"\r\n", b"\n")
        parts.append([name, hashlib.sha256(content).hexdigest()])
    for chapter in manifest.chapters:
        cells = read_notebook(manifest.root / chapter.file)["cells"]
        parts.append([chapter.file, [cell["source"] for cell in cells if cell["cell_type"] == "code"]])
        parts.append([[exercise.id, exercise.points] for exercise in chapter.exercises])
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _hidden_files(folder: Path) -> list[Path]:
    """Every file under the folder of hidden tests but caches and what a dot hides."""
    found = [path for path in folder.rglob("*") if path.is_file()]
    parts = {path: path.relative_to(folder).parts for path in found}
    return [p for p in found if not any(part.startswith((".", "__pycache__")) for part in parts[p])]


# ---- reading ---------------------------------------------------------------------------------------

_DERIVED = {Record: ("schema", "points", "earned"), ExerciseScore: ("earned",), Outcome: ()}


def _plain(value: object) -> object:
    """The value with whole floats as integers: 2 and 2.0 are the same points and give the same bytes."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return number(value) if isinstance(value, float) else value


def _parse(text: str | bytes) -> dict:
    def unique(pairs: list[tuple[str, object]]) -> dict:
        table = dict(pairs)
        if len(table) != len(pairs):
            raise InputError("a key stands twice in it")
        return table

    def refuse(constant: str) -> None:
        raise InputError(f"it holds {constant}, which is no number of points")

    try:
        data = json.loads(text, object_pairs_hook=unique, parse_constant=refuse)
    except InputError:
        raise
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError and JSONDecodeError are ValueErrors
        raise InputError("it is not JSON, or cut off; grade the submission again") from error
    if not isinstance(data, dict):
        raise InputError(f"it is a {type(data).__name__}, expected an object")
    if data.get("schema") != SCHEMA or isinstance(data.get("schema"), bool):
        raise InputError(f"it has schema {data.get('schema')!r}; this version reads schema {SCHEMA}")
    return data


def _record(data: dict) -> Record:
    record = _build(Record, data, "record")
    for exercise, entry in zip(record.exercises, data["exercises"], strict=True):
        for outcome in exercise.outcomes:
            _check_outcome(exercise.id, outcome)
        _check_sum(exercise.id, "points of its tests", exercise.points, (o.points for o in exercise.outcomes))
        _check_sum(exercise.id, "points earned", entry["earned"], (o.earned for o in exercise.outcomes))
    _check_sum("record", "points", data["points"], (e.points for e in record.exercises))
    _check_sum("record", "points earned", data["earned"], (e.earned for e in record.exercises))
    ids = [exercise.id for exercise in record.exercises]
    if twice := sorted({name for name in ids if ids.count(name) > 1}):
        raise InputError(f"{twice[0]} stands twice in it")
    return record


def _check_outcome(exercise: str, outcome: Outcome) -> None:
    where = f"{exercise}, {outcome.test}"
    if outcome.outcome not in OUTCOMES:
        raise InputError(f"{where}: outcome {outcome.outcome!r}, expected one of {', '.join(OUTCOMES)}")
    if outcome.visibility not in VISIBILITIES:
        raise InputError(
            f"{where}: visibility {outcome.visibility!r}, expected one of {', '.join(VISIBILITIES)}"
        )
    if not 0 <= outcome.earned <= outcome.points:
        raise InputError(f"{where}: {number(outcome.earned)} earned, expected 0 to {number(outcome.points)}")
    if outcome.outcome == "passed" and outcome.earned != outcome.points:
        raise InputError(f"{where}: passed, but {outcome.earned} of {outcome.points} points earned")


def _check_sum(where: str, what: str, said: float, parts: typing.Iterable[float]) -> None:
    found = total(parts)
    if abs(said - found) > 1e-6:
        raise InputError(f"{where}: {what}: it says {number(said)}, they add up to {found}")


def _build(cls: type, data: object, where: str) -> typing.Any:
    """An instance of a dataclass of this file from its JSON; every field, no other, each of its type."""
    if not isinstance(data, dict):
        raise InputError(f"{where} is a {type(data).__name__}, expected an object")
    hints = typing.get_type_hints(cls)
    expected = {*hints, *_DERIVED[cls]}
    for key in sorted(expected - set(data)):
        raise InputError(f"{where} has no {key!r}")
    for key in sorted(set(data) - expected):
        raise InputError(f"{where} has an unknown field {key[:40]!r}")
    for key in set(_DERIVED[cls]) - {"schema"}:
        _value(float, data[key], f"{where}: {key}")
    return cls(**{key: _value(hint, data[key], f"{where}: {key}") for key, hint in hints.items()})


def _value(hint: typing.Any, value: object, where: str) -> object:
    if isinstance(hint, types.GenericAlias) and hint.__origin__ is tuple:
        if not isinstance(value, list):
            raise InputError(f"{where} is a {type(value).__name__}, expected a list")
        item = hint.__args__[0]
        return tuple(_value(item, entry, f"{where}[{index}]") for index, entry in enumerate(value))
    if isinstance(hint, types.GenericAlias):  # dict[str, str]
        if not isinstance(value, dict):
            raise InputError(f"{where} is a {type(value).__name__}, expected an object")
        return {key: _value(str, entry, f"{where}[{key[:40]!r}]") for key, entry in value.items()}
    if dataclasses.is_dataclass(hint):
        return _build(hint, value, where)
    wanted = int | float if hint is float else hint
    if not isinstance(value, wanted) or isinstance(value, bool):
        raise InputError(f"{where} is a {type(value).__name__}, expected {hint.__name__}")
    if hint is float and not abs(value) < 1e9:  # far beyond any course; keeps sums exact
        raise InputError(f"{where} is out of range, expected points below 1e9")
    return value
