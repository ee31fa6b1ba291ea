"""The parent's end of a session's pipes: one request, one reply, and a cap on all else that comes out."""

import os
import selectors
import time
from collections.abc import Callable
from contextlib import suppress

from kvcourse.course.grading.sandbox.errors import Stopped
from kvcourse.course.grading.sandbox.wire import HEADER, BadFrame, TooBig, sizes
from kvcourse.units import humanize

NOT_A_REPLY = "sent something that is not a reply"
_KEPT_OUTPUT = 2**16
_PATIENCE = 0.2  # seconds until a session counts as slow and is watched
_INTERVAL = 0.1
_CHUNK = 2**16


class Channel:
    """Writes requests, reads replies and drains what the program prints, all within a budget of wall time.

    `ended` asks the zygote without waiting and gives the reason if the child has ended, `watch` looks at what the
    session uses and raises Stopped; `control` is a descriptor that is readable when `ended` has news.
    """

    def __init__(
        self,
        descriptors: tuple[int, int, int],
        control: int,
        limits: tuple[float, int, int],
        ended: Callable[[], str | None],
        watch: Callable[[], None],
    ) -> None:
        self._requests, self._replies, self._output = descriptors
        self._control, self._ended, self._watch = control, ended, watch
        self._seconds, self._max_output, self._max_reply = limits
        self._wall = limits[0]
        self._next_watch = (
            time.monotonic() + _PATIENCE
        )  # of the session: many quick replies are slow together
        self._printed = bytearray()
        self._printed_bytes = 0
        self._output_open = True
        for descriptor in descriptors:
            os.set_blocking(descriptor, False)

    @property
    def output(self) -> str:
        """What the program printed so far, cut."""
        return self._printed.decode("utf-8", "replace")

    def exchange(self, frame: bytes) -> tuple[bytes, bytes]:
        """Send one frame and return the JSON and npz of its reply. Errors: Stopped."""
        started = time.monotonic()
        try:
            return self._exchange(frame, started)
        finally:
            self._seconds -= time.monotonic() - started

    def close(self) -> None:
        """Read the last of the output and close the pipes."""
        with suppress(Stopped):
            self._drain()
        for descriptor in (self._requests, self._replies, self._output):
            os.close(descriptor)

    def _exchange(self, frame: bytes, started: float) -> tuple[bytes, bytes]:
        if self._read(1):
            raise Stopped(NOT_A_REPLY)
        rest, reply = memoryview(frame), _Reply(self._max_reply)
        deadline = started + self._seconds
        with selectors.DefaultSelector() as selector:
            selector.register(self._requests, selectors.EVENT_WRITE)
            selector.register(self._replies, selectors.EVENT_READ)
            selector.register(self._control, selectors.EVENT_READ)
            if self._output_open:
                selector.register(self._output, selectors.EVENT_READ)
            while True:
                now = time.monotonic()
                if now >= deadline:
                    raise Stopped(f"took longer than {self._wall:g} s")
                if now >= self._next_watch:
                    self._watch()
                    self._next_watch = time.monotonic() + _INTERVAL
                ready = {key.fd for key, _ in selector.select(min(deadline, self._next_watch) - now)}
                if self._output in ready and not self._drain():
                    selector.unregister(self._output)
                if self._requests in ready:
                    rest = self._send(rest)
                    if not rest:
                        selector.unregister(self._requests)
                if self._replies in ready and self._receive(reply) is False:
                    selector.unregister(self._replies)  # closed: the news of its end is on the way
                if not reply.missing:
                    return self._only(reply)
                if self._control in ready and (reason := self._ended()):
                    self._drain()
                    self._receive(reply)
                    if not reply.missing:
                        return self._only(reply)
                    raise Stopped(reason)

    def _send(self, rest: memoryview) -> memoryview:
        try:
            return rest[os.write(self._requests, rest[:_CHUNK]) :]
        except BlockingIOError:
            return rest
        except OSError:  # nobody reads: what became of the child is told by the zygote
            return memoryview(b"")

    def _receive(self, reply: "_Reply") -> bool:
        """Read what there is of a reply, not a byte more. Returns False at the end of the pipe."""
        while reply.missing:
            part = self._read(min(reply.missing, 2**20))
            if not part:
                return part is None
            reply.take(part)
        return True

    def _only(self, reply: "_Reply") -> tuple[bytes, bytes]:
        if self._read(1):
            raise Stopped(NOT_A_REPLY)
        return reply.text, reply.data

    def _read(self, size: int) -> bytes | None:
        """Bytes of the reply pipe; b"" at its end, None if there are none now."""
        try:
            return os.read(self._replies, size)
        except BlockingIOError:
            return None

    def _drain(self) -> bool:
        """Take in what was printed. Returns False once the pipe is closed. Errors: Stopped if it is too much."""
        while self._output_open:
            try:
                part = os.read(self._output, _CHUNK)
            except BlockingIOError:
                return True
            self._output_open = bool(part)
            self._printed_bytes += len(part)
            self._printed += part[: _KEPT_OUTPUT - len(self._printed)]
            if self._printed_bytes > self._max_output:
                raise Stopped(f"printed more than {humanize(self._max_output)}")
        return False


class _Reply:
    """A reply that arrives in parts: `missing` bytes are still to come."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._buffer = bytearray()
        self._sizes: tuple[int, int] | None = None
        self.missing = HEADER.size

    def take(self, part: bytes) -> None:
        self._buffer += part
        self.missing -= len(part)
        if not self.missing and self._sizes is None:
            try:
                self._sizes = sizes(bytes(self._buffer), self._max_bytes)
            except BadFrame:
                raise Stopped(NOT_A_REPLY) from None
            except TooBig:
                raise Stopped(f"sent back more than {humanize(self._max_bytes)}") from None
            self._buffer.clear()
            self.missing = sum(self._sizes)

    @property
    def text(self) -> bytes:
        return bytes(self._buffer[: self._sizes[0]])

    @property
    def data(self) -> bytes:
        return bytes(self._buffer[self._sizes[0] :])
