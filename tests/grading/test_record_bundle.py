"""The bundle hash changes with all that decides a score, and with nothing else."""

import ast
import shutil
from pathlib import Path

import pytest
from small_course import CODE, small_course

import kvcourse.course.grading.record as record_module
from kvcourse.course.grading.record import bundle_hash, current_versions


@pytest.fixture
def hidden(tmp_path):
    folder = tmp_path / "hidden"
    folder.mkdir()
    (folder / "test_a.py").write_bytes(b"one\ntwo\n")
    (folder / "data.csv").write_bytes(b"1,2\n")
    return folder


@pytest.fixture
def package(tmp_path, monkeypatch):
    """The grading package in a copy of the course's tools, which the hash is made over."""
    ours = Path(record_module.__file__).parents[1]
    shutil.copytree(ours, tmp_path / "course", ignore=shutil.ignore_patterns("__pycache__"))
    copy = tmp_path / "course" / "grading"
    monkeypatch.setattr(record_module, "__file__", str(copy / "record.py"))
    return copy


def test_references_and_points_count(tmp_path):
    base = bundle_hash(small_course(tmp_path))
    assert len(base) == 64
    assert bundle_hash(small_course(tmp_path)) == base
    assert bundle_hash(small_course(tmp_path, prose="# One\n\nMore words.")) == base
    assert bundle_hash(small_course(tmp_path, points=3)) != base
    assert bundle_hash(small_course(tmp_path, code=CODE + " ")) != base


def test_every_hidden_file_counts_but_no_cache_and_no_line_end(tmp_path, hidden):
    manifest = small_course(tmp_path)
    base = bundle_hash(manifest, hidden)
    assert base != bundle_hash(manifest)
    (hidden / "__pycache__").mkdir()
    (hidden / "__pycache__" / "test_a.pyc").write_bytes(b"x")
    (hidden / ".DS_Store").write_bytes(b"x")
    (hidden / "test_a.py").write_bytes(b"one\r\ntwo\r\n")
    assert bundle_hash(manifest, hidden) == base
    (hidden / "data.csv").write_bytes(b"1,3\n")
    changed = bundle_hash(manifest, hidden)
    (hidden / "data.csv").rename(hidden / "other.csv")
    assert len({base, changed, bundle_hash(manifest, hidden)}) == 3


def test_tests_and_judges_count_and_reports_do_not(tmp_path, package):
    manifest = small_course(tmp_path)
    base = bundle_hash(manifest)
    for name in ("report.py", "batch.py", "gradescope.py", "report.html"):
        (package / name).write_text("# other\n")
    assert bundle_hash(manifest) == base
    for path in (
        package / "test_01_naive_cache.py",
        package / "sandbox" / "limits.py",
        package.parent / "checks" / "compare.py",
    ):
        path.write_text(path.read_text("utf-8") + "\n# other\n", "utf-8")
        assert bundle_hash(manifest) != base, path
        base = bundle_hash(manifest)


# Loaded in a grading run, but in no record: what is printed, which process runs a test. What the last two read
# of the course, its points and its code, counts by itself.
NOT_IN_A_RECORD = {"grading/summary", "grading/scheduling", "manifest", "notebook"}


def used(package, name):
    """A module of the course's tools, and all of them that it imports, as paths without suffix."""
    waiting, found = [name], set()
    while waiting:
        name = waiting.pop()
        path = package.parent / f"{name}.py"
        if name in found or name in NOT_IN_A_RECORD or not path.is_file():
            continue
        found.add(name)
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module.startswith("kvcourse.course."):
                module = node.module.removeprefix("kvcourse.course.").replace(".", "/")
                waiting += [module, *(f"{module}/{alias.name}" for alias in node.names)]
    return found


def test_every_module_that_words_a_record_counts(tmp_path, package):
    starts = ("scores", "outcomes", "fixtures", "sandbox/session", "sandbox/zygote", "sandbox/child")
    modules = set().union(*(used(package, f"grading/{start}") for start in starts))
    assert {
        "grading/plain_text",
        "grading/statements",
        "grading/sandbox/values",
        "names",
        "checks/arrays",
    } <= modules
    manifest = small_course(tmp_path)
    base = bundle_hash(manifest)
    for name in sorted(modules):
        path = package.parent / f"{name}.py"
        path.write_text(path.read_text("utf-8") + "\n# other\n", "utf-8")
        changed = bundle_hash(manifest)
        assert changed != base, name
        base = changed


def test_versions_are_those_that_run():
    import platform

    import numpy
    import torch

    import kvcourse

    assert current_versions() == {
        "python": platform.python_version(),
        "kvcourse": kvcourse.__version__,
        "numpy": numpy.__version__,
        "torch": torch.__version__,
    }
