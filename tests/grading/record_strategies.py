"""Records for the tests of what is made from them: any text that people can type, any mix of outcomes."""

import itertools

from hypothesis import strategies as st

from kvcourse.course.grading.record import ExerciseScore, Outcome, Record

QUARTERS = st.integers(1, 12).map(lambda quarters: quarters / 4)
VISIBILITIES = ("visible", "hidden", "after_due_date", "after_published")
NASTY = (
    "../../x",
    "con",
    "=1+1",
    "<script>alert(1)</script>",
    "[red]x[/red]",
    "\x1b[31mred",
    "a\u202eb",
    "x" * 300,
    "\"q\", 's'",
    "@cmd",
    "{{ 7*7 }}",
    ":smile:",
    "‮",
    "李雷",
)
TEXT = st.sampled_from(NASTY) | st.text(max_size=30)  # st.text leaves out lone surrogates; NAMES have them
NAMES = TEXT | st.text(st.characters(categories=None), min_size=1, max_size=10)


def outcome(test, points, visibility, result, message="", hint=""):
    """An outcome that holds to the rule: all points for a pass, none otherwise."""
    return Outcome(test, points, points if result == "passed" else 0, result, visibility, message, hint)


def outcomes():
    results = st.sampled_from(["passed", "failed", "stopped", "not run", "broken test"])
    return st.builds(outcome, TEXT, QUARTERS, st.sampled_from(VISIBILITIES), results, TEXT, TEXT)


def exercise(id, chapter, found, notes=()):
    """An exercise whose points are the sum of its tests'."""
    return ExerciseScore(id, chapter, sum(o.points for o in found), tuple(found), tuple(notes))


@st.composite
def records(draw, outcomes=outcomes(), names=NAMES):  # noqa: B008 - a strategy is a constant
    """Up to two chapters of up to three exercises."""
    exercises = []
    for chapter in draw(st.sampled_from([(), ("01_naive_cache",), ("00_start_here", "01_naive_cache")])):
        for place in range(draw(st.integers(0, 3))):
            found = draw(st.lists(outcomes, min_size=1, max_size=4))
            notes = draw(st.lists(TEXT, max_size=1))
            exercises.append(exercise(f"ex-{chapter[1]}-number-{place}", chapter, found, notes))
    chapters = tuple(dict.fromkeys(e.chapter for e in exercises))
    return record(
        exercises,
        name=draw(names),
        chapters=chapters,
        seed=draw(st.integers(0, 2**32 - 1)),
        notes=tuple(draw(st.lists(TEXT, max_size=2))),
        path=f"/home/teacher/{draw(names)}",
    )


def record(exercises=(), **changes):
    """A record with these exercises."""
    facts = {
        "name": "ada",
        "path": "/home/teacher/ada.ipynb",
        "digest": "d" * 64,
        "bundle": "b" * 64,
        "seed": 1234,
        "versions": {"kvcourse": "0.1.0", "torch": "2.9.0"},
        "confinement": {"network": "a namespace of its own", "files": "an empty folder"},
        "chapters": tuple(dict.fromkeys(e.chapter for e in exercises)),
        "notes": (),
    }
    return Record(exercises=tuple(exercises), **(facts | changes))


@st.composite
def secret_records(draw):
    """(record, secrets): every hidden test has words of its own in name, message and hint."""
    count = itertools.count()

    def hide(found):
        if found.visibility != "hidden":
            return found
        words = [f"zq{next(count)}secret" for _ in range(3)]
        secrets.extend(words)
        return outcome(words[0], found.points, "hidden", found.outcome, words[1], words[2])

    secrets: list[str] = []
    return draw(records(outcomes().map(hide))), secrets
