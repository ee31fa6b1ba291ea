"""Code that is made to be slow to analyse: the parent reads it, where no limit of a session holds."""

import signal
import sys

import pytest
from learner import ROOT
from test_program_cells import ID, SOLVED, code, own, program

from kvcourse.course.grading.chapters import chapters_of
from kvcourse.course.grading.program import Program, Unusable
from kvcourse.course.grading.statements import NotPython, statements_of
from kvcourse.course.grading.untrusted import cleaned
from kvcourse.course.manifest import read_manifest
from kvcourse.course.names import names_of

BLANK_LINES = "\n" * 90_000
CPU_SECONDS = (
    30  # none of these takes 5, and each took more than 60; CPU time, so a busy machine does not count
)


@pytest.fixture(autouse=True)
def bound():
    """Ends a test that would take minutes."""
    if sys.platform == "win32":
        yield
        return

    def stop(*_: object) -> None:
        raise TimeoutError(f"more than {CPU_SECONDS} s of CPU time")

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, CPU_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


@pytest.mark.parametrize("read", [statements_of, names_of])
def test_blank_lines_before_a_mistake(read):
    with pytest.raises((NotPython, SyntaxError), match="was never closed"):
        read(BLANK_LINES + "(")


def test_magics_below_blank_lines_are_still_left_out():
    (found,) = statements_of("x = 1\n" + BLANK_LINES[:50] + "  \n%matplotlib inline\n\t\n!ls\nhelp?\n")
    assert found.source == "x = 1"


def test_classes_in_classes():
    levels = 98
    source = "".join(" " * i + f"class C{i}:\n" for i in range(levels)) + " " * levels + "x = y;" * 13_000
    (found,) = statements_of(source)
    assert {"y"} <= found.reads


def test_a_class_in_a_class_reads_what_only_the_outer_one_sets():
    (found,) = statements_of("class A:\n    D = 1\n    class B(Base):\n        E = D\n        F = F")
    assert {"D", "F", "Base"} <= found.reads


def test_a_chain_of_names_behind_the_test():
    count = 16_000
    links = [f"a{i}=a{i + 1}" for i in range(count)]
    later = [code(";".join(links[i : i + 4000])) for i in range(0, count, 4000)]
    found = program(own("def twice(x):\n    return a0"), code("twice(4)", "public-test", id=ID), *later)
    assert len(found.pieces) == count + 1


def test_thousands_of_cells_with_one_id():
    found = program(*[own("def twice(x): 0")] * 16_000, own(SOLVED))
    assert isinstance(found, Program)
    assert found.pieces[-1].source == SOLVED


def test_chapters_are_told_without_parsing():
    cells = [code(f"a{i};" * 24_000) for i in range(40)] + [
        code("def packed_positions(document):\n    return document")
    ]
    assert set(chapters_of(cleaned({"cells": cells}), "mine.ipynb", read_manifest(ROOT))) == {
        "01_naive_cache"
    }


@pytest.mark.parametrize("end", ["\n", "\r", ";"])
def test_more_statements_than_anybody_writes(end):
    cells = [code(f"a{i}{end}" * 6_000) for i in range(3)]
    assert program(own(SOLVED), *cells).pieces
    with pytest.raises(Unusable, match=r"has 24,0\d\d lines of code, at most 20,000 are read"):
        program(own(SOLVED), *cells, code(f"b{end}" * 6_000))


def test_a_reason_is_found_once(monkeypatch):
    calls = []
    source = "def twice(x:\n    # only here"
    with pytest.raises(NotPython) as first:
        statements_of(source)
    monkeypatch.setattr("kvcourse.course.grading.statements._tree", lambda text: calls.append(text))
    with pytest.raises(NotPython) as second:
        statements_of(source)
    assert (str(first.value), calls) == (str(second.value), [])
    with pytest.raises(Unusable, match="is not valid Python"):
        program(own(source))
