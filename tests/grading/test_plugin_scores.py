"""Learners of many kinds, graded by plain pytest: each gets the points that are theirs, with and without xdist."""

import nbformat
import pytest
from toy_course import grade, hand_in, make_course, shown_numbers

LEARNERS = {
    "right": {},
    "small": {"double": "return 2 * x if x < 100 else 0"},
    "other": {"double": "return 3 * x"},
    "stub": {
        "double": 'raise NotImplementedError("add it")',
        "total": 'raise NotImplementedError("one by one")',
    },
    "spins": {"double": "while x > 99:\n    pass\nreturn 2 * x"},
    "ends": {"double": "import os\nos._exit(0)"},
    "exits": {"double": "import sys\nsys.exit(0)"},
    "nothing": {"double": "return None", "total": "pass"},
    "objects": {"double": "return object()", "total": "return lambda: 1"},
    "second": {"double": None},
    "syntax": {"double": "return ("},
    "copied": {},
    "loud": {
        "double": "print('\\x1b[2J==== 99 passed ====')\nraise ValueError('\\x1b[31m\\n=== 9 passed ===\\nFAILED')",
        "total": "print('INTERNALERROR> x' * 50)\nreturn sum(numbers)",
    },
}
EARNED = {  # by exercise: of 2, of 1
    "right": (2, 1),
    "small": (0.5, 1),
    "other": (0, 1),
    "stub": (0, 0),
    "spins": (0.5, 1),
    "ends": (0, 1),
    "exits": (0, 1),
    "nothing": (0, 0),
    "objects": (0, 0),
    "second": (0, 1),
    "syntax": (0, 1),
    "copied": (2, 1),
    "loud": (0, 1),
}
DOUBLES = ("test_small_numbers", "test_large_numbers[1000]", "test_large_numbers[1000000]")


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    return make_course(tmp_path_factory.mktemp("toy") / "course")


@pytest.fixture(scope="module")
def handed_in(course):
    found = {name: hand_in(course / "class" / name, **bodies) for name, bodies in LEARNERS.items()}
    path = found["copied"] / "00_first.ipynb"
    notebook = nbformat.read(path, as_version=4)
    notebook.cells.append(nbformat.from_dict({**notebook.cells[-1], "id": "copy"}))
    nbformat.write(notebook, path)
    return found


def graded(course, name, submissions, *options, **settings):
    """A run over the tests of the course."""
    tests = (str(course / "graded"),)
    return grade(course / name, submissions, *options, tests=tests, course=course, **settings)


@pytest.fixture(scope="module")
def alone(course, handed_in):
    """Graded in one process."""
    return graded(course, "alone", handed_in.values())


@pytest.fixture(scope="module")
def spread(course, handed_in):
    """Graded by two workers, the other way round."""
    return graded(course, "spread", [*handed_in.values()][::-1], workers=2)


@pytest.mark.parametrize("name", LEARNERS)
def test_points(alone, name):
    double, total = EARNED[name]
    assert alone.earned(name) == {"ex-0-double": double, "ex-1-total": total}
    assert alone.records[name].points == 3


def test_the_exit_code_says_that_points_are_missing(alone, spread):
    assert (alone.code, spread.code) == (1, 1), alone.output


def test_records_do_not_depend_on_processes_and_order(alone, spread):
    assert set(alone.records) == set(LEARNERS)
    assert alone.files == spread.files


def test_every_submission_gets_the_same_numbers(alone):
    """The messages show the arguments that were drawn; those of a submission that fails all three tests."""
    drawn = {
        name: [
            shown_numbers(alone.messages(name)[test])[0]
            for test in DOUBLES
            if alone.messages(name)[test].startswith("double(")
        ]
        for name in ("other", "nothing", "objects")
    }
    first = drawn["other"]
    assert drawn == dict.fromkeys(drawn, first)
    assert 3 <= first[0] < 90
    assert len(set(first)) == 3


