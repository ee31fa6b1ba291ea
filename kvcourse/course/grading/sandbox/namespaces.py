"""Linux namespaces: an own network, own processes and an own file system for the zygote and its children.

No privilege is needed where the system lets users make namespaces (user_namespaces(7)).
"""

import ctypes
import os
import signal
import stat
import sys
from collections.abc import Iterable

from kvcourse.course.grading.sandbox.kernel import PR_SET_PDEATHSIG, call, control_process, system_call

_NEW = 0x00020000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000  # mnt uts ipc user pid net
_RDONLY, _NOSUID, _NODEV, _REMOUNT, _BIND, _REC, _PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18
_DETACH = 2
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_MOUNT_SETATTR = 442


def enter(child_user: int | None) -> None:
    """Move this process into new namespaces, as their root; it goes on as pid 1 of the pid namespace.

    The process that called stays behind as its parent and ends with it. `child_user` is a second user and group
    that the namespace shall have (only root may ask for one); without it the namespace has only the caller.
    Errors: OSError where the system does not allow it.
    """
    user, group = os.geteuid(), os.getegid()
    if child_user is None:
        _unshare()
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{user} {user} 1")
        _write("/proc/self/gid_map", f"{group} {group} 1")
    else:
        _unshare_with_helper(f"{user} {user} 1\n{child_user} {child_user} 1")
    pid = os.fork()
    if pid:
        os.closerange(3, 1024)
        _, status = os.waitpid(pid, 0)
        os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
    control_process(PR_SET_PDEATHSIG, signal.SIGKILL)


def _unshare() -> None:
    call("unshare", _NEW)


def _unshare_with_helper(mapping: str) -> None:
    """Unshare, and have the maps written from outside: inside, a process may map only itself."""
    go_read, go_write = os.pipe()
    pid, helper = os.getpid(), os.fork()
    if not helper:
        try:
            os.close(go_write)
            if os.read(go_read, 1):
                _write(f"/proc/{pid}/uid_map", mapping)
                _write(f"/proc/{pid}/gid_map", mapping)
                os._exit(0)
        finally:
            os._exit(1)
    os.close(go_read)
    try:
        _unshare()
        os.write(go_write, b"g")
    finally:
        os.close(go_write)
        _, status = os.waitpid(helper, 0)
    if status:
        raise OSError("the user map of a namespace cannot be written")


def new_root(stage: str, readable: Iterable[str], listed: Iterable[str], work: str) -> None:
    """Make a file system that holds only these paths, read-only, and an empty folder `work`, the root of all.

    `stage` is an empty folder to build it on. Symbolic links on the way to sys.prefix and the like are kept.
    """
    _mount("none", "/", None, _REC | _PRIVATE)
    _mount("tmpfs", stage, "tmpfs", _NOSUID | _NODEV, "mode=755,size=1m")
    for path in (*listed, *readable):
        _bind(stage, path, path in listed)
    for alias in ("/lib", "/lib64", "/lib32", "/etc/localtime", sys.prefix, sys.base_prefix, *sys.path):
        _links(stage, alias)
    os.makedirs(stage + work, mode=0o755, exist_ok=True)
    _mount("none", stage, None, _REMOUNT | _BIND | _RDONLY | _NOSUID | _NODEV)
    os.chdir(stage)
    system_call(_PIVOT_ROOT[os.uname().machine], b".", b".")
    call("umount2", b".", _DETACH)
    os.chdir("/")


def fresh_folder(path: str, size: int, files: int, user: int, group: int) -> None:
    """Mount an empty file system in memory that holds `size` bytes and `files` files at most."""
    options = f"mode=700,size={size},nr_inodes={files},uid={user},gid={group}"
    _mount("tmpfs", path, "tmpfs", _NOSUID | _NODEV, options)


def remove_folder(path: str) -> None:
    """Unmount what fresh_folder mounted, with all that it holds."""
    call("umount2", path.encode(), _DETACH)


def _bind(stage: str, path: str, only_a_folder: bool) -> None:
    target = stage + path
    if only_a_folder or stat.S_ISDIR(os.stat(path).st_mode):
        os.makedirs(target, mode=0o755, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), mode=0o755, exist_ok=True)
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
    if only_a_folder:
        return
    _mount(path, target, None, _BIND | _REC)
    is_device = stat.S_ISCHR(os.stat(path).st_mode)
    try:
        attributes = (ctypes.c_uint64 * 4)(_RDONLY | _NOSUID | (0 if is_device else _NODEV), 0, 0, 0)
        recursive = 0x8000
        system_call(_MOUNT_SETATTR, -100, target.encode(), recursive, ctypes.byref(attributes), 32)
    except OSError:  # before Linux 5.12; flags that are set already are locked and must be repeated
        kept = os.statvfs(path).f_flag & (_NOSUID | _NODEV | 8 | 1024 | 2048)
        _mount("none", target, None, _REMOUNT | _BIND | _RDONLY | _NOSUID | kept)


def _links(stage: str, path: str) -> None:
    """Copy the symbolic links on the way to a path; what they point at is there already, or is not wanted."""
    parts = [part for part in path.split("/") if part]
    for count in range(1, len(parts) + 1):
        here = "/" + "/".join(parts[:count])
        if not os.path.islink(here):
            continue
        target = os.readlink(here)
        if not os.path.lexists(stage + here):
            os.makedirs(os.path.dirname(stage + here), mode=0o755, exist_ok=True)
            os.symlink(target, stage + here)
        _links(stage, os.path.normpath(os.path.join(os.path.dirname(here), target, *parts[count:])))
        return


def _mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    name = kind.encode() if kind else None
    call("mount", source.encode(), target.encode(), name, flags, options.encode() or None)


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)
