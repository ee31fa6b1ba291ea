"""A batch of submissions, graded by the command that an instructor uses, in a place that is watched."""

import ctypes
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from learner import ROOT

from kvcourse.course.grading.record import Record, read_record

SECRET = "a-key-of-the-grader"  # stands in the grader's environment and must not reach a learner's code
HERE = Path(__file__).parent
FILES = ("results.json", "gradebook.csv", "record.json", "nested/keep.txt")
TIME_LIMIT = 900  # seconds for a batch; only a grader that hangs gets there
GRACE = 10  # seconds for what ends by itself after the grader


@dataclass
class Batch:
    """A folder with submissions (`class`), records and folders that nobody may change; `run` grades."""

    root: Path
    records: dict[str, Record] = field(default_factory=dict)
    output: str = ""
    visitors: int = 0  # connections that a learner's code made
    left: list[str] = field(default_factory=list)  # command lines of processes that outlived the run

    def __post_init__(self):
        for name in ("class", "records", "canary", "home", "here", "scratch"):
            (self.root / name).mkdir(parents=True)
        for name in ("canary", "home", "here"):
            for file in FILES:
                (self.root / name / file).parent.mkdir(exist_ok=True)
                (self.root / name / file).write_text("as it was")
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._port = self._listener.getsockname()[1]
        self._before: dict[str, dict] = {}

    @property
    def places(self) -> dict[str, object]:
        """What the marks in exploits stand for."""
        folders = {mark: str(self.root / mark.lower()) for mark in ("CLASS", "CANARY", "RECORDS")}
        return {"ROOT": str(ROOT), "PORT": self._port, **folders}

    def run(self, *options: str) -> None:
        """Grade all submissions in `class`; afterwards the other fields tell what happened."""
        watched = ("class", "canary", "home", "here", "scratch")
        self._before = {name: contents(self.root / name) for name in watched}
        threading.Thread(target=self._count_visitors, daemon=True).start()
        adopt_orphans()
        submissions = sorted((self.root / "class").iterdir())
        command = [sys.executable, "-m", "pytest", "-q", "--tb=line", "-p", "no:cacheprovider", "-n", "2"]
        command += [f"--basetemp={self.root / 'pytest'}"]
        command += ["--pyargs", "kvcourse.course.grading", "--records", str(self.root / "records")]
        command += ["--course", str(ROOT), "--seed", "7", *options]
        command += [f"--submission={path}" for path in submissions]
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")},
            "HOME": str(self.root / "home"),
            "TMPDIR": str(self.root / "scratch"),
            "KVCOURSE_SECRET": SECRET,
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": str(HERE),
        }
        # Of other tests that this process ran, which keep a sandbox for the session.
        others = psutil.Process().children(recursive=True)
        with (self.root / "output").open("wb") as output:
            process = subprocess.Popen(
                command,
                cwd=self.root / "here",
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                process.wait(TIME_LIMIT)
            finally:
                process.kill()
                process.wait()
                self.left = end_descendants(others)
                self._listener.close()
        self.output = (self.root / "output").read_text("utf-8", "replace")
        found = [read_record(path) for path in sorted((self.root / "records").glob("*.json"))]
        self.records = {record.name: record for record in found}
        assert set(self.records) == {path.name for path in submissions}, self.output[-3000:]

    def changed(self) -> list[str]:
        """Files in the watched folders that came, went or changed during the run, and notes in shared ones."""
        note = f"kvcourse-note-{self._port}"
        shared = [str(Path(folder) / note) for folder in ("/tmp", "/var/tmp", "/dev/shm", "/run")]
        return list(filter(os.path.exists, shared)) + [
            f"{name}/{path}"
            for name, before in self._before.items()
            for path, _ in before.items() ^ contents(self.root / name).items()
        ]

    def _count_visitors(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            connection.close()
            self.visitors += 1


def contents(folder: Path) -> dict[str, tuple[int, bytes | None]]:
    """Mode and bytes of everything below a folder."""
    return {
        str(path.relative_to(folder)): (path.lstat().st_mode, path.read_bytes() if path.is_file() else None)
        for path in folder.rglob("*")
    }


def adopt_orphans() -> None:
    """Make this process the parent of descendants that lose theirs, where the system can (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER


def end_descendants(others: Collection[psutil.Process]) -> list[str]:
    """End all processes below this one but `others`; the command lines of those that did not end by themselves.

    A zygote ends when its grader has, by the end of its socket: moments later, which is not to be left running.
    """
    own = [process for process in psutil.Process().children(recursive=True) if process not in others]
    _, alive = psutil.wait_procs(own, timeout=GRACE)
    lines = []
    for process in alive:
        with suppress(psutil.NoSuchProcess):
            lines.append(f"{process.pid} {' '.join(process.cmdline())}")
            process.kill()
    psutil.wait_procs(alive)
    return lines
