"""The outline of the course that a learner's folder carries: chapters, exercises and points, without the course."""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath

from kvcourse.course.manifest import Manifest
from kvcourse.errors import InputError

COURSE_FILE = ".kvcourse/course.json"
SCHEMA = 1


@dataclass(frozen=True)
class OutlineExercise:
    """An exercise and what it is worth."""

    id: str
    points: int


@dataclass(frozen=True)
class OutlineChapter:
    """A chapter: `file` is the name of its notebook in the learner's folder."""

    file: str
    title: str
    exercises: tuple[OutlineExercise, ...] = ()


@dataclass(frozen=True)
class Outline:
    """The course as a learner sees it."""

    title: str
    chapters: tuple[OutlineChapter, ...]

    @property
    def ids(self) -> frozenset[str]:
        return frozenset(exercise.id for chapter in self.chapters for exercise in chapter.exercises)


@dataclass(frozen=True)
class Place:
    """A folder of the course: a learner's, or with `is_source` the one that holds `book.toml`."""

    folder: Path
    is_source: bool


def find_place() -> Place | None:
    """Where the current folder belongs to, by what lies in it or nearest above it; None if nowhere."""
    try:
        here = Path.cwd()
    except OSError:  # removed while the kernel ran
        return None
    for folder in (here, *here.parents):
        for name, is_source in (("book.toml", True), (COURSE_FILE, False)):
            if os.path.isfile(folder / name):  # Path.is_file raises for a folder that is closed to us
                return Place(folder, is_source)
    return None


def outline_of(manifest: Manifest) -> Outline:
    """The outline of a course."""
    return Outline(
        manifest.title,
        tuple(
            OutlineChapter(
                PurePosixPath(chapter.file).name,
                chapter.title,
                tuple(OutlineExercise(exercise.id, exercise.points) for exercise in chapter.exercises),
            )
            for chapter in manifest.chapters
        ),
    )


def course_outline(manifest: Manifest) -> str:
    """The text of the marker, `.kvcourse/course.json`, that `kvcourse start` and the release zip put in a folder."""
    return json.dumps({"schema": SCHEMA, **asdict(outline_of(manifest))}, indent=2, ensure_ascii=False) + "\n"


def read_outline(folder: Path) -> Outline:
    """The outline in the marker of `folder`. Errors: InputError if it cannot be read or is not one."""
    try:
        data = json.loads((folder / COURSE_FILE).read_text("utf-8"))
        if data["schema"] != SCHEMA:
            raise ValueError(f"schema {data['schema']!r}")
        chapters = tuple(
            OutlineChapter(
                _text(chapter["file"]),
                _text(chapter["title"]),
                tuple(OutlineExercise(_text(e["id"]), _points(e["points"])) for e in chapter["exercises"]),
            )
            for chapter in data["chapters"]
        )
        return Outline(_text(data["title"]), chapters)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(
            f"{COURSE_FILE} cannot be read ({type(error).__name__}); `kvcourse start` in this folder writes it anew"
        ) from error


def _text(value: object) -> str:
    if type(value) is not str:
        raise TypeError(value)
    return value


def _points(value: object) -> int:
    if type(value) is not int or value < 1:
        raise TypeError(value)
    return value
