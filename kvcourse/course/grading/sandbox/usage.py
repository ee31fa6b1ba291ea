"""What the processes of a session use together, watched from outside while a reply is slow."""

from typing import TYPE_CHECKING

from kvcourse.course.grading.sandbox.errors import Stopped
from kvcourse.course.grading.sandbox.launcher import Zygote
from kvcourse.course.grading.sandbox.limits import MOST_FILES, Limits
from kvcourse.course.grading.sandbox.work_folder import folder_use
from kvcourse.units import humanize

if TYPE_CHECKING:
    import psutil


class Usage:
    """Checks one session against its limits."""

    def __init__(self, zygote: Zygote, limits: Limits) -> None:
        self._zygote, self._limits = zygote, limits

    def check(self) -> None:
        """Errors: Stopped, if the processes together passed a limit that the kernel sets only for each of them."""
        processes = self._processes()
        memory = sum(max(0, _own_bytes(process) - self._base) for process in processes)
        if memory > self._limits.memory_bytes:
            raise Stopped(f"needed more than {humanize(self._limits.memory_bytes)} of memory")
        if len(processes) > self._limits.processes:
            raise Stopped(f"started more than {self._limits.processes} processes")
        if sum(map(_cpu_seconds, processes)) > self._limits.cpu_seconds + 1:
            raise Stopped(f"used more than {self._limits.cpu_seconds} s of CPU time")
        if not self._zygote.folder_is_bounded:
            size, files = folder_use(self._zygote.work, MOST_FILES)
            if size > self._limits.file_bytes:
                raise Stopped(f"wrote more than {humanize(self._limits.file_bytes)} of files")
            if files > MOST_FILES:
                raise Stopped(f"wrote more than {MOST_FILES} files")

    def _processes(self) -> "list[psutil.Process]":
        """The session's processes; the zygote's own memory is noted as what each of them began with."""
        import psutil

        self._base = 0
        try:
            top = psutil.Process(self._zygote.pid)
            zygote = top.children()[0] if self._zygote.folder_is_bounded else top
            self._base = _own_bytes(zygote)
            return zygote.children(recursive=True)
        except (psutil.Error, IndexError):
            return []


def _own_bytes(process: "psutil.Process") -> int:
    """Memory of a process that is not a file's; 0 if it is gone."""
    import psutil

    try:
        memory = process.memory_info()
    except psutil.Error:
        return 0
    return memory.rss - getattr(memory, "shared", 0)


def _cpu_seconds(process: "psutil.Process") -> float:
    import psutil

    try:
        times = process.cpu_times()
    except psutil.Error:
        return 0.0
    return times.user + times.system
