"""What each test is worth: the marks of the tests, checked against the points of `book.toml`."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

import pytest

from kvcourse.course.grading.record import VISIBILITIES, number, total
from kvcourse.course.grading.sandbox import Limits
from kvcourse.course.manifest import Exercise

STEP = 0.25  # points come in quarters, so sums are exact


@dataclass(frozen=True)
class Worth:
    """A test as the score sees it: `test` is its name without class and submission."""

    exercise: str
    test: str
    points: float
    hint: str
    visibility: str


def worth_of(item: pytest.Item, test: str, visibility: str) -> Worth:
    """Read the marks of a test; `visibility` holds where the mark names none. Errors: UsageError with one line."""
    where = f"{item.path.name}: {item.name.partition('[')[0]}"
    exercise, points = item.get_closest_marker("exercise"), item.get_closest_marker("points")
    if exercise is None or len(exercise.args) != 1 or exercise.kwargs or type(exercise.args[0]) is not str:
        raise pytest.UsageError(f"{where}: expected @pytest.mark.exercise(id) on its class")
    where = f"{where} of {exercise.args[0]}"
    if points is None or len(points.args) != 1 or set(points.kwargs) - {"hint", "visibility"}:
        raise pytest.UsageError(f"{where}: expected @pytest.mark.points(n, hint=…, visibility=…) on it")
    value, hint = points.args[0], points.kwargs.get("hint", "")
    if type(value) not in (int, float) or not 0 < value < 1e6 or value % STEP:
        raise pytest.UsageError(f"{where}: points {value!r}, expected a multiple of {STEP} above 0")
    visibility = points.kwargs.get("visibility", visibility)
    if visibility not in VISIBILITIES:
        raise pytest.UsageError(
            f"{where}: visibility {visibility!r}, expected one of {', '.join(VISIBILITIES)}"
        )
    if type(hint) is not str:
        raise pytest.UsageError(f"{where}: hint {hint!r}, expected a text")
    limits_of(item)
    return Worth(exercise.args[0], test, number(value), hint, visibility)


def limits_of(item: pytest.Item) -> Limits:
    """The limits that a test sets for the student's code. Errors: UsageError with one line."""
    mark = item.get_closest_marker("limits")
    if mark is None:
        return Limits()
    known = [field.name for field in fields(Limits)]
    wrong = [name for name, value in mark.kwargs.items() if name not in known or not _is_positive(value)]
    if mark.args or wrong:
        raise pytest.UsageError(
            f"{item.path.name}: {item.name.partition('[')[0]}: limits {', '.join(wrong) or 'without names'}: "
            f"expected positive numbers for some of {', '.join(known)}"
        )
    return Limits(**mark.kwargs)


def check_points(
    tests: Mapping[str, list[Worth]], exercises: Mapping[str, Exercise], files: Mapping[str, Path]
) -> None:
    """The tests of each exercise must have names of their own and add up. Errors: UsageError with one line.

    `files` says for each exercise where its tests come from.
    """
    for id, found in tests.items():
        wanted = exercises[id].points
        if not found:
            raise pytest.UsageError(
                f"{id}: no tests, expected tests of {wanted} points together; collect the whole package, "
                "name the chapter with --chapter, or write tests for it"
            )
        names = [worth.test for worth in found]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise pytest.UsageError(f"{id}: {files[id].name} has two tests called {twice[0]}; rename one")
        if (points := total(worth.points for worth in found)) != wanted:
            raise pytest.UsageError(
                f"{id}: the points of its {len(found)} tests in {files[id].name} add up to {points}, "
                f"book.toml says {wanted}"
            )


def _is_positive(value: object) -> bool:
    return type(value) in (int, float) and value > 0
