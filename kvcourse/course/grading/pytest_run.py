"""Run pytest over submissions in a process of its own, and watch the records that it writes."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kvcourse.course.grading.plain_text import one_line
from kvcourse.course.grading.record import record_path
from kvcourse.course.notebook import write_text
from kvcourse.errors import InputError

POLL_SECONDS = 0.2
STOP_SECONDS = 20  # for pytest to end its workers after an interrupt
# Exit codes: of the plugin (all points, less, a broken test), and pytest's own.
TESTS, INTERRUPTED, USAGE = (0, 1, 6), 2, 4


class GraderError(RuntimeError):
    """Something of the grader itself broke: the message is one line. No student's code causes this."""


@dataclass(frozen=True)
class PytestRun:
    """What pytest is to grade: (name, path) of each submission, and the folder for their records."""

    submissions: Sequence[tuple[str, Path]]
    records: Path
    course: Path
    seed: int
    hidden: Path | None = None
    chapters: Sequence[int] = ()
    jobs: int = 1
    log: Path | None = None  # where to leave what pytest said when the grader broke

    def command(self, scratch: Path) -> list[str]:
        """The command line. The list of submissions goes by a file: a class can be longer than a command may be."""
        listed = scratch / "submissions.json"
        pairs = [[name, str(path.absolute())] for name, path in self.submissions]
        listed.write_text(json.dumps(pairs), "utf-8")
        ini = Path(__file__).with_name("pytest.ini")
        return [
            *(sys.executable, "-m", "pytest", "--pyargs", "kvcourse.course.grading", "-c", str(ini)),
            *("-p", "no:cacheprovider", "-p", "kvcourse.course.grading.plugin", "-p", "xdist.plugin"),
            *("-n", str(self.jobs if self.jobs > 1 else 0), "--dist", "loadgroup"),
            *("-q", "--tb=short", "-rE", "--color=no", f"--basetemp={scratch / 'basetemp'}"),
            f"--submission=@{listed}",  # one word: pytest takes a word @FILE for a file of options
            *("--records", str(self.records.absolute())),
            *("--course", str(self.course.absolute()), "--seed", str(self.seed)),
            *(("--hidden", str(self.hidden.absolute())) if self.hidden else ()),
            *(f"--chapter={number}" for number in self.chapters),
        ]


def run_pytest(run: PytestRun, finished: Callable[[str], None] = lambda name: None) -> None:
    """Grade the submissions of `run`; `finished` is called with the name of each one as its record comes.

    An interrupt is passed on to pytest, so that what is finished stays; then it goes on to the caller. Errors:
    InputError for what pytest takes for wrong usage (points that do not add up, a folder without tests);
    GraderError if a test file cannot be imported, pytest itself fails or a record is missing at the end.
    """
    with tempfile.TemporaryDirectory(prefix="kvcourse-grade-") as folder:
        scratch = Path(folder)
        before = {name: _state(record_path(run.records, name)) for name, _ in run.submissions}
        with (scratch / "output").open("w+b") as output:
            code = _watch(run, scratch, output, before, finished)
            output.seek(0)
            text = output.read().decode("utf-8", "replace")
    if code == USAGE:
        raise InputError(_said(text, ("ERROR: ", "E ")) or "pytest does not accept its options")
    if code in TESTS and not before:
        return
    if code == INTERRUPTED:
        what = f"the tests could not be collected: {_said(text, ('ERROR ', 'E '))}"
    elif code in TESTS:
        lost = [name for name, _ in run.submissions if name in before]
        what = f"no record of {one_line(', '.join(lost[:5]))}{' and others' if len(lost) > 5 else ''}"
    else:
        what = (
            f"pytest ended with code {code}: {_error(text) or _said(text, ('INTERNALERROR> ',), last=True)}"
        )
    if run.log is not None:
        with contextlib.suppress(OSError):  # a full disk may be what broke the grader
            write_text(run.log, text)
            what += f"; all that pytest said is in {run.log}"
    raise GraderError(what)


def _watch(
    run: PytestRun, scratch: Path, output, before: dict[str, object], finished: Callable[[str], None]
) -> int:
    """Run pytest to its end; takes out of `before` every submission whose record has come."""
    # The working folder is an empty one: a student's torch.py in ours would be imported by the parent. Other pytest
    # plugins and options of this computer must not change a score.
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTEST_ADDOPTS", "PYTEST_PLUGINS")}
    environment |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    process = subprocess.Popen(
        run.command(scratch),
        cwd=scratch,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # Ctrl-C reaches this process only, which passes it on once
    )
    try:
        with _terminate_raises():
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(POLL_SECONDS)
                for name in [
                    name for name in before if _state(record_path(run.records, name)) != before[name]
                ]:
                    del before[name]
                    finished(name)
                if process.returncode is not None:
                    return process.returncode
    finally:
        _end(process)


def _end(process: subprocess.Popen) -> None:
    """End pytest if it still runs: first as Ctrl-C does, and if that takes too long, with all it has started."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT if os.name == "posix" else signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS)
    if process.poll() is None:
        if os.name == "posix":
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()
        process.wait()


@contextlib.contextmanager
def _terminate_raises():
    """SIGTERM ends this process as an exception does, so that pytest does not go on without it."""

    def stop(signum, frame):
        raise SystemExit(128 + signum)

    try:
        old = signal.signal(signal.SIGTERM, stop)
    except ValueError:  # not in the main thread: whoever runs us there ends us in another way
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, old)


def _state(path: Path) -> tuple[int, int] | None:
    """What changes when a file is written anew, even with the same content."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def _error(text: str) -> str:
    """The last line that names an exception, with xdist's one of a worker before pytest's own."""
    found = re.findall(r"^INTERNALERROR> (?:E +)?(\w+(?:Error|Exception|Interrupt)\b.*)$", text, re.M)
    inner = re.findall(r"^INTERNALERROR> E +(\w+(?:Error|Exception)\b.*)$", text, re.M)
    return one_line((inner or found or [""])[-1])[:300]


def _said(text: str, starts: tuple[str, ...], last: bool = False) -> str:
    """The first (or last) line of pytest's output that begins with the first of `starts` that any begins with."""
    for start in starts:
        lines = [line for line in text.splitlines() if line.startswith(start)]
        if lines:
            return one_line(lines[-1 if last else 0].removeprefix(start))[:500]
    lines = [line for line in text.splitlines() if line.strip()]
    return one_line(lines[-1])[:500] if lines else ""
