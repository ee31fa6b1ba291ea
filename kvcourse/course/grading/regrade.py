"""Come to a score again from its record: the same submission, tests and seed must give the same outcomes."""

import tempfile
from dataclasses import dataclass
from pathlib import Path

from kvcourse.course.grading.batch import check_hidden
from kvcourse.course.grading.plain_text import one_line
from kvcourse.course.grading.pytest_run import PytestRun, run_pytest
from kvcourse.course.grading.record import (
    Outcome,
    Record,
    bundle_hash,
    current_versions,
    number,
    read_record,
    record_path,
)
from kvcourse.course.grading.references import graded_chapters
from kvcourse.course.grading.submission import read_submission
from kvcourse.course.manifest import Manifest
from kvcourse.errors import InputError


@dataclass(frozen=True)
class Regrade:
    """A record and the one that grading again gave."""

    then: Record
    now: Record

    @property
    def differences(self) -> list[str]:
        """One line for each outcome that is another now, and for notes; empty if the score is reproduced."""
        lines = []
        now = {exercise.id: exercise for exercise in self.now.exercises}
        for exercise in self.then.exercises:
            again = now.pop(exercise.id, None)
            outcomes = {outcome.test: outcome for outcome in again.outcomes} if again else {}
            for old in exercise.outcomes:
                new = outcomes.pop(old.test, None)
                if new != old:
                    lines.append(f"{exercise.id}, {old.test}: {_words(old)} then, {_words(new)} now")
            lines += [
                f"{exercise.id}, {test}: not there then, {_words(o)} now" for test, o in outcomes.items()
            ]
            if again and again.notes != exercise.notes:
                lines.append(f"{exercise.id}: other notes: {'; '.join(again.notes) or 'none'} now")
        lines += [f"{id}: not graded then" for id in now]
        if self.then.notes != self.now.notes:
            lines.append(f"other notes: {'; '.join(self.now.notes) or 'none'} now")
        return [one_line(line) for line in lines]

    @property
    def versions(self) -> list[str]:
        """One line for each version that is another now."""
        return _versions(self.then, self.now.versions)


def regrade(
    manifest: Manifest, path: Path, submission: Path | None = None, hidden: Path | None = None
) -> Regrade:
    """Grade again what the record at `path` says, with its seed.

    The submission is taken from where it was, or from `submission`. Errors: InputError if the record, the submission
    or the tests are not those of the record: it says which, and what to do.
    """
    record = read_record(path)
    place = Path(record.path) if submission is None else submission
    check_hidden(hidden)
    shown = one_line(str(place))
    if not place.exists():
        raise InputError(f"{shown}: no such submission; say with --submission where it is now")
    if (digest := read_submission(place, manifest, record.name).digest) != record.digest:
        raise InputError(
            f"{shown} is not what was graded: its sha256 is {digest[:12]}…, the record has {record.digest[:12]}…;"
            " give the original with --submission, or grade this one with kvcourse grade"
        )
    chapters = _chapters(manifest, record)
    if (bundle := bundle_hash(manifest, hidden)) != record.bundle:
        changed = _versions(record, current_versions())
        raise InputError(
            f"the tests are not those of the record: bundle {bundle[:12]}… now, {record.bundle[:12]}… then"
            f"{' (' + '; '.join(changed) + ')' if changed else ''}; use the course and the --hidden tests of that"
            " time, or grade anew with kvcourse grade"
        )
    with tempfile.TemporaryDirectory(prefix="kvcourse-regrade-") as folder:
        run_pytest(
            PytestRun([(record.name, place)], Path(folder), manifest.root, record.seed, hidden, chapters)
        )
        return Regrade(record, read_record(record_path(Path(folder), record.name)))


def _chapters(manifest: Manifest, record: Record) -> list[int]:
    """The numbers of the record's chapters, none if they are all."""
    graded = {chapter.stem: chapter.number for chapter in graded_chapters(manifest)}
    if missing := [stem for stem in record.chapters if stem not in graded]:
        raise InputError(
            f"the record is of chapter {one_line(missing[0])}, which this course does not have; run this where the"
            " course is that it was graded with"
        )
    if set(record.chapters) == set(graded):
        return []
    return [graded[stem] for stem in record.chapters]


def _versions(record: Record, now: dict[str, str]) -> list[str]:
    names = sorted({*record.versions, *now})
    pairs = [(name, record.versions.get(name, "none"), now.get(name, "none")) for name in names]
    return [one_line(f"{name} {old} then, {new} now") for name, old, new in pairs if old != new]


def _words(outcome: Outcome | None) -> str:
    if outcome is None:
        return "not there"
    said = f": {outcome.message}" if outcome.message else ""
    return f"{outcome.outcome}, {number(outcome.earned)} of {number(outcome.points)} points{said}"
