"""A grading run: its course, its seed, and the parts that pytest calls, registered only in such a run."""

import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pytest

from kvcourse.course.grading.chapters import chapter_stems
from kvcourse.course.grading.record import SEEDS
from kvcourse.course.grading.references import Course, find_course, graded_chapters
from kvcourse.course.grading.submission import find_submissions
from kvcourse.errors import InputError

SEED_OF_WORKER = "kvcourse_seed"

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Run:
    """What the options say. `is_worker` holds in a process of xdist that runs tests for another one."""

    course: Course
    hidden: Path | None
    records: Path | None
    seed: int
    is_worker: bool


RUN = pytest.StashKey[Run]()


def register_parts(config: pytest.Config) -> None:
    """Read the options and register the parts. Errors: UsageError with one line."""
    from kvcourse.course.grading import fixtures, outcomes
    from kvcourse.course.grading.collection import Collection
    from kvcourse.course.grading.scores import Scores

    run = or_usage_error(read_options, config)
    config.stash[RUN] = run
    parts = [fixtures, outcomes, Collection(config, run)]
    if not run.is_worker:
        parts.append(Scores(config, run))
    for part in parts:
        config.pluginmanager.register(part)


def read_options(config: pytest.Config) -> Run:
    """The run that the command line asks for. Errors: InputError with one line."""
    option = config.option
    hidden = _folder("--hidden", option.kvcourse_hidden)
    manifest = find_course(option.kvcourse_course and Path(option.kvcourse_course))
    chapters = graded_chapters(manifest, option.kvcourse_chapters)
    submissions = find_named(option.kvcourse_submissions, chapter_stems(manifest))
    records = option.kvcourse_records and Path(option.kvcourse_records).resolve()
    if records and records.exists() and not records.is_dir():
        raise InputError(f"--records {records}: it is a file, expected a folder")
    worker = getattr(config, "workerinput", {})
    seed = worker.get(SEED_OF_WORKER, option.kvcourse_seed)
    if seed is None:
        seed = secrets.randbelow(SEEDS)
    if not 0 <= seed < SEEDS:
        raise InputError(f"--seed {seed}: expected a whole number from 0 to {SEEDS - 1}")
    return Run(Course(manifest, chapters, submissions), hidden, records or None, seed, bool(worker))


def find_named(arguments: list[str], stems: tuple[str, ...]) -> dict[str, Path]:
    """The files of submissions by name. Errors: InputError with one line.

    An argument is a path, or `@FILE`: a JSON list of [name, path], since a class can be longer than a command line.
    """
    found: list[tuple[str, Path]] = []
    for argument in arguments:
        if not argument.startswith("@"):
            found += find_submissions([Path(argument)], stems)
            continue
        try:
            pairs = json.loads(Path(argument[1:]).read_text("utf-8"))
            found += [(str(name), Path(path)) for name, path in pairs]
        except (OSError, ValueError, TypeError) as error:
            raise InputError(
                f"--submission {argument}: expected a file with a JSON list of [name, path]"
            ) from error
    names = [name for name, _ in found]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InputError(f"two submissions are called {twice[0]}; rename one")
    if not found:
        raise InputError(f"no submissions in {', '.join(arguments)}; expected notebooks, folders or zips")
    return dict(found)


def or_usage_error(function: Callable[..., Answer], *arguments: object) -> Answer:
    """What the function returns; an InputError becomes the one line that pytest ends with."""
    try:
        return function(*arguments)
    except InputError as error:
        raise pytest.UsageError(str(error)) from error


def _folder(option: str, value: str | None) -> Path | None:
    """A folder that must be there."""
    if value is None:
        return None
    path = Path(value).resolve()
    if not path.is_dir():
        raise InputError(f"{option} {value}: no such folder")
    return path
