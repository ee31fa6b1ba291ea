"""Which files of this machine the learner's code may read."""

import importlib.util
import os
import site
import sys
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

# Shared libraries, time zones, the number of processors and the usual devices; those that exist are used.
_SYSTEM = (
    "/usr/lib", "/usr/lib64", "/usr/lib32", "/usr/local/lib", "/usr/local/lib64", "/lib", "/lib64", "/lib32",
    "/etc/ld.so.cache", "/etc/localtime", "/usr/share/zoneinfo", "/sys/devices/system/cpu",
    "/dev/null", "/dev/zero", "/dev/urandom", "/dev/random", "/System/Library", "/Library/Developer",
)  # fmt: skip


@dataclass(frozen=True)
class Files:
    """Real paths: `readable` with all below them, and `listed` folders, of which only the names may be read.

    `closed` ones lie below a readable one of another rule; they are left out of the other two already.
    """

    readable: tuple[str, ...]
    listed: tuple[str, ...]
    closed: tuple[str, ...]


def readable_files(hidden: Iterable[Path] = ()) -> Files:
    """What a child needs to run Python, torch, numpy and kvcourse, and no more of the disk.

    Not the grader, nor the course around the package (notebooks and tests hold solutions), nor `hidden` paths. Where
    rules meet, the one for the longer path holds.
    """
    package = Path(importlib.util.find_spec("kvcourse").submodule_search_locations[0])
    kernels = importlib.util.find_spec("kvcourse.kernels").submodule_search_locations
    opened = {str(package), *kernels, *_python(), *_SYSTEM}
    closed = {str(package / "course" / "grading"), *map(str, hidden)}
    if (package.parent / "pyproject.toml").is_file():  # a checkout, wherever it lies
        closed.add(str(package.parent))
    opened = {os.path.realpath(path) for path in opened if os.path.exists(path)}
    closed = {os.path.realpath(path) for path in closed}
    readable, listed = set(), set()
    for path in sorted(opened - closed):
        _open(path, opened, closed, readable, listed)
    below = {path for path in closed if any(_is_below(path, other) for other in opened)}
    return Files(tuple(_outermost(readable)), tuple(sorted(listed)), tuple(sorted(below)))


def _python() -> set[str]:
    paths = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    for prefix in (sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix):
        paths |= {os.path.join(prefix, name) for name in ("lib", "lib64", "pyvenv.cfg", "Python")}
    for name in ("torch", "numpy"):  # a user's own site-packages, or an editable install
        paths.add(os.path.dirname(importlib.util.find_spec(name).submodule_search_locations[0]))
    if site.ENABLE_USER_SITE:
        paths.add(site.getusersitepackages())
    return paths


def _open(path: str, opened: set[str], closed: set[str], readable: set[str], listed: set[str]) -> None:
    """Add a path, or, where something below it is closed, its entries one by one."""
    if not any(_is_below(other, path) for other in closed):
        readable.add(path)
        return
    listed.add(path)
    try:
        entries = [entry.path for entry in os.scandir(path)]
    except OSError:
        return
    for entry in entries:
        if entry not in closed and entry not in opened and os.path.realpath(entry) == entry:
            _open(entry, opened, closed, readable, listed)


def _is_below(path: str, folder: str) -> bool:
    return path.startswith(folder.rstrip("/") + "/")


def _outermost(paths: set[str]) -> list[str]:
    """The paths that lie below no other of them."""
    kept: list[str] = []
    for path in sorted(paths, key=lambda p: (p.count("/"), p)):
        if not any(_is_below(path, other) for other in kept):
            kept.append(path)
    return kept
