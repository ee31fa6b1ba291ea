"""The exported files describe the same book, and Jupyter Book 1 builds it."""

import json
import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from filelock import FileLock

from kvcourse.cli import main
from kvcourse.course.export import export_book, for_mystmd
from kvcourse.course.manifest import read_manifest
from kvcourse.course.notebook import read_notebook
from kvcourse.errors import InputError

ROOT = Path(__file__).resolve().parents[2]
PIP_SECONDS = 240


@pytest.fixture(scope="module")
def jupyter_book(pytestconfig) -> Path:
    """Jupyter Book 1 in an environment of its own (20 s, 270 MB), kept in pytest's cache folder."""
    folder = Path(pytestconfig.cache.mkdir("jupyter-book-1"))
    scripts = folder / ("Scripts" if sys.platform == "win32" else "bin")
    ready = folder / "ready"
    with FileLock(folder.parent / "jupyter-book-1.lock"):
        if not ready.exists():
            venv.create(folder, with_pip=True, clear=True)
            command = [scripts / "python", "-m", "pip", "install", "--quiet", "jupyter-book<2"]
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=PIP_SECONDS)
            except subprocess.TimeoutExpired:
                pytest.skip(f"pip took over {PIP_SECONDS} s to fetch jupyter-book<2")
            if done.returncode:
                pytest.skip(f"pip cannot fetch jupyter-book<2: {done.stderr.strip().splitlines()[-1]}")
            ready.touch()
    return scripts / "jupyter-book"


def test_jupyter_book_1_builds_the_course(jupyter_book, tmp_path):
    manifest = read_manifest(ROOT)
    folder = export_book(manifest, "jb1", tmp_path / "book")
    done = subprocess.run(
        [jupyter_book, "build", "-W", "--keep-going", "--all", folder],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    pages = folder / "_build/html"
    for file in manifest.files:
        assert (pages / file).with_suffix(".html").is_file() == (file not in manifest.api_files), file
    assert manifest.chapters[-1].title in (pages / manifest.landing).with_suffix(".html").read_text("utf-8")


def test_the_table_of_contents_is_the_manifests(project, tmp_path):
    folder = export_book(read_manifest(project), "jb1", tmp_path / "jb1")
    toc = json.loads((folder / "_toc.yml").read_text("utf-8"))
    assert toc["root"] == "book/index"
    assert [entry["file"] for part in toc["parts"] for entry in part["chapters"]] == [
        "notebooks/00_first", "notebooks/01_second", "book/glossary", "book/api",
    ]  # fmt: skip
    config = json.loads((folder / "_config.yml").read_text("utf-8"))
    assert config["title"] == "Toy course"
    assert config["execute"]["execute_notebooks"] == "off"


def test_myst_yml_names_files_that_are_there(project, tmp_path):
    folder = export_book(read_manifest(project), "myst", tmp_path / "myst")
    content = json.loads((folder / "myst.yml").read_text("utf-8"))
    toc = content["project"]["toc"]
    files = [entry["file"] for entry in toc if "file" in entry]
    files += [child["file"] for entry in toc for child in entry.get("children", [])]
    assert files == [file for file in read_manifest(project).files if "/api/" not in file]
    assert all((folder / file).is_file() for file in files + content["project"]["bibliography"])
    ids = [
        cell["id"]
        for file in files
        if file.endswith("ipynb")
        for cell in read_notebook(folder / file)["cells"]
    ]
    assert len(set(ids)) == len(ids)
    assert "token\n: A number" in (folder / "book/glossary.md").read_text("utf-8")


def test_mystmd_spellings():
    text = "a\n\n```{glossary}\none\n  1\n\ntwo words\n  2\n```\n\n```{bibliography}\n:all:\n```\n  kept\n"
    assert for_mystmd(text) == (
        "a\n\n```{glossary}\none\n: 1\n\ntwo words\n: 2\n```\n\n```{bibliography}\n```\n  kept\n"
    )


@pytest.mark.parametrize("format", ["jb1", "myst"])
def test_an_export_holds_no_solution_and_spares_other_files(project, tmp_path, format):
    other = tmp_path / "out" / "book" / "mine.md"
    other.parent.mkdir(parents=True)
    other.write_text("mine", "utf-8")
    export_book(read_manifest(project), format, tmp_path / "out")
    text = "".join(path.read_text("utf-8") for path in (tmp_path / "out").rglob("*") if path.is_file())
    assert "secret_sum" not in text
    assert not re.search(r"% kvcourse:", text)
    assert other.read_text("utf-8") == "mine"


def test_the_command(project, monkeypatch, capsys):
    monkeypatch.chdir(project)
    assert main(["book", "export", "jb1"]) == 0
    assert capsys.readouterr().out.endswith(f"jupyter-book build {project / '_build/jb1'}\n")
    with pytest.raises(InputError, match="unknown format 'pdf'; known: jb1, myst"):
        export_book(read_manifest(project), "pdf", project / "x")
