"""`kvcourse release`: a zip for learners with no solution in it, the same bytes everywhere, whole or not at all."""

import io
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from toy_book import edit, make_project

from kvcourse.cli import main
from kvcourse.course.manifest import choose_chapters, read_manifest
from kvcourse.course.release.bundle import bundle_files, write_bundle, zip_bytes
from kvcourse.errors import InputError


@pytest.fixture
def released(project, tmp_path):
    """The files of a release of the small course, by name."""
    manifest = read_manifest(project)
    write_bundle(manifest, tmp_path / "out.zip", manifest.chapters)
    with zipfile.ZipFile(tmp_path / "out.zip") as archive:
        assert archive.testzip() is None
        return {name: archive.read(name) for name in archive.namelist()}


def test_what_is_in_it(released):
    assert list(released) == [".kvcourse/course.json", "00_first.ipynb", "01_second.ipynb", "README.md"]
    second = json.loads(released["01_second.ipynb"])
    text = released["01_second.ipynb"].decode()
    assert second["metadata"]["kvcourse"]["edition"] == "student"
    assert second["metadata"]["kvcourse"]["chapter"] == "01_second"
    assert "secret_sum" not in text
    assert "add the number to itself" in text
    assert second["cells"][2]["metadata"]["nbgrader"]["grade_id"] == "ex-double"


def test_the_readme_says_what_to_do(released):
    text = released["README.md"].decode()
    assert "| [01_second.ipynb](01_second.ipynb) | Second | 20 | 1 | 3 |" in text
    for word in ("pip install", "jupyter lab", "course.progress()", "hand in"):
        assert word in text


def test_progress_works_where_the_zip_is_unpacked(released, tmp_path, monkeypatch):
    for name, content in released.items():
        (tmp_path / "unpacked" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "unpacked" / name).write_bytes(content)
    monkeypatch.chdir(tmp_path / "unpacked")
    from kvcourse import course

    assert "0 of 3 points" in str(course.progress())
    assert "ex-double" in str(course.progress())


MAKE = """
import os, sys
from pathlib import Path
os.umask(int(sys.argv[3], 8))
from kvcourse.course.release.bundle import write_bundle
from kvcourse.course.manifest import read_manifest
manifest = read_manifest(Path(sys.argv[1]))
write_bundle(manifest, Path(sys.argv[2]), manifest.chapters)
"""


def test_the_same_bytes_wherever_it_is_made(outputs, tmp_path):
    """Other folder, time zone, umask, file times, locale, and order of sets."""
    made = []
    for number, (zone, umask, seed) in enumerate((("UTC", "022", "1"), ("Asia/Kathmandu", "077", "2"))):
        root = make_project(tmp_path / f"place {number}" / "course")
        for name, content in outputs.items():
            (root / "notebooks" / name).write_bytes(content)
            os.utime(root / "notebooks" / name, (number * 10**9, number * 10**9))
        out = tmp_path / f"{number}.zip"
        environment = {**os.environ, "TZ": zone, "PYTHONHASHSEED": seed, "LC_ALL": "C"}
        subprocess.run([sys.executable, "-c", MAKE, root, out, umask], env=environment, check=True)
        made.append(out.read_bytes())
    assert made[0] == made[1]
    for entry in zipfile.ZipFile(io.BytesIO(made[0])).infolist():
        assert (entry.date_time, entry.compress_type) == ((1980, 1, 1, 0, 0, 0), zipfile.ZIP_STORED)
        assert (entry.create_system, entry.external_attr >> 16) == (3, 0o100644)


def test_the_order_of_the_files_does_not_matter():
    assert zip_bytes({"b": b"1", "a": b"2"}) == zip_bytes({"a": b"2", "b": b"1"})


