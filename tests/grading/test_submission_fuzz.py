"""Random damage to notebooks and zips: a submission always comes back, with what can be scored."""

import contextlib
import io
import json
import zipfile

import pytest
from handed_in import FIRST, IDS, MANIFEST, SECOND, chapter, read, write, zipped
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from learner import ROOT, TASKS

from kvcourse.course.grading.program import Unusable, program_of, required_names
from kvcourse.course.grading.submission import read_submission
from kvcourse.course.notebook import dump_notebook, read_notebook
from kvcourse.course.release.student import student_copy

fuzzed = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])

# What damages a notebook or a zip: other bytes, JSON, names, signs, sizes.
PIECES = [
    b"", b"\x00", b"\xff\xff\xff\xff", b"\xef\xbb\xbf",
    b"null", b"[]", b"{}", b"1e999", b"NaN", b'"\\ud800"', b"\\", b'"',
    b"PK\x01\x02", b"PK\x03\x04", b"PK\x05\x06", b"PK\x06\x06", b"../", b"ex-0-shared-prompt", b"exercise", b"def ",
    b"[" * 2000, b"9" * 5000,
]  # fmt: skip
damages = st.lists(
    st.tuples(
        st.floats(0, 1, exclude_max=True), st.integers(0, 40), st.sampled_from(PIECES) | st.binary(max_size=8)
    ),
    min_size=1,
    max_size=5,
)


def damaged(data: bytes, damage: list[tuple[float, int, bytes]]) -> bytes:
    for where, length, piece in damage:
        at = int(where * len(data))
        data = data[:at] + piece + data[at + length :]
    return data


@pytest.fixture(scope="module")
def student() -> dict[str, bytes]:
    """The student copies of two chapters, without what figures weigh."""
    copies = {}
    for stem in (FIRST, SECOND):
        copy = student_copy(read_notebook(ROOT / f"notebooks/{stem}.ipynb"))
        notebook = json.loads(dump_notebook(copy))
        for cell in notebook["cells"]:
            cell.pop("outputs", None)
        copies[f"{stem}.ipynb"] = json.dumps(notebook).encode()
    return copies


@pytest.fixture(scope="module")
def names() -> dict[str, tuple[str, ...]]:
    course = {stem: read_notebook(ROOT / f"notebooks/{stem}.ipynb") for stem in (FIRST, SECOND)}
    return {
        exercise: required_names(course[task.chapter], exercise)
        for exercise, task in TASKS.items()
        if task.chapter in course
    }


@given(st.data())
@settings(fuzzed, max_examples=150)
def test_damaged_notebooks(tmp_path, student, names, data):
    name = data.draw(st.sampled_from(sorted(student)))
    found = read(write(tmp_path / "x", {**student, name: damaged(student[name], data.draw(damages))}))
    whole = ({FIRST, SECOND} - {name.removesuffix(".ipynb")}).pop()
    assert whole in found.notebooks
    for stem, notebook in found.notebooks.items():
        for exercise in IDS[stem]:
            with contextlib.suppress(Unusable):
                assert program_of(notebook, exercise, names[exercise]).pieces


@given(damages, st.booleans())
@settings(fuzzed, max_examples=150)
def test_damaged_zips(tmp_path, student, damage, deflated):
    path = zipped(tmp_path / "x.zip", student, zipfile.ZIP_DEFLATED if deflated else zipfile.ZIP_STORED)
    # Half of the damage goes where the format is: to the table of contents.
    data = path.read_bytes()
    table = data.index(b"PK\x01\x02")
    half = len(damage) // 2
    path.write_bytes(damaged(data[:table], damage[:half]) + damaged(data[table:], damage[half:]))
    read(path)


@given(st.binary(max_size=300), st.sampled_from(["x.ipynb", "x.zip", "x"]))
@fuzzed
def test_random_bytes(tmp_path, data, name):
    found = read(write(tmp_path, {name: data}) / name)
    assert len(found.notes) == 1


@given(st.dictionaries(st.text(max_size=12), st.binary(max_size=30), max_size=5))
@fuzzed
def test_random_names_in_a_zip(tmp_path, files):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in files.items():
            with contextlib.suppress(UnicodeEncodeError, OSError):  # zipfile does not write all that it reads
                archive.writestr(name + ".ipynb", data)
    read(write(tmp_path, {"x.zip": buffer.getvalue()}) / "x.zip")


parts = st.text("abé.", min_size=1, max_size=3).filter(lambda part: part.strip("."))
paths = st.lists(parts, min_size=1, max_size=3).map(lambda path: "/".join(path) + ".ipynb")


@given(st.dictionaries(paths, st.integers(0, 3), min_size=1, max_size=4), st.randoms())
@fuzzed
def test_a_folder_and_a_zip_of_it_are_the_same(tmp_path_factory, content, random):
    files = {name: chapter(FIRST, f"x = {number}") for name, number in content.items()}
    if any(other.startswith(name + "/") for name in files for other in files):
        return  # a file and a folder of one name
    tmp_path = tmp_path_factory.mktemp("same")
    shuffled = list(files.items())
    random.shuffle(shuffled)
    one = read_submission(write(tmp_path / "x", files), MANIFEST)
    two = read_submission(
        zipped(tmp_path / "x.zip", [(f"top/{name}", data) for name, data in shuffled]), MANIFEST
    )
    assert (one.name, one.digest, one.notebooks) == (two.name, two.digest, two.notebooks)
    assert one.notes == tuple(note.replace("x.zip holds", "x holds") for note in two.notes)
