"""`kvcourse start` fills a folder and never touches what is there."""

import json

import pytest
from toy_book import edit

from kvcourse.cli import main
from kvcourse.course.manifest import read_manifest
from kvcourse.course.notebook import read_notebook
from kvcourse.course.outline import read_outline
from kvcourse.course.release.working_folder import place_notebooks
from kvcourse.errors import InputError


def actions(project, folder, refresh=False):
    return {placed.name: placed.action for placed in place_notebooks(read_manifest(project), folder, refresh)}


def test_a_new_folder_gets_student_copies(project, tmp_path):
    folder = tmp_path / "deep" / "work"
    assert actions(project, folder) == {"00_first.ipynb": "written", "01_second.ipynb": "written"}
    text = (folder / "01_second.ipynb").read_text("utf-8")
    assert "secret_sum" not in text
    assert "add the number to itself" in text


def test_work_is_never_changed(project, tmp_path):
    actions(project, tmp_path / "work")
    mine = tmp_path / "work/01_second.ipynb"
    edit(mine, "raise NotImplementedError", "return 2 * x  # mine")
    before = mine.read_bytes()
    assert set(actions(project, tmp_path / "work").values()) == {"kept"}
    assert set(actions(project, tmp_path / "work", refresh=True).values()) == {"current"}
    assert mine.read_bytes() == before


def test_refresh_writes_a_changed_chapter_beside_the_old_one(project, tmp_path):
    actions(project, tmp_path / "work")
    mine = tmp_path / "work/01_second.ipynb"
    edit(mine, "raise NotImplementedError", "return 2 * x  # mine")
    before = mine.read_bytes()
    edit(project / "notebooks/01_second.ipynb", "shown.upper()", "shown.lower()")
    assert actions(project, tmp_path / "work") == {"00_first.ipynb": "kept", "01_second.ipynb": "kept"}
    done = actions(project, tmp_path / "work", refresh=True)
    beside = next(name for name, action in done.items() if action == "beside")
    assert done == {"00_first.ipynb": "current", beside: "beside"}
    release = read_notebook(tmp_path / "work" / beside)["metadata"]["kvcourse"]["release"]
    assert beside == f"01_second.{release[:8]}.ipynb"
    assert "shown.lower()" in (tmp_path / "work" / beside).read_text("utf-8")
    assert mine.read_bytes() == before
    edit(tmp_path / "work" / beside, "shown.lower()", "shown  # mine too")
    assert actions(project, tmp_path / "work", refresh=True)[beside] == "kept"
    assert "mine too" in (tmp_path / "work" / beside).read_text("utf-8")


def test_a_broken_copy_counts_as_work(project, tmp_path):
    actions(project, tmp_path / "work")
    mine = tmp_path / "work/01_second.ipynb"
    mine.write_text("half a noteb", "utf-8")
    assert "beside" in actions(project, tmp_path / "work", refresh=True).values()
    assert mine.read_text("utf-8") == "half a noteb"


@pytest.mark.parametrize("name", ["course/book.toml", "course/notebooks"])
def test_a_folder_that_will_not_do(project, tmp_path, name):
    before = {path: path.read_bytes() for path in project.rglob("*") if path.is_file()}
    with pytest.raises(InputError, match="give a"):
        place_notebooks(read_manifest(project), tmp_path / name)
    assert {path: path.read_bytes() for path in project.rglob("*") if path.is_file()} == before


def test_links_to_pages_that_are_not_beside_the_folder(project, tmp_path):
    edit(project / "notebooks/00_first.ipynb", "The number", "See [words](../book/glossary.md#a)")
    for folder, text in (
        (project / "student", "[words](../book/glossary.md#a)"),
        (tmp_path / "far", "See words"),
    ):
        actions(project, folder)
        assert text in (folder / "00_first.ipynb").read_text("utf-8")


def test_a_folder_that_cannot_take_the_outline(project, tmp_path):
    (tmp_path / "work").mkdir()
    (tmp_path / "work/.kvcourse").write_text("mine", "utf-8")
    with pytest.raises(InputError, match=r"move .*\.kvcourse away"):
        place_notebooks(read_manifest(project), tmp_path / "work")
    assert [path.name for path in (tmp_path / "work").iterdir()] == [".kvcourse"]


def test_the_outline_follows_the_course_and_progress_stays(project, tmp_path):
    folder = tmp_path / "work"
    actions(project, folder)
    assert json.loads((folder / ".kvcourse/course.json").read_text("utf-8")) == {
        "schema": 1,
        "title": "Toy course",
        "chapters": [
            {"file": "00_first.ipynb", "title": "First", "exercises": []},
            {
                "file": "01_second.ipynb",
                "title": "Second",
                "exercises": [{"id": "ex-double", "points": 3}],
            },
        ],
    }
    (folder / ".kvcourse/progress.json").write_text("what the checks said", "utf-8")
    edit(project / "book.toml", "points = 3", "points = 5")
    edit(project / "notebooks/01_second.ipynb", '"points": 3', '"points": 5')
    actions(project, folder)
    assert read_outline(folder).chapters[1].exercises[0].points == 5
    assert (folder / ".kvcourse/progress.json").read_text("utf-8") == "what the checks said"


def test_the_command_says_what_it_did(project, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(project)
    assert main(["start", "work"]) == 0
    assert main(["start", "work"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "work/00_first.ipynb: written",
        "work/01_second.ipynb: written",
        "work/00_first.ipynb: there already, left as it is",
        "work/01_second.ipynb: there already, left as it is",
    ]
    assert main(["start", "book.toml"]) == 2
    assert (
        capsys.readouterr().err
        == "kvcourse start: book.toml is a file; give a folder for the student copies\n"
    )


def test_a_student_copy_is_a_valid_notebook(project, tmp_path):
    import nbformat

    actions(project, tmp_path / "work")
    for path in (tmp_path / "work").glob("*.ipynb"):
        nbformat.validate(json.loads(path.read_text("utf-8")))
