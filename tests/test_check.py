"""scripts/check.py: what it counts, what it runs once more, and what it says of a process that died or hung."""

import importlib.util
import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
posix_only = pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")


def load():
    """The script as a fresh module."""
    spec = importlib.util.spec_from_file_location("scripts_check", ROOT / "scripts" / "check.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


REPORT = """<testsuites><testsuite>
<testcase classname="a" name="good"/>
<testcase classname="a" name="bad"><failure message="no"/></testcase>
<testcase classname="a" name="broken"><error message="fixture"/></testcase>
<testcase classname="a" name="gone"><skipped message="needs a GPU"/></testcase>
</testsuite></testsuites>"""


def test_report_is_counted(tmp_path):
    path = tmp_path / "report.xml"
    path.write_text(REPORT, encoding="utf-8")
    found = load().read_report(path)
    assert (found.passed, found.failed) == (1, ["a::bad", "a::broken"])
    assert found.skipped == [("a::gone", "needs a GPU")]


@pytest.mark.parametrize("size", [None, 0, 60, len(REPORT) - 5])
def test_a_report_that_is_missing_or_cut_off_counts_nothing(tmp_path, size):
    path = tmp_path / "report.xml"
    if size is not None:
        path.write_text(REPORT[:size], encoding="utf-8")
    check = load()
    assert check.read_report(path) == check.Counts()


def test_what_is_said_is_written_at_once(monkeypatch):
    """Else a line of another thread may come between a line and its end."""
    check, pieces = load(), []

    class Screen:
        def write(self, text):
            pieces.append(text)

        def flush(self):
            pass

    monkeypatch.setattr(sys, "stdout", Screen())
    check.say("one", "two")
    assert pieces == ["one\ntwo\n"]


def test_every_test_file_is_run_once():
    runs = load().runs_of_tests()
    files = [name for run in runs for name in run.args]
    assert sorted(files) == sorted(
        p.relative_to(ROOT).as_posix() for p in (ROOT / "tests").rglob("test_*.py")
    )
    assert len({run.name for run in runs}) == len(runs)


@pytest.fixture
def check(tmp_path, monkeypatch):
    """scripts/check.py for a project of its own; `write` gives it a test file."""
    module = load()
    (tmp_path / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "NBVAL", ())
    monkeypatch.setattr(module, "run_ruff", lambda *arguments: 0)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # quicker

    def write(path, source):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(source, encoding="utf-8")

    module.write = write
    write("notebooks/test_of_notebooks.py", "def test_cell(): pass\n")
    return module


def last_lines(check, capsys, code):
    assert check.main() == code
    text = capsys.readouterr().out
    return text, text[text.rindex("\n\n") + 2 :].splitlines()


def test_check_sums_up(check, capsys):
    check.write(
        "tests/test_top.py", "import pytest\ndef test_a(): pass\ndef test_b(): pytest.skip('no card')\n"
    )
    check.write("tests/inner/test_inner.py", "def test_c(): pass\ndef test_d(): pass\n")
    text, last = last_lines(check, capsys, 0)
    assert last[0].startswith("skipped tests.test_top::test_b: ")
    assert last[0].endswith("no card")
    assert last[1:] == ["4 passed, 0 failed, 1 skipped"]
    assert "tests/inner: 2 passed, 0 skipped in " in text


def test_check_shows_why_a_test_failed(check, capsys):
    check.write("tests/test_top.py", "def test_a(): pass\ndef test_b(): assert 1 == 2\n")
    text, last = last_lines(check, capsys, 1)
    assert last == ["failed tests.test_top::test_b", "2 passed, 1 failed, 0 skipped"]
    assert "assert 1 == 2" in text
    assert "test_a" not in text


def test_check_fails_with_ruff(check, capsys, monkeypatch):
    check.write("tests/test_top.py", "def test_a(): pass\n")
    monkeypatch.setattr(check, "run_ruff", lambda *arguments: 1)
    _, last = last_lines(check, capsys, 1)
    assert last == ["ruff found faults (above)", "2 passed, 0 failed, 0 skipped"]


def test_check_fails_where_nothing_is_collected(check, capsys):
    check.write("tests/test_top.py", "")
    _, last = last_lines(check, capsys, 1)
    assert last == ["failed tests: pytest ended with exit code 5", "1 passed, 1 failed, 0 skipped"]


DIES = """
import os, signal
def test_before(): pass
def test_dies():
    if not os.path.exists({flag!r}):
        {first}
        os.kill(os.getpid(), signal.{signal})
"""


@posix_only
def test_check_runs_once_more_what_the_system_killed(check, capsys, tmp_path):
    """Most often by lack of memory; nothing else gets a second try."""
    flag = str(tmp_path / "flag")
    check.write(
        "tests/test_top.py", DIES.format(flag=flag, signal="SIGKILL", first=f"open({flag!r}, 'w').close()")
    )
    text, last = last_lines(check, capsys, 0)
    assert last == ["3 passed, 0 failed, 0 skipped"]
    assert "tests: pytest was ended by SIGKILL after " in text
    assert "test_top.py::test_dies" in text


@posix_only
@pytest.mark.parametrize("number", ["SIGKILL", "SIGSEGV", "SIGTERM"])
def test_check_names_what_was_running_at_the_end(check, capsys, number):
    check.write("tests/test_top.py", DIES.format(flag="", signal=number, first="pass"))
    check.write("tests/inner/test_inner.py", "def test_c(): pass\n")
    text, last = last_lines(check, capsys, 1)
    assert last == [f"failed tests: pytest was ended by {number}", "2 passed, 1 failed, 0 skipped"]
    assert "test_top.py::test_dies" in text


@posix_only
def test_check_ends_what_hangs_and_shows_where(check, capsys, monkeypatch):
    monkeypatch.setattr(check, "MOST_SECONDS", 5)
    check.write("tests/test_top.py", "import time\ndef test_hangs():\n    time.sleep(600)\n")
    text, last = last_lines(check, capsys, 1)
    assert last == [
        "failed tests: pytest took more than 5 s and was ended by SIGABRT",
        "1 passed, 1 failed, 0 skipped",
    ]
    assert 'test_top.py", line 3 in test_hangs' in text


@posix_only
def test_check_does_not_run_again_what_it_killed_itself(check, capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(check, "MOST_SECONDS", 5)
    monkeypatch.setattr(check, "SECONDS_TO_ABORT", 1, raising=False)
    ignores = (
        f"open({str(tmp_path / 'began')!r}, 'a').write('x'), signal.signal(signal.SIGABRT, signal.SIG_IGN)"
    )
    check.write(
        "tests/test_top.py",
        f"import signal, time\ndef test_hangs():\n    {ignores}\n    time.sleep(600)\n",
    )
    text, last = last_lines(check, capsys, 1)
    reason = "failed tests: pytest took more than 5 s and was ended by SIGKILL"
    assert last == [reason, "1 passed, 1 failed, 0 skipped"]
    assert (tmp_path / "began").read_text() == "x"
    assert "once more" not in text


@posix_only
def test_check_goes_on_after_a_kill_in_the_middle_of_a_report(check, capsys):
    check.write("tests/test_top.py", "def test_a(): pass\n")
    check.write(
        "tests/conftest.py",
        "import os, signal\n"
        "def pytest_unconfigure(config):\n"
        "    with open(config.option.xmlpath, 'r+') as report: report.truncate(100)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n",
    )
    _, last = last_lines(check, capsys, 1)
    assert last == ["failed tests: pytest was ended by SIGKILL", "1 passed, 1 failed, 0 skipped"]


def test_check_fails_where_pytest_ends_in_silence(check, capsys):
    check.write("tests/test_top.py", "import os\ndef test_a(): os._exit(0)\n")
    _, last = last_lines(check, capsys, 1)
    reason = "failed tests: pytest ended with exit code 0 and counted no test"
    assert last == [reason, "1 passed, 1 failed, 0 skipped"]
