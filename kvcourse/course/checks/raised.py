"""An exception of a learner's code, told in one line and without a traceback."""

import linecache
from dataclasses import dataclass
from types import FrameType, TracebackType

MAX_MESSAGE = 200
MAX_SOURCE = 100


@dataclass(frozen=True)
class TestCell:
    """The cell that tests: its frame tells the learner's code from the test's and from everything else."""

    __test__ = False  # pytest is not meant

    frame: FrameType

    def where(self, traceback: TracebackType | None) -> tuple[str | None, str | None]:
        """(line of the learner's code, line of the test) that an exception came through; the innermost of each.

        All cells share their global names with the test, and nothing else does. No file is named: the path of a
        cell differs from machine to machine.
        """
        learner = test = None
        while traceback is not None:
            frame, line = traceback.tb_frame, traceback.tb_lineno
            source = linecache.getline(frame.f_code.co_filename, line, frame.f_globals).strip()
            if self._is_test(frame):
                test = one_line(source, MAX_SOURCE)
            elif frame.f_globals is self.frame.f_globals:
                name = frame.f_code.co_qualname
                inside = "" if name == "<module>" else f", in {name}"
                learner = f"line {line} of the cell{inside}"
                learner += f": {one_line(source, MAX_SOURCE)}" if source else ""
            traceback = traceback.tb_next
        return learner, test

    def _is_test(self, frame: FrameType) -> bool:
        own, code = self.frame.f_code, frame.f_code
        return code is own or (code.co_filename == own.co_filename and code.co_name == "<lambda>")


def what_it_says(error: BaseException) -> str:
    """The message in one line of at most 200 characters; "" if there is none, or if it cannot be had."""
    try:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    except Exception:  # a __str__ of the learner's
        return ""
    return one_line(lines[0], MAX_MESSAGE) if lines else ""


def name_and_message(error: BaseException) -> str:
    """As Python prints it: "IndexError: list index out of range"."""
    message = what_it_says(error)
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def one_line(text: str, limit: int) -> str:
    """The text without what a terminal would obey, cut at `limit` characters."""
    text = "".join(letter if letter.isprintable() else "?" for letter in text)
    return text if len(text) <= limit else text[: limit - 1] + "…"
