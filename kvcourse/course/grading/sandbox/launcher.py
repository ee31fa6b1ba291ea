"""Starts the zygote and talks with it: the only process that the parent has to do with."""

import dataclasses
import json
import os
import select
import site
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvcourse.course.grading.sandbox import confine, kernel, reaper
from kvcourse.course.grading.sandbox.files import readable_files
from kvcourse.course.grading.sandbox.limits import Limits
from kvcourse.course.grading.sandbox.work_folder import empty_folder
from kvcourse.errors import InputError

_START_SECONDS = 120  # importing torch from a slow disk
_END_SECONDS = 20
_KILLED = (9, 0.0)  # wait status and CPU seconds of a child that ended with its zygote
_USERS = 60_100  # the first number of a thousand users that no system gives to anybody


class Zygote:
    """A running zygote. Errors of its making: InputError where this system cannot confine a child at all."""

    # Whether a process is dumpable holds for the whole of it: how many zygotes need this one not to be, and what it
    # was before the first of them.
    _hiding = 0
    _dumpable = 0

    def __init__(self, hidden: Sequence[Path], without: Sequence[str]) -> None:
        self.folder = os.path.realpath(tempfile.mkdtemp(prefix="kvcourse-grade-"))
        self.work, self._stage = os.path.join(self.folder, "work"), os.path.join(self.folder, "root")
        # Also if nobody closes.
        self._remove_folder = weakref.finalize(self, _remove, self.folder, os.getpid())
        self._process: subprocess.Popen | None = None
        self._control: socket.socket | None = None
        self._lines = b""
        self._exit: dict[str, Any] | None = None
        self._hides_parent = False
        try:
            os.chmod(self.folder, 0o711)
            os.mkdir(self.work)
            os.mkdir(self._stage)
            self.confinement = self._start(hidden, list(without))
        except BaseException:
            self.close()
            raise

    @property
    def alive(self) -> bool:
        """Whether it can take another session."""
        return self._process is not None and self._process.poll() is None

    @property
    def descriptor(self) -> int:
        """Readable when there is news."""
        return self._control.fileno()

    @property
    def pid(self) -> int:
        """The process that the parent started; all others descend from it."""
        return self._process.pid

    @property
    def folder_is_bounded(self) -> bool:
        """Whether the work folder is a file system of its own with a size."""
        return bool(self.means["namespaces"])

    def open(self, limits: Limits, descriptors: Sequence[int]) -> int:
        """Fork the child of a session. Returns the pid that it has in its own world."""
        self._exit = None
        message = json.dumps({"start": dataclasses.asdict(limits)}).encode()
        socket.send_fds(self._control, [message], list(descriptors))
        return self._wait("started", _END_SECONDS)

    def end(self) -> None:
        """Kill all that the session left, and empty its work folder; nothing is left of either after `close`."""
        if self._control is None:
            return
        try:
            self._control.sendall(b'{"end": true}')
            self._wait("ended", _END_SECONDS)
        except (OSError, EOFError):
            self.kill()
        if not self.folder_is_bounded:
            empty_folder(self.work)

    def exit(self) -> tuple[int, float] | None:
        """The wait status and CPU seconds of the session's child, if it has ended; does not wait."""
        if self._control is None:
            return _KILLED
        try:
            self._take(0)
        except (OSError, EOFError):
            return None if self.alive else _KILLED
        return None if self._exit is None else (self._exit["exited"], self._exit["cpu"])

    def kill(self) -> None:
        """End it and all below it, whatever it is doing."""
        if self.alive:  # else its number may be another process's by now; what it started ends with it
            reaper.stop_then_kill(self._process.pid)
            self._process.wait()

    def close(self) -> None:
        """End it in an orderly way and remove its folder."""
        self._hang_up()
        if self._process is not None:
            try:
                self._process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                self.kill()
            self._process = None
        if self._hides_parent:
            self._hides_parent = False
            Zygote._hiding -= 1
            if not Zygote._hiding:
                kernel.control_process(kernel.PR_SET_DUMPABLE, Zygote._dumpable)
        self._remove_folder()

    def _hang_up(self) -> None:
        """Close the control socket: the zygote at its other end ends."""
        if self._control is not None:
            self._control.close()
            self._control = None

    # ---- start -------------------------------------------------------------------------------------

    def _start(self, hidden: Sequence[Path], without: list[str]) -> confine.Confinement:
        self.means = confine.available(without)
        self.means["namespaces"] = int(kernel.IS_LINUX and "namespaces" not in without)
        self._user = self._unused_user() if os.geteuid() == 0 else None
        files = readable_files(hidden)
        if self._user is not None:
            os.chown(self.work, self._user, self._user)
        problem = self._launch(dataclasses.asdict(files))
        if problem and self.means["namespaces"]:  # not allowed here: by a container, or by the distribution
            self.means["namespaces"] = 0
            problem = self._launch(dataclasses.asdict(files))
        if problem:
            raise InputError(f"the sandbox of the grader cannot start: {problem}")
        if kernel.IS_LINUX and self._user is None and not self.means["namespaces"]:
            self._make_parent_unreadable()
        return confine.in_words(self.means, self._user)

    def _make_parent_unreadable(self) -> None:
        """Keep processes of the same user from this one's memory: they are not behind a namespace here."""
        if not Zygote._hiding:
            Zygote._dumpable = kernel.control_process(kernel.PR_GET_DUMPABLE)
        kernel.control_process(kernel.PR_SET_DUMPABLE, 0)
        Zygote._hiding += 1
        self._hides_parent = True

    def _unused_user(self) -> int | None:
        """A user for the children of this zygote, so that limits and signals bind them alone."""
        user = _USERS + os.getpid() % 1000
        try:
            ranges = [
                tuple(map(int, line.split())) for line in Path("/proc/self/uid_map").read_text().splitlines()
            ]
        except OSError:  # macOS
            return user
        return user if any(first <= user < first + count for first, _, count in ranges) else None

    def _launch(self, files: dict[str, Any]) -> str:
        """Start the process. Returns what kept it from getting ready, or ""."""
        settings = {**files, "means": self.means, "user": self._user, "work": self.work, "stage": self._stage}
        self._hang_up()  # of a first try
        with tempfile.TemporaryFile() as errors:
            self._control, theirs = socket.socketpair()
            with theirs:
                number = theirs.fileno()
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "kvcourse.course.grading.sandbox.zygote", str(number)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=errors,
                    env=self._environment(),
                    cwd="/",
                    pass_fds=[number],
                    start_new_session=True,
                )
            try:
                self._process.stdin.write(json.dumps(settings).encode())
                self._process.stdin.close()
                self._lines = b""
                return self._wait("ready", _START_SECONDS) or ""
            except (OSError, EOFError):
                self.kill()
                errors.seek(0)
                lines = errors.read()[-2000:].decode("utf-8", "replace").strip().splitlines()
                return lines[-1] if lines else "it ended at once"

    def _environment(self) -> dict[str, str]:
        """Nothing of the parent's but what the loader of shared libraries needs."""
        kept = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
        if site.ENABLE_USER_SITE:
            kept["PYTHONUSERBASE"] = site.getuserbase()
        else:
            kept["PYTHONNOUSERSITE"] = "1"
        threads = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
        return (
            kept
            | dict.fromkeys(threads, "1")
            | {
                "PATH": "/usr/bin:/bin",
                "HOME": self.work,
                "TMPDIR": self.work,
                "LANG": "C.UTF-8",
                "PYTHONHASHSEED": "0",  # sets keep their order from run to run
                "PYTHONDONTWRITEBYTECODE": "1",
                "MALLOC_ARENA_MAX": "2",  # more would take address space for each thread
                "CUDA_VISIBLE_DEVICES": "",
            }
        )

    # ---- messages ----------------------------------------------------------------------------------

    def _wait(self, key: str, seconds: float) -> Any:
        """The content of the next message with this key. Errors: EOFError if the zygote says no more."""
        deadline = time.monotonic() + seconds
        while True:
            for message in self._take(max(0.0, deadline - time.monotonic())):
                if "failed" in message:
                    self._process.wait()
                    return message["failed"]
                if key in message:
                    return None if key == "ready" else message[key]

    def _take(self, seconds: float) -> list[dict[str, Any]]:
        """Messages that have come, after waiting for one. Notes the end of the child on the way."""
        ready, _, _ = select.select([self._control], [], [], seconds)
        if not ready:
            if seconds:
                raise EOFError
            return []
        part = self._control.recv(4096)
        if not part:
            raise EOFError
        *lines, self._lines = (self._lines + part).split(b"\n")
        messages = [json.loads(line) for line in lines]
        for message in messages:
            if "exited" in message:
                self._exit = message
        return messages


def _remove(folder: str, owner: int) -> None:
    """Remove the folder of a zygote, unless this is a fork of the process that made it."""
    if os.getpid() == owner and os.path.isdir(folder):
        empty_folder(folder)
        os.rmdir(folder)
