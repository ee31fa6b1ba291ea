"""Programs for the tests of the sandbox, and what became of them."""

from textwrap import dedent

from kvcourse.course.grading.program import Piece, Program
from kvcourse.course.grading.sandbox import Limits, SandboxError

SMALL = Limits(
    cpu_seconds=2, wall_seconds=30, memory_bytes=2**28, file_bytes=2**20, processes=8, output_bytes=2**17
)


def program(*sources, label="cell 3", first_line=1):
    pieces = tuple(Piece(label, first_line, dedent(source).strip("\n")) for source in sources)
    return Program("ex-0-none", (), pieces)


def outcome(sandbox, source, *arguments, limits=SMALL):
    """What `attempt(*arguments)` of a program returned, or the SandboxError that the test would see."""
    with sandbox.session(program(source), limits) as session:
        try:
            return session.names.attempt(*arguments)
        except SandboxError as error:
            return error


def works(sandbox):
    """Whether the sandbox still runs an honest program."""
    return outcome(sandbox, "def attempt(x): return x + 1", 1) == 2
