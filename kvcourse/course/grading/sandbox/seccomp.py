"""A seccomp filter: the kernel refuses calls that no exercise needs (seccomp(2), Linux 3.17 and later).

It closes what Landlock and namespaces leave open: sockets that lie in the file system, io_uring, memory without a
process, other processes' priorities and signals of a process's own user.
"""

import ctypes
import errno
import os

from kvcourse.course.grading.sandbox.kernel import IS_LINUX, MACHINE, call, system_call

_COLUMN = {"x86_64": 0, "aarch64": 1}  # the columns of the tables below
_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_SECCOMP = {"x86_64": 317, "aarch64": 277}

# Numbers of calls, from the kernel's asm/unistd.h.
_REFUSED = {
    # sockets of any kind, and io_uring, which can make them
    "socket": (41, 198), "socketpair": (53, 199), "connect": (42, 203), "bind": (49, 200), "listen": (50, 201),
    "accept": (43, 202), "accept4": (288, 242), "io_uring_setup": (425, 425), "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    # other programs and other processes
    "execve": (59, 221), "execveat": (322, 281), "ptrace": (101, 117), "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271), "process_madvise": (440, 440), "process_mrelease": (448, 448),
    "pidfd_open": (434, 434), "pidfd_getfd": (438, 438), "pidfd_send_signal": (424, 424), "kcmp": (312, 272),
    "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240), "setpriority": (141, 140),
    "ioprio_set": (251, 30), "sched_setscheduler": (144, 119), "sched_setparam": (142, 118),
    "sched_setattr": (314, 274), "sched_setaffinity": (203, 122), "migrate_pages": (256, 238),
    "move_pages": (279, 239), "perf_event_open": (298, 241),
    # namespaces and mounts
    "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41),
    "chroot": (161, 51), "move_mount": (429, 429), "open_tree": (428, 428), "fsopen": (430, 430),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442),
    "open_by_handle_at": (304, 265), "name_to_handle_at": (303, 264),
    # memory that belongs to no process, or that outlives it
    "memfd_create": (319, 279), "memfd_secret": (447, 447), "shmget": (29, 194), "shmat": (30, 196),
    "shmctl": (31, 195), "msgget": (68, 186), "semget": (64, 190), "mq_open": (240, 180),
    # parts of the kernel with a history of holes
    "userfaultfd": (323, 282), "bpf": (321, 280), "keyctl": (250, 219), "add_key": (248, 217),
    "request_key": (249, 218), "fanotify_init": (300, 262), "inotify_init1": (294, 26), "personality": (135, 92),
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106), "quotactl": (179, 60),
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "reboot": (169, 142), "swapon": (167, 224),
    "swapoff": (168, 225), "acct": (163, 89), "syslog": (103, 116), "settimeofday": (164, 170),
    "clock_settime": (227, 112), "adjtimex": (159, 171), "clock_adjtime": (305, 266), "vhangup": (153, 58),
}  # fmt: skip
_CLONE, _CLONE3, _FCNTL, _IOCTL = (56, 220), (435, 435), (72, 25), (16, 29)
_KILL, _TGKILL, _TKILL, _PRLIMIT = (62, 129), (234, 131), (200, 130), (302, 261)

_NEW_NAMESPACES = 0x7E020080
_SIGNALS_OF_FILES = (8, 10, 15)  # F_SETOWN, F_SETSIG, F_SETOWN_EX: they make the kernel signal any process
_TERMINALS = (0x8901, 0x8902, 0x5412, 0x541C)  # FIOSETOWN, SIOCSPGRP, TIOCSTI, TIOCLINUX

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL_PROCESS = 0x7FFF0000, 0x80000000
_ARGUMENT = 16  # where the arguments begin in struct seccomp_data; each takes 8 bytes, little-endian


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


def available() -> bool:
    """Whether this kernel filters, on a machine whose call numbers are known here."""
    if not IS_LINUX or MACHINE not in _COLUMN:
        return False
    try:
        refuse = ctypes.c_uint32(0x00050000)  # SECCOMP_RET_ERRNO
        return system_call(_SECCOMP[MACHINE], 2, 0, ctypes.byref(refuse)) == 0  # SECCOMP_GET_ACTION_AVAIL
    except OSError:
        return False


def restrict(own_signals_only: bool) -> None:
    """Filter the calls of this process and its children for good; refused ones fail with EPERM.

    With `own_signals_only` the process may signal only itself: for systems on which a namespace or Landlock does not
    keep signals inside. Needs no_new_privs. Errors: OSError where the kernel refuses.
    """
    code = _program(own_signals_only)
    lines = (ctypes.c_uint64 * len(code))(*code)
    program = _Program(len(code), ctypes.cast(lines, ctypes.c_void_p))
    call("prctl", 22, 2, ctypes.byref(program), 0, 0)  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER


def _line(code: int, value: int, if_true: int = 0, if_false: int = 0) -> int:
    """One instruction of classic BPF (struct sock_filter) as a 64-bit number."""
    return code | if_true << 16 | if_false << 24 | value << 32


def _program(own_signals_only: bool) -> list[int]:
    column = _COLUMN[MACHINE]
    code = [
        _line(_LOAD, 4),  # the architecture of the call: 32-bit calls have other numbers
        _line(_EQUAL, _AUDIT_ARCH[MACHINE], 1, 0),
        _line(_RETURN, _KILL_PROCESS),
        _line(_LOAD, 0),  # the number of the call
    ]
    if MACHINE == "x86_64":  # the x32 calls have other numbers too
        code += [_line(_AT_LEAST, 0x40000000, 0, 1), _refuse(errno.ENOSYS)]
    for numbers in _REFUSED.values():
        code += [_line(_EQUAL, numbers[column], 0, 1), _refuse(errno.EPERM)]
    # The flags of clone3 cannot be read by a filter; libc falls back to clone.
    code += [_line(_EQUAL, _CLONE3[column], 0, 1), _refuse(errno.ENOSYS)]
    code += _when(_CLONE[column], 0, [_line(_ANY_BIT, _NEW_NAMESPACES, 0, 1), _refuse(errno.EPERM)])
    for call_number, values in ((_FCNTL[column], _SIGNALS_OF_FILES), (_IOCTL[column], _TERMINALS)):
        code += _when(
            call_number, 1, [i for v in values for i in (_line(_EQUAL, v, 0, 1), _refuse(errno.EPERM))]
        )
    if own_signals_only:
        for numbers in (_KILL, _TGKILL):
            code += _when(numbers[column], 0, [_line(_EQUAL, os.getpid(), 1, 0), _refuse(errno.EPERM)])
        code += [_line(_EQUAL, _TKILL[column], 0, 1), _refuse(errno.EPERM)]
        code += _when(_PRLIMIT[column], 0, [_line(_EQUAL, 0, 1, 0), _refuse(errno.EPERM)])
    return [*code, _line(_RETURN, _ALLOW)]


def _refuse(number: int) -> int:
    return _line(_RETURN, 0x00050000 | number)


def _when(call_number: int, argument: int, body: list[int]) -> list[int]:
    """Run the body on the low half of one argument of one call; then the call is allowed."""
    body = [_line(_LOAD, _ARGUMENT + 8 * argument), *body, _line(_RETURN, _ALLOW)]
    return [_line(_EQUAL, call_number, 0, len(body)), *body]
