"""Which chapter a notebook belongs to, and which of several counts."""

from pathlib import Path

import pytest
from handed_in import FIRST, IDS, SECOND, chapter, notebook, only_note, read, sources, write
from learner import TASKS

from kvcourse.course.grading.chapters import chapter_stems
from kvcourse.course.grading.submission import read_submission
from kvcourse.course.manifest import read_manifest

STUB = TASKS[IDS[SECOND][1]].stub


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder whose name says nothing."""
    return tmp_path / "handed_in"


def test_chapter_numbers_are_positions():
    assert chapter_stems(read_manifest())[:2] == (FIRST, SECOND)


@pytest.mark.parametrize(
    ("name", "data", "stem"),
    [
        ("x.ipynb", notebook(IDS[SECOND][0]), SECOND),
        (f"{FIRST}.ipynb", notebook(IDS[SECOND][0]), SECOND),
        ("x.ipynb", notebook("ex-unknown", IDS[FIRST][2]), FIRST),
        ("x.ipynb", notebook(metadata={"kvcourse": {"chapter": SECOND}}), SECOND),
        (f"{FIRST}.ipynb", notebook(metadata={"kvcourse": {"chapter": SECOND}}), SECOND),
        (f"{FIRST}.ipynb", notebook(), FIRST),
        (f"{FIRST.upper()}.IPYNB", notebook(), FIRST),
        (f"{FIRST}.ipynb.txt", notebook(), FIRST),
        ("x.ipynb", notebook(source=STUB), SECOND),
        ("x.ipynb", notebook(source="print(1)\ndef share_saved(): pass"), FIRST),
    ],
)
def test_a_notebook_is_known_by_ids_then_metadata_then_name_then_functions(folder, name, data, stem):
    found = read(write(folder, {name: data}))
    assert list(found.notebooks) == [stem]
    assert found.notes == ()


@pytest.mark.parametrize(
    "data",
    [
        notebook(),
        notebook("ex-unknown"),
        notebook(source="def f(: pass"),
        notebook(metadata={"kvcourse": {"chapter": 7}}),
    ],
)
def test_a_notebook_of_another_course(folder, data):
    note = only_note(write(folder, {"x.ipynb": data}))
    assert note == "x.ipynb holds none of the course's exercises; is it of another course?"


def test_two_chapters_in_their_notebooks(folder):
    found = read(write(folder, {"a.ipynb": chapter(SECOND, "y = 2"), "b.ipynb": chapter(FIRST, "y = 1")}))
    assert sources(found) == {FIRST: "y = 1", SECOND: "y = 2"}
    assert found.notes == ()


def test_two_chapters_in_one_notebook(folder):
    both = notebook(*IDS[FIRST], *IDS[SECOND])
    assert list(read(write(folder, {"all.ipynb": both})).notebooks) == [FIRST, SECOND]


def test_a_pasted_exercise_does_not_make_a_second_notebook_of_its_chapter(folder):
    pasted = notebook(*IDS[SECOND], IDS[FIRST][0], source="y = 2")
    found = read(write(folder, {"a.ipynb": pasted, "b.ipynb": chapter(FIRST, "y = 1")}))
    assert sources(found) == {FIRST: "y = 1", SECOND: "y = 2"}
    assert found.notes == ()


@pytest.mark.parametrize(
    ("files", "graded"),
    [
        (["old.ipynb", f"{FIRST}.ipynb"], f"{FIRST}.ipynb"),
        ([f"a/{FIRST}.ipynb", f"b/c/{FIRST}.ipynb", "d.ipynb"], f"a/{FIRST}.ipynb"),
        ([f"a/{FIRST}.ipynb", f"{FIRST}-Copy1.ipynb"], f"a/{FIRST}.ipynb"),
        ([f"{FIRST} (1).ipynb", "a.ipynb"], f"{FIRST} (1).ipynb"),
        ([f"{FIRST}.a1b2c3d4.ipynb", f"{FIRST}.ipynb"], f"{FIRST}.ipynb"),
    ],
)
def test_of_several_the_one_named_like_the_chapter_counts(folder, files, graded):
    found = read(write(folder, {file: chapter(FIRST, f"name = {file!r}") for file in files}))
    assert sources(found) == {FIRST: f"name = {graded!r}"}
    (note,) = found.notes
    assert note.startswith(f"{len(files)} notebooks of chapter {FIRST} (")
    assert note.endswith(f": {graded} was graded")


def test_several_learners_in_one_folder(folder):
    note = only_note(
        write(folder, {f"{name}.ipynb": chapter(FIRST, name) for name in ("ann", "bob", "cy", "di")})
    )
    assert note == (
        f"4 notebooks of chapter {FIRST} (ann.ipynb, bob.ipynb, cy.ipynb, …): none was graded; if they are of several"
        f" learners, pass them one by one (FOLDER/*), else keep one, or name it {FIRST}.ipynb"
    )


def test_copies_of_one_notebook_are_one_learner_s(folder):
    found = read(write(folder, {"a.ipynb": chapter(FIRST), "b.ipynb": chapter(FIRST)}))
    assert list(found.notebooks) == [FIRST]
    assert found.notes == (f"2 notebooks of chapter {FIRST} (a.ipynb, b.ipynb): a.ipynb was graded",)


def test_exercise_ids_are_surer_than_a_name(folder):
    found = read(write(folder, {f"{FIRST}.ipynb": notebook(), "work.ipynb": chapter(FIRST, "y = 1")}))
    assert sources(found) == {FIRST: "y = 1"}
    assert "work.ipynb was graded" in found.notes[0]


# ---- digest ----------------------------------------------------------------------------------------


def digest(path):
    return read_submission(path, read_manifest()).digest


def test_a_digest_is_of_names_and_bytes_only(folder):
    files = {f"{FIRST}.ipynb": chapter(FIRST), "sub/é.ipynb": chapter(SECOND)}
    one, two = write(folder / "one", files), write(folder / "two", dict(reversed(files.items())))
    write(two, {".DS_Store": b"x", "plot.png": b"x", ".ipynb_checkpoints/a.ipynb": b"x"})
    assert digest(one) == digest(two)
    assert digest(one) != digest(write(folder / "three", {**files, "sub/é.ipynb": chapter(SECOND, "y")}))
    assert digest(one) != digest(write(folder / "four", {"x.ipynb": files["sub/é.ipynb"], **files}))
    renamed = {"x.ipynb": chapter(FIRST), "sub/é.ipynb": chapter(SECOND)}
    assert digest(one) != digest(write(folder / "five", renamed))


def test_a_digest_tells_files_that_cannot_be_read_from_those_that_can(folder):
    assert digest(write(folder / "a", {"x.ipynb": b""})) != digest(write(folder / "b", {"x.ipynb": b"{}"}))
    assert digest(write(folder / "c", {"x.py": b"1"})) == digest(write(folder / "d", {}))
