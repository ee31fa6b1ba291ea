"""The parent's side: a sandbox, and the sessions in it.

with Sandbox() as sandbox, sandbox.session(program) as session:
    session.names.packed_positions(mask)
"""

import os
import signal
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kvcourse.course.grading.program import Program
from kvcourse.course.grading.sandbox.channel import NOT_A_REPLY, Channel
from kvcourse.course.grading.sandbox.confine import MEANS, Confinement
from kvcourse.course.grading.sandbox.errors import Closed, SandboxError, Stopped, StudentError
from kvcourse.course.grading.sandbox.launcher import Zygote
from kvcourse.course.grading.sandbox.limits import NOT_CONFINED, Limits
from kvcourse.course.grading.sandbox.remote import Names, Remote, handle_of
from kvcourse.course.grading.sandbox.usage import Usage
from kvcourse.course.grading.sandbox.values import Encoder, decode
from kvcourse.course.grading.sandbox.wire import BadFrame, pack, unpack
from kvcourse.errors import InputError
from kvcourse.units import humanize

__all__ = ["Closed", "Sandbox", "SandboxError", "Session", "Stopped", "StudentError"]

_MAX_REQUEST = 2**31


class Sandbox:
    """Runs learners' programs, one session at a time, in children of one prepared process.

    `hidden` paths are closed to the children even where they lie in a folder that children may read. `without` takes
    away means of the kernel ("namespaces", "landlock", "seccomp"), to see what is left on systems that lack them.
    Errors: InputError on Windows, for unknown means, and where nothing can confine a child.
    """

    def __init__(self, hidden: Iterable[Path] = (), without: Iterable[str] = ()) -> None:
        if sys.platform == "win32":
            raise InputError(
                "learners' code cannot be confined on Windows: grade in WSL or in a Linux container"
            )
        self._hidden, self._without = tuple(map(Path, hidden)), tuple(without)
        if unknown := set(self._without) - set(MEANS):
            raise InputError(f"without={sorted(unknown)[0]!r}: expected some of {', '.join(MEANS)}")
        self._zygote: Zygote | None = None
        self._session: Session | None = None
        self._closed = False

    def __enter__(self) -> "Sandbox":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def confinement(self) -> Confinement:
        """What keeps the children in, in words."""
        if self._is_open:  # a dead zygote stays until its session is closed
            return self._zygote.confinement
        return self._ready().confinement

    @property
    def _is_open(self) -> bool:
        return self._session is not None and not self._session.closed

    def session(self, program: Program, limits: Limits | None = None) -> "Session":
        """Start a child for a program. What goes wrong in the program is raised at the session's first use."""
        if self._is_open:
            raise RuntimeError("a sandbox has one session at a time: close the one that is open")
        limits = limits or Limits()
        try:
            self._session = Session(self._ready(), program, limits)
        except (OSError, EOFError):  # the zygote died since the last session
            self._session = Session(self._ready(), program, limits)
        return self._session

    def close(self) -> None:
        """End the open session and the prepared process; it can be called again."""
        self._closed = True
        if self._session is not None:
            self._session.close()
        if self._zygote is not None:
            self._zygote.close()
            self._zygote = None

    def _ready(self) -> Zygote:
        if self._closed:
            raise RuntimeError("this sandbox is closed")
        if self._zygote is not None and not self._zygote.alive:
            self._zygote.close()
            self._zygote = None
        if self._zygote is None:
            self._zygote = Zygote(self._hidden, self._without)
        return self._zygote


