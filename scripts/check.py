"""Every check in one run: ruff, the tests, the notebooks against their stored outputs.

    .venv/bin/python scripts/check.py

The last line counts all tests: `N passed, N failed, N skipped`. Each skip is named with its reason above it.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
WORKERS = "2"

# One thread a worker, or two workers on two cores take turns. Notebooks measure times: one after the other.
TESTS = (["-n", WORKERS, "--dist", "loadfile", "tests"], {"OMP_NUM_THREADS": "1"})
NOTEBOOKS = (
    [
        *("-p", "tests.notebooks.plugin", "--nbval", "--nbval-current-env", "--nbval-cell-timeout", "120"),
        *("--nbval-sanitize-with", "tests/notebooks/sanitize.cfg", "notebooks"),
    ],
    {},
)


def main() -> int:
    """Run all three and print the counts. Returns 0 only if everything passed."""
    codes = [run([sys.executable, "-m", "ruff", *args]) for args in (["check"], ["format", "--check"])]
    clean = not any(codes)
    passed, failed, skips = 0, 0, []
    for args, environment in (TESTS, NOTEBOOKS):
        counts = run_pytest(args, environment)
        passed, failed, skips = passed + counts[0], failed + counts[1], skips + counts[2]
    print()
    for name, reason in skips:
        print(f"skipped {name}: {reason}")
    if not clean:
        print("ruff found faults (above)")
    print(f"{passed} passed, {failed} failed, {len(skips)} skipped")
    return 0 if clean and not failed else 1


def run(command: list[str], environment: dict[str, str] | None = None) -> int:
    """Run a command in the root of the project, say it first, and return its exit code."""
    shown = " ".join(["python", *command[1:]])
    print(f"$ {shown}", flush=True)
    return subprocess.run(
        command, cwd=ROOT, env={**os.environ, **(environment or {})}, check=False
    ).returncode


def run_pytest(args: list[str], environment: dict[str, str]) -> tuple[int, int, list[tuple[str, str]]]:
    """One pytest run: how many passed, how many failed, and (name, reason) of each skip."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        code = run([sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", *args], environment)
        if not report.is_file():
            return 0, 1, []  # pytest could not start or was killed: its own message is above
        passed, failed, skips = read_report(report)
    # Exit codes beyond 1 (nothing collected, internal error) fail even where no single test did.
    return passed, failed if code in (0, 1) else max(failed, 1), skips


def read_report(path: Path) -> tuple[int, int, list[tuple[str, str]]]:
    """Counts of a JUnit report. An error in set-up is a failure."""
    passed, failed, skips = 0, 0, []
    for case in ElementTree.parse(path).iter("testcase"):
        skipped = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            failed += 1
        elif skipped is not None:
            name = f"{case.get('classname')}::{case.get('name')}"
            skips.append((name, skipped.get("message") or "no reason given"))
        else:
            passed += 1
    return passed, failed, skips


if __name__ == "__main__":
    sys.exit(main())
