"""Batches: what is graded, what is kept, in which order, and what is refused before anything is done.

The part that runs pytest is replaced by one that scores by the digest; test_cli_grade.py runs the real one.
"""

import csv
import json

import pytest
from record_strategies import exercise, outcome
from small_course import small_course

from kvcourse.course.grading import batch as batch_module
from kvcourse.course.grading import grades as grades_module
from kvcourse.course.grading.batch import grade_batch
from kvcourse.course.grading.pytest_run import GraderError
from kvcourse.course.grading.record import Record, bundle_hash, current_versions, read_record, write_record
from kvcourse.course.grading.submission import read_submission
from kvcourse.errors import InputError

NOTEBOOK = '{"cells": [{"cell_type": "code", "source": "x = %d", "metadata": {}, "outputs": [], \
"execution_count": null, "id": "a"}], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}'
STEMS = ("00_start_here",)


class Grader:
    """Stands in for pytest: one exercise, passed if the digest is odd. `stop_after` interrupts it."""

    def __init__(self, manifest):
        self.manifest, self.graded, self.stop_after, self.result = manifest, [], None, None

    def __call__(self, run, finished):
        bundle = bundle_hash(self.manifest, run.hidden)
        for place, (name, path) in enumerate(run.submissions):
            if place == self.stop_after:
                raise KeyboardInterrupt
            submission = read_submission(path, self.manifest, name)
            result = self.result or ("passed" if int(submission.digest, 16) % 2 else "failed")
            found = [
                outcome("test_it", 1, "visible", result),
                outcome("zqsecret", 1, "hidden", "failed", "zqsecret"),
            ]
            facts = (name, str(path), submission.digest, bundle, run.seed, current_versions(), {})
            parts = (exercise("ex-0-double", STEMS[0], found),)
            write_record(run.records, Record(*facts, STEMS, parts, submission.notes))
            self.graded.append(name)
            finished(name)


@pytest.fixture
def manifest(tmp_path):
    return small_course(tmp_path / "course")


@pytest.fixture
def grader(manifest, monkeypatch):
    found = Grader(manifest)
    monkeypatch.setattr(batch_module, "run_pytest", found)
    return found


@pytest.fixture
def work(tmp_path):
    """Four submissions."""
    folder = tmp_path / "submissions"
    folder.mkdir()
    for place, name in enumerate(["dora", "Ada", "bob", "=cyd"]):
        (folder / f"{name}.ipynb").write_text(NOTEBOOK % place)
    return sorted(folder.iterdir())


@pytest.fixture
def grade(manifest, grader, work, tmp_path):
    """Grade chapter 0 of all four with seed 3 into tmp_path/grades."""

    def run(paths=work, out=tmp_path / "grades", **options):
        options = {"seed": 3, "chapters": [0]} | options
        return grade_batch(manifest, paths, out, **options)

    return run


def bytes_of(folder):
    return {
        str(p.relative_to(folder)): p.read_bytes()
        for p in folder.rglob("*")
        if p.is_file() and p.name != ".lock"
    }


