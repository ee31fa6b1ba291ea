"""Wrong use of the plugin ends with one line that says what to do, and without --submission it is not there."""

import subprocess
import sys
from pathlib import Path

import pytest
from toy_course import TESTS, hand_in, make_course

# Loaded here, so that pytest runs inside this process do not load them again one after the other.
import kvcourse.course.grading.fixtures
import kvcourse.course.grading.scores  # noqa: F401
from kvcourse.course.grading import plugin
from kvcourse.course.grading import test_00_start_here as given

pytest_plugins = ("pytester",)


@pytest.fixture
def course(tmp_path):
    root = make_course(tmp_path / "course")
    hand_in(root / "right")
    return root


@pytest.fixture
def run(course, pytester):
    """Run pytest in this process over the course's tests, which end before a sandbox is needed."""

    def run(*options, tests=None, submission="right"):
        return pytester.runpytest_inprocess(
            *(str(course / "graded") if tests is None else tests,),
            *("--course", str(course), "-p", "no:randomly", f"--submission={course / submission}"),
            *options,
        )

    return run


def error_of(result):
    """The one line that a run ended with."""
    assert result.ret == pytest.ExitCode.USAGE_ERROR, result.outlines
    lines = [line for line in result.errlines if line.strip()]
    assert len(lines) == 1, lines
    return lines[0].removeprefix("ERROR: ")


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("points(1)", "points(2)", "ex-1-total: the points of its 1 tests in test_toy.py add up to 2, book.toml"),
        ("points(0.5,", "points(0.25,", "ex-0-double: the points of its 3 tests in test_toy.py add up to 1.75"),
        ("points(1)", "points(0)", "test_toy.py: test_lists of ex-1-total: points 0, expected a multiple of 0.25"),
        ("points(1)", "points(-1)", "points -1, expected a multiple of 0.25 above 0"),
        ("points(1)", "points(0.3)", "points 0.3, expected a multiple of 0.25 above 0"),
        ("points(1)", "points(True)", "points True, expected"),
        ("points(1)", "points('1')", "points '1', expected"),
        ("points(1)", "points(float('nan'))", "points nan, expected"),
        ("points(1)", "points()", "test_lists of ex-1-total: expected @pytest.mark.points(n,"),
        ("points(1)", "points(1, weight=2)", "test_lists of ex-1-total: expected @pytest.mark.points(n,"),
        ("points(1)", "points(1, visibility='secret')", "visibility 'secret', expected one of visible, hidden,"),
        ("points(1)", "points(1, hint=7)", "hint 7, expected a text"),
        ("points(1)", "limits(cpu_seconds=1)", "test_lists of ex-1-total: expected @pytest.mark.points(n,"),
        ('exercise("ex-1-total")', "points(1)", "test_lists: expected @pytest.mark.exercise(id) on its class"),
        ('exercise("ex-1-total")', 'exercise("ex-1-sum")', "no exercise 'ex-1-sum' in book.toml; known: ex-0"),
        ('exercise("ex-1-total")', 'exercise("ex-0-double")', "add up to 3, book.toml says 2"),
        ("cpu_seconds=1", "seconds=1", "test_large_numbers: limits seconds: expected positive numbers for some of"),
        ("cpu_seconds=1", "cpu_seconds=0", "limits cpu_seconds: expected positive numbers"),
        ("import pytest", "import pytest, no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("import pytest", "import pytest (", "test_toy.py: cannot be collected: SyntaxError"),
        ("class TestTotal", "class Total", "ex-1-total: no tests, expected tests of 1 points together"),
    ],
)  # fmt: skip
def test_marks_that_do_not_fit(course, run, old, new, told):
    assert TESTS.count(old) == 1 or old == "import pytest"
    (course / "graded/test_toy.py").write_text(TESTS.replace(old, new, 1))
    assert told in error_of(run())


def test_two_tests_of_one_name(course, run):
    second = TESTS.replace("class TestTotal", "class TestOther").replace("points(1)", "points(0.5)")
    (course / "graded/test_toy.py").write_text(TESTS.replace("points(1)", "points(0.5)"))
    (course / "graded/test_more.py").write_text(
        second.split("\n\n\n")[0] + "\n\n\n" + second.split("\n\n\n")[2]
    )
    assert "has two tests called test_lists; rename one" in error_of(run())


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--chapter", "7"), "--chapter 7: no such chapter; the chapters are 0 First, 1 Second"),
        (("--seed", "-1"), "--seed -1: expected a whole number from 0 to"),
        (("--hidden", "nowhere"), "--hidden nowhere: no such folder"),
        (("--course", "nowhere"), "--course nowhere: no book.toml there; give the folder"),
        (("--submission", "nowhere.ipynb"), "nowhere.ipynb"),
        (("--submission=@nowhere",), "--submission @nowhere: expected a file with a JSON list"),
    ],
)
def test_options_that_do_not_fit(run, options, told):
    assert told in error_of(run(*options))


