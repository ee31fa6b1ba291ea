"""Every check in one run: ruff, the tests, the notebooks against their stored outputs.

    .venv/bin/python scripts/check.py

The last line counts all tests: `N passed, N failed, N skipped`. Each skip is named with its reason above it.

Every folder of tests is a pytest process of its own, two at a time. So memory goes back to the system in between, and
one that hangs or is killed is told with the test that it was at, and takes no other with it.
"""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

import psutil

ROOT = Path(__file__).resolve().parent.parent
WORKERS = 2
LONGEST_FIRST = ("tests/grading", "tests", "tests/kernels", "tests/storage", "tests/course")
MOST_SECONDS = 60 * 60  # for one process; the longest takes ten minutes on two quiet cores
SECONDS_TO_ABORT = 60  # from the signal to the end
KILLED = -9

# One thread a process, or two processes on two cores take turns. The second makes glibc give back freed weights.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": str(2**20)}
NBVAL = (
    *("-p", "tests.notebooks.plugin", "--nbval", "--nbval-current-env", "--nbval-cell-timeout", "120"),
    *("--nbval-sanitize-with", "tests/notebooks/sanitize.cfg"),
)


@dataclass(frozen=True)
class Run:
    """One pytest process: its name, what it is given, and the environment on top of ours."""

    name: str
    args: Sequence[str]
    environment: dict[str, str] = field(default_factory=dict)


@dataclass
class Counts:
    """How many tests passed, the names of those that failed, and (name, reason) of those that were skipped."""

    passed: int = 0
    failed: list[str] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)

    def add(self, other: "Counts") -> None:
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped


@dataclass(frozen=True)
class End:
    """How a process ended: its exit code (minus the number of a signal), and whether it was ended for its time."""

    code: int
    is_late: bool = False

    @property
    def is_by_system(self) -> bool:
        """Whether it was killed, and not by us."""
        return self.code == KILLED and not self.is_late

    def __str__(self) -> str:
        late = f"took more than {MOST_SECONDS} s and " if self.is_late else ""
        if self.code >= 0:
            return f"{late}ended with exit code {self.code}"
        known = {number.value: number.name for number in signal.Signals}
        return f"{late}was ended by {known.get(-self.code, f'signal {-self.code}')}"


def main() -> int:
    """Run all and print the counts. Returns 0 only if everything passed."""
    codes = [run_ruff(*arguments) for arguments in (["check"], ["format", "--check"])]
    clean = not any(codes)
    counts = Counts()
    with ThreadPoolExecutor(WORKERS) as workers:
        for found in workers.map(run_pytest, runs_of_tests()):
            counts.add(found)
    # Notebooks measure times: nothing runs beside them.
    counts.add(run_pytest(Run("notebooks", (*NBVAL, "notebooks"))))
    print()
    for name in counts.failed:
        print(f"failed {name}")
    for name, reason in counts.skipped:
        print(f"skipped {name}: {reason}")
    if not clean:
        print("ruff found faults (above)")
    print(f"{counts.passed} passed, {len(counts.failed)} failed, {len(counts.skipped)} skipped")
    return 0 if clean and not counts.failed else 1


def run_ruff(*arguments: str) -> int:
    """Run ruff in the root of the project, say it first, and return its exit code."""
    print("$", " ".join(("python -m ruff", *arguments)), flush=True)
    return subprocess.run([sys.executable, "-m", "ruff", *arguments], cwd=ROOT, check=False).returncode


def runs_of_tests() -> list[Run]:
    """A run for each folder that has test files, the longest first."""
    files: dict[str, list[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        files.setdefault(path.parent.relative_to(ROOT).as_posix(), []).append(
            path.relative_to(ROOT).as_posix()
        )
    order = {name: number for number, name in enumerate(LONGEST_FIRST)}
    names = sorted(files, key=lambda name: (order.get(name, len(order)), name))
    return [Run(name, files[name], ENVIRONMENT) for name in names]


def run_pytest(run: Run) -> Counts:
    """Run one process to its end, print what it says where that is of use, and count its tests.

    A process that the system killed says nothing of the tests (most often memory ran out): it gets one more try.
    """
    found, end = start_pytest(run)
    if end.is_by_system:
        memory = psutil.virtual_memory()
        free, total = memory.available / 2**30, memory.total / 2**30
        say(
            f"{run.name}: killed by the system ({free:.1f} of {total:.1f} GiB of memory are free now); once more"
        )
        found, end = start_pytest(run)
    # Killed, nothing collected or an internal error: a failure even where no single test failed. So is a process
    # that ended in silence, as after os._exit(0) in a test.
    if not found.failed and (end.code or found == Counts()):
        found.failed.append(f"{run.name}: pytest {end}" + ("" if end.code else " and counted no test"))
    return found


def start_pytest(run: Run) -> tuple[Counts, End]:
    """One try of a run: its counts and how pytest ended."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        report, said = Path(folder, "report.xml"), Path(folder, "output.txt")
        command = [sys.executable, "-m", "pytest", "-v", f"--junitxml={report}", *run.args]
        with said.open("wb") as output:
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**os.environ, **run.environment},
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            end = wait_for(process)
        found = read_report(report)
        lines = said.read_text("utf-8", "replace").splitlines()
    seconds = f"{time.monotonic() - began:.0f} s"
    if end.code:
        say(f"{run.name}: pytest {end} after {seconds}", *what_matters(lines))
    else:
        say(f"{run.name}: {found.passed} passed, {len(found.skipped)} skipped in {seconds}")
    return found, end


def wait_for(process: subprocess.Popen) -> End:
    """The end of a process; one that takes too long is aborted, so that it prints where every thread is."""
    try:
        return End(process.wait(MOST_SECONDS))
    except subprocess.TimeoutExpired:
        process.send_signal(getattr(signal, "SIGABRT", signal.SIGTERM))
        with contextlib.suppress(subprocess.TimeoutExpired):
            return End(process.wait(SECONDS_TO_ABORT), is_late=True)
        process.kill()
        return End(process.wait(), is_late=True)
    except BaseException:
        process.kill()
        raise


def what_matters(lines: list[str]) -> list[str]:
    """Of the output of a run that failed: all from the first report of a failure on, or the last lines."""
    for number, line in enumerate(lines):
        if line.startswith("=") and line.strip("= ") in ("FAILURES", "ERRORS"):
            return lines[number:]
    return lines[-60:]


def say(*lines: str) -> None:
    """Print lines at once and in one piece: two runs speak at the same time."""
    sys.stdout.write("\n".join(lines) + "\n")  # print() would write the last newline by itself
    sys.stdout.flush()


def read_report(path: Path) -> Counts:
    """The counts of a JUnit report; none where a kill left none or half of it. An error in set-up is a failure."""
    found = Counts()
    try:
        report = ElementTree.parse(path)
    except (FileNotFoundError, ElementTree.ParseError):
        return found
    for case in report.iter("testcase"):
        name, skip = f"{case.get('classname')}::{case.get('name')}", case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            found.failed.append(name)
        elif skip is not None:
            found.skipped.append((name, skip.get("message") or "no reason given"))
        else:
            found.passed += 1
    return found


if __name__ == "__main__":
    sys.exit(main())
