"""What holds a child, in words for the report, and the steps that a child takes to give up its rights."""

import os
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from kvcourse.course.grading.sandbox import audit, kernel, landlock, seccomp

MEANS = ("namespaces", "landlock", "seccomp")


@dataclass(frozen=True)
class Confinement:
    """What kept the learner's code in, one short phrase each, for the report of a grading run."""

    network: str
    files: str
    processes: str
    memory: str
    user: str


def available(without: list[str]) -> dict[str, int]:
    """The kernel's means that can be used here (namespaces excepted: those must be tried)."""
    return {
        "landlock": 0 if "landlock" in without else landlock.version(),
        "seccomp": int("seccomp" not in without and seccomp.available()),
    }


def in_words(means: dict[str, int], user: int | None) -> Confinement:
    """Confinement for these means; `user` is the number of the child's own user, if it has one."""
    inside, lock, seccomp = means["namespaces"], means["landlock"], means["seccomp"]
    files = [word for word, has in (("own file system", inside), (f"Landlock {lock}", lock)) if has]
    blocked = "blocked sockets (by the kernel)" if seccomp else "blocked sockets (by Python only)"
    return Confinement(
        network="none (a network namespace)" if inside else blocked,
        files=" and ".join(files) or "blocked calls (by Python only: weak against native code)",
        processes="process namespace" if inside else "process group",
        memory="address space of each process, and the sum over the session",
        user="a user of its own" if user is not None else "the grader's own user, without rights",
    )


def give_up_rights(settings: dict[str, Any], limits: dict[str, Any], base_bytes: int) -> None:
    """Confine this process for good: limits, user, files and system calls, in the order in which they can be set.

    `settings` is what the zygote was started with, `base_bytes` the address space that Python and torch take.
    Errors: OSError where one of the means fails; the process must then not go on.
    """
    means = settings["means"]
    os.umask(0o077)
    _limit_resources(settings, limits, base_bytes)
    if settings["user"] is not None:
        _change_user(settings["user"], settings["read_all"])
    if kernel.IS_LINUX:
        if settings["user"] is None and means["namespaces"]:
            kernel.set_capabilities(0)  # root of its namespace until now
        kernel.control_process(kernel.PR_SET_DUMPABLE, 0)
        # After the user: changing it clears this.
        kernel.control_process(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        kernel.control_process(kernel.PR_SET_NO_NEW_PRIVS, 1)
    if means["landlock"]:
        devices = [path for path in ("/dev/null",) if os.path.exists(path)]
        landlock.restrict(settings["readable"], settings["listed"], [settings["work"], *devices])
    if means["seccomp"]:
        seccomp.restrict(own_signals_only=not means["namespaces"])
    if not (means["seccomp"] and (means["landlock"] or means["namespaces"])):
        audit.restrict(settings, settings["work"])


def _limit_resources(settings: dict[str, Any], limits: dict[str, Any], base_bytes: int) -> None:
    import resource

    processes = limits["processes"]
    if settings["user"] is None:
        # The kernel counts the zygote too, and outside of a namespace all of the user's.
        processes += 2 if settings["means"]["namespaces"] else _tasks_of_this_user()
    bounds = {
        "RLIMIT_CPU": (limits["cpu_seconds"], limits["cpu_seconds"] + 1),  # SIGXCPU says why, SIGKILL ends it
        "RLIMIT_AS": base_bytes + limits["memory_bytes"],
        "RLIMIT_FSIZE": limits["file_bytes"],
        "RLIMIT_NPROC": processes,
        "RLIMIT_NOFILE": 64,
        "RLIMIT_CORE": 0,
        "RLIMIT_MSGQUEUE": 0,
        "RLIMIT_MEMLOCK": 0,
    }
    for name, bound in bounds.items():
        number = getattr(resource, name, None)
        if number is None:
            continue
        soft, hard = bound if isinstance(bound, tuple) else (bound, bound)
        ceiling = resource.getrlimit(number)[1]
        if ceiling != resource.RLIM_INFINITY:
            soft, hard = min(soft, ceiling), min(hard, ceiling)
        try:
            resource.setrlimit(number, (soft, hard))
        except (OSError, ValueError):  # macOS does not know a limit of the address space
            if sys.platform != "darwin":
                raise


def _tasks_of_this_user() -> int:
    """Threads of all processes of this user; from /proc where there is one, since psutil takes 1 ms for each."""
    if not kernel.IS_LINUX:
        import psutil

        found = psutil.process_iter(["uids", "num_threads"])
        mine = [p.info for p in found if p.info["uids"] and p.info["uids"].real == os.getuid()]
        return sum(info["num_threads"] or 1 for info in mine)
    user, count = f"\nUid:\t{os.getuid()}\t", 0
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError), open(f"/proc/{name}/status", errors="replace") as file:  # it may have ended
            status = file.read()
            if user in status:
                count += int(status.partition("\nThreads:\t")[2].partition("\n")[0])
    return count


def _change_user(user: int, read_all: bool) -> None:
    """Become an unprivileged user; with `read_all` one that file modes do not keep from reading (Landlock does)."""
    if read_all:
        kernel.control_process(kernel.PR_SET_KEEPCAPS, 1)
    os.setgroups([])
    if kernel.IS_LINUX:
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    else:
        os.setgid(user)
        os.setuid(user)
    if read_all:
        kernel.set_capabilities(kernel.CAP_DAC_READ_SEARCH)
