"""The public test of an exercise, run in the notebook: it shows which case fails, how, and a hint."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from kvcourse.course.checks.case import Case, failed, is_unwritten, not_checked, report
from kvcourse.course.checks.compare import MISSING_RETURN, describe, difference, show
from kvcourse.course.checks.raised import TestCell, name_and_message, one_line, what_it_says
from kvcourse.course.checks.standing import Standing, keep_standing, require_known
from kvcourse.errors import InputError

GRADING = ("autograde", "validate")  # nbgrader looks for an error in the output of a test cell
MAX_ARGUMENT = 30


class CheckFailed(AssertionError):  # noqa: N818 - it says what the result is
    """The report of a check that did not pass, where a printed report would go unnoticed."""

    def _render_traceback_(self) -> list[str]:
        """What IPython shows: the report and no traceback."""
        return str(self).splitlines()


def check(exercise_id: str, hint: str | None = None) -> "Check":
    """The public test of one exercise, as a context manager.

        with course.check("ex-1-dropped-cache") as check:
            check.call(scores_with_drops, 3, 1, 1, expected=9)
            check.equal("length after 3 tokens", fused.length, 3, hint="…")

    All cases run. Those that fail and an exception of the learner's code go into a short printed report, with
    `hint` if there is one. In IPython nothing is raised, so that the cells below run. Elsewhere, and where
    NBGRADER_EXECUTION is `autograde` or `validate`, CheckFailed carries the report. Errors: InputError for an id
    that the book.toml of the folder does not have, for texts of another kind, and for a test without cases.
    """
    if not isinstance(exercise_id, str) or not exercise_id:
        raise InputError(f"exercise id {exercise_id!r}: expected the id in the metadata of the exercise")
    require_known(exercise_id)
    return Check(exercise_id, _text("hint", hint, optional=True), TestCell(sys._getframe(1)))


class Check:
    """What `check` returns: it runs the cases, and reports on them when the block ends."""

    def __init__(self, exercise_id: str, hint: str | None, test_cell: TestCell) -> None:
        self._id, self._hint, self._test_cell = exercise_id, hint, test_cell
        self._cases: list[Case] = []
        self._misuse: InputError | None = None

    def equal(self, label: str, got: Any, expected: Any, hint: str | None = None) -> bool:
        """A case that passes if `got` is `expected`: kind, dtype, shape, every element. Returns whether it is.

        Errors: InputError for a label or hint that is not a text, and for a value that cannot be compared.
        """
        return self.close(label, got, expected, hint=hint)

    def close(
        self,
        label: str,
        got: Any,
        expected: Any,
        *,
        atol: float = 0.0,
        rtol: float = 0.0,
        hint: str | None = None,
    ) -> bool:
        """The same, but numbers may differ by atol + rtol * |expected|."""
        with self._authoring():
            label, hint = _text("label", label), _text("hint", hint, optional=True)
            difference(expected, expected, atol=atol, rtol=rtol)  # what cannot be expected shows at once
        told = difference(got, expected, atol=atol, rtol=rtol)
        if told is not None and got is None:
            told = f"{told}; {MISSING_RETURN}"
        return self._add(Case(label, told, hint=hint))

    def call(
        self,
        function: Callable,
        *arguments: Any,
        expected: Any,
        atol: float = 0.0,
        rtol: float = 0.0,
        hint: str | None = None,
        label: str | None = None,
        **keywords: Any,
    ) -> bool:
        """A case that passes if `function` returns `expected` for these arguments. Returns whether it does.

        An exception of the function fails the case. Without a `label`, the call itself is the label. Errors: as for
        `equal`.
        """
        name = _name(function)
        with self._authoring():
            hint, label = _text("hint", hint, optional=True), _text("label", label, optional=True)
            difference(expected, expected, atol=atol, rtol=rtol)
        label = label or _call_text(name, arguments, keywords)  # now: the call may change its arguments
        if not callable(function):
            return self._add(Case(label, f"expected a function, got {describe(function)}", hint=hint))
        try:
            got = function(*arguments, **keywords)
        except (Exception, SystemExit) as error:
            return self._add(self._raised(error, hint, label))
        told = difference(got, expected, atol=atol, rtol=rtol)
        if told is not None and got is None:
            told = f"expected {describe(expected)}, but {name} returned nothing; {MISSING_RETURN}"
        return self._add(Case(label, told, hint=hint))

    def __enter__(self) -> "Check":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> bool:
        if error is not None and (error is self._misuse or not isinstance(error, Exception | SystemExit)):
            return False
        if error is None and not self._cases:
            raise InputError(f"{self._id}: this test checked nothing; give it a case")
        if missing := self._undefined(error):
            _tell(not_checked(self._id, missing))
            return True
        if error is not None:
            self._add(self._raised(error, self._hint))
        passed = len(self._cases) - len(failed(self._cases))
        is_open = is_unwritten(self._cases) and (error is not None or not passed)
        keep_standing(self._id, None if is_open else Standing(passed, len(self._cases)))
        text = report(self._id, self._cases, self._hint, stopped=error is not None)
        if failed(self._cases):
            _tell(text)
        else:
            _print(text)
        return True

    def _add(self, case: Case) -> bool:
        self._cases.append(case)
        return case.told is None

    @contextmanager
    def _authoring(self) -> Iterator[None]:
        """An InputError in here is the author's, and is not taken for one of the learner's code."""
        try:
            yield
        except InputError as error:
            self._misuse = error
            raise

    def _undefined(self, error: BaseException | None) -> str | None:
        """The name that the test itself lacks: nothing was tried then."""
        if type(error) is not NameError or self._test_cell.where(error.__traceback__)[0]:
            return None
        return error.name

    def _raised(self, error: BaseException, hint: str | None, label: str | None = None) -> Case:
        """The case that an exception fails: of a call with a label, or else of a line of the test."""
        learner, test = self._test_cell.where(error.__traceback__)
        if isinstance(error, NotImplementedError):
            return Case(label or test or "the test", what_it_says(error), learner, hint, unwritten=True)
        told = name_and_message(error)
        if learner:
            told = f"your code raised {told}"
            told += "; is it misspelt, or was its cell not run?" if type(error) is NameError else ""
        elif label:
            told = f"calling it raised {told}"
        else:
            told = f"the test cannot go on with what your code gave: {told}"
            told += f"; {MISSING_RETURN}" if "NoneType" in told else ""
        return Case(label or test or "the test", told, learner, hint)


def _tell(text: str) -> None:
    """Print a report of failure where a learner reads along; raise it where a program looks for errors."""
    ipython = sys.modules.get("IPython")
    if ipython and ipython.get_ipython() and os.environ.get("NBGRADER_EXECUTION") not in GRADING:
        _print(text)
    else:
        raise CheckFailed(text) from None


def _print(text: str) -> None:
    try:
        print(text)
    except UnicodeEncodeError:  # a terminal without ✗
        print(text.encode("ascii", "replace").decode())


def _text(name: str, value: Any, optional: bool = False) -> Any:
    if (isinstance(value, str) and value.strip()) or (optional and value is None):
        return value
    raise InputError(f"{name} is {show(value)}; expected a text that tells the learner what it is about")


def _name(function: Any) -> str:
    name = getattr(function, "__name__", None)
    return one_line(name, 40) if isinstance(name, str) and name.isidentifier() else "the function"


def _call_text(name: str, arguments: tuple, keywords: dict[str, Any]) -> str:
    shown = [show(value, MAX_ARGUMENT) for value in arguments]
    shown += [f"{key}={show(value, MAX_ARGUMENT)}" for key, value in keywords.items()]
    return f"{name}({', '.join(shown)})"
