"""What a hostile program tries in order to reach the network, the parent or any other process."""

import contextlib
import os
import signal
import socket

import pytest
from sandboxed import outcome, works

from kvcourse.course.grading.sandbox import SandboxError, Stopped, StudentError

# ---- network ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def listeners(tmp_path_factory):
    """Sockets of the parent that anybody on this machine can reach: (name, address, how many came)."""
    folder = tmp_path_factory.mktemp("socket")
    for path in (folder, *folder.parents[:-2]):
        with contextlib.suppress(PermissionError):
            path.chmod(path.stat().st_mode | 0o011)
    tcp, udp = socket.create_server(("127.0.0.1", 0)), socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.bind(("127.0.0.1", 0))
    hidden, named = (socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(2))
    hidden.bind(f"\0kvcourse-{os.getpid()}")
    named.bind(str(folder / "s"))
    os.chmod(folder / "s", 0o777)
    with tcp, udp, hidden, named:
        for each in (tcp, udp, hidden, named):
            each.setblocking(False)
        yield {"tcp": tcp, "udp": udp, "hidden": hidden, "named": named}


def has_visitors(listener):
    try:
        if listener.type == socket.SOCK_STREAM:
            listener.accept()[0].close()
        else:
            listener.recv(100)
        return True
    except BlockingIOError:
        return False


CALLS = {
    "tcp": "socket.create_connection(address, timeout=1)",
    "udp": "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', address)",
    "hidden": "socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b'x', address)",
    "named": "socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b'x', address)",
}


@pytest.mark.parametrize("kind", CALLS)
def test_no_socket_of_this_machine_is_reached(any_sandbox, listeners, kind):
    address = listeners[kind].getsockname()
    exec(CALLS[kind], {"socket": socket, "address": address})
    assert has_visitors(listeners[kind]), "the address itself is wrong"
    address = address.decode() if isinstance(address, bytes) else address
    got = outcome(any_sandbox, f"import socket\ndef attempt(address): {CALLS[kind]}", address)
    assert isinstance(got, StudentError), got
    assert not has_visitors(listeners[kind])


@pytest.mark.parametrize(
    "body",
    [
        "socket.getaddrinfo('localhost', 80)",
        "socket.getaddrinfo('example.org', 80)",
        "socket.socketpair()",
        "socket.create_server(('127.0.0.1', 0))",
        "__import__('urllib.request').request.urlopen('http://127.0.0.1:9/')",
        "__import__('asyncio').run(__import__('asyncio').sleep(0))",
    ],
)
def test_no_socket_can_be_made(any_sandbox, body):
    assert isinstance(outcome(any_sandbox, f"import socket\ndef attempt(): {body}"), StudentError)


# ---- other processes -------------------------------------------------------------------------------

SIGNALS = {
    "kill": "os.kill(parent, 15)",
    "kill the group": "os.killpg(os.getpgid(parent), 15)",
    "kill all": "os.kill(-1, 15)",
    "kill the zygote": "os.kill(os.getppid(), 9)",
    "of a pipe": "import fcntl; fcntl.fcntl(3, fcntl.F_SETOWN, parent); fcntl.fcntl(3, 10, 15)",
    "by descriptor": "signal.pidfd_send_signal(os.pidfd_open(parent), 15)",
    "priority": "os.setpriority(os.PRIO_PROCESS, parent, 19)",
    "limits": "import resource; resource.prlimit(parent, resource.RLIMIT_CPU, (1, 1))",
    "memory": "return open(f'/proc/{parent}/mem', 'rb')",
    "environment": "return open(f'/proc/{parent}/environ', 'rb').read()",
    "command line": "return open(f'/proc/{parent}/cmdline', 'rb').read()",
    "descriptors": "return os.listdir(f'/proc/{parent}/fd')",
    "terminal": "return os.open('/dev/tty', os.O_RDWR)",
}


@pytest.mark.parametrize("body", SIGNALS.values(), ids=SIGNALS)
def test_the_parent_cannot_be_touched(any_sandbox, body):
    arrived = []
    handlers = {
        n: signal.signal(n, lambda number, _: arrived.append(number)) for n in (signal.SIGTERM, signal.SIGIO)
    }
    try:
        got = outcome(any_sandbox, f"import os, signal\ndef attempt(parent): {body}", os.getpid())
        still_works = works(any_sandbox)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    assert (arrived, still_works) == ([], True)
    assert isinstance(got, SandboxError) or (got is None and any_sandbox._zygote.means["namespaces"]), got


def test_a_program_may_end_what_it_started_and_no_more(sandbox):
    source = """
import os, signal, time
def attempt():
    child = os.fork()
    if not child: time.sleep(60)
    os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""
    assert outcome(sandbox, source) == -9


RAW = {
    "ptrace": (101, 16, "parent", 0, 0),
    "process_vm_readv": (310, "parent", 0, 0, 0, 0),
    "pidfd_getfd": (438, 0, 0, 0),
    "kcmp": (312, "parent", "parent", 0, 0, 0),
    "unshare": (272, 0x10000000),
    "mount": (165, 0, 0, 0, 0),
    "bpf": (321, 0, 0, 0),
    "io_uring": (425, 1, 0),
    "socket": (41, 1, 1, 0),
    "memfd": (319, 0, 0),
    "shmget": (29, 0, 4096, 0o1600),
    "execve": (59, 0, 0, 0),
    "x32 getpid": (0x40000000 + 39,),
    "clone into a namespace": (56, 0x10000000 | 17, 0, 0, 0, 0),
    "clone3": (435, 0, 0),
}


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="these numbers are those of x86-64")
@pytest.mark.parametrize("call", RAW.values(), ids=RAW)
def test_system_calls_are_refused_below_python(sandbox, call):
    source = """
import ctypes, os
def attempt(call, parent):
    libc = ctypes.CDLL(None, use_errno=True)
    result = libc.syscall(*(ctypes.c_long(parent if x == "parent" else x) for x in call))
    if not result and call[0] == 56: os._exit(0)
    return result, ctypes.get_errno()
"""
    for parent in (os.getpid(), 1):
        result, error = outcome(sandbox, source, list(call), parent)
        assert result == -1
        assert error in (1, 38)  # EPERM, ENOSYS


def test_32_bit_calls_end_the_process(sandbox):
    """int 0x80 reaches the kernel's other table, where the same number is another call."""
    if os.uname().machine != "x86_64":
        pytest.skip("x86-64 only")
    source = """
import ctypes, mmap
def attempt():
    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(bytes([0xB8, 20, 0, 0, 0, 0xCD, 0x80, 0xC3]))  # mov eax, 20; int 0x80; ret
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    return ctypes.CFUNCTYPE(ctypes.c_int)(address)()
"""
    assert isinstance(outcome(sandbox, source), Stopped)