def test_another_seed_and_a_selection(course, handed_in, alone):
    """With another seed other numbers are drawn; what is not selected gives nothing."""
    again = graded(course, "again", [handed_in["other"]], "-k", "small or lists", seed=4)
    test = "test_small_numbers"
    assert (alone.records["other"].seed, again.records["other"].seed) == (3, 4)
    assert shown_numbers(again.messages("other")[test]) != shown_numbers(alone.messages("other")[test])
    assert again.outcomes("other") == dict(
        zip((*DOUBLES, "test_lists"), ("failed", "not run", "not run", "passed"), strict=True)
    )
    assert again.code == 1


@pytest.mark.parametrize(
    ("name", "outcomes"),
    {
        "right": ("passed", "passed", "passed", "passed"),
        "small": ("passed", "failed", "failed", "passed"),
        "stub": ("failed", "failed", "failed", "failed"),
        "spins": ("passed", "stopped", "stopped", "passed"),
        "ends": ("stopped", "stopped", "stopped", "passed"),
        "nothing": ("failed", "failed", "failed", "failed"),
        "second": ("not run", "not run", "not run", "passed"),
        "syntax": ("not run", "not run", "not run", "passed"),
    }.items(),
)
def test_outcomes_of_each_test(alone, name, outcomes):
    assert alone.outcomes(name) == dict(zip((*DOUBLES, "test_lists"), outcomes, strict=True))


@pytest.mark.parametrize(
    ("name", "test", "words"),
    [
        ("small", DOUBLES[1], "double("),
        ("stub", "test_lists", "not solved yet: one by one"),
        ("spins", DOUBLES[1], "CPU time"),
        ("ends", DOUBLES[0], "ended by itself (exit code 0)"),
        ("nothing", DOUBLES[0], "expected the int"),
        ("objects", DOUBLES[0], "an object of type object"),
        ("second", DOUBLES[0], "no notebook of chapter 0"),
        ("loud", DOUBLES[0], "ValueError: "),
    ],
)
def test_messages_say_why(alone, name, test, words):
    assert words in alone.messages(name)[test]


def test_messages_are_single_lines_without_tracebacks(alone):
    for record in alone.records.values():
        texts = [o.message for e in record.exercises for o in e.outcomes]
        assert not [t for t in texts if "\n" in t or "Traceback" in t or not t.isprintable()], record.name


def test_what_is_said_of_an_exercise_does_not_repeat_its_name(alone):
    """Every report has it in front already."""
    for record in alone.records.values():
        for exercise in record.exercises:
            said = [*exercise.notes, *(o.message for o in exercise.outcomes)]
            assert not [text for text in said if text.startswith(exercise.id)]
    assert alone.messages("syntax")[DOUBLES[0]].startswith("cell 1 is not valid Python")
    assert alone.records["copied"].exercises[0].notes == ("2 cells carry this id; cell 2 was graded",)


def test_hints_come_with_lost_points_only(alone):
    hints = {name: alone.records[name].exercises[0].outcomes[0].hint for name in ("right", "other")}
    assert hints == {"right": "", "other": "Twice three is six."}


def test_what_a_student_prints_stays_away_from_the_terminal(alone, spread):
    for output in (alone.output, spread.output):
        assert "\x1b[2J" not in output
        assert "INTERNALERROR" not in output
        assert not [line for line in output.splitlines() if line.startswith(("=== 9 passed", "==== 99"))]


def test_the_summary_tells_points_reasons_seed_and_confinement(alone):
    lines = alone.output.splitlines()
    assert "right: 3 of 3 points" in lines
    assert "small: 1.5 of 3 points" in lines
    assert "      hint: Twice three is six." in lines
    assert "seed 3" in lines
    assert "    not run: no notebook of chapter 0" in lines
    assert [line for line in lines if line.startswith("the code ran with network: ")]
    assert "Traceback" not in alone.output
    assert "FAILURES" not in alone.output


def test_records_name_the_whole_course(alone):
    record = alone.records["second"]
    assert record.chapters == ("00_first", "01_second")
    assert [(e.id, e.chapter, e.points) for e in record.exercises] == [
        ("ex-0-double", "00_first", 2),
        ("ex-1-total", "01_second", 1),
    ]
