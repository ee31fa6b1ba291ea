"""The end of a grading run in the terminal: points, what failed and why, the seed and the confinement."""

import pytest

from kvcourse.course.grading.plain_text import one_line
from kvcourse.course.grading.record import ExerciseScore, Outcome, Record, number
from kvcourse.course.grading.run import Run


def header(run: Run) -> str:
    """One line for pytest's header."""
    course = run.course
    chapters = ", ".join(chapter.stem for chapter in course.chapters)
    return f"grading {_count(len(course.submissions), 'submission')} of chapters {chapters}, seed {run.seed}"


def print_summary(records: list[Record], run: Run, terminal: pytest.TerminalReporter) -> None:
    """Print the scores of the submissions that are done. What a student wrote is shown escaped, on one line."""
    terminal.section("points")
    done = {record.name for record in records}
    lines = [line for record in records for line in _submission(record)]
    lines += [f"{name}: not finished, so no record" for name in run.course.submissions if name not in done]
    lines.append(f"seed {run.seed}")
    for words in dict.fromkeys(tuple(record.confinement.items()) for record in records if record.confinement):
        lines.append("the code ran with " + ", ".join(f"{what}: {how}" for what, how in words))
    broken = {
        f"{exercise.id}: {outcome.test}"
        for record in records
        for exercise in record.exercises
        for outcome in exercise.outcomes
        if outcome.outcome == "broken test"
    }
    lines += [f"broken test, to be mended before grades are given: {name}" for name in sorted(broken)]
    for line in lines:
        indent = line[: len(line) - len(line.lstrip())]
        terminal.write_line(indent + one_line(line))


def _submission(record: Record) -> list[str]:
    lines = [f"{record.name}: {_points(record.earned, record.points)}"]
    lines += [f"  note: {note}" for note in record.notes]
    for exercise in record.exercises:
        lines += _exercise(exercise)
    return lines


def _exercise(exercise: ExerciseScore) -> list[str]:
    lines = [f"  {exercise.id}: {_points(exercise.earned, exercise.points)}"]
    lines += [f"    note: {note}" for note in exercise.notes]
    missing = [outcome for outcome in exercise.outcomes if outcome.outcome != "passed"]
    reasons = {(outcome.outcome, outcome.message) for outcome in missing}
    if len(reasons) == 1 and len(missing) == len(exercise.outcomes) > 1:  # said once, not for every test
        return [*lines, f"    {missing[0].outcome}: {missing[0].message}"]
    for outcome in missing:
        lines += _test(outcome)
    return lines


def _test(outcome: Outcome) -> list[str]:
    seen = "" if outcome.visibility == "visible" else f" [{outcome.visibility}]"
    lines = [f"    {outcome.title} ({number(outcome.points)}) {outcome.outcome}{seen}: {outcome.message}"]
    return [*lines, f"      hint: {outcome.hint}"] if outcome.hint else lines


def _points(earned: float, points: float) -> str:
    return f"{number(earned)} of {_count(number(points), 'point')}"


def _count(count: float, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
