"""`kvcourse grade` and `kvcourse regrade` as they are typed, down to the processes of the students' code."""

import csv
import json
import os
import select
import shutil
import signal
import subprocess
import sys

import pytest

from kvcourse.cli import main
from kvcourse.course.grading import regrade as regrade_module
from kvcourse.course.grading.record import read_record
from kvcourse.course.manifest import read_manifest
from kvcourse.course.notebook import dump_notebook, read_notebook
from kvcourse.course.release.student import student_copy

COMMAND = [sys.executable, "-c", "from kvcourse.cli import main; raise SystemExit(main())"]

# Few and quick, worth what book.toml says. With GATE set, one says that it has come to bob, and waits for a signal.
HIDDEN = """\
import os
import signal

import pytest

from kvcourse.course.grading import expect


@pytest.mark.exercise("ex-0-shared-prompt")
class TestSharedPrompt:
    @pytest.mark.points(1, hint="zqhint")
    def test_zqname(self, submission, student, reference):
        if submission == "bob" and os.environ.get("GATE"):
            with open(os.environ["GATE"], "w") as gate:
                gate.write("bob")
            signal.pause()
        expect.close(student.share_saved(6, [2, 2]), reference.share_saved(6, [2, 2]), what="zqmessage")

    @pytest.mark.points(1, visibility="visible")
    def test_one_request(self, student, reference):
        expect.close(student.share_saved(6, [2]), reference.share_saved(6, [2]), what="one request")


@pytest.mark.exercise("ex-0-longest-context")
class TestLongestContext:
    @pytest.mark.points(2)
    def test_zqother(self, rng):
        assert rng.integers(10) < 10


@pytest.mark.exercise("ex-0-equal-reads")
class TestEqualReads:
    @pytest.mark.points(3)
    def test_zqthird(self):
        pass
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Three submissions (the reference, a student copy, no notebook) and a folder of hidden tests."""
    root = tmp_path_factory.mktemp("class")
    course = read_notebook(read_manifest().root / "notebooks" / "00_start_here.ipynb")
    (root / "work").mkdir()
    (root / "work" / "ada.ipynb").write_text(dump_notebook(course), "utf-8")
    (root / "work" / "bob.ipynb").write_text(dump_notebook(student_copy(course)), "utf-8")
    (root / "work" / "cyd.ipynb").write_text("\x1b[31mmy homework", "utf-8")
    (root / "hidden").mkdir()
    (root / "hidden" / "test_hidden.py").write_text(HIDDEN, "utf-8")
    return root


def command(place, out, *options):
    work = [str(place / "work" / f"{name}.ipynb") for name in ("ada", "bob", "cyd")]
    common = ["--chapter", "0", "--hidden", str(place / "hidden"), "--jobs", "1", "--out", str(out)]
    return ["grade", *work, *common, *options]


@pytest.fixture(scope="module")
def graded(place):
    """(finished process, folder of grades) of an uninterrupted batch."""
    out = place / "grades"
    line = [*COMMAND, *command(place, out, "--seed", "11")]
    return subprocess.run(line, capture_output=True, text=True, check=False), out


def bytes_of(folder):
    return {
        str(p.relative_to(folder)): p.read_bytes()
        for p in folder.rglob("*")
        if p.is_file() and p.name != ".lock"
    }


def run(capsys, *arguments):
    """(exit code, standard output, standard error) of the command."""
    code = main([str(argument) for argument in arguments])
    return code, *capsys.readouterr()


def test_scores_reach_table_gradebook_and_records(graded):
    done, out = graded
    assert (done.returncode, done.stderr) == (0, "")
    scores = {name: read_record(out / "records" / f"{name}.json").earned for name in ("ada", "bob", "cyd")}
    assert scores == {"ada": 7, "bob": 5, "cyd": 0}
    with (out / "gradebook.csv").open(newline="", encoding="utf-8") as file:
        assert {row["name"]: float(row["total"]) for row in csv.DictReader(file)} == scores
    for name, score in scores.items():
        assert any(line.split()[:1] == [name] and f"{score}/7" in line for line in done.stdout.splitlines())
    assert "3 submissions in" in done.stdout
    assert "\x1b[31m" not in done.stdout


def test_hidden_tests_stay_hidden(graded):
    _, out = graded
    found = bytes_of(out)
    assert b"zqname" in found["records/bob.json"]
    assert [n for n, text in found.items() if b"zq" in text and not n.startswith("records/")] == []
    results = json.loads(found["gradescope/bob.json"])
    assert [t["visibility"] for t in results["tests"]] == ["visible", "hidden", "hidden", "hidden"]


def test_a_second_run_keeps_all_and_prints_data(graded, place, capsys):
    _, out = graded
    before = bytes_of(out)
    code, text, error = run(capsys, *command(place, out, "--json"))
    data = json.loads(text)
    assert (code, error, data["kept"], data["seed"]) == (0, "", 3, 11)
    assert [(s["name"], s["earned"], s["points"]) for s in data["submissions"]] == [
        ("ada", 7, 7),
        ("bob", 5, 7),
        ("cyd", 0, 7),
    ]
    assert data["submissions"][0]["exercises"]["ex-0-equal-reads"] == {"earned": 3, "points": 3}
    assert bytes_of(out) == before