def test_chapters_by_number(project, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(project)
    assert main(["release", "one.zip", "--chapter", "1", "--chapter", "1"]) == 0
    with zipfile.ZipFile(project / "one.zip") as archive:
        assert [name for name in archive.namelist() if name.endswith(".ipynb")] == ["01_second.ipynb"]
        assert "First" not in archive.read(".kvcourse/course.json").decode()
        assert "First" not in archive.read("README.md").decode()
    assert capsys.readouterr().out.startswith("one.zip: 1 chapter, 1 exercise, 3 points, ")
    for number in ("2", "-1"):
        assert main(["release", "two.zip", "--chapter", number]) == 2
        assert "the chapters are 0 First, 1 Second" in capsys.readouterr().err
    assert not (project / "two.zip").exists()


def test_links_that_lead_out_of_the_zip(project):
    edit(
        project / "notebooks/00_first.ipynb",
        "The number",
        "See [words](../book/glossary.md#a), [two](01_second.ipynb)",
    )

    def text():
        manifest = read_manifest(project)
        return bundle_files(manifest, manifest.chapters)["00_first.ipynb"].decode()

    assert "See words, [two](01_second.ipynb)" in text()
    edit(project / "book.toml", "[book.api]", '[book.repository]\nurl = "https://example.org/c"\n[book.api]')
    assert "[words](https://example.org/c/blob/main/book/glossary.md#a)" in text()


# ---- refusals: one line, and nothing written -------------------------------------------------------


def refused(project, out, match, **options):
    manifest = read_manifest(project)
    before = {path: path.read_bytes() for path in out.parent.rglob("*") if path.is_file()}
    with pytest.raises(InputError, match=match) as error:
        write_bundle(manifest, out, manifest.chapters, **options)
    assert "\n" not in str(error.value)
    assert {path: path.read_bytes() for path in out.parent.rglob("*") if path.is_file()} == before


def test_a_file_is_replaced_only_with_force(project, tmp_path):
    out = tmp_path / "out.zip"
    out.write_text("mine")
    refused(project, out, "exists; --force replaces it")
    manifest = read_manifest(project)
    write_bundle(manifest, out, manifest.chapters, force=True)
    assert zipfile.is_zipfile(out)
    assert [path for path in tmp_path.iterdir() if path.is_file()] == [out]


def test_names_that_will_not_do(project, tmp_path):
    refused(project, tmp_path, "is a folder; give the name of a zip")
    refused(project, tmp_path / "out.tar", r"does not end in .zip")
    (tmp_path / "file").write_text("x")
    refused(project, tmp_path / "file" / "out.zip", "cannot be written: a folder of its path is a file")


def test_a_leak_stops_the_release(project, tmp_path):
    edit(project / "notebooks/00_first.ipynb", "The number", "The answer is `secret_sum = x + x`. The number")
    refused(project, tmp_path / "out.zip", r"00_first.ipynb, cell 0: has line 3 of cell 2 of 01_second.ipynb")


def test_a_leak_in_a_chapter_that_is_not_released_with_it_counts(project, tmp_path):
    edit(project / "notebooks/00_first.ipynb", "The number", "`secret_sum = x + x`")
    manifest = read_manifest(project)
    with pytest.raises(InputError, match=r"line 3 of cell 2 of 01_second.ipynb"):
        write_bundle(manifest, tmp_path / "out.zip", choose_chapters(manifest.chapters, [0]))


def test_outputs_that_do_not_belong_to_the_code(executed, tmp_path):
    manifest = read_manifest(executed)
    write_bundle(manifest, tmp_path / "good.zip", manifest.chapters)
    path = executed / "notebooks/01_second.ipynb"
    good = path.read_bytes()
    edit(path, "kept output", "other output")
    refused(executed, tmp_path / "out.zip", r"01_second.ipynb: its outputs are not from a run of its code")
    notebook = json.loads(good)
    notebook["cells"][1]["execution_count"] = 9
    path.write_text(json.dumps(notebook))
    refused(executed, tmp_path / "out.zip", r"run `kvcourse book execute`")


@pytest.mark.parametrize(
    ("old", "new", "match"),
    [
        ("### END SOLUTION", "### END", "cell 2: BEGIN SOLUTION and END SOLUTION do not pair up"),
        ("### BEGIN SOLUTION", "# Begin solution", "cell 2: BEGIN SOLUTION and END SOLUTION do not pair up"),
        ('"public-test"', '"other"', "cell 2: exercise 'ex-double' has no test that learners can run"),
    ],
)
def test_notebooks_that_will_not_do(project, tmp_path, old, new, match):
    edit(project / "notebooks/01_second.ipynb", old, new)
    refused(project, tmp_path / "out.zip", f"01_second.ipynb: {match}")


def test_an_exercise_whose_author_forgot_the_markers(project, tmp_path):
    path = project / "notebooks/01_second.ipynb"
    for marker in ("### BEGIN SOLUTION add the number to itself", "### END SOLUTION"):
        edit(path, f"    {marker}", "    # x")
    refused(project, tmp_path / "out.zip", "cell 2: an exercise with no solution between markers")


def test_two_chapters_of_one_name(project, tmp_path):
    (project / "more").mkdir()
    (project / "more/00_first.ipynb").write_bytes((project / "notebooks/00_first.ipynb").read_bytes())
    chapter = (
        '[[part.chapter]]\nfile = "more/00_first.ipynb"\ntitle = "First"\nminutes = 1\nobjectives = ["x"]\n'
    )
    edit(project / "book.toml", '[[part]]\ntitle = "Reference"', f'{chapter}[[part]]\ntitle = "Reference"')
    refused(project, tmp_path / "out.zip", "two chapters are named 00_first.ipynb")


def test_no_course_here(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("kvcourse.course.manifest.__file__", str(tmp_path / "a/b/c/manifest.py"))
    monkeypatch.chdir(tmp_path)
    assert main(["release", "out.zip"]) == 2
    assert capsys.readouterr().err.startswith("kvcourse release: no book.toml in")
    assert main(["release"]) == 2
    assert "say what to write: OUT.zip" in capsys.readouterr().err


LITTLE_ROOM = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))  # as on a full disk: a write fails halfway
from kvcourse.cli import main
sys.exit(main(["release", sys.argv[1], "--force"]))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no limit on the size of files")
def test_a_disk_that_is_full(project, tmp_path):
    out = tmp_path / "there" / "out.zip"
    out.parent.mkdir()
    out.write_text("the old one")
    done = subprocess.run(
        [sys.executable, "-c", LITTLE_ROOM, out], cwd=project, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.splitlines() == [f"kvcourse release: {out} cannot be written: File too large"]
    assert [path.read_text() for path in Path(out.parent).iterdir()] == ["the old one"]
