"""A Python audit hook (PEP 578): refuses what the kernel cannot refuse on this system.

It binds code written in Python. Libraries that open files by themselves (torch.from_file) and code that gets at raw
memory go around it; the report names it as the means, so that an instructor can grade in a container instead.
"""

import errno
import os
import stat
import sys
from typing import Any

# Refused whatever the arguments. Names that end in a dot stand for all events that begin so.
_REFUSED = (
    "socket.", "subprocess.", "ctypes.", "os.exec", "os.posix_spawn", "os.spawn", "os.system", "os.startfile",
    "os.fork", "os.forkpty", "os.kill", "os.killpg", "pty.spawn", "signal.pthread_kill", "fcntl.", "resource.prlimit",
    "syslog.", "sqlite3.", "sys.addaudithook", "sys._current_frames", "sys._current_exceptions", "sys.remote_exec",
    "gc.get_objects", "gc.get_referrers", "gc.get_referents",
)  # fmt: skip
# Events with paths, and the places of those in their arguments.
_READS = dict.fromkeys(("os.listdir", "os.scandir", "os.chdir", "os.walk", "os.fwalk"), (0,))
_CHANGES = {
    "os.mkdir": (0,), "os.rmdir": (0,), "os.remove": (0,), "os.rename": (0, 1), "os.link": (0, 1), "os.symlink": (1,),
    "os.chmod": (0,), "os.chown": (0,), "os.truncate": (0,), "os.utime": (0,), "os.chflags": (0,),
    "os.setxattr": (0,), "os.removexattr": (0,),
}  # fmt: skip
# Functions that reach other processes, or files, and of which no event tells: they go, and the modules are not
# loaded anew.
_OF_OTHERS = (
    "setpriority",
    "pidfd_open",
    "sched_setscheduler",
    "sched_setparam",
    "sched_setaffinity",
    "mkfifo",
    "mknod",
)
_UNSEEN = {
    "os": _OF_OTHERS,
    "posix": _OF_OTHERS,
    "signal": ("pidfd_send_signal",),
    "_signal": ("pidfd_send_signal",),
    "subprocess": ("_fork_exec",),
    "_posixsubprocess": ("fork_exec",),
    "_posixshmem": ("shm_open", "shm_unlink"),
    "_multiprocessing": ("SemLock", "sem_unlink"),
    "readline": ("read_history_file", "write_history_file", "append_history_file", "read_init_file"),
    "_gdbm": ("open",),
    "_dbm": ("open",),
    "_tkinter": ("create",),
}
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")


def restrict(files: dict[str, Any], work: str) -> None:
    """Install the hook for good. `files` has "readable", "listed" and "closed" real paths; `work` may be changed."""
    for module, names in _UNSEEN.items():
        loaded = sys.modules.get(module)
        for name in names:
            if hasattr(loaded, name):
                delattr(loaded, name)
    rules = [(path, True) for path in files["readable"]] + [(path, False) for path in files["closed"]]
    # A child's code can see the hook's frame in the traceback of a refusal. So everything is a local of one function,
    # bound beforehand and immutable: no closure and no function object there that it could rewrite.
    hook = _make_hook(tuple(sorted(rules, key=lambda rule: -len(rule[0]))), tuple(files["listed"]), work)
    sys.addaudithook(hook)


def _make_hook(rules: tuple, listed: tuple, work: str) -> Any:
    writing = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
    places = tuple((name, at, False) for name, at in _READS.items())
    places += tuple((name, at, True) for name, at in _CHANGES.items())

    def hook(
        event: str, arguments: tuple, *,
        refused=_REFUSED, places=places, rules=rules, listed=listed, work=work, devices=_DEVICES, writing=writing,
        unseen=tuple(_UNSEEN), last=str.rpartition, ImportError=ImportError,
        type=type, str=str, bytes=bytes, int=int, bool=bool, list=list, decode=bytes.decode,
        look=os.lstat, follow=os.readlink, here=os.getcwd, is_link=stat.S_ISLNK, is_folder=stat.S_ISDIR,
        PermissionError=PermissionError, OSError=OSError, code=errno.EACCES,
    ) -> None:  # fmt: skip
        paths, change = (), False
        if event == "open":
            path, mode, flags = arguments
            change = type(flags) is not int or bool(flags & writing)
            paths = (path,)
        if event == "import" and (type(arguments[0]) is not str or last(arguments[0], ".")[2] in unseen):
            raise ImportError("not allowed while an exercise is graded", name=arguments[0])
        for name, at, changes in places:
            if event == name:
                change, paths = changes, [arguments[place] for place in at]
        for name in refused:
            if event == name or (name[-1] == "." and event.startswith(name)):
                raise PermissionError(code, "not allowed while an exercise is graded", event)
        for path in paths:
            if type(path) is int:
                continue  # a descriptor that is open already
            if type(path) is bytes:
                path = decode(path, "utf-8", "surrogateescape")
            if path is None:
                path = "."
            if type(path) is not str or ".." in path.split("/"):
                raise PermissionError(code, "not allowed while an exercise is graded", event)
            # The real path, as os.path.realpath finds it.
            rest = (path if path[:1] == "/" else here() + "/" + path).split("/")[::-1]
            real, mode, links = "", 0, 0
            while rest:
                part = rest.pop()
                if part in ("", "."):
                    continue
                if part == "..":
                    real = real[: real.rfind("/")] if real else ""
                    continue
                try:
                    mode = look(real + "/" + part).st_mode
                except OSError:
                    mode = 0
                if not is_link(mode):
                    real += "/" + part
                    continue
                links += 1
                if links > 40:
                    raise PermissionError(code, "too many symbolic links", event)
                target = follow(real + "/" + part)
                if target[:1] == "/":
                    real = ""
                rest += target.split("/")[::-1]
            if real in devices or (real + "/").startswith(work + "/"):
                continue
            allowed = real in listed
            for folder, may_read in rules:  # the longest first
                if (real + "/").startswith(folder + "/"):
                    allowed = allowed or may_read
                    break
            # A descriptor of a folder elsewhere would let later calls name files in it that are not seen here.
            if change or not allowed or (event == "open" and is_folder(mode)):
                raise PermissionError(code, "not allowed while an exercise is graded", path)

    return hook