@pytest.mark.skipif(sys.platform == "win32", reason="no FIFO and no SIGINT to one process")
def test_ctrl_c_loses_only_what_is_in_progress(graded, place):
    """Interrupted while bob is graded: ada is kept, and going on gives the bytes of the uninterrupted batch."""
    _, whole = graded
    out, gate = place / "interrupted", place / "gate"
    os.mkfifo(gate)
    reader = os.open(gate, os.O_RDONLY | os.O_NONBLOCK)
    line = [*COMMAND, *command(place, out, "--seed", "11")]
    process = subprocess.Popen(
        line, env={**os.environ, "GATE": str(gate)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert select.select([reader], [], [], 120)[0], "bob's test never started"
        process.send_signal(signal.SIGINT)
        text, error = process.communicate(timeout=60)
    finally:
        os.close(reader)
        process.kill()
    assert (process.returncode, text, error) == (130, "", "kvcourse grade: interrupted\n")
    assert [path.name for path in (out / "records").iterdir()] == ["ada.json"]
    ada = (out / "records" / "ada.json").stat()
    done = subprocess.run(
        [*COMMAND, *command(place, out)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "1 graded before" in done.stdout
    assert (out / "records" / "ada.json").stat().st_mtime_ns == ada.st_mtime_ns
    assert bytes_of(out) == bytes_of(whole)


def test_points_that_do_not_add_up_are_one_line(place, tmp_path, capsys):
    shutil.copytree(place / "hidden", tmp_path / "hidden")
    file = tmp_path / "hidden" / "test_hidden.py"
    file.write_text(file.read_text().replace("points(3)", "points(2)"))
    code, text, error = run(capsys, *command(place, tmp_path / "grades", "--hidden", tmp_path / "hidden"))
    assert (code, text, error.count("\n")) == (2, "", 1)
    assert (
        "ex-0-equal-reads: the points of its 1 tests in test_hidden.py add up to 2, book.toml says 3" in error
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--jobs", "0"], "argument --jobs: expected at least 1"),
        (["--seed", "-1"], "argument --seed: '-1' is not a whole number"),
        (["--show", "late"], "argument --show: invalid choice"),
    ],
)
def test_wrong_options_are_one_line(capsys, options, said):
    with pytest.raises(SystemExit, match="2"):
        main(["grade", "x", *options])
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


# ---- regrade ---------------------------------------------------------------------------------------


def test_a_score_is_reproduced(graded, place, capsys):
    _, out = graded
    code, text, error = run(capsys, "regrade", out / "records" / "bob.json", "--hidden", place / "hidden")
    assert (code, text, error) == (0, "reproduced: 5 of 7 points\n", "")


@pytest.fixture
def again(monkeypatch):
    """In place of pytest: the record that `regrade` finds, after `change` of its JSON."""

    def use(record, change=lambda data: None):
        def write(run):
            data = json.loads(record.read_text())
            change(data)
            run.records.mkdir(parents=True, exist_ok=True)
            (run.records / record.name).write_text(json.dumps(data))
            assert (run.seed, run.jobs) == (11, 1)

        monkeypatch.setattr(regrade_module, "run_pytest", write)

    return use


def lose_a_point(data):
    """ada's first test fails."""
    part = data["exercises"][0]
    part["outcomes"][0] |= {"outcome": "failed", "earned": 0, "message": "\x1b[31mother"}
    part["earned"] -= 1
    data["earned"] -= 1


def test_differences_are_told(graded, place, capsys, again):
    record = graded[1] / "records" / "ada.json"
    again(record, lose_a_point)
    code, text, _ = run(capsys, "regrade", record, "--hidden", place / "hidden")
    assert code == 1
    assert text.splitlines() == [
        "ex-0-shared-prompt, test_zqname: passed, 1 of 1 points then,"
        r" failed, 0 of 1 points: \x1b[31mother now",
        "not reproduced: 7 of 7 points then, 6 of 7 now",
    ]
    code, text, _ = run(capsys, "regrade", record, "--hidden", place / "hidden", "--json")
    assert (code, json.loads(text)["reproduced"], json.loads(text)["now"]) == (1, False, 6)


def test_other_versions_are_named(graded, place, tmp_path, capsys, again):
    data = json.loads((graded[1] / "records" / "ada.json").read_text())
    now = data["versions"]["torch"]
    data["versions"]["torch"] = "1.0"
    record = tmp_path / "ada.json"
    record.write_text(json.dumps(data))
    again(graded[1] / "records" / "ada.json")
    code, text, _ = run(capsys, "regrade", record, "--hidden", place / "hidden")
    assert (code, text) == (0, f"version: torch 1.0 then, {now} now\nreproduced: 7 of 7 points\n")


def test_another_submission_or_other_tests_are_refused(graded, place, tmp_path, capsys):
    record = graded[1] / "records" / "ada.json"
    hidden = ("--hidden", place / "hidden")
    for arguments, said in (
        ((record, *hidden, "--submission", place / "work" / "bob.ipynb"), "bob.ipynb is not what was graded"),
        ((record, *hidden, "--submission", tmp_path / "none.ipynb"), "say with --submission where it is now"),
        ((record,), "the tests are not those of the record"),
        ((place / "work" / "ada.ipynb", *hidden), "is not a record of a graded submission"),
        ((tmp_path / "none.json", *hidden), "cannot be read"),
    ):
        code, text, error = run(capsys, "regrade", *arguments)
        assert (code, text, error.count("\n")) == (2, "", 1)
        assert said in error
