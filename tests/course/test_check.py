"""What a learner sees of a public test: which case fails, how, where, and a hint; never a bare traceback."""

import io
import linecache
import sys
import types

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kvcourse import InputError, course
from kvcourse.course.checks.case import WIDTH, Case, report

EXERCISE = "def half(x):\n    y = [0, 1]\n    return y[x]"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    """No course in or above the current folder: results stay in memory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NBGRADER_EXECUTION", raising=False)


@pytest.fixture
def ipython(monkeypatch):
    """As in IPython, where reports are printed."""
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: object()))


def run(*cells):
    """Run cells in one namespace, as a kernel does: each has a file of its own and the lines of it."""
    namespace = {"__name__": "__main__", "course": course, "torch": torch}
    for number, source in enumerate(cells):
        name = f"/tmp/ipykernel_1/{number}.py"
        linecache.cache[name] = (len(source), None, source.splitlines(True), name)
        exec(compile(source, name, "exec"), namespace)
    return namespace


def block(*lines, arguments='"ex-1"'):
    return "\n    ".join([f"with course.check({arguments}) as check:", *lines])


def test_a_solved_exercise_takes_one_line(ipython, capsys):
    run(EXERCISE, block("check.call(half, 1, expected=1)", "check.equal('a', 2, 2)"))
    run(EXERCISE, block("check.call(half, 1, expected=1)"))
    assert capsys.readouterr().out == "ex-1: solved, all 2 cases pass\nex-1: solved, the case passes\n"


def test_all_cases_run_and_those_that_fail_are_shown(ipython, capsys):
    run(
        EXERCISE,
        block(
            "check.call(half, 1, expected=1)",
            "check.equal('rows', torch.zeros(6), torch.zeros(2, 6), hint='two rows')",
            "check.call(half, 5, expected=1, hint='two rows')",
            "check.close('mean', 0.5, 0.75, atol=0.1)",
            "check.close('near', 0.5, 0.5001, atol=0.1)",
            arguments='"ex-1", hint="read the text again"',
        ),
    )
    assert capsys.readouterr().out == (
        "ex-1: 2 of 5 cases pass\n"
        "  ✗ rows: expected a tensor of shape (2, 6), got shape (6,)\n"
        "    hint: two rows\n"
        "  ✗ half(5): your code raised IndexError: list index out of range\n"
        "    line 3 of the cell, in half: return y[x]\n"
        "  ✗ mean: expected 0.75, got 0.5; difference 0.25, allowed 0.1\n"
        "  hint: read the text again\n"
    )


def test_an_exception_outside_a_case_is_a_case(ipython, capsys):
    run(EXERCISE, block("check.equal('a', 1, 1)", "a, b = half(0), half(7)", "check.equal('b', 1, 1)"))
    run(EXERCISE, block("a, b = None"), "check.reached = True")
    assert capsys.readouterr().out == (
        "ex-1: 1 case passes, then the test had to stop\n"
        "  ✗ a, b = half(0), half(7): your code raised IndexError: list index out of range\n"
        "    line 3 of the cell, in half: return y[x]\n"
        "ex-1: the test had to stop\n"
        "  ✗ a, b = None: the test cannot go on with what your code gave: TypeError: cannot\n"
        "    unpack non-iterable NoneType object; is a `return` missing?\n"
    )


def test_a_test_before_its_exercise(ipython, capsys):
    run(block("check.equal('a', 1, 2)", "check.call(half, 1, expected=1)"))
    run("def half(x):\n    return x * factor", block("check.call(half, 1, expected=1)"))
    assert capsys.readouterr().out == (
        "ex-1: not checked\n"
        "  ✗ half is not defined; run the cell of the exercise first, and the cells that it uses\n"
        "ex-1: the case fails\n"
        "  ✗ half(1): your code raised NameError: name 'factor' is not defined; is it misspelt,\n"
        "    or was its cell not run?\n"
        "    line 2 of the cell, in half: return x * factor\n"
    )


def test_a_stub_is_not_solved_yet(ipython, capsys):
    stub = "def half(x):\n    if x == 1: return 1\n    raise NotImplementedError('divide by two')"
    run(stub, block("check.call(half, 2, expected=1)", "check.call(half, 4, expected=2)"))
    run(stub, block("check.equal('a', 1, 1)", "half(2)"))
    run(stub, block("check.call(half, 1, expected=1)", "check.call(half, 2, expected=1)"))
    run(stub, block("check.call(half, 1, expected=2)", "check.call(half, 2, expected=1)"))
    assert capsys.readouterr().out == (
        "ex-1: not solved yet\n  hint: divide by two\n"
        "ex-1: not solved yet\n  hint: divide by two\n"
        "ex-1: not solved yet; 1 of 2 cases pass\n  hint: divide by two\n"
        "ex-1: 0 of 2 cases pass\n"
        "  ✗ half(1): expected 2, got 1\n"
        "  ✗ half(2): not written yet: divide by two\n"
        "    line 3 of the cell, in half: raise NotImplementedError('divide by two')\n"
    )


def test_a_missing_return_is_named(ipython, capsys):
    run("def half(x):\n    x / 2", block("check.call(half, 2, expected=1)", "check.equal('x', half(2), 1)"))
    assert capsys.readouterr().out.splitlines()[1:] == [
        "  ✗ half(2): expected the int 1, but half returned nothing; is a `return` missing?",
        "  ✗ x: expected the int 1, got None; is a `return` missing?",
    ]


def test_none_may_be_expected(ipython, capsys):
    run("def half(x): pass", block("check.call(half, 2, expected=None)", "check.call(print, expected=None)"))
    assert capsys.readouterr().out.endswith("ex-1: solved, all 2 cases pass\n")


def test_the_label_shows_the_arguments_as_they_were(ipython, capsys):
    run(
        "def take(x, n=1):\n    x.clear()",
        block(
            "check.call(take, [1, 2], n=3, expected=1)",
            "check.call(take, torch.zeros(2, 6), expected=2)",
            "check.call(take, list(range(99)), expected=3)",
            "check.call(take, [1], expected=4, label='mine')",
        ),
    )
    shown = [line[4:].split(": ")[0] for line in capsys.readouterr().out.splitlines() if "✗" in line]
    assert shown == [
        "take([1, 2], n=3)",
        "take(tensor(2, 6))",
        "take([0, 1, 2, 3, 4, 5, 6, 7, 8, …])",
        "mine",
    ]


def test_what_is_called_need_not_be_a_function(ipython, capsys):
    calls = ["half, 2", "len", "lambda: [][1]", "lambda: tail([])"]
    code = "def tail(x): return x[-1]\nhalf = 3"
    run(code, block(*[f"check.call({call}, expected=1)" for call in calls]))
    assert capsys.readouterr().out.splitlines()[1:] == [
        "  ✗ the function(2): expected a function, got the int 3",
        "  ✗ len(): calling it raised TypeError: len() takes exactly one argument (0 given)",
        "  ✗ the function(): calling it raised IndexError: list index out of range",
        "  ✗ the function(): your code raised IndexError: list index out of range",
        "    line 1 of the cell, in tail: def tail(x): return x[-1]",
    ]


@given(st.lists(st.sampled_from([None, "no", *"abcdefg"]), min_size=1, max_size=20))
def test_five_faults_are_shown_and_the_rest_counted(told):
    lines = report("ex", [Case(f"c{i}", text) for i, text in enumerate(told)]).splitlines()
    faults = list(dict.fromkeys(text for text in told if text))
    shown = []
    for text in faults[:5]:
        more = told.count(text) - 1
        cases = f" (and {more} more case{'s' * (more > 1)})" if more else ""
        shown.append(f"  ✗ c{told.index(text)}{cases}: {text}")
    rest = sum(text in faults[5:] for text in told)
    assert lines[1:] == shown + ([f"  … and {rest} more case{'s' * (rest > 1)}"] if rest else [])
    assert ("solved" in lines[0]) == (not faults)
    assert str(told.count(None)) in lines[0] or len(told) == 1


def test_hints_of_cases_that_fail_alike():
    cases = [
        Case("a", "expected int64, got float32", hint="first"),
        Case("b", "expected int64, got float32", hint="last"),
    ]
    assert report("ex", cases).splitlines()[1:] == [
        "  ✗ a (and 1 more case): expected int64, got float32",
        "    hint: first",
    ]
    cases = [Case("a", "no", hint="both"), Case("b", "no", hint="both"), Case("c", "other", hint="both")]
    assert report("ex", cases).splitlines()[1:] == [
        "  ✗ a (and 1 more case): no",
        "    hint: both",
        "  ✗ c: other",
    ]


@given(st.text(max_size=300), st.text(max_size=300))
def test_whatever_is_raised_the_report_is_short_and_plain(message, cls):
    class Odd(Exception):  # noqa: N818
        pass

    Odd.__name__ = "".join(c for c in cls if c.isidentifier()) or "Odd"
    namespace = {"course": course, "Odd": Odd, "message": message}
    source = block("check.call(odd, 1, expected=1)")
    with pytest.raises(course.CheckFailed) as caught:
        exec("def odd(x): raise Odd(message)\n" + source, namespace)
    lines = str(caught.value).split("\n")
    assert all(line.isprintable() and len(line) <= WIDTH for line in lines)
    assert len(lines) < 15


def test_an_exception_without_a_usable_message(ipython, capsys):
    odd = "class Odd(Exception):\n    def __str__(self): raise ValueError\ndef half(x): raise Odd"
    run(odd, block("check.call(half, 1, expected=1)"))
    assert "your code raised Odd\n" in capsys.readouterr().out


def test_the_report_names_no_file(ipython, capsys):
    run(EXERCISE, block("check.call(half, 9, expected=1)", "half(9)"))
    assert "ipykernel" not in capsys.readouterr().out


@pytest.mark.parametrize(
    "error", ["SystemExit(3)", "RecursionError()", "kv.InputError('x')", "ExceptionGroup('', [OSError()])"]
)
def test_the_learners_exceptions_end_here(ipython, capsys, error):
    code = f"import kvcourse as kv\ndef half(x): raise {error}"
    for line in ("check.call(half, 1, expected=1)", "half(1)"):
        run(code, block(line))
        assert f"your code raised {error.split('(')[0].removeprefix('kv.')}" in capsys.readouterr().out


@pytest.mark.parametrize("line", ["check.call(half, 1, expected=1)", "half(1)"])
def test_an_interrupt_goes_through(ipython, line):
    with pytest.raises(KeyboardInterrupt):
        run("def half(x): raise KeyboardInterrupt", block(line))


# ---- where the report goes -------------------------------------------------------------------------


def test_outside_ipython_the_report_is_raised():
    with pytest.raises(course.CheckFailed) as caught:
        run(block("check.equal('a', 1, 2)"))
    assert str(caught.value) == "ex-1: the case fails\n  ✗ a: expected 2, got 1"
    assert caught.value.__suppress_context__


@pytest.mark.parametrize("mode", ["autograde", "validate"])
def test_nbgrader_finds_an_error(ipython, monkeypatch, mode):
    monkeypatch.setenv("NBGRADER_EXECUTION", mode)
    for cells in ([block("check.equal('a', 1, 2)")], [block("half(1)")], [EXERCISE, block("half(9)")]):
        with pytest.raises(course.CheckFailed):
            run(*cells)
    monkeypatch.setenv("NBGRADER_EXECUTION", "formgrade")
    run(block("check.equal('a', 1, 2)"))


def test_a_terminal_without_the_signs(ipython, monkeypatch):
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", out)
    run(block("check.equal('a', 1, 2)"))
    out.flush()
    assert out.buffer.getvalue() == b"ex-1: the case fails\n  ? a: expected 2, got 1\n"


# ---- mistakes of a test's author -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("course.check(3)", "exercise id 3"),
        ("course.check('')", "exercise id ''"),
        ("course.check('ex-1', hint=3)", "hint is 3"),
        (block("pass"), "checked nothing"),
        (block("check.equal(3, 1, 1)"), "label is 3"),
        (block("check.equal(' ', 1, 1)"), "label is ' '"),
        (block("check.equal('a', 1, 1, hint=[1])"), r"hint is \[1\]"),
        (block("check.equal('a', {1}, {1})"), "a set object cannot be expected"),
        (block("check.call(print, expected=[{1}])"), r"at \[0\]: a set object cannot be expected"),
        (block("check.call(print, expected=1, label=2)"), "label is 2"),
        (block("check.call(print, expected=1, atol=-1)"), "atol is -1"),
        (block("check.close('a', 1.0, 1.0, rtol='1')"), "rtol is '1'"),
    ],
)
def test_misuse_is_not_taken_for_the_learners(ipython, code, said):
    with pytest.raises(InputError, match=said):
        run(code)


def test_an_unknown_exercise(ipython, project, monkeypatch):
    monkeypatch.chdir(project / "notebooks")
    with pytest.raises(InputError, match=r"no exercise 'ex-1'; it has ex-double"):
        run(block("check.equal('a', 1, 1)"))
    run(block("check.equal('a', 1, 1)", arguments='"ex-double"'))
    (project / "book.toml").write_text("schema = ", "utf-8")  # the fault of another command
    run(block("check.equal('a', 1, 1)"))
