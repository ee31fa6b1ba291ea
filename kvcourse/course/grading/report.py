"""The HTML page that a student gets back: one file without scripts, from what `disclosure` leaves of a record."""

import functools
from collections.abc import Mapping
from pathlib import Path

from kvcourse.course.grading.disclosure import for_student
from kvcourse.course.grading.plain_text import one_line, printable
from kvcourse.course.grading.record import ExerciseScore, Record, number

# A sign and words for each outcome: the meaning never hangs on a colour.
WORDS = {
    "passed": ("✓", "passed"),
    "failed": ("✗", "failed"),
    "stopped": ("✗", "stopped"),
    "not run": ("–", "not run"),
    "broken test": ("!", "not tested"),
}


def report_html(record: Record, course: str, chapters: Mapping[str, str], stage: str = "open") -> str:
    """The page of one student.

    `course` is the title of the course, `chapters` the title of each chapter by the stem of its file. `stage` is
    open, due or published: which tests are shown by name (see `disclosure`). Errors: InputError for another stage.
    """
    shown = for_student(record, stage)
    return _template().render(
        record=shown,
        course=course,
        groups=[(title, _of(shown, stem)) for stem, title in _titles(shown, chapters).items()],
        words=WORDS,
        common=_common,
        share=lambda earned, points: round(100 * earned / points) if points else 0,
    )


@functools.cache
def _template():
    """The page, compiled once: a class has hundreds of them."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"line": one_line, "block": printable, "points": _points}
    return environment.get_template("report.html")


def _titles(record: Record, chapters: Mapping[str, str]) -> dict[str, str]:
    stems = dict.fromkeys(exercise.chapter for exercise in record.exercises)
    return {stem: chapters.get(stem, stem) for stem in stems}


def _of(record: Record, chapter: str) -> list[ExerciseScore]:
    return [exercise for exercise in record.exercises if exercise.chapter == chapter]


def _common(exercise: ExerciseScore) -> str:
    """What all tests that are shown say, if they all failed for one reason: it is told once, above them."""
    said = {(o.outcome, o.message) for o in exercise.outcomes if o.visibility != "hidden"}
    shown = [o for o in exercise.outcomes if o.visibility != "hidden"]
    return shown[0].message if len(said) == 1 < len(shown) and shown[0].outcome != "passed" else ""


def _points(value: float) -> str:
    """At most two decimals: 1, 0.5, 0.33."""
    return f"{number(round(value, 2))}"
