"""Read and check `book.toml`: the only place for title, order, objectives, minutes and points."""

import re
import tomllib
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from kvcourse.course.consistency import find_faults
from kvcourse.errors import InputError

SCHEMA = 1


@dataclass(frozen=True)
class Exercise:
    """A graded exercise: the id and the points are the ones in the notebook's cell metadata."""

    id: str
    points: int


@dataclass(frozen=True)
class Chapter:
    """One notebook of the course. `file` is relative to the project root, with forward slashes."""

    file: str
    title: str
    minutes: int
    objectives: tuple[str, ...]
    device: str = "any"
    exercises: tuple[Exercise, ...] = ()

    @property
    def points(self) -> int:
        return sum(exercise.points for exercise in self.exercises)

    @property
    def stem(self) -> str:
        """The name of the chapter in records and submissions: 01_naive_cache."""
        return PurePosixPath(self.file).stem

    @property
    def number(self) -> int | None:
        """The number that the file name begins with: 1 for 01_naive_cache.ipynb."""
        found = re.match(r"\d+", self.stem)
        return int(found[0]) if found else None


@dataclass(frozen=True)
class Page:
    """A page of the book that is not a chapter. Its title is the heading of the file itself."""

    file: str


@dataclass(frozen=True)
class Part:
    """A titled group in the table of contents: chapters first, then pages."""

    title: str
    chapters: tuple[Chapter, ...] = ()
    pages: tuple[Page, ...] = ()


@dataclass(frozen=True)
class Planned:
    """A chapter that is not written yet; the landing page says so."""

    title: str
    about: str


@dataclass(frozen=True)
class Manifest:
    """`book.toml`, read and checked. Files are relative to `root`, the folder that holds it."""

    root: Path
    title: str
    authors: tuple[str, ...]
    copyright: str
    language: str
    landing: str
    bibliography: tuple[str, ...]
    assets: str
    parts: tuple[Part, ...]
    planned: tuple[Planned, ...] = ()
    api_page: str | None = None
    api_modules: tuple[str, ...] = ()
    repository_url: str | None = None
    repository_branch: str | None = None

    @property
    def chapters(self) -> tuple[Chapter, ...]:
        return tuple(chapter for part in self.parts for chapter in part.chapters)

    @property
    def pages(self) -> tuple[Page, ...]:
        return tuple(page for part in self.parts for page in part.pages)

    @property
    def points(self) -> int:
        return sum(chapter.points for chapter in self.chapters)

    @property
    def api_files(self) -> tuple[str, ...]:
        """One generated page a public module, in the folder named like the API page."""
        if self.api_page is None:
            return ()
        folder = PurePosixPath(self.api_page).with_suffix("")
        return tuple(f"{folder}/{module.removeprefix('kvcourse.')}.md" for module in self.api_modules)

    @property
    def files(self) -> tuple[str, ...]:
        """Every source file of the book in reading order: landing page, parts, generated API pages last."""
        listed = [entry.file for part in self.parts for entry in (*part.chapters, *part.pages)]
        return (self.landing, *listed, *self.api_files)


def find_root(start: Path | None = None) -> Path:
    """The folder of `book.toml`: `start` (default: where we are), one above it, or this clone."""
    start = Path.cwd() if start is None else Path(start).resolve()
    for folder in (start, *start.parents, Path(__file__).resolve().parents[2]):
        if (folder / "book.toml").is_file():
            return folder
    raise InputError(
        f"no book.toml in {start} or above it; run this in a clone of the course, where the notebooks are"
    )


def read_manifest(root: Path | None = None, files: bool = True) -> Manifest:
    """Read `book.toml` in `root` and, with `files`, check it against them. All problems come in one InputError."""
    root = find_root(root)
    try:
        data = tomllib.loads((root / "book.toml").read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"book.toml is not valid TOML: {error}") from error
    if data.get("schema") != SCHEMA:
        raise InputError(f"book.toml has schema {data.get('schema')!r}; this version reads schema {SCHEMA}")
    problems: list[str] = []
    manifest = _build(root, data, problems)
    if manifest is not None and files:
        problems += find_faults(manifest)
    if problems:
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        raise InputError(f"book.toml has {count}: " + "; ".join(problems))
    return manifest


