"""`progress()`: what is solved, in a learner's folder and elsewhere, whatever happens to the file."""

import json
import math
import os
import subprocess
import sys
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcourse import course
from kvcourse.course.checks import standing
from kvcourse.course.checks.progress import BAR, Group, Progress, Row
from kvcourse.course.checks.standing import Standing, keep_standing, read_standings
from kvcourse.course.manifest import read_manifest
from kvcourse.course.outline import read_outline
from kvcourse.course.release.working_folder import place_notebooks
from kvcourse.errors import InputError

CHECK = """
from kvcourse import course
try:
    with course.check({id!r}) as check:
        for i, got in enumerate({values}):
            check.equal(f"case {{i}}", got, 1)
except course.CheckFailed:
    pass
"""


@pytest.fixture(autouse=True)
def _forget(monkeypatch):
    """Each test starts like a new kernel."""
    monkeypatch.setattr(standing, "_memory", {})
    monkeypatch.setattr(standing, "_warned", set())


@pytest.fixture
def learner(project, tmp_path, monkeypatch):
    """A learner's folder, entered."""
    place_notebooks(read_manifest(project), tmp_path / "work")
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"


def states():
    return {row.id: row.words for group in course.progress().groups for row in group.rows}


def in_a_new_process(*codes, folder):
    """Run programs at the same time, each in a process of its own. Returns what they printed."""
    started = [
        subprocess.Popen([sys.executable, "-c", code], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        for code in codes
    ]  # fmt: skip
    return [process.communicate()[0].decode() for process in started]


def test_progress_outlives_the_kernel(learner):
    assert states() == {"ex-double": "open"}
    assert in_a_new_process(CHECK.format(id="ex-double", values=[1, 1, 1]), folder=learner) == [
        "ex-double: solved, all 3 cases pass\n"
    ]
    assert states() == {"ex-double": "solved"}
    assert in_a_new_process(CHECK.format(id="ex-double", values=[1, 2, 1]), folder=learner) == [""]
    assert states() == {"ex-double": "tried: 2 of 3 cases"}
    stub = "def f(): raise NotImplementedError\n" + CHECK.format(id="ex-double", values="[f()]")
    in_a_new_process(stub, folder=learner)
    assert states() == {"ex-double": "open"}


def test_a_test_that_was_not_run_changes_nothing(learner):
    keep_standing("ex-double", Standing(3, 3))
    in_a_new_process(CHECK.format(id="ex-double", values="[double(1)]"), folder=learner)
    assert states() == {"ex-double": "solved"}


PARTLY = """
from kvcourse import course
def half(x):
    if x:
        raise NotImplementedError
    return 0
with course.check("ex-double") as check:
    check.call(half, 0, expected=0)
    check.call(half, 2, expected=1)
"""


def test_a_solution_written_in_part_was_tried(learner):
    assert "not solved yet; 1 of 2 cases pass" in in_a_new_process(PARTLY, folder=learner)[0]
    assert states() == {"ex-double": "tried: 1 of 2 cases"}


def test_the_newest_result_counts_whichever_kernel_it_is_from(learner):
    keep_standing("ex-double", Standing(1, 2))
    in_a_new_process(CHECK.format(id="ex-double", values=[1]), folder=learner)
    assert states() == {"ex-double": "solved"}


def test_a_folder_below_belongs_to_it(learner, monkeypatch):
    (learner / "deep/er").mkdir(parents=True)
    monkeypatch.chdir(learner / "deep/er")
    keep_standing("ex-double", Standing(1, 1))
    monkeypatch.chdir(learner)
    assert states() == {"ex-double": "solved"}


def test_the_text(learner):
    keep_standing("ex-double", Standing(1, 1))
    keep_standing("ex-of-an-older-version", Standing(1, 2))
    text = """\
Toy course: 3 of 3 points
[########################################] 100 %

Second (3 of 3 points)
  ex-double                3 points  solved

Not in the outline of this course
  ex-of-an-older-version             tried: 1 of 2 cases

As the public checks in the notebooks say. The grader has tests of its own."""
    assert str(course.progress()) == text == repr(course.progress())


def test_kernels_that_write_at_the_same_time_lose_nothing(learner):
    code = """
from kvcourse.course.checks.standing import Standing, keep_standing
for i in range(25):
    keep_standing(f"ex-{0}-{{i}}", Standing({0}, 3))
"""
    assert in_a_new_process(*[code.format(n) for n in range(4)], folder=learner) == [""] * 4
    assert read_standings() == {f"ex-{n}-{i}": Standing(n, 3) for n in range(4) for i in range(25)}
    left = {path.name for path in (learner / ".kvcourse").iterdir()} - {"progress.lock"}
    assert left == {"course.json", "progress.json"}


SOUND = {"schema": 1, "exercises": {"ex-double": {"passed": 1, "cases": 1}}}
DAMAGED = {
    "empty": b"",
    "half": json.dumps(SOUND).encode()[:-9],
    "not text": b"\xff\xfe\x00",
    "a list": b"[]",
    "other schema": json.dumps({**SOUND, "schema": 2}).encode(),
    "no exercises": b'{"schema": 1}',
    "exercises in a list": b'{"schema": 1, "exercises": [1]}',
    "more than all": b'{"schema": 1, "exercises": {"ex-double": {"passed": 2, "cases": 1}}}',
    "no cases": b'{"schema": 1, "exercises": {"ex-double": {"passed": 0, "cases": 0}}}',
    "not counts": b'{"schema": 1, "exercises": {"ex-double": {"passed": 0.5, "cases": 1}}}',
    "text": b'{"schema": 1, "exercises": {"ex-double": {"passed": "1", "cases": "1"}}}',
    "other keys": b'{"schema": 1, "exercises": {"ex-double": {"passed": 1, "all": 1}}}',
    "deep": b"[" * 100_000,
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_is_put_aside(learner, capsys, name):
    path = learner / ".kvcourse/progress.json"
    for number in (1, 2):
        path.write_bytes(DAMAGED[name])
        if number == 1:
            assert states() == {"ex-double": "open"}
        else:
            keep_standing("ex-double", Standing(2, 2))
        aside = f"progress.damaged-{number}.json"
        assert (learner / ".kvcourse" / aside).read_bytes() == DAMAGED[name]
        told = capsys.readouterr().err
        assert aside in told
        assert told.count("\n") == 1
    assert states() == {"ex-double": "solved"}
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("blocked", ["progress.json", "progress.lock"])
def test_a_folder_that_cannot_be_written(learner, capsys, blocked):
    (learner / ".kvcourse" / blocked).mkdir()
    keep_standing("ex-double", Standing(1, 2))
    keep_standing("ex-other", Standing(1, 1))
    told = capsys.readouterr().err
    assert told.startswith("kvcourse: .kvcourse/progress.json cannot be written (")
    assert told.count("\n") == 1
    assert states() == {"ex-double": "tried: 1 of 2 cases", "ex-other": "solved"}
    (learner / ".kvcourse" / blocked).rmdir()
    keep_standing("ex-double", Standing(2, 2))
    standing._memory.clear()
    assert states() == {"ex-double": "solved", "ex-other": "solved"}


def test_a_folder_that_can_only_be_read(learner, monkeypatch, capsys):
    keep_standing("ex-double", Standing(1, 1))
    monkeypatch.setattr(
        standing, "_locked", lambda folder: (_ for _ in ()).throw(OSError(30, "Read-only file system"))
    )
    assert states() == {"ex-double": "solved"}
    keep_standing("ex-double", Standing(0, 1))
    assert "(Read-only file system)" in capsys.readouterr().err
    assert states() == {"ex-double": "tried: 0 of 1 case"}


@pytest.mark.parametrize(
    "content", [b"", b"[]", b'{"schema": 1}', b'{"schema": 9}', b"\xff", b'{"schema": 1, "title": 3}']
)
def test_a_damaged_outline(learner, content):
    (learner / ".kvcourse/course.json").write_bytes(content)
    with pytest.raises(InputError, match="kvcourse start"):
        read_outline(learner)
    keep_standing("ex-double", Standing(1, 1))
    shown = course.progress()
    assert states() == {"ex-double": "solved"}
    assert "kvcourse start" in shown.notes[0]
    assert shown._repr_html_()


def test_the_courses_own_notebooks_write_nothing(project, monkeypatch):
    place_notebooks(
        read_manifest(project), project
    )  # a learner's folder in the same place does not change it
    monkeypatch.chdir(project / "notebooks")
    before = sorted(project.rglob("*"))
    keep_standing("ex-double", Standing(1, 1))
    assert states() == {"ex-double": "solved"}
    assert sorted(project.rglob("*")) == before
    assert "until this kernel stops" in str(course.progress())


def test_in_no_folder_at_all(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    os.rmdir(tmp_path / "gone")
    keep_standing("ex-of-mine", Standing(1, 1))
    assert states()["ex-of-mine"] == "solved"


# ---- the table -------------------------------------------------------------------------------------


class Table(HTMLParser):
    """What a browser and a screen reader find: text, scopes of headings, and tags."""

    def __init__(self, text):
        super().__init__()
        self.rows, self.scopes, self.tags, self.open, self.bar = [], [], set(), [], {}
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("th", "td"):
            self.rows[-1].append("")
        if tag == "th":
            self.scopes.append(dict(attributes)["scope"])
        if tag == "progress":
            self.bar = dict(attributes)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "tr" in self.open:
            self.rows[-1][-1] += data


NAMES = st.text("<>&'\"/;ab#]é", min_size=1, max_size=6)
STANDINGS = st.sampled_from([None, Standing(0, 1), Standing(1, 1), Standing(2, 3), Standing(3, 3)])
ROWS = st.lists(st.builds(Row, NAMES, st.integers(1, 9), STANDINGS), min_size=1, max_size=3).map(tuple)


@given(NAMES, st.lists(st.builds(Group, NAMES, ROWS), max_size=3))
def test_table_and_text_say_the_same(title, groups):
    shown, earned, points, wanted = Progress(title, tuple(groups)), 0, 0, []
    for group in groups:
        solved = [row.points for row in group.rows if row.words == "solved"]
        both = (sum(solved), sum(row.points for row in group.rows))
        earned, points = earned + both[0], points + both[1]
        wanted.append([group.title, "{} of {}".format(*both), ""])
        wanted += [[row.id, str(row.points), row.words] for row in group.rows]
    table = Table(shown._repr_html_())
    assert [[a, b, c.lstrip("✓◐○ ")] for a, b, c in table.rows[1:]] == wanted
    assert table.scopes == ["col"] * 3 + [
        scope for group in groups for scope in ("rowgroup", *["row"] * len(group.rows))
    ]
    assert not table.tags & {"script", "style", "img", "a"}
    lines = str(shown).split("\n")
    assert lines[0] == f"{title}: {earned} of {points} points"
    if points:
        assert (table.bar["value"], table.bar["max"]) == (str(earned), str(points))
        assert table.bar["aria-label"] == f"{earned} of {points} points"
        filled = math.floor(BAR * earned / points)
        assert lines[1].startswith(f"[{'#' * filled}{'.' * (BAR - filled)}] ")
    words = [line.split() for line in lines]
    for name, count, state in wanted:
        if state:
            assert [name, count, "point" if count == "1" else "points", *state.split()] in words
