"""What became of a test: passed, failed, stopped, not run or broken, with one line and never a traceback."""

import traceback

import pytest

from kvcourse.course.grading.collection import SUBMISSION, WORTH
from kvcourse.course.grading.expect import NoExpectation, Unequal
from kvcourse.course.grading.plain_text import one_line
from kvcourse.course.grading.program import Unusable
from kvcourse.course.grading.references import REFERENCE
from kvcourse.course.grading.sandbox import Session, Stopped, StudentError

MAX_MESSAGE = 500
SESSION = pytest.StashKey[Session]()
CONFINEMENT = pytest.StashKey[dict[str, str]]()
NOTES = pytest.StashKey[tuple[str, ...]]()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo) -> pytest.TestReport:
    """A report that carries the outcome as plain data, across processes too, and no traceback or output."""
    session = item.stash.get(SESSION, None)
    outcome, message = "passed", ""
    if call.excinfo is not None:
        outcome, message = judge(
            call.excinfo.value, call.when, called=session is not None and session.started
        )
    report = pytest.TestReport(
        item.nodeid,
        item.location,
        keywords={},
        outcome="passed" if outcome == "passed" else "failed",
        longrepr=None,
        when=call.when,
        duration=call.duration,
        start=call.start,
        stop=call.stop,
    )
    worth = item.stash[WORTH]
    above = f"{worth.exercise}: "  # every report names the exercise above what is said of it
    report.grading = {
        "key": [item.stash[SUBMISSION], worth.exercise, worth.test],
        "outcome": outcome,
        "message": message.removeprefix(above),
        "notes": [note.removeprefix(above) for note in item.stash.get(NOTES, ())],
        "confinement": item.stash.get(CONFINEMENT, {}),
    }
    return report


def judge(error: BaseException, when: str, called: bool) -> tuple[str, str]:
    """The outcome of a test that raised, and the line that says why.

    `when` is setup, call or teardown. `called` says whether the student's code has been called: before that,
    an error is the test's own.
    """
    text = _line(error)
    if isinstance(error, Unusable):
        return "not run", text
    if isinstance(error, Unequal | StudentError):
        return "failed", text
    if isinstance(error, Stopped):
        return "stopped", f"the program {text}"
    if isinstance(error, NoExpectation):
        return "broken test", text
    if isinstance(error, pytest.skip.Exception):
        return "broken test", f"the test was skipped, so it gives nobody points: {text}"
    if when != "call" or not called or _is_of_reference(error):
        return "broken test", f"{type(error).__name__} in the {_place(error, when)}: {text}"
    if isinstance(error, AssertionError | pytest.fail.Exception):
        return "failed", text
    return "failed", f"could not use your result: {type(error).__name__}: {text}"


def _line(error: BaseException) -> str:
    text = str(error)
    if isinstance(error, StudentError) and error.kind == "NotImplementedError":
        text = f"not solved yet: {error.message}"
    text = text[: 8 * MAX_MESSAGE].strip()
    if not isinstance(error, StudentError):
        text = text.partition("\n")[0]  # pytest explains an assertion in further lines
    text = one_line(text) or "no message"
    return text if len(text) <= MAX_MESSAGE else f"{text[: MAX_MESSAGE - 1]}…"


def _is_of_reference(error: BaseException) -> bool:
    return any(frame.f_code.co_filename == REFERENCE for frame, _ in traceback.walk_tb(error.__traceback__))


def _place(error: BaseException, when: str) -> str:
    return "reference" if _is_of_reference(error) else "test" if when == "call" else f"{when} of the test"
