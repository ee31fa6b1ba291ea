"""End every process that a session left behind."""

import os
import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psutil


def kill_all(inside: bool, user: int | None) -> None:
    """Kill all descendants of this process and wait for them.

    `inside` a pid namespace of which this process is the root, one signal reaches all of them at once. Where the
    children have a `user` of their own, one signal of that user does. Else they are stopped first, until no new one
    appears, so that none can fork away from its end.
    """
    while True:
        if inside:
            _signal_everyone()
        elif user is not None:
            _as_user(user)
        else:
            stop_then_kill(os.getpid())
        if not _wait():
            return


def _signal_everyone() -> None:
    with suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)


def _as_user(user: int) -> None:
    pid = os.fork()
    if not pid:
        try:
            os.setuid(user)
            os.kill(-1, signal.SIGKILL)
        finally:
            os._exit(0)
    os.waitpid(pid, 0)


def stop_then_kill(root: int) -> None:
    """Stop all descendants of a process, then kill them, and the process itself unless it is this one."""
    import psutil

    try:
        top = psutil.Process(root)
    except psutil.NoSuchProcess:
        return
    stopped: dict[int, psutil.Process] = {}
    if root != os.getpid():
        stopped[root] = top
        _send(top, signal.SIGSTOP)
    while new := [p for p in top.children(recursive=True) if p.pid not in stopped]:
        for process in new:
            stopped[process.pid] = process
            _send(process, signal.SIGSTOP)
    for process in stopped.values():
        _send(process, signal.SIGKILL)


def _send(process: "psutil.Process", number: int) -> None:
    import psutil

    with suppress(psutil.Error):
        process.send_signal(number)


def _wait() -> bool:
    """Reap what has ended; returns whether a child is left, after giving it a moment to end."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    time.sleep(0.001)
    return True
