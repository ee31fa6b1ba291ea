"""book.toml is read, and every kind of disagreement with the files is reported."""

from pathlib import Path

import pytest
from toy_book import edit

from kvcourse.course.manifest import Chapter, choose_chapters, find_root, read_manifest
from kvcourse.errors import InputError

ROOT = Path(__file__).resolve().parents[2]


def test_facts_are_read(project):
    manifest = read_manifest(project)
    assert [chapter.title for chapter in manifest.chapters] == ["First", "Second"]
    assert manifest.points == 3
    assert manifest.chapters[1].minutes == 20
    assert manifest.planned[0].title == "Third"
    assert manifest.files == (
        "book/index.md", "notebooks/00_first.ipynb", "notebooks/01_second.ipynb", "book/glossary.md",
        "book/api.md", "book/api/errors.md",
    )  # fmt: skip


def test_chapters_have_the_numbers_of_their_files():
    """Not their positions: a chapter may be taken out, and the others keep their numbers."""
    files = ("notebooks/00_first.ipynb", "notebooks/03_fourth.ipynb", "notebooks/extra.ipynb")
    chapters = tuple(Chapter(file, file.split("_")[-1], 10, ()) for file in files)
    assert [chapter.stem for chapter in chapters] == ["00_first", "03_fourth", "extra"]
    assert choose_chapters(chapters, [3, 0]) == chapters[:2]
    assert choose_chapters(chapters, [3]) == chapters[1:2]
    assert choose_chapters(chapters, []) == chapters
    with pytest.raises(
        InputError, match=r"--chapter 1: no such chapter; the chapters are 0 first\.ipynb, 3 fourth"
    ):
        choose_chapters(chapters, [1])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('file = "book/glossary.md"', 'file = "book/gone.md"', "book/gone.md: no such file"),
        ('file = "book/glossary.md"', 'file = "book/api.md"', "book/api.md: listed twice"),
        ("minutes = 10", 'minutes = 10\ndevice = "tpu"', "device 'tpu', expected one of any, cpu, gpu"),
        ("minutes = 10", "minutes = 0", "minutes is 0, expected at least 1"),
        ("minutes = 10", 'minutes = "10"', "minutes is '10', expected int"),
        ("minutes = 10", "minutes = true", "minutes is True, expected int"),
        ("minutes = 10\n", "", "no minutes"),
        ("minutes = 10", "minutes = 10\nlevel = 1", "unknown key 'level'"),
        ('id = "ex-double"', 'id = "ex-halve"', "[('ex-double', 3)] in the notebook and [('ex-halve', 3)]"),
        ("points = 3", "points = 4", "[('ex-double', 3)] in the notebook and [('ex-double', 4)]"),
        ('title = "First"', 'title = "Zeroth"', "heading is 'First', book.toml says 'Zeroth'"),
        ('"kvcourse.errors"', '"kvcourse.nothing"', "API module kvcourse.nothing: not found"),
        ('"book/references.bib"', '"book/other.bib"', "book/other.bib: no such file"),
        ('[[part.page]]\nfile = "book/api.md"\n', "", "book/api.md: the API page is not listed in a part"),
        ("[[planned]]", "[[later]]", "unknown table [later]"),
        ("schema = 1", "schema = 9", "schema 9; this version reads schema 1"),
        ("schema = 1", "schema = ", "not valid TOML"),
    ],
)
def test_each_problem_is_named(project, old, new, message):
    edit(project / "book.toml", old, new)
    with pytest.raises(InputError) as caught:
        read_manifest(project)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value).partition("TOML")[0]


def test_all_problems_come_at_once(project):
    edit(project / "book.toml", "minutes = 10", "minutes = -1")
    edit(project / "book.toml", "points = 3", "points = 5")
    (project / "notebooks/02_extra.ipynb").write_text("{}", "utf-8")
    (project / "book/references.bib").unlink()
    with pytest.raises(InputError, match=r"^book\.toml has 5 problems: ") as caught:
        read_manifest(project)
    for part in (
        "minutes is -1",
        "('ex-double', 5)",
        "02_extra.ipynb: not listed",
        "references.bib: no such",
    ):
        assert part in str(caught.value)


def test_an_exercise_id_is_used_once(project):
    edit(
        project / "book.toml",
        'objectives = ["Print a number"]',
        'objectives = []\nexercises = [{ id = "ex-double", points = 1 }]',
    )
    with pytest.raises(InputError, match=r"'ex-double' is also in notebooks/00_first\.ipynb"):
        read_manifest(project)


@pytest.mark.parametrize(
    "content", [b"", b"not json", b"{}", b'{"nbformat": 4, "cells": []}', b"\xff\xfe\x00"]
)
def test_a_broken_notebook_is_a_problem_not_a_crash(project, content):
    (project / "notebooks/00_first.ipynb").write_bytes(content)
    with pytest.raises(InputError, match=r"00_first\.ipynb"):
        read_manifest(project)


def test_the_root_is_found_from_below(project):
    assert find_root(project / "notebooks") == project


def test_the_course_itself_is_in_order():
    manifest = read_manifest(ROOT)
    assert len(manifest.chapters) + len(manifest.planned) == 10
    assert all(chapter.objectives for chapter in manifest.chapters)


def test_a_number_in_place_of_the_book(tmp_path):
    (tmp_path / "book.toml").write_text("schema = 1\nbook = 3\n")
    with pytest.raises(InputError, match=r"\[book\]: it is 3, expected a table"):
        read_manifest(tmp_path)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("part = 3", "part is 3"),
        ("part = [3]", r"part is \[3\]"),
        ('planned = "soon"', "planned is 'soon'"),
        ('[[part]]\ntitle = "P"\nchapter = 1', "chapter is 1"),
        ('[[part]]\ntitle = "P"\npage = ["x"]', r"page is \['x'\]"),
        (
            '[[part]]\ntitle = "P"\n[[part.chapter]]\nfile = "a.ipynb"\nexercises = [1]',
            r"exercises is \[1\]",
        ),
    ],
)
def test_a_value_in_place_of_tables(tmp_path, text, named):
    book = '[book]\ntitle = "T"\nauthors = ["A"]\ncopyright = "2026"\nlanding = "index.md"\n'
    (tmp_path / "index.md").write_text("# T\n")
    head, tail = ("", text) if text.startswith("[") else (text, "")
    (tmp_path / "book.toml").write_text(f"schema = 1\n{head}\n{book}{tail}\n")
    with pytest.raises(InputError, match=f"{named}: expected tables"):
        read_manifest(tmp_path)
