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
    passed, failed, skipped = 0, [], []
    for args, environment in (TESTS, NOTEBOOKS):
        counts = run_pytest(args, environment)
        passed, failed, skipped = passed + counts[0], failed + counts[1], skipped + counts[2]
    print()
    for name in failed:
        print(f"failed {name}")
    for name, reason in skipped:
        print(f"skipped {name}: {reason}")
    if not clean:
        print("ruff found faults (above)")
    print(f"{passed} passed, {len(failed)} failed, {len(skipped)} skipped")
    return 0 if clean and not failed else 1


def run(command: list[str], environment: dict[str, str] | None = None) -> int:
    """Run a command in the root of the project, say it first, and return its exit code."""
    shown = " ".join(["python", *command[1:]])
    print(f"$ {shown}", flush=True)
    return subprocess.run(
        command, cwd=ROOT, env={**os.environ, **(environment or {})}, check=False
    ).returncode


def run_pytest(args: list[str], environment: dict[str, str]) -> tuple[int, list[str], list[tuple[str, str]]]:
    """One pytest run: how many passed, the names that failed, and (name, reason) of each skip."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        code = run([sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", *args], environment)
        passed, failed, skipped = read_report(report) if report.is_file() else (0, [], [])
    # Killed, nothing collected or an internal error: a failure even where no single test failed.
    if code and not failed:
        failed.append(f"pytest {args[-1]}: exit code {code}")
    return passed, failed, skipped


def read_report(path: Path) -> tuple[int, list[str], list[tuple[str, str]]]:
    """The same of a JUnit report. An error in set-up is a failure."""
    passed, failed, skipped = 0, [], []
    for case in ElementTree.parse(path).iter("testcase"):
        name, skip = f"{case.get('classname')}::{case.get('name')}", case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            failed.append(name)
        elif skip is not None:
            skipped.append((name, skip.get("message") or "no reason given"))
        else:
            passed += 1
    return passed, failed, skipped


if __name__ == "__main__":
    sys.exit(main())
