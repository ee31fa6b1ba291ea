"""Reports of tests become records of submissions, as soon as the last test of each is done."""

from functools import cached_property

import pytest

from kvcourse.course.grading.collection import SUBMISSION, TESTS, WORTH
from kvcourse.course.grading.points import Worth
from kvcourse.course.grading.record import (
    ExerciseScore,
    Outcome,
    Record,
    bundle_hash,
    current_versions,
    write_record,
)
from kvcourse.course.grading.run import Run
from kvcourse.course.grading.summary import header, print_summary

Key = tuple[str, str, str]  # submission, exercise, test

# How pytest counts and shows each outcome. Not as "failed": it would list those once more, with their tracebacks.
SHOWN = {
    "passed": ("passed", ".", "PASSED"),
    "failed": ("wrong", "F", "WRONG"),
    "stopped": ("stopped", "S", "STOPPED"),
    "not run": ("not run", "-", "NOT RUN"),
    "broken test": ("broken test", "B", "BROKEN TEST"),
}
BROKEN = 6  # exit code: pytest's own end at 5
NO_RESULT = "the process that ran this test ended without a result"
NOT_SELECTED = "this test was left out of the run"


class Scores:
    """The part of a grading run that keeps the scores; with xdist, in the process that runs no tests."""

    def __init__(self, config: pytest.Config, run: Run) -> None:
        self.config, self.run = config, run
        self.records: list[Record] = []
        self.keys: dict[str, Key] = {}
        self.waiting: dict[str, set[Key]] = {}
        self.results: dict[Key, dict] = {}

    @cached_property
    def bundle(self) -> str:
        """The hash of all that decides a score apart from submission and seed."""
        return bundle_hash(self.run.course.manifest, self.run.hidden)

    @cached_property
    def versions(self) -> dict[str, str]:
        """The versions that a record names."""
        return current_versions()

    def pytest_report_header(self) -> str:
        """What is graded, and the seed, in pytest's header."""
        return header(self.run)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Remember every test, and those that were not deselected after all."""
        for item in items:
            key = (item.stash[SUBMISSION], item.stash[WORTH].exercise, item.stash[WORTH].test)
            self.keys[item.nodeid] = key
            self.waiting.setdefault(key[0], set()).add(key)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the first thing that was not right with a test, and write the record after the last test."""
        grading = getattr(report, "grading", None)
        if grading is None:  # xdist made the report, because a worker died
            key = self.keys[report.nodeid]
            self.results[key] = {"outcome": "not run", "message": NO_RESULT, "notes": (), "confinement": {}}
        else:
            key = tuple(grading["key"])
            before = self.results.get(key)
            if before is None or before["outcome"] == "passed":
                self.results[key] = grading
            if report.when != "teardown":
                return
        waiting = self.waiting[key[0]]
        waiting.discard(key)
        if not waiting:
            self._finish(key[0])

    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """One letter a test."""
        if not isinstance(report, pytest.TestReport):
            return None
        outcome = getattr(report, "grading", {"outcome": "not run"})["outcome"]
        if outcome == "passed" and report.when != "call":
            return "", "", ""
        return SHOWN[outcome]

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """The exit code: 0 for full points, 1 for less, 6 if a test is broken, and pytest's own otherwise."""
        if session.exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            return
        outcomes = [o.outcome for r in self.records for e in r.exercises for o in e.outcomes]
        if "broken test" in outcomes:
            session.exitstatus = BROKEN
        elif any(record.earned < record.points for record in self.records):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Points, and why they are missing, of every submission that is done."""
        order = list(self.run.course.submissions)
        records = sorted(self.records, key=lambda record: order.index(record.name))
        print_summary(records, self.run, terminalreporter)

    def _finish(self, name: str) -> None:
        record = self._record(name)
        self.records.append(record)
        if self.run.records is not None:
            write_record(self.run.records, record)

    def _record(self, name: str) -> Record:
        course = self.run.course
        submission = course.submission(name)
        scores, confinement = [], {}
        for exercise in course.exercises.values():
            results = [
                (worth, self.results.get((name, exercise.id, worth.test)))
                for worth in self.config.stash[TESTS][exercise.id]
            ]
            found = [result for _, result in results if result is not None]
            for result in found:
                confinement |= result["confinement"]
            scores.append(
                ExerciseScore(
                    id=exercise.id,
                    chapter=course.known[exercise.id].stem,
                    points=exercise.points,
                    outcomes=tuple(_outcome(worth, result) for worth, result in results),
                    notes=tuple(dict.fromkeys(note for result in found for note in result["notes"])),
                )
            )
        return Record(
            name=name,
            path=str(submission.path),
            digest=submission.digest,
            bundle=self.bundle,
            seed=self.run.seed,
            versions=self.versions,
            confinement=confinement,
            chapters=tuple(chapter.stem for chapter in course.chapters),
            exercises=tuple(scores),
            notes=submission.notes,
        )


def _outcome(worth: Worth, result: dict | None) -> Outcome:
    outcome = "not run" if result is None else result["outcome"]
    passed = outcome == "passed"
    return Outcome(
        test=worth.test,
        points=worth.points,
        earned=worth.points if passed else 0,
        outcome=outcome,
        visibility=worth.visibility,
        message=NOT_SELECTED if result is None else result["message"],
        hint="" if passed else worth.hint,
    )
