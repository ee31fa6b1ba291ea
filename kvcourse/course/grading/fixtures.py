"""The fixtures of tests of exercises: the student's code, the reference and the random numbers."""

import dataclasses
import hashlib
import types
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from kvcourse.course.grading.collection import WORTH
from kvcourse.course.grading.outcomes import CONFINEMENT, NOTES, SESSION
from kvcourse.course.grading.points import limits_of
from kvcourse.course.grading.program import Program
from kvcourse.course.grading.run import RUN, Run
from kvcourse.course.grading.sandbox import Names, Sandbox, Session

# Folders of a clone that hold answers, or what was made from them. The package stays: the learner's code imports it.
ANSWERS = ("notebooks", "tests", "book", "_build", ".git")


@pytest.fixture
def submission(request: pytest.FixtureRequest) -> str:
    """The name of the submission under test."""
    return request.param


@pytest.fixture(autouse=True)
def program(request: pytest.FixtureRequest, submission: str) -> Program:
    """The submission's code for the exercise of this test. Without one, no test of the exercise runs."""
    run = request.config.stash[RUN]
    found = run.course.program(submission, request.node.stash[WORTH].exercise)
    request.node.stash[NOTES] = found.notes
    return found


@pytest.fixture(scope="session")
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    """Where the students' code runs; one for this process, started when the first test needs it."""
    with Sandbox(hidden=hidden_paths(request.config.stash[RUN])) as opened:
        yield opened


@pytest.fixture
def student_session(request: pytest.FixtureRequest, program: Program, sandbox: Sandbox) -> Iterator[Session]:
    """A new process that has run the definitions of the student's program; `put` places a value there."""
    request.node.stash[CONFINEMENT] = dataclasses.asdict(sandbox.confinement)
    with sandbox.session(program, limits_of(request.node)) as session:
        request.node.stash[SESSION] = session
        yield session


@pytest.fixture
def student(student_session: Session) -> Names:
    """What the student defined, by name. Calls run in the student's own process."""
    return student_session.names


@pytest.fixture
def reference(request: pytest.FixtureRequest) -> types.ModuleType:
    """The same names from the course's own solution. Calls run here."""
    return request.config.stash[RUN].course.reference(request.node.stash[WORTH].exercise)


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Random numbers from the run's seed and the test: the same for every submission, in any order of tests."""
    worth = request.node.stash[WORTH]
    text = f"{request.config.stash[RUN].seed} {worth.exercise} {worth.test}"
    return np.random.default_rng(int.from_bytes(hashlib.sha256(text.encode()).digest()))


def hidden_paths(run: Run) -> tuple[Path, ...]:
    """What the student's code has no business to read: tests, answers, records, the others' submissions."""
    root, here = run.course.manifest.root, Path(__file__).parent
    paths = [*(root / name for name in ANSWERS), *here.glob("test_*.py"), run.hidden, run.records]
    paths += run.course.submissions.values()
    return tuple(path for path in paths if path is not None and path.exists())