def test_every_output_is_there_and_in_order(grade, tmp_path):
    batch = grade()
    names = ["=cyd", "Ada", "bob", "dora"]
    assert [record.name for record in batch.records] == names
    out = tmp_path / "grades"
    with (out / "gradebook.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["name"].lstrip("'") for row in rows] == names
    for folder, suffix in (("records", ".json"), ("reports", ".html"), ("gradescope", ".json")):
        assert sorted(p.name for p in (out / folder).iterdir()) == sorted(f"{name}{suffix}" for name in names)
    for row, record in zip(rows, batch.records, strict=True):
        assert (float(row["total"]), float(row["points"])) == (record.earned, record.points)
        assert read_record(out / "records" / f"{record.name}.json") == record


def test_no_student_file_has_a_word_of_hidden_tests(grade, tmp_path):
    grade()
    found = bytes_of(tmp_path / "grades")
    assert b"zqsecret" in found["records/bob.json"]
    assert [
        name for name, text in found.items() if b"zqsecret" in text and not name.startswith("records/")
    ] == []


def test_a_second_run_grades_nothing_and_changes_no_byte(grade, grader, tmp_path):
    grade()
    before, grader.graded = bytes_of(tmp_path / "grades"), []
    batch = grade(seed=None)
    assert (grader.graded, batch.kept, batch.others) == ([], 4, 0)
    assert bytes_of(tmp_path / "grades") == before


def test_what_was_interrupted_goes_on_to_the_same_bytes(grade, grader, tmp_path):
    grade(out=tmp_path / "whole")
    grader.graded, grader.stop_after = [], 2
    with pytest.raises(KeyboardInterrupt):
        grade()
    assert grader.graded == ["=cyd", "Ada"]
    grader.graded, grader.stop_after = [], None
    assert grade(seed=None).kept == 2
    assert grader.graded == ["bob", "dora"]
    assert bytes_of(tmp_path / "grades") == bytes_of(tmp_path / "whole")


def test_only_a_changed_submission_is_graded_again(grade, grader, work):
    grade()
    grader.graded = []
    work[-1].write_text(NOTEBOOK % 77)
    grade()
    assert grader.graded == [work[-1].stem]


@pytest.mark.parametrize("damage", ["cut", "other name", "other versions"])
def test_a_record_that_cannot_be_trusted_is_made_again(grade, grader, tmp_path, damage):
    grade()
    path = tmp_path / "grades" / "records" / "bob.json"
    good, grader.graded = path.read_bytes(), []
    data = json.loads(good)
    if damage == "other name":
        data["name"] = "dora"
    if damage == "other versions":
        data["versions"]["torch"] = "1.0"
    path.write_text(json.dumps(data)[: -1 if damage == "cut" else None])
    grade()
    assert grader.graded == ["bob"]
    assert path.read_bytes() == good


@pytest.mark.parametrize("result", ["broken test", "not run"])
def test_what_the_grader_broke_is_told_and_graded_again(grade, grader, result, monkeypatch):
    from kvcourse.course.grading import scores

    monkeypatch.setattr(scores, "NO_RESULT", "")  # the message of the stand-in's outcomes
    grader.result = result
    batch = grade()
    start = {
        "broken test": "broken test: ex-0-double, test_it:",
        "not run": "no result: =cyd, ex-0-double",
    }
    assert batch.troubles[0].startswith(start[result])
    grader.graded, grader.result = [], None
    assert grade().troubles == []
    assert len(grader.graded) == 4


def test_with_other_tests_all_is_graded_again_and_old_rows_say_so(grade, grader, work, tmp_path):
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "test_a.py").write_text("one = 1\n")
    grade(hidden=hidden)
    (hidden / "test_a.py").write_text("two = 2\n")
    grader.graded = []
    batch = grade(work[:2], hidden=hidden)
    assert len(grader.graded) == 2
    assert batch.others == 2
    with (tmp_path / "grades" / "gradebook.csv").open(newline="", encoding="utf-8") as file:
        notes = {row["name"]: row["notes"] for row in csv.DictReader(file)}
    old = {path.stem for path in work[2:]}
    assert {name for name, note in notes.items() if "graded with other tests" in note} == old
    assert len(notes) == 4


def test_seed_stays_unless_all_is_graded_again(grade, grader):
    drawn = grade(seed=None).grades.seed
    assert 0 <= drawn < 2**32
    assert grade(seed=None).grades.seed == drawn
    with pytest.raises(InputError, match=f"graded with seed {drawn}; leave out --seed"):
        grade(seed=drawn + 1)
    grader.graded = []
    assert {r.seed for r in grade(seed=7, fresh=True).records} == {7}
    assert len(grader.graded) == 4


def test_two_folders_draw_two_seeds(grade, tmp_path):
    assert grade(seed=None).grades.seed != grade(seed=None, out=tmp_path / "other").grades.seed


def test_a_submission_that_cannot_be_read_has_a_record_and_a_line(grade, work):
    work[0].write_text("not a notebook")
    record = next(r for r in grade().records if r.name == work[0].stem)
    assert len(record.notes) == 1


def test_names_that_differ_in_case_only_have_files_of_their_own(grade, tmp_path):
    paths = [tmp_path / "a" / "Eve.ipynb", tmp_path / "b" / "eve.ipynb"]
    for path in paths:
        path.parent.mkdir()
        path.write_text(NOTEBOOK % 1)
    assert len(grade(paths).records) == 2
    assert len({path.name.casefold() for path in (tmp_path / "grades" / "records").iterdir()}) == 2