def choose_chapters(chapters: tuple[Chapter, ...], numbers: Collection[int]) -> tuple[Chapter, ...]:
    """Those of `chapters` with these numbers, in the order of the book; all of them for none.

    Errors: InputError for a number that none of them has.
    """
    known = [chapter.number for chapter in chapters]
    for number in numbers:
        if number not in known:
            there = ", ".join(f"{c.number} {c.title}" for c in chapters if c.number is not None) or "none"
            raise InputError(f"--chapter {number}: no such chapter; the chapters are {there}")
    return tuple(chapter for chapter in chapters if not numbers or chapter.number in numbers)


def stem(file: str) -> str:
    """The name that Sphinx gives to a source file: the path without its suffix."""
    return str(PurePosixPath(file).with_suffix(""))


# ---- from TOML to dataclasses ----------------------------------------------------------------------

_REQUIRED = {
    "book": {"title": str, "authors": list, "copyright": str, "landing": str},
    "part": {"title": str},
    "chapter": {"file": str, "title": str, "minutes": int, "objectives": list},
    "page": {"file": str},
    "exercise": {"id": str, "points": int},
    "planned": {"title": str, "about": str},
}
_OPTIONAL = {
    "book": {"language": str, "bibliography": list, "assets": str, "repository": dict, "api": dict},
    "part": {"chapter": list, "page": list},
    "chapter": {"device": str, "exercises": list},
}


def _build(root: Path, data: dict, problems: list[str]) -> Manifest | None:
    problems += [
        f"unknown table [{key}]" for key in sorted(set(data) - {"schema", "book", "part", "planned"})
    ]
    book = data.get("book", {})
    if not _table_is_sound("book", "[book]", book, problems):
        return None
    parts = [_part(entry, problems) for entry in _tables("part", data, problems)]
    planned = [
        Planned(**entry)
        for entry in _tables("planned", data, problems)
        if _table_is_sound("planned", f"planned {entry.get('title', '')!r}", entry, problems)
    ]
    api, repository = book.get("api", {}), book.get("repository", {})
    return Manifest(
        root=root,
        title=book["title"],
        authors=tuple(book["authors"]),
        copyright=book["copyright"],
        language=book.get("language", "en"),
        landing=book["landing"],
        bibliography=tuple(book.get("bibliography", [])),
        assets=book.get("assets", "bookassets"),
        parts=tuple(parts),
        planned=tuple(planned),
        api_page=api.get("page"),
        api_modules=tuple(api.get("modules", [])),
        repository_url=repository.get("url"),
        repository_branch=repository.get("branch"),
    )


def _part(entry: dict, problems: list[str]) -> Part:
    _table_is_sound("part", f"part {entry.get('title', '')!r}", entry, problems)
    chapters, pages = [], []
    for table in _tables("chapter", entry, problems):
        name = table.get("file", f"a chapter of {entry.get('title')!r}")
        sound = _table_is_sound("chapter", name, table, problems)
        exercises = [
            Exercise(**exercise)
            for exercise in _tables("exercises", table, problems)
            if _table_is_sound("exercise", f"{name}: exercise {exercise.get('id', '')!r}", exercise, problems)
        ]
        if sound:
            objectives = tuple(table["objectives"])
            chapters.append(Chapter(**{**table, "objectives": objectives, "exercises": tuple(exercises)}))
    for table in _tables("page", entry, problems):
        if _table_is_sound("page", table.get("file", "a page"), table, problems):
            pages.append(Page(**table))
    return Part(entry.get("title", ""), tuple(chapters), tuple(pages))


def _tables(name: str, parent: dict, problems: list[str]) -> list[dict]:
    """The tables under `name`, none when it is something else, which is a problem."""
    value = parent.get(name, [])
    if isinstance(value, list) and all(isinstance(table, dict) for table in value):
        return value
    problems.append(f"{name} is {value!r}: expected tables")
    return []


def _table_is_sound(kind: str, name: str, table: dict, problems: list[str]) -> bool:
    required, optional = _REQUIRED[kind], _OPTIONAL.get(kind, {})
    if not isinstance(table, dict):
        problems.append(f"{name}: it is {table!r}, expected a table")
        return False
    found = [f"{name}: no {key}" for key in required if key not in table]
    for key, value in table.items():
        expected = required.get(key) or optional.get(key)
        if expected is None:
            found.append(f"{name}: unknown key {key!r}")
        elif not isinstance(value, expected) or isinstance(value, bool):
            found.append(f"{name}: {key} is {value!r}, expected {expected.__name__}")
        elif expected is int and value <= 0:
            found.append(f"{name}: {key} is {value}, expected at least 1")
    problems += found
    return not found
