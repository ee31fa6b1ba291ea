"""What this machine is and how fast it moves bytes: the floor under every timing, and the label on it."""

import functools
import importlib.metadata
import os
import platform
import shlex
import subprocess
import sys
import time
from pathlib import Path, PurePath, PureWindowsPath
from typing import Any

import psutil

from kvcourse.errors import InputError

VERSIONS = ("kvcourse", "torch", "triton", "transformers", "numba", "numpy")
CPU_BYTES = 512 << 20  # well beyond any last-level cache
CUDA_BYTES = 2 << 30
_TRIES = 7


@functools.cache
def read_bandwidth(device: str = "cpu") -> float:
    """Bytes per second that all threads together read from memory, measured once per process.

    The best of several passes of two readers over an array far larger than the cache: a sum of integers and a sum
    of floats (on some processors the additions of the latter are slower than the memory). The best, not the
    median, because this is a floor: nothing that reads the bytes from memory should be faster.
    """
    torch = _torch(device)
    x = torch.ones(_array_bytes(device) // 8, dtype=torch.int64, device=device)
    readers = (x.sum, x.view(torch.float32).sum)
    return x.nbytes / min(_fastest(reader, device) for reader in readers)


@functools.cache
def copy_bandwidth(device: str = "cpu") -> float:
    """Bytes per second moved by a copy, measured once per process. A byte counts twice: read and written."""
    torch = _torch(device)
    source = torch.ones(_array_bytes(device) // 4, device=device)
    target = torch.zeros_like(source)
    return 2 * source.nbytes / _fastest(lambda: target.copy_(source), device)


@functools.cache
def peak_flops(device: str = "cpu", dtype: str = "float32") -> float:
    """Floating-point operations per second of a large square matrix product (2 n³ operations), measured."""
    torch = _torch(device)
    n = 8192 if device != "cpu" else 2048
    a = torch.ones(n, n, device=device, dtype=getattr(torch, dtype))
    return 2 * n**3 / _fastest(lambda: a @ a, device)


@functools.cache
def describe() -> dict[str, Any]:
    """Processor, cores used, memory (bytes), GPU and operating system. No host name."""
    return {
        "cpu": _cpu_model(),
        "cores": _cores(),
        "threads": _threads(),
        "ram_bytes": psutil.virtual_memory().total,
        "gpu": _gpu_name(),
        "os": f"{platform.system()} {platform.release()}",
    }


def one_line() -> str:
    """The machine in a few words, for captions."""
    about = describe()
    parts = [f"{about['cpu']}, {about['cores']} cores, {about['ram_bytes'] / 2**30:.0f} GiB"]
    if about["gpu"]:
        parts.append(about["gpu"])
    torch_version = _version("torch")
    return " · ".join([*parts, f"torch {torch_version}" if torch_version else "no torch"])


def provenance() -> dict[str, Any]:
    """What a printed number needs next to it: machine, versions, commit, command."""
    return {
        "machine": describe(),
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in VERSIONS}},
        "commit": commit(),
        "command": command(),
    }


@functools.cache
def commit() -> dict[str, Any] | None:
    """Commit of the source tree that this package runs from, and whether tracked files differ from it.

    None for an installed copy, also when it happens to lie inside somebody else's repository.
    """
    here = Path(__file__)
    if _git(here, "ls-files", "--error-unmatch", here.name) is None:
        return None
    revision = _git(here, "rev-parse", "HEAD")
    if revision is None:
        return None
    return {"revision": revision, "dirty": bool(_git(here, "status", "--porcelain", "--untracked-files=no"))}


def command(argv: list[str] | None = None) -> str:
    """The command line that is running, with folders removed from every argument."""
    program, *arguments = sys.argv if argv is None else argv
    name = PurePath(program).name
    if name.startswith("ipykernel") or name == "colab_kernel_launcher.py":
        return "notebook"
    return shlex.join([name or "python", *map(_without_folder, arguments)])


def _without_folder(argument: str) -> str:
    option, equals, value = argument.partition("=")
    if equals and option.startswith("-"):
        return f"{option}={_without_folder(value)}"
    if not Path(argument).is_absolute() and not PureWindowsPath(argument).is_absolute():
        return argument
    return PureWindowsPath(argument).name or "."


def _git(file: Path, *arguments: str) -> str | None:
    """Output of a git command in the folder of `file`, or None when it fails or there is no git."""
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=file.parent, capture_output=True, text=True, encoding="utf-8", timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu_model() -> str:
    """The vendor's name of the processor; each system keeps it elsewhere."""
    if sys.platform == "linux":
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
        if names:
            return names[0]
    if sys.platform == "darwin":
        query = ["sysctl", "-n", "machdep.cpu.brand_string"]
        done = subprocess.run(query, capture_output=True, text=True, encoding="utf-8")
        if done.returncode == 0:
            return done.stdout.strip()
    return platform.processor() or platform.machine()


def _cores() -> int:
    """Cores that this process may use, which in a container is fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _threads() -> int | None:
    torch = sys.modules.get("torch")
    return torch.get_num_threads() if torch is not None else None


def _gpu_name() -> str | None:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return None
    return torch.cuda.get_device_name()


def _torch(device: str) -> Any:
    import torch

    if device.startswith("cuda") and not torch.cuda.is_available():
        raise InputError(f"device {device!r}: torch sees no CUDA device here; use device='cpu'")
    return torch


def _array_bytes(device: str) -> int:
    if device != "cpu":
        return CUDA_BYTES
    # A quarter of what is free, on a small machine.
    return min(CPU_BYTES, psutil.virtual_memory().available // 4)


def _fastest(function: Any, device: str) -> float:
    """Seconds of the fastest of a few calls, after one that does not count."""
    torch = _torch(device)
    wait = torch.cuda.synchronize if device.startswith("cuda") else (lambda: None)
    best = float("inf")
    for attempt in range(_TRIES + 1):
        wait()
        start = time.perf_counter()
        function()
        wait()
        if attempt:
            best = min(best, time.perf_counter() - start)
    return best
