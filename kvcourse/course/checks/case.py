"""One case of a public test, and the report that a learner reads about all of them."""

import textwrap
from dataclasses import dataclass

SHOWN_CASES = 5
WIDTH = 88


@dataclass(frozen=True)
class Case:
    """`told` says what is wrong, None if nothing is. `unwritten`: the code raised NotImplementedError."""

    label: str
    told: str | None = None
    where: str | None = None
    hint: str | None = None
    unwritten: bool = False


def failed(cases: list[Case]) -> list[Case]:
    """Those that did not pass, in order."""
    return [case for case in cases if case.told is not None]


def is_unwritten(cases: list[Case]) -> bool:
    """True if the only thing that is wrong is that the solution, or a part of it, is not there yet."""
    return bool(failed(cases)) and all(case.unwritten for case in failed(cases))


def report(exercise_id: str, cases: list[Case], hint: str | None = None, stopped: bool = False) -> str:
    """The text for the learner: a headline, then up to five failed cases, each with what differs and its hint.

    Cases that fail in the same way are one, with the label and the hint of the first. `hint` belongs to all of them;
    the same hint is not shown twice. `stopped`: an exception outside a case ended the test, and the last case tells
    about it.
    """
    wrong, total = failed(cases), len(cases)
    passed = total - len(wrong)
    if not wrong:
        return f"{exercise_id}: solved, " + (f"all {total} cases pass" if total > 1 else "the case passes")
    if is_unwritten(cases):
        some = f"; {passed} of {total} cases pass" if passed and not stopped else ""
        return "\n".join([f"{exercise_id}: not solved yet{some}", *_hint(wrong[0].told or hint, set())])
    if stopped:
        done = "" if not passed else "1 case passes, then " if passed == 1 else f"{passed} cases pass, then "
        lines = [f"{exercise_id}: {done}the test had to stop"]
    else:
        lines = [f"{exercise_id}: " + (f"{passed} of {total} cases pass" if total > 1 else "the case fails")]
    shown: set[str] = set()
    alike: dict[tuple[str, str | None], list[Case]] = {}
    for case in wrong:
        told = f"not written yet: {case.told}" if case.unwritten else case.told
        alike.setdefault((told, case.where), []).append(case)
    for (told, where), group in list(alike.items())[:SHOWN_CASES]:
        label = group[0].label + (f" (and {_more(len(group) - 1)})" if len(group) > 1 else "")
        lines += _wrap(f"{label}: {told}", "  ✗ ", "    ")
        lines += _wrap(where, "    ", "      ") if where else []
        lines += _hint(group[0].hint, shown, "  ")
    hidden = sum(len(group) for group in list(alike.values())[SHOWN_CASES:])
    lines += [f"  … and {_more(hidden)}"] if hidden else []
    return "\n".join([*lines, *_hint(hint, shown)])


def _more(count: int) -> str:
    return "1 more case" if count == 1 else f"{count} more cases"


def not_checked(exercise_id: str, missing: str) -> str:
    """The text for a test whose own names are not there: nothing is known about the exercise then."""
    told = f"{missing} is not defined; run the cell of the exercise first, and the cells that it uses"
    return "\n".join([f"{exercise_id}: not checked", *_wrap(told, "  ✗ ", "    ")])


def _hint(hint: str | None, shown: set[str], indent: str = "") -> list[str]:
    if not hint or hint in shown:
        return []
    shown.add(hint)
    return _wrap(f"hint: {hint}", f"  {indent}", f"    {indent}")


def _wrap(text: str, first: str, rest: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)
