"""The zygote: a process that has imported torch once and forks one confined child for each session.

It sees no test, no seed and no reference: only limits, the work folder and the descriptors of a session's pipes.
Messages on its control socket are lines of JSON.
"""

import importlib
import json
import os
import select
import signal
import socket
import sys
import traceback
from contextlib import suppress
from typing import Any

from kvcourse.course.grading.sandbox import confine, kernel, namespaces
from kvcourse.course.grading.sandbox.limits import MOST_FILES, NOT_CONFINED
from kvcourse.course.grading.sandbox.reaper import kill_all

_LIMITS_OF_TRIAL = {
    "cpu_seconds": 60, "memory_bytes": 2**30, "file_bytes": 2**20, "processes": 16,
}  # fmt: skip


class Zygote:
    """State of the process: its settings, the control socket, and the child of the session that is open."""

    def __init__(self, control: socket.socket, settings: dict[str, Any]) -> None:
        self.control = control
        self.settings = settings
        self.child = 0
        self.status: int | None = None
        self.statm = self.last_pid = -1
        self.inside = bool(settings["means"]["namespaces"])

    def prepare(self) -> None:
        """Enter namespaces, import what children need, and try whether a child can be confined."""
        settings = self.settings
        if self.inside:
            namespaces.enter(settings["user"])
        _import_libraries()
        if kernel.IS_LINUX:
            kernel.control_process(kernel.PR_SET_DUMPABLE, 0)
            kernel.control_process(kernel.PR_SET_CHILD_SUBREAPER, 1)
            self.statm = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
        if self.inside:
            with suppress(OSError):  # a container may not let it be written
                self.last_pid = os.open("/proc/sys/kernel/ns_last_pid", os.O_WRONLY | os.O_CLOEXEC)
            namespaces.new_root(settings["stage"], settings["readable"], settings["listed"], settings["work"])
        settings["read_all"] = False
        problem = self._try()
        if problem and settings["user"] is not None and not self.inside:
            settings["read_all"] = True  # Python lies in a folder that only root may enter
            problem = self._try()
        if problem:
            raise OSError(problem)

    def _try(self) -> str:
        """Confine a child as for a session, and let it read Python's library. Returns what failed, or ""."""
        read, write = os.pipe()
        self._open_work_folder(_LIMITS_OF_TRIAL)
        pid = os.fork()
        if not pid:
            try:
                os.chdir(self.settings["work"])
                confine.give_up_rights(self.settings, _LIMITS_OF_TRIAL, self.base_bytes())
                with open(os.__file__, "rb") as file:
                    file.read(1)
                with open("trial", "wb") as file:
                    file.write(b"x")
                os.unlink("trial")
            except BaseException as error:
                os.write(write, f"{type(error).__name__}: {error}"[:500].encode())
            finally:
                os._exit(0)
        os.close(write)
        with open(read, "rb") as pipe:
            said = pipe.read().decode("utf-8", "replace")
        _, status = os.waitpid(pid, 0)
        self._close_work_folder()
        return said or (f"a trial child ended with status {status}" if status else "")

    def base_bytes(self) -> int:
        """The address space of this process now, which every child begins with."""
        if self.statm < 0:
            return 0
        return int(os.pread(self.statm, 100, 0).split()[0]) * os.sysconf("SC_PAGE_SIZE")

    def serve(self) -> None:
        """Obey the parent until it closes the control socket."""
        wake_read, wake_write = os.pipe()
        for end in (wake_read, wake_write):
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        while True:
            ready, _, _ = select.select([self.control, wake_read], [], [])
            if wake_read in ready:
                os.read(wake_read, 4096)
                self._reap()
            if self.control in ready:
                message, descriptors, _, _ = socket.recv_fds(self.control, 4096, 3)
                if not message:
                    break
                request = json.loads(message)
                if "start" in request:
                    self._start(request["start"], descriptors)
                else:
                    self._end()
        self._kill()

    def say(self, **message: Any) -> None:
        """Send one line to the parent."""
        self.control.sendall(json.dumps(message).encode() + b"\n")

    def _start(self, limits: dict[str, Any], descriptors: list[int]) -> None:
        self.status = None
        base = self.base_bytes()
        self._open_work_folder(limits)
        if self.last_pid >= 0:  # every child has the same pid: no count of what an earlier session started
            with suppress(OSError):
                os.pwrite(self.last_pid, b"1", 0)
        pid = os.fork()
        if not pid:
            _be_child(self.settings, limits, descriptors, base)
        self.child = pid
        for descriptor in descriptors:
            os.close(descriptor)
        self.say(started=pid)

    def _reap(self) -> None:
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            if pid == self.child:
                self.child = 0
                self.status = status
                self.say(exited=status, cpu=usage.ru_utime + usage.ru_stime)

    def _end(self) -> None:
        self._kill()
        self.child = 0
        self._close_work_folder()
        self.say(ended=True)

    def _kill(self) -> None:
        kill_all(self.inside, self.settings["user"])

    def _open_work_folder(self, limits: dict[str, Any]) -> None:
        if self.inside:
            user = self.settings["user"]
            owner = os.getuid() if user is None else user
            group = os.getgid() if user is None else user
            size = limits["file_bytes"]
            namespaces.fresh_folder(self.settings["work"], size, MOST_FILES, owner, group)

    def _close_work_folder(self) -> None:
        if self.inside:
            namespaces.remove_folder(self.settings["work"])


def _import_libraries() -> None:
    """Load what nearly every exercise uses, so that a child has it at once."""
    import numpy
    import torch

    for name in ("psutil", "kvcourse.cache", "kvcourse.model", "kvcourse.course.grading.sandbox.child"):
        importlib.import_module(name)
    torch.set_num_threads(1)
    torch.randn(8, 8) @ torch.randn(8, 8)  # loads the parts of the library that come late
    numpy.random.default_rng(0).random(1)


def _be_child(settings: dict[str, Any], limits: dict[str, Any], descriptors: list[int], base: int) -> None:
    """The life of a child: confined first, then the learner's code, then gone without any clean-up of Python's."""
    from kvcourse.course.grading.sandbox import child

    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.setsid()
        requests, replies = child.take_descriptors(*descriptors)
        os.chdir(settings["work"])
        confine.give_up_rights(settings, limits, base)
    except BaseException:
        traceback.print_exc()
        os._exit(NOT_CONFINED)
    try:
        child.serve(requests, replies, limits["reply_bytes"])
    finally:  # it returns only by an error, such as a pipe that the learner's code closed
        os._exit(1)


def main() -> None:
    """Start from the command line: the number of the control socket's descriptor; settings come on stdin as JSON."""
    control = socket.socket(fileno=int(sys.argv[1]))
    settings = json.load(sys.stdin)
    zygote = Zygote(control, settings)
    try:
        zygote.prepare()
    except Exception as error:
        zygote.say(failed=f"{type(error).__name__}: {error}")
        os._exit(1)
    zygote.say(ready=True)
    zygote.serve()
    os._exit(0)


if __name__ == "__main__":
    main()