def test_hidden_folders_that_hold_no_sound_tests(course, run):
    hidden = course / "secret"
    hidden.mkdir()
    assert f"--hidden {hidden}: no tests in files test_*.py" in error_of(run("--hidden", str(hidden)))
    (hidden / "test_secret.py").write_text(
        TESTS.replace("points(1)", "points(2)").replace("test_lists", "test_new")
    )
    assert "in test_secret.py add up to 2" in error_of(run("--hidden", str(hidden)))
    (hidden / "test_secret.py").write_text("raise OSError('no file\\nat all')")
    told = error_of(run("--hidden", str(hidden)))
    assert told.endswith("test_secret.py: cannot be collected: OSError: no file")


def test_records_cannot_be_a_file(course, run):
    assert "it is a file, expected a folder" in error_of(run("--records", str(course / "book.toml")))


def test_settings_in_a_submission_are_refused(course, run, pytester, monkeypatch):
    (course / "right/pytest.ini").write_text("[pytest]\naddopts = --collect-only\n")
    monkeypatch.chdir(course)
    told = error_of(run("-c", str(course / "right/pytest.ini")))
    assert "settings from a submission" in told


def test_a_list_of_submissions(course, run):
    """Names and paths from a file, as a large batch hands them over; tests run for each in this order."""
    hand_in(course / "wrong")
    listed = course / "listed.json"
    listed.write_text(f'[["b c", "{course / "wrong"}"], ["a", "{course / "right"}"]]')
    result = run(f"--submission=@{listed}", "--collect-only", "-q")
    assert result.ret == 0
    ids = [line.rpartition("[")[2] for line in result.outlines if "::" in line]
    assert ids == [
        f"{size}{name}]" for name in ("right", "#2", "a") for size in ("", "1000-", "1000000-", "")
    ]
    listed.write_text('["a"]')
    assert "expected a file with a JSON list of [name, path]" in error_of(run(f"--submission=@{listed}"))
    listed.write_text(f'[["right", "{course / "wrong"}"]]')
    assert "two submissions are called right" in error_of(run(f"--submission=@{listed}"))


def test_tests_of_the_package_need_a_submission(pytester):
    result = pytester.runpytest_inprocess(given.__file__)
    assert "add --submission PATH" in error_of(result)


def test_without_a_submission_the_plugin_leaves_options_and_fixtures_to_others(pytester):
    """Another project may have an option --seed and fixtures of the same names."""
    pytester.makeconftest("def pytest_addoption(parser): parser.addoption('--seed')")
    pytester.makepyfile("""
        import pytest

        @pytest.fixture
        def rng(request):
            return request.config.getoption("--seed")

        def test_own(rng, pytestconfig):
            assert rng == "x"
            assert not pytestconfig.pluginmanager.get_plugins() & {"kvcourse.course.grading.fixtures"}

        def test_theirs(student): ...
    """)
    result = pytester.runpytest_inprocess("--seed", "x")
    result.assert_outcomes(passed=1, errors=1)


def test_its_settings_write_nothing_beside_the_package(pytester):
    """pytest keeps its cache where the settings lie: in the installed package."""
    settings = pytester.makeini(Path(plugin.__file__).with_name("pytest.ini").read_text("utf-8"))
    pytester.makepyfile(test_it="def test_fails(): assert False")
    before = set(pytester.path.iterdir())
    result = pytester.runpytest_inprocess("-c", settings.name)
    result.assert_outcomes(failed=1)
    assert {path.name for path in set(pytester.path.iterdir()) - before} <= {"__pycache__"}


def test_the_help_lists_the_options(pytester):
    result = pytester.runpytest_inprocess("--help")
    text = "\n".join(result.outlines)
    assert all(
        f"--{name}" in text for name in ("submission", "hidden", "records", "course", "chapter", "seed")
    )


def test_loading_the_plugin_is_cheap():
    """It is loaded in every run of pytest: nothing of this package but its own and empty modules."""
    code = "import sys, pytest, kvcourse.course.grading.plugin; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    heavy = {"torch", "numpy", "nbformat", "transformers", "IPython", "xdist"}
    assert heavy & {name.split(".")[0] for name in loaded} == set()
    ours = [name for name in loaded if name.startswith("kvcourse.course.grading.")]
    assert ours == ["kvcourse.course.grading.plugin"]
