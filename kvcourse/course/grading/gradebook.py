"""`gradebook.csv`: one row a submission, for a spreadsheet or the import of a learning platform."""

import csv
import io
from collections.abc import Iterable, Sequence

from kvcourse.course.grading.plain_text import one_line
from kvcourse.course.grading.record import NO_NOTEBOOK, Outcome, Record, number

# What a spreadsheet takes for the start of a formula. The wide forms are read as the narrow ones by some.
_FORMULA = ("=", "+", "-", "@", "＝", "＋", "－", "＠")


def gradebook_csv(
    records: Iterable[Record], exercises: Sequence[str] = (), notes: dict[str, str] | None = None
) -> str:
    """The gradebook of `records`, in their order.

    Columns: name, each exercise (those in `exercises` first), total, points, notes. An exercise that a record does
    not have is an empty cell. `notes` adds a line to the submission of that name.
    """
    records = list(records)
    found = [exercise.id for record in records for exercise in record.exercises]
    columns = list(dict.fromkeys([*(id for id in exercises if id in set(found)), *found]))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\r\n")  # RFC 4180
    writer.writerow(["name", *(_cell(column) for column in columns), "total", "points", "notes"])
    for record in records:
        earned = {exercise.id: number(exercise.earned) for exercise in record.exercises}
        said = [*notes_of(record), *([notes[record.name]] if notes and record.name in notes else [])]
        scores = [earned.get(column, "") for column in columns]
        writer.writerow([_cell(record.name), *scores, record.earned, record.points, _cell("; ".join(said))])
    return text.getvalue()


def notes_of(record: Record, kinds: Sequence[str] = ("stopped", "broken test")) -> list[str]:
    """What an instructor should know about a record: its notes, outcomes of `kinds`, and what was not there.

    If nothing of a submission could be run, its own notes say why.
    """
    lines = list(record.notes)
    missing: dict[str, list[str]] = {}
    for exercise in record.exercises:
        lines += [f"{exercise.id}: {note}" for note in exercise.notes]
        for kind in kinds:
            told = [_told(outcome) for outcome in exercise.outcomes if outcome.outcome == kind]
            lines += [f"{exercise.id}: {kind}: {told[0]}"] if told else []
        told = {(outcome.outcome, outcome.message) for outcome in exercise.outcomes}
        if len(told) == 1 and (reason := min(told))[0] == "not run":
            missing.setdefault(reason[1], []).append(exercise.id)
    if not record.notes or sum(map(len, missing.values())) < len(record.exercises):
        absent = [reason.removeprefix(NO_NOTEBOOK) for reason in missing if reason.startswith(NO_NOTEBOOK)]
        lines += [
            f"{', '.join(ids)}: not run: {reason}"
            for reason, ids in missing.items()
            if not reason.startswith(NO_NOTEBOOK)
        ]
        lines += [f"not run: {NO_NOTEBOOK}{', '.join(absent)}"] if absent else []
    return [one_line(line) for line in lines]


def _told(outcome: Outcome) -> str:
    """Its message, unless it may hold words of a test that students do not see: the gradebook may go to them."""
    return outcome.message if outcome.visibility == "visible" else "a hidden test; its record says why"


def _cell(text: str) -> str:
    """Text that a spreadsheet shows and never computes: a quote in front of what would be a formula."""
    line = one_line(text)
    return f"'{line}" if line.startswith(_FORMULA) else line
