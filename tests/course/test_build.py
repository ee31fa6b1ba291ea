"""The book builds from stored outputs, holds every page of the manifest, and no solution."""

import re

import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell
from toy_book import edit, write

from kvcourse.cli import main
from kvcourse.course.build import build_book
from kvcourse.course.manifest import read_manifest
from kvcourse.errors import InputError


def everything(folder):
    """All text in a folder."""
    return "\n".join(path.read_text("utf-8", "ignore") for path in folder.rglob("*") if path.is_file())


def test_the_student_edition_and_the_instructors(executed):
    out = build_book(read_manifest(executed), offline=False)
    assert out == executed / "_build/html"
    page = (out / "notebooks/01_second.html").read_text("utf-8")
    assert "add the number to itself" in page
    assert "kept output" in page
    assert "KEPT OUTPUT" in page
    text = everything(out)
    assert "secret_sum" not in text
    assert "answer 42" not in text
    landing = (out / "book/index.html").read_text("utf-8")
    row = re.search(r"<td[^>]*><p>1</p></td>.*?</tr>", landing, re.S)[0]
    assert re.findall(r"<p>(\d+)</p>", row) == ["1", "20", "1", "3"]
    assert "Double a number" in landing
    assert "Halve a number." in landing
    assert "url=book/index.html" in (out / "index.html").read_text("utf-8")
    assert "InputError" in (out / "book/api/errors.html").read_text("utf-8")
    assert (out / "_sources/notebooks/01_second.ipynb").is_file()

    full = build_book(read_manifest(executed), solutions=True, offline=False)
    assert full != out
    assert "secret_sum" in (full / "notebooks/01_second.html").read_text("utf-8")
    assert "answer 42" in (full / "notebooks/01_second.html").read_text("utf-8")
    assert "secret_sum" not in everything(out)


def test_a_warning_fails_every_time_and_a_repair_helps(project, capsys):
    edit(project / "book/glossary.md", "A vector.", "A {term}`nonsense`.")
    for _ in range(2):  # Sphinx alone would forget the warning the second time
        with pytest.raises(InputError, match=r"the book was not built: 1 warning\(s\) of Sphinx"):
            build_book(read_manifest(project), offline=False)
        assert "nonsense" in capsys.readouterr().err
    edit(project / "book/glossary.md", "A {term}`nonsense`.", "A vector.")
    build_book(read_manifest(project), offline=False)


def test_a_removed_chapter_leaves_no_page(project, capsys):
    write(project / "notebooks/02_third.ipynb", [new_markdown_cell("# Third"), new_code_cell("1")])
    entry = (
        '[[part.chapter]]\nfile = "notebooks/02_third.ipynb"\ntitle = "Third"\nminutes = 1\nobjectives = []\n'
    )
    edit(project / "book.toml", '[[part]]\ntitle = "Reference"', entry + '[[part]]\ntitle = "Reference"')
    out = build_book(read_manifest(project), offline=False)
    assert capsys.readouterr().err == "".join(
        f"notebooks/{name}.ipynb: its code was not run since it changed; see kvcourse book execute\n"
        for name in ("00_first", "01_second", "02_third")
    )
    assert (out / "notebooks/02_third.html").is_file()
    (project / "notebooks/02_third.ipynb").unlink()
    edit(project / "book.toml", entry, "")
    build_book(read_manifest(project), offline=False)
    assert not list(out.rglob("*02_third*"))


def test_an_unknown_generated_part(project):
    edit(project / "book/index.md", "% kvcourse: planned", "% kvcourse: plans")
    with pytest.raises(
        InputError, match=r"book/index\.md: unknown generated part 'plans'; known: api, chapters"
    ):
        build_book(read_manifest(project), offline=False)


def test_a_bad_notebook_is_named(project):
    edit(project / "notebooks/01_second.ipynb", "### END SOLUTION", "### THE END")
    with pytest.raises(InputError, match=r"^notebooks/01_second\.ipynb: cell 2: BEGIN SOLUTION"):
        build_book(read_manifest(project), offline=False)


def test_the_commands(project, monkeypatch, capsys):
    monkeypatch.chdir(project)
    assert main(["book", "check"]) == 0
    assert capsys.readouterr().out == "2 chapters, 6 pages, 30 minutes, 3 points\n"
    assert main(["book", "build", "--cdn", "--out", "pages"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"the book: {project / 'pages/index.html'}"
    edit(project / "book.toml", "minutes = 10", "minutes = 0")
    assert main(["book", "check"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_pages_from_notebooks_that_were_run_elsewhere(project, outputs, tmp_path):
    """`make course` runs copies and builds from them: the page shows their outputs, the project keeps its own."""
    for name, content in outputs.items():
        (tmp_path / "run/notebooks").mkdir(parents=True, exist_ok=True)
        (tmp_path / "run/notebooks" / name).write_bytes(content)
    before = (project / "notebooks/00_first.ipynb").read_bytes()
    out = build_book(read_manifest(project), offline=False, executed=tmp_path / "run")
    assert "one\ntwo" in (out / "notebooks/00_first.html").read_text("utf-8")
    assert (project / "notebooks/00_first.ipynb").read_bytes() == before
