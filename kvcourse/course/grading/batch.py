"""Grade many submissions into one folder, and go on where an earlier run was interrupted."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kvcourse.course.grading.chapters import chapter_stems
from kvcourse.course.grading.gradebook import gradebook_csv
from kvcourse.course.grading.grades import (
    Grades,
    check_place,
    in_order,
    open_grades,
    write_output,
)
from kvcourse.course.grading.gradescope import gradescope_json
from kvcourse.course.grading.plain_text import file_name, one_line
from kvcourse.course.grading.pytest_run import GraderError, PytestRun, run_pytest
from kvcourse.course.grading.record import (
    Record,
    bundle_hash,
    current_versions,
    read_record,
    record_path,
)
from kvcourse.course.grading.references import graded_chapters
from kvcourse.course.grading.report import report_html
from kvcourse.course.grading.submission import find_submissions, read_submission
from kvcourse.course.manifest import Manifest
from kvcourse.errors import InputError


@dataclass(frozen=True)
class Batch:
    """A graded batch: its records by name, how many of them were there already, and the folder with all."""

    records: tuple[Record, ...]
    kept: int
    grades: Grades
    others: int  # records of earlier batches in the folder, in the gradebook too

    @property
    def troubles(self) -> list[str]:
        """One line for each thing of the grader that broke: a test, or a process before it had a result."""
        lines = [f"broken test: {line}" for line in sorted({x for r in self.records for x in _broken(r)})]
        return lines + [f"no result: {line}" for record in self.records for line in _lost(record)]


def grade_batch(
    manifest: Manifest,
    paths: Sequence[Path],
    out: Path,
    hidden: Path | None = None,
    chapters: Sequence[int] = (),
    seed: int | None = None,
    jobs: int | None = None,
    fresh: bool = False,
    stage: str = "open",
    gradescope: Path | None = None,
) -> Batch:
    """Grade what lies at `paths` into the folder `out` and write its outputs.

    A record of the same submission, tests, seed and versions is kept unless `fresh`. Progress goes to stderr. With
    `gradescope`, the `results.json` of the one submission is written to that file too. Errors: InputError for
    paths, folders and options that cannot be used; GraderError when something of the grader breaks (the records
    that are there stay). A submission that cannot be read is no error: it has a record with notes.
    """
    stems = [chapter.stem for chapter in graded_chapters(manifest, chapters)]
    check_hidden(hidden)
    found = find_submissions(paths, chapter_stems(manifest), whole=gradescope is not None)
    found.sort(key=lambda pair: (pair[0].casefold(), pair[0]))
    if gradescope is not None and len(found) != 1:
        raise InputError(
            f"--gradescope takes one submission, there are {len(found)}; leave it out: each one has"
            f" its file in {out / 'gradescope'}"
        )
    check_place(out, paths, manifest.root)
    bundle = bundle_hash(manifest, hidden)
    with open_grades(out, stems, seed, fresh) as grades:
        pending = found
        if not fresh:
            pending = [pair for pair in found if not _is_current(pair, grades, bundle, manifest)]
        run = PytestRun(
            pending,
            grades.records,
            manifest.root,
            grades.seed,
            hidden,
            chapters,
            jobs or _cores(),
            grades.log,
        )
        grades.log.unlink(missing_ok=True)
        _run(run, done=len(found) - len(pending), total=len(found))
        records = in_order(_read(grades, name) for name, _ in found)
        everything = grades.read()
        write_outputs(grades, everything, manifest, bundle, stage)
        if gradescope is not None:
            write_output(gradescope, gradescope_json(records[0]))
    return Batch(tuple(records), len(found) - len(pending), grades, len(everything) - len(records))


def check_hidden(folder: Path | None) -> None:
    """Refuse hidden tests that are not a folder of test files. Errors: InputError."""
    if folder is None:
        return
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder; --hidden takes a folder of test files")
    if not any(folder.rglob("test_*.py")):
        raise InputError(f"{folder} has no test_*.py; --hidden takes a folder of test files")


def write_outputs(
    grades: Grades, records: Sequence[Record], manifest: Manifest, bundle: str, stage: str
) -> None:
    """Write the gradebook, and a report and a Gradescope result for each record."""
    stale = {r.name: "graded with other tests; grade it again" for r in records if r.bundle != bundle}
    order = [exercise.id for chapter in manifest.chapters for exercise in chapter.exercises]
    titles = {chapter.stem: chapter.title for chapter in manifest.chapters}
    for record in records:
        name = file_name(record.name)
        grades.write(f"reports/{name}.html", report_html(record, manifest.title, titles, stage))
        grades.write(f"gradescope/{name}.json", gradescope_json(record))
    grades.write("gradebook.csv", gradebook_csv(records, order, stale))


def _is_current(pair: tuple[str, Path], grades: Grades, bundle: str, manifest: Manifest) -> bool:
    """Whether there is a record that grading this submission now would give again."""
    name, path = pair
    try:
        record = read_record(record_path(grades.records, name))
    except InputError:  # none, or one that was damaged: it is made again
        return False
    if _broken(record) or _lost(record):
        return False
    expected = (name, bundle, grades.seed, grades.chapters, current_versions())
    if (record.name, record.bundle, record.seed, record.chapters, record.versions) != expected:
        return False
    return record.digest == read_submission(path, manifest, name).digest


def _broken(record: Record) -> list[str]:
    """Tests that broke, whatever was handed in."""
    return [
        one_line(f"{exercise.id}, {outcome.test}: {outcome.message}")
        for exercise in record.exercises
        for outcome in exercise.outcomes
        if outcome.outcome == "broken test"
    ]


def _lost(record: Record) -> list[str]:
    """Exercises with tests whose process ended before they had a result: pytest's own, not the student's."""
    from kvcourse.course.grading.scores import NO_RESULT

    return [
        one_line(f"{record.name}, {exercise.id}: {NO_RESULT}")
        for exercise in record.exercises
        if any(o.outcome == "not run" and o.message == NO_RESULT for o in exercise.outcomes)
    ]


def _run(run: PytestRun, done: int, total: int) -> None:
    from tqdm import tqdm

    if not run.submissions:
        return
    with tqdm(total=total, initial=done, unit="submission", desc="grading", disable=None) as bar:
        run_pytest(run, finished=lambda name: bar.update())


def _read(grades: Grades, name: str) -> Record:
    try:
        return read_record(record_path(grades.records, name))
    except InputError as error:
        raise GraderError(one_line(str(error))) from error


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
