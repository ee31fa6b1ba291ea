"""Landlock: the kernel's list of files that a process may use (Linux 5.13 and later, landlock(7))."""

import ctypes
import os
import stat
from collections.abc import Iterable

from kvcourse.course.grading.sandbox.kernel import IS_LINUX, system_call

# The same numbers on every architecture.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION = 1  # flag of create_ruleset: return the version of the interface
_PATH_BENEATH = 1

_WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 1, 1 << 2, 1 << 3
_MAKE_CHAR, _MAKE_SOCK, _MAKE_BLOCK = 1 << 6, 1 << 9, 1 << 11
_EXECUTE, _TRUNCATE, _IOCTL_DEV = 1 << 0, 1 << 14, 1 << 15
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV  # all else is only for folders
# The rights that exist from a version on.
_FILE_RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
_NETWORK_RIGHTS = 0b11  # bind and connect of TCP, from version 4 on
_SCOPES = 0b11  # abstract sockets and signals stay within the session, from version 6 on


class _Ruleset(ctypes.Structure):
    _fields_ = [("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scopes", ctypes.c_uint64)]


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("access", ctypes.c_uint64), ("parent", ctypes.c_int32)]


def version() -> int:
    """The version of Landlock that this kernel has; 0 for none."""
    if not IS_LINUX:
        return 0
    try:
        return system_call(_CREATE_RULESET, None, 0, _VERSION)
    except OSError:
        return 0


def restrict(readable: Iterable[str], listed: Iterable[str], writable: Iterable[str]) -> None:
    """Confine this thread, for good, to these files and folders (and what lies below them).

    `readable` may be read, of `listed` folders only the names may be read, `writable` ones may be changed as well.
    Nothing may be executed. Needs no_new_privs. Errors: OSError where the kernel refuses.
    """
    has = version()
    files = _FILE_RIGHTS[max(v for v in _FILE_RIGHTS if v <= has)]
    rules = _Ruleset(files, _NETWORK_RIGHTS if has >= 4 else 0, _SCOPES if has >= 6 else 0)
    size = 24 if has >= 6 else 16 if has >= 4 else 8
    ruleset = system_call(_CREATE_RULESET, ctypes.byref(rules), size, 0)
    try:
        change = files & ~(_EXECUTE | _MAKE_CHAR | _MAKE_BLOCK | _MAKE_SOCK | _IOCTL_DEV)
        for access, paths in ((_READ_FILE | _READ_DIR, readable), (_READ_DIR, listed), (change, writable)):
            for path in paths:
                _allow(ruleset, path, access)
        system_call(_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, access: int) -> None:
    try:
        parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:  # not there, or closed to us anyway
        return
    try:
        if not stat.S_ISDIR(os.fstat(parent).st_mode):
            access &= _OF_FILES
        rule = _PathBeneath(access, parent)
        system_call(_ADD_RULE, ruleset, _PATH_BENEATH, ctypes.byref(rule), 0)
    finally:
        os.close(parent)
