"""What a student may see of a record. Everything that is shown to students goes through `for_student`."""

import dataclasses
from pathlib import PurePath

from kvcourse.course.grading.record import ExerciseScore, Outcome, Record, total
from kvcourse.errors import InputError

# What is shown at each stage of an assignment: while it is open, once it is due, once grades are published.
STAGES = {
    "open": frozenset({"visible"}),
    "due": frozenset({"visible", "after_due_date"}),
    "published": frozenset({"visible", "after_due_date", "after_published"}),
}
HIDDEN_TESTS = "hidden tests"
BROKEN = "This test could not be run. That is not your mistake: your instructor has to mend it."


def for_student(record: Record, stage: str = "open") -> Record:
    """The record as its student may see it at `stage` (open, due or published).

    The tests of an exercise that stay hidden become one outcome called "hidden tests" with the sum of their points:
    no name, message or hint of one is left, nor how many there are. A test that broke does not show why, and the
    path becomes a bare file name. Errors: InputError for an unknown stage.
    """
    if stage not in STAGES:
        raise InputError(f"stage {stage!r}, expected one of {', '.join(STAGES)}")
    exercises = tuple(_exercise(exercise, STAGES[stage]) for exercise in record.exercises)
    return dataclasses.replace(record, path=PurePath(record.path).name, exercises=exercises)


def _exercise(exercise: ExerciseScore, shown: frozenset[str]) -> ExerciseScore:
    outcomes = [_outcome(outcome) for outcome in exercise.outcomes if outcome.visibility in shown]
    rest = [outcome for outcome in exercise.outcomes if outcome.visibility not in shown]
    if points := total(outcome.points for outcome in rest):
        earned = total(outcome.earned for outcome in rest)
        outcome = "passed" if earned == points else "failed"
        outcomes.append(Outcome(HIDDEN_TESTS, points, earned, outcome, "hidden"))
    return dataclasses.replace(exercise, outcomes=tuple(outcomes))


def _outcome(outcome: Outcome) -> Outcome:
    if outcome.outcome != "broken test":
        return outcome
    return dataclasses.replace(outcome, message=BROKEN, hint="")
