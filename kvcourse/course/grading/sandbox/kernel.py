"""Calls of libc and of the Linux kernel for which Python has no name."""

import ctypes
import os
import platform
import sys

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_GET_DUMPABLE = 3
PR_SET_KEEPCAPS = 8
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38

_CAPABILITY_VERSION_3 = 0x20080522
CAP_DAC_READ_SEARCH = 1 << 2

IS_LINUX = sys.platform == "linux"
MACHINE = {"amd64": "x86_64", "arm64": "aarch64"}.get(platform.machine().lower(), platform.machine())


def call(name: str, *arguments: object) -> int:
    """Call a function of libc. Errors: OSError with its errno."""
    function = getattr(ctypes.CDLL(None, use_errno=True), name)
    function.restype = ctypes.c_long
    result = function(*(ctypes.c_long(a) if isinstance(a, int) else a for a in arguments))
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return result


def system_call(number: int, *arguments: object) -> int:
    """Call the kernel by number. Errors: OSError with its errno."""
    return call("syscall", number, *arguments)


def control_process(option: int, value: int = 0) -> int:
    """prctl(2) with one argument."""
    return call("prctl", option, value, 0, 0, 0)


def set_capabilities(mask: int) -> None:
    """Keep exactly these capabilities (the first 32), permitted and effective, and inherit none."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    data = (ctypes.c_uint32 * 6)(mask, mask, 0, 0, 0, 0)
    call("capset", header, data)