class Session:
    """One child with one learner's program. Every use may raise StudentError, Stopped or Closed."""

    def __init__(self, zygote: Zygote, program: Program, limits: Limits) -> None:
        self._zygote, self._program, self._limits = zygote, program, limits
        self._error: SandboxError | None = None
        self.started = False
        self._number = 0
        self.closed = False
        self.names = Names(self._ask)
        self.output = ""
        requests, replies, output = os.pipe(), os.pipe(), os.pipe()
        try:
            zygote.open(limits, [requests[0], replies[1], output[1]])
        except BaseException:
            for end in (requests[1], replies[0], output[0]):
                os.close(end)
            raise
        finally:
            for end in (requests[0], replies[1], output[1]):
                os.close(end)
        bounds = (limits.wall_seconds, limits.output_bytes, limits.reply_bytes)
        usage = Usage(zygote, limits)
        ends = (requests[1], replies[0], output[0])
        self._channel = Channel(ends, zygote.descriptor, bounds, self._why_ended, usage.check)

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def put(self, value: Any) -> Remote:
        """Send plain data to the child, to be passed to its functions as one and the same object."""
        return self._ask("put", value=value)

    def close(self) -> None:
        """Kill the child and all that it started; `output` stays."""
        if self.closed:
            return
        self.closed = True
        try:
            self._zygote.end()
        finally:
            self._channel.close()
            self.output = self._channel.output

    def _ask(self, operation: str, **parts: Any) -> Any:
        """Send one request and return its value."""
        if self.closed:
            raise self._error or Closed("the session of this value is over")
        if not self.started:
            self.started = True
            pieces = [[piece.label, piece.first_line, piece.source] for piece in self._program.pieces]
            try:
                self._exchange("run", {"pieces": pieces}, [])
            except StudentError as error:
                self._error = error
        if self._error is not None:
            raise self._error.with_traceback(None)
        encoder = Encoder(_refer, _MAX_REQUEST)
        coded = {key: encoder.encode(part) if key in _VALUES else part for key, part in parts.items()}
        return self._exchange(operation, coded, encoder.arrays)

    def _exchange(self, operation: str, parts: dict[str, Any], arrays: list) -> Any:
        self._number += 1
        frame = pack({"id": self._number, "op": operation, **parts}, arrays)
        try:
            return self._value(*unpack(*self._channel.exchange(frame)))
        except BadFrame:
            self._stop(Stopped(NOT_A_REPLY))
        except Stopped as error:
            self._stop(error)
        except BaseException as error:
            if not isinstance(error, StudentError):  # Ctrl-C: the reply would answer another request
                self.close()
            raise

    def _stop(self, error: Stopped) -> None:
        self._error = Stopped(error.reason)
        self.close()
        raise self._error from None

    def _value(self, reply: Any, arrays: list) -> Any:
        if type(reply) is not dict or len(reply) != 2 or reply.get("id") != self._number:
            raise BadFrame
        if "value" in reply:
            return decode(reply["value"], arrays, self._remote)
        if "error" in reply:
            raise _student_error(reply["error"])
        bounds = {
            "memory": ("needed", self._limits.memory_bytes),
            "size": ("sent back", self._limits.reply_bytes),
        }
        stopped = reply.get("stopped")
        if type(stopped) is not str or stopped not in bounds:
            raise BadFrame
        verb, bound = bounds[stopped]
        raise Stopped(f"{verb} more than {humanize(bound)}" + (" of memory" if verb == "needed" else ""))

    def _remote(self, code: dict[str, Any]) -> Remote:
        handle, kind = code.get("object"), code.get("type")
        if type(handle) is not int or type(kind) is not str or len(code) != 2:
            raise BadFrame
        return Remote(self._ask, handle, _printable(kind, 100))

    def _why_ended(self) -> str | None:
        ended = self._zygote.exit()
        if ended is None:
            return None
        status, seconds = ended
        if os.WIFEXITED(status):
            code = os.WEXITSTATUS(status)
            if code == NOT_CONFINED and self._number == 1:
                return "could not be confined, so it was not run"
            return f"ended by itself (exit code {code})"
        number = os.WTERMSIG(status)
        if number == signal.SIGXCPU or (number == signal.SIGKILL and seconds >= self._limits.cpu_seconds):
            return f"used more than {self._limits.cpu_seconds} s of CPU time"
        known = {known.value: known.name for known in signal.Signals}
        name = known.get(number, f"signal {number}")
        return f"crashed ({_CRASHES[name]})" if name in _CRASHES else f"was ended by {name}"


_VALUES = ("arguments", "key", "value")
_CRASHES = {
    "SIGSEGV": "segmentation fault",
    "SIGBUS": "bus error",
    "SIGABRT": "aborted",
    "SIGFPE": "arithmetic error",
    "SIGILL": "illegal instruction",
}


def _refer(value: object) -> dict[str, Any]:
    """The structure of a Remote that goes back; a test can send nothing else that is not plain data."""
    if type(value) is not Remote:
        raise TypeError(
            f"a {type(value).__name__} cannot be sent to a learner's code: only plain data and Remotes"
        )
    return {"remote": handle_of(value)}


def _student_error(parts: Any) -> StudentError:
    if type(parts) is not dict or set(parts) != {"kind", "message", "where"}:
        raise BadFrame
    if any(type(part) is not str for part in parts.values()):
        raise BadFrame
    return StudentError(
        _printable(parts["kind"], 100), _printable(parts["message"], 300), _printable(parts["where"], 300)
    )


def _printable(text: str, most: int) -> str:
    """The text cut, without characters that move a terminal's cursor or hide others."""
    return "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in text[:most])
