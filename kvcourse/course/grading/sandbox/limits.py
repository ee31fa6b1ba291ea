"""How much one session may use, and other numbers on which both sides agree."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Bounds of one session; whatever passes one of them costs that session and nothing else.

    `cpu_seconds` binds each process of the session, and all of them together; `wall_seconds` is the time that the
    parent waits for replies, summed over the session. `memory_bytes` is what the learner's code may need on top of
    Python and torch, `file_bytes` the size of its work folder and of each file, `processes` the number of its
    processes and threads, `output_bytes` what it may print, `reply_bytes` the size of one reply.
    """

    cpu_seconds: int = 10
    wall_seconds: float = 30
    memory_bytes: int = 2**30
    file_bytes: int = 2**24
    processes: int = 16
    output_bytes: int = 2**20
    reply_bytes: int = 2**26


MAX_ARRAYS = 2_000  # in one message
MOST_FILES = 2048  # in the work folder
NOT_CONFINED = 113  # exit status of a child that could not give up its rights, so that nothing was run