# ---- refused before anything is done ---------------------------------------------------------------


def refused(grade, grader, **options):
    with pytest.raises(InputError) as caught:
        grade(**options)
    assert grader.graded == []
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_folder_with_something_else_is_left_alone(grade, grader, tmp_path):
    out = tmp_path / "thesis"
    out.mkdir()
    (out / "thesis.tex").write_text("x")
    assert "holds something else than grades" in refused(grade, grader, out=out)
    assert "is a file" in refused(grade, grader, out=out / "thesis.tex")
    assert "cannot be" in refused(grade, grader, out=out / "thesis.tex" / "grades")
    assert bytes_of(out) == {"thesis.tex": b"x"}


def test_grades_never_lie_among_submissions_or_the_courses_notebooks(grade, grader, work, manifest):
    folder = work[0].parent
    before = bytes_of(folder)
    assert "inside the submissions" in refused(grade, grader, paths=[folder], out=folder / "grades")
    assert "course's notebooks" in refused(grade, grader, out=manifest.root / "notebooks" / "grades")
    assert bytes_of(folder) == before


def test_one_folder_is_for_one_assignment(grade, grader, tmp_path):
    grade()
    before, grader.graded = bytes_of(tmp_path / "grades"), []
    said = refused(grade, grader, chapters=[1])
    assert "grades of chapter 00_start_here, these are of chapter 01_naive_cache; give another --out" in said
    assert bytes_of(tmp_path / "grades") == before


def test_one_batch_at_a_time(grade, grader, tmp_path):
    with grades_module.open_grades(tmp_path / "grades", STEMS, 3):
        assert "another kvcourse grade is at work" in refused(grade, grader)


@pytest.mark.parametrize("text", ["{", "[]", '{"schema": 2}', '{"schema": 1, "seed": "x", "chapters": []}'])
def test_a_damaged_mark_is_refused(grade, grader, tmp_path, text):
    (tmp_path / "grades").mkdir()
    (tmp_path / "grades" / "grades.json").write_text(text)
    assert "give another --out" in refused(grade, grader)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"seed": 2**32}, "expected a whole number from 0 to 4294967295"),
        ({"chapters": [99]}, "--chapter 99"),
        ({"hidden": "none"}, "is not a folder"),
        ({"hidden": "."}, "has no test_"),
        ({"gradescope": "results.json"}, "--gradescope takes one submission, there are 4"),
    ],
)
def test_wrong_options(grade, grader, tmp_path, options, said):
    (tmp_path / "empty").mkdir()
    for key in ("hidden", "gradescope"):
        if key in options:
            options = options | {key: tmp_path / "empty" / options[key]}
    assert said in refused(grade, grader, **options)


# ---- when the disk or the grader fails -------------------------------------------------------------


def test_a_full_disk_gives_one_line_and_keeps_the_records(grade, grader, tmp_path, monkeypatch):
    grade()
    before = bytes_of(tmp_path / "grades")
    real = grades_module.write_text

    def full(path, text):
        if path.suffix == ".html":
            raise OSError(28, "No space left on device")
        real(path, text)

    monkeypatch.setattr(grades_module, "write_text", full)
    with pytest.raises(InputError, match=r"\.html cannot be written: No space left on device; the records"):
        grade()
    assert bytes_of(tmp_path / "grades") == before


def test_what_was_graded_stays_when_the_grader_breaks(grade, work, tmp_path, monkeypatch):
    grade(work[:1])
    before = bytes_of(tmp_path / "grades")

    def broken(run, finished):
        raise GraderError("pytest ended with code 3")

    monkeypatch.setattr(batch_module, "run_pytest", broken)
    with pytest.raises(GraderError):
        grade()
    assert bytes_of(tmp_path / "grades") == before


def test_gradescope_of_one_submission(grade, work, tmp_path):
    grade(work[:1], gradescope=tmp_path / "results" / "results.json")
    ours = tmp_path / "grades" / "gradescope" / f"{work[0].stem}.json"
    assert (tmp_path / "results" / "results.json").read_bytes() == ours.read_bytes()


def test_gradescope_takes_a_folder_for_one_submission(grade, work, tmp_path):
    """Whatever a learner has put into it."""
    batch = grade([work[0].parent], gradescope=tmp_path / "results.json")
    assert [record.name for record in batch.records] == ["submissions"]
