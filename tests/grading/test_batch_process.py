"""The process that runs pytest: what it is given, what its end means, and that it never outlives the command.

A short script takes pytest's place; test_cli_grade.py runs the real one.
"""

import json
import os
import re
import signal
import subprocess
import sys

import psutil
import pytest
from record_strategies import record

from kvcourse.course.grading.pytest_run import GraderError, PytestRun, run_pytest
from kvcourse.course.grading.record import write_record
from kvcourse.errors import InputError

INTERNAL = """\
INTERNALERROR> E             File "x.py", line 1, in f
INTERNALERROR> E           OSError: [Errno 28] No space left on device
INTERNALERROR> AssertionError: ('test_a', <WorkerController gw0>)
"""


CHILD = """
import os, signal, sys
with open(sys.argv[1], "w") as gate:
    gate.write(str(os.getpid()))
signal.pause()
"""


@pytest.fixture
def script(monkeypatch, tmp_path):
    """Sets what runs in pytest's place, with `records` and `listed` (the file of submissions) as its arguments."""

    def use(code):
        real = PytestRun.command

        def command(self, scratch):
            words = real(self, scratch)
            listed = next(w for w in words if w.startswith("--submission=@")).partition("@")[2]
            return [
                sys.executable,
                "-c",
                f"import json, os, sys\nrecords, listed = sys.argv[1:]\n{code}",
                str(self.records),
                listed,
            ]

        monkeypatch.setattr(PytestRun, "command", command)

    return use


@pytest.fixture
def grades(tmp_path):
    """Two submissions; the record of the first is there from before."""
    records = tmp_path / "grades" / "records"
    write_record(records, record(name="ada"))
    pairs = [("ada", tmp_path / "ada.ipynb"), ("bob", tmp_path / "bob.ipynb")]
    return PytestRun(pairs, records, tmp_path, 5, jobs=3, log=tmp_path / "grades" / "pytest.log")


COPY = """
for name in NAMES:
    text = open(f"{records}/ada.json").read()
    open(f"{records}/.new", "w").write(text)
    os.replace(f"{records}/.new", f"{records}/{name}.json")
"""


def test_each_record_is_told_once_also_if_its_bytes_are_the_same(script, grades):
    script(COPY.replace("NAMES", '["ada", "bob"]') + "sys.exit(1)")
    told = []
    run_pytest(grades, told.append)
    assert sorted(told) == ["ada", "bob"]
    assert not grades.log.exists()


@pytest.mark.parametrize("code", [0, 1, 6])
def test_a_missing_record_is_the_graders_fault(script, grades, code):
    script(COPY.replace("NAMES", '["ada"]') + f"print('what pytest said')\nsys.exit({code})")
    with pytest.raises(GraderError, match=r"no record of bob; all that pytest said is in .*pytest\.log"):
        run_pytest(grades)
    assert grades.log.read_text() == "what pytest said\n"


def test_a_usage_error_is_the_users_line(script, grades):
    script("print('ERROR: ex-1-a: the points \\x1b[31m do not add up\\n', file=sys.stderr)\nsys.exit(4)")
    with pytest.raises(InputError) as caught:
        run_pytest(grades)
    assert str(caught.value) == r"ex-1-a: the points \x1b[31m do not add up"


def test_an_internal_error_names_what_was_raised_first(script, grades):
    script(f"print({INTERNAL!r})\nsys.exit(3)")
    with pytest.raises(
        GraderError, match=r"pytest ended with code 3: OSError: \[Errno 28\] No space left on device;"
    ):
        run_pytest(grades)


def test_a_killed_pytest_is_told(script, grades):
    script("os.kill(os.getpid(), 9)")
    with pytest.raises(GraderError, match="pytest ended with code -9"):
        run_pytest(grades)


def test_place_and_environment_of_the_process(script, grades, tmp_path, monkeypatch):
    """Nothing of where we are, and of how this computer's pytest is set up, can change a score."""
    for name in ("PYTEST_ADDOPTS", "PYTEST_PLUGINS"):
        monkeypatch.setenv(name, "-x")
    script(
        "json.dump([os.getcwd(), dict(os.environ), json.load(open(listed))], open(f'{records}/../seen', 'w'))\n"
        + COPY.replace("NAMES", '["ada", "bob"]')
    )
    run_pytest(grades)
    folder, environment, listed = json.loads((tmp_path / "grades" / "seen").read_text())
    assert not os.path.exists(folder)  # it was ours alone
    assert folder != os.getcwd()
    assert environment.keys().isdisjoint({"PYTEST_ADDOPTS", "PYTEST_PLUGINS"})
    assert environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] == "1"
    assert listed == [["ada", str(tmp_path / "ada.ipynb")], ["bob", str(tmp_path / "bob.ipynb")]]


def test_command_line(grades, tmp_path):
    """A word `@FILE` of its own would be read by pytest as a file of options."""
    words = PytestRun(grades.submissions, grades.records, tmp_path, 5, tmp_path / "h", [0, 2], 3).command(
        tmp_path
    )
    assert [word for word in words if word.startswith("@")] == []
    text = " ".join(words)
    for part in (
        "-n 3",
        "--seed 5",
        f"--hidden {tmp_path / 'h'}",
        "--chapter=0 --chapter=2",
        "--dist loadgroup",
    ):
        assert part in text
    assert "-n 0" in " ".join(PytestRun(grades.submissions, grades.records, tmp_path, 5).command(tmp_path))


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_pytest_ends_with_the_command(tmp_path, how):
    """Interrupted or ended, the command leaves no process behind, even one that does not listen to SIGINT at once."""
    code = f"""
import sys
from pathlib import Path
from kvcourse.course.grading.pytest_run import PytestRun, run_pytest
PytestRun.command = lambda self, scratch: [sys.executable, "-c", {CHILD!r}, sys.argv[1]]
run_pytest(PytestRun([("ada", Path("ada"))], Path("records"), Path("."), 1))
"""
    os.mkfifo(tmp_path / "gate")
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "gate")], cwd=tmp_path, stderr=subprocess.PIPE, text=True
    )
    with open(tmp_path / "gate") as gate:
        child = psutil.Process(int(gate.read()))
    process.send_signal(how)
    error = process.communicate(timeout=60)[1]
    assert process.returncode == (-signal.SIGINT if how == signal.SIGINT else 128 + how), error
    assert not child.is_running()
    assert re.findall(r"KeyboardInterrupt$", error, re.M) == (
        ["KeyboardInterrupt"] if how == signal.SIGINT else []
    )
