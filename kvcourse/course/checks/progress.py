"""What is solved and what is open, as a table and a bar: what the public checks of the notebooks said last."""

import html
from dataclasses import dataclass

from kvcourse.course.checks.standing import Standing, read_standings
from kvcourse.course.manifest import find_root, read_manifest
from kvcourse.course.outline import Outline, OutlineChapter, find_place, outline_of, read_outline
from kvcourse.errors import InputError

BAR = 40
ABOUT = "As the public checks in the notebooks say. The grader has tests of its own."
LEFT = "text-align: left; padding: 0.15rem 1rem 0.15rem 0;"
MARKS = {"solved": "✓", "tried": "◐", "open": "○"}


@dataclass(frozen=True)
class Row:
    """An exercise and where it stands; `points` is None where the outline does not have it."""

    id: str
    points: int | None
    standing: Standing | None

    @property
    def state(self) -> str:
        """solved, tried or open."""
        if self.standing is None:
            return "open"
        return "solved" if self.standing.is_solved else "tried"

    @property
    def words(self) -> str:
        """The state, with the cases that pass if the exercise was tried."""
        if self.state != "tried":
            return self.state
        noun = "case" if self.standing.cases == 1 else "cases"
        return f"tried: {self.standing.passed} of {self.standing.cases} {noun}"

    @property
    def earned(self) -> int:
        return self.points or 0 if self.state == "solved" else 0


@dataclass(frozen=True)
class Group:
    """A chapter and its exercises."""

    title: str
    rows: tuple[Row, ...]

    @property
    def points(self) -> int:
        return sum(row.points or 0 for row in self.rows)

    @property
    def earned(self) -> int:
        return sum(row.earned for row in self.rows)


@dataclass(frozen=True)
class Progress:
    """The standing of all exercises; Jupyter shows it as a table, `print` as text."""

    title: str
    groups: tuple[Group, ...]
    notes: tuple[str, ...] = ()

    @property
    def points(self) -> int:
        """Points of all exercises."""
        return sum(group.points for group in self.groups)

    @property
    def earned(self) -> int:
        """Points of the solved exercises."""
        return sum(group.earned for group in self.groups)

    @property
    def summary(self) -> str:
        """The headline."""
        return f"{self.earned} of {self.points} points"

    def __str__(self) -> str:
        # Plain ASCII: some terminals have nothing else.
        lines = [f"{self.title}: {self.summary}"]
        if self.points:
            filled = BAR * self.earned // self.points
            lines.append(f"[{'#' * filled}{'.' * (BAR - filled)}] {100 * self.earned // self.points} %")
        width = max((len(row.id) for group in self.groups for row in group.rows), default=0)
        for group in self.groups:
            total = f" ({group.earned} of {group.points} points)" if group.points else ""
            lines += ["", f"{group.title}{total}"]
            lines += [f"  {row.id:{width}}  {_points(row):>9}  {row.words}" for row in group.rows]
        return "\n".join([*lines, "", ABOUT, *self.notes])

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        """A table without scripts. Colours are those of the page, and every state is a word and a mark too."""
        e = html.escape
        bar = (
            f'<progress value="{self.earned}" max="{self.points}" aria-label="{e(self.summary)}"'
            ' style="width: 100%; max-width: 36rem; height: 1rem;"></progress>'
            if self.points
            else ""
        )
        bodies = "".join(map(_html_group, self.groups))
        notes = "".join(f"<p>{e(note)}</p>" for note in (ABOUT, *self.notes))
        heads = "".join(
            f'<th scope="col" style="{LEFT}">{name}</th>' for name in ("Exercise", "Points", "State")
        )
        return (
            f"<div><p><strong>{e(self.title)}: {self.summary}</strong></p>{bar}"
            f'<table style="color: inherit;"><caption style="{LEFT}">Exercises by chapter</caption>'
            f"<thead><tr>{heads}</tr></thead>{bodies}</table>{notes}</div>"
        )


def progress() -> Progress:
    """What is solved, tried and open, with the points: in a learner's folder, or for the course of this clone.

    The result shows itself in a notebook; elsewhere print it. A folder from `kvcourse start` keeps what the checks
    said; elsewhere it is forgotten when the kernel stops.
    """
    outline, notes = _outline()
    standings = read_standings()
    groups = [_group(chapter, standings) for chapter in outline.chapters if chapter.exercises]
    others = sorted(standings.keys() - outline.ids)
    if others:
        rows = tuple(Row(key, None, standings[key]) for key in others)
        groups.append(Group("Not in the outline of this course", rows))
    return Progress(outline.title, tuple(groups), notes)


def _outline() -> tuple[Outline, tuple[str, ...]]:
    """The outline, and what the reader should know about where it and the standings come from."""
    place = find_place()
    if place is not None and not place.is_source:
        try:
            return read_outline(place.folder), ()
        except InputError as error:
            return Outline("Exercises", ()), (str(error),)
    kept = (
        "Kept until this kernel stops. Notebooks keep it longer where a release was unpacked,"
        " and in a folder from `kvcourse start DIR`."
    )
    try:
        root = place.folder if place else find_root()
        return outline_of(read_manifest(root, files=False)), (kept,)
    except (InputError, OSError):  # the second: the current folder is gone
        return Outline("Exercises", ()), (kept,)


def _group(chapter: OutlineChapter, standings: dict[str, Standing]) -> Group:
    rows = (Row(exercise.id, exercise.points, standings.get(exercise.id)) for exercise in chapter.exercises)
    return Group(chapter.title, tuple(rows))


def _points(row: Row) -> str:
    return "" if row.points is None else "1 point" if row.points == 1 else f"{row.points} points"


def _html_group(group: Group) -> str:
    e = html.escape
    total = f"{group.earned} of {group.points}" if group.points else ""
    head = (
        f'<tr><th scope="rowgroup" style="{LEFT}">{e(group.title)}</th>'
        f'<td style="{LEFT}">{total}</td><td></td></tr>'
    )
    rows = "".join(
        f'<tr><th scope="row" style="{LEFT} font-weight: normal; padding-left: 1.5rem;"><code>{e(row.id)}</code></th>'
        f'<td style="{LEFT}">{"" if row.points is None else row.points}</td>'
        f'<td style="{LEFT}"><span aria-hidden="true">{MARKS[row.state]}</span> {e(row.words)}</td></tr>'
        for row in group.rows
    )
    return f"<tbody>{head}{rows}</tbody>"
