"""Gradescope's `results.json` from a record.

The format: gradescope-autograders.readthedocs.io/en/latest/specs (Output format, Controlling test case visibility,
Test case status, Output string formatting). Every test has a score, so there is no score at the top. All text is
declared as `text`: the default of the top-level output would render HTML.
"""

import json

from kvcourse.course.grading.disclosure import for_student
from kvcourse.course.grading.plain_text import one_line, printable
from kvcourse.course.grading.record import Outcome, Record, number


def gradescope_results(record: Record) -> dict:
    """The content of `results.json`.

    A test with visibility `after_due_date` or `after_published` keeps its name and message: Gradescope shows them
    when it is time. Hidden tests are one entry an exercise, without name or output, for instructors only.
    """
    shown = for_student(record, "published")
    tests = []
    for index, exercise in enumerate(shown.exercises, start=1):
        for case, outcome in enumerate(exercise.outcomes, start=1):
            tests.append(_test(exercise.id, f"{index}.{case}", outcome))
    return {
        "output": printable(_summary(shown)),
        "output_format": "text",
        "stdout_visibility": "hidden",
        "test_name_format": "text",
        "test_output_format": "text",
        "tests": tests,
    }


def gradescope_json(record: Record) -> str:
    """The same as text: keys sorted, ASCII."""
    return json.dumps(gradescope_results(record), sort_keys=True, indent=1, allow_nan=False) + "\n"


def _test(exercise: str, place: str, outcome: Outcome) -> dict:
    test = {
        "name": one_line(f"{exercise}: {outcome.title}"),
        "number": place,
        "score": number(outcome.earned),
        "max_score": number(outcome.points),
        "status": "passed" if outcome.outcome == "passed" else "failed",
        "visibility": outcome.visibility,
    }
    if outcome.visibility != "hidden" and outcome.outcome != "passed":
        lines = [f"{outcome.outcome}: {outcome.message}" if outcome.message else outcome.outcome]
        lines += [f"Hint: {outcome.hint}"] if outcome.hint and outcome.outcome == "failed" else []
        test["output"] = printable("\n".join(lines))
    return test


def _summary(record: Record) -> str:
    """What concerns the whole submission. No score: it would give away what the hidden tests said."""
    lines = [*record.notes]
    lines += [f"{exercise.id}: {note}" for exercise in record.exercises for note in exercise.notes]
    lines.append(f"Graded by kvcourse {record.versions.get('kvcourse', '')}, seed {record.seed}.")
    return "\n".join(lines)
