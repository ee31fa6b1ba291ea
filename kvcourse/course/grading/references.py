"""The course that a run grades: its exercises, the submissions, and the solutions that results are compared with."""

import types
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from pathlib import Path

from kvcourse.course.grading.program import Program, Unusable, program_of, required_names
from kvcourse.course.grading.record import NO_NOTEBOOK
from kvcourse.course.grading.submission import Submission, read_submission
from kvcourse.course.manifest import Chapter, Exercise, Manifest, choose_chapters, find_root, read_manifest
from kvcourse.course.notebook import read_notebook
from kvcourse.errors import InputError

REFERENCE = "<reference>"  # the file name of its code, by which a traceback tells whose error it was


def find_course(folder: Path | None) -> Manifest:
    """The course in `folder`; without one, that of where we are, or of the clone that the package lies in.

    Errors: InputError for a folder without a course: grading with another one would go unnoticed.
    """
    if folder is not None and not (folder / "book.toml").is_file():
        raise InputError(f"--course {folder}: no book.toml there; give the folder of a clone of the course")
    return read_manifest(find_root(folder))


@dataclass
class Course:
    """What is graded: the exercises of `chapters`, for each of `submissions` (names and files)."""

    manifest: Manifest
    chapters: tuple[Chapter, ...]
    submissions: dict[str, Path]

    def __post_init__(self) -> None:
        self._read = lru_cache(maxsize=2)(self._read_submission)
        self._cut_out = lru_cache(maxsize=8)(self._cut_out_program)  # every test of an exercise asks for it
        self._own_notebook = cache(lambda file: read_notebook(self.manifest.root / file))
        self._solution = cache(self._read_reference)

    @cached_property
    def exercises(self) -> dict[str, Exercise]:
        """The exercises that count, by id, in the order of the course."""
        return {exercise.id: exercise for chapter in self.chapters for exercise in chapter.exercises}

    @cached_property
    def known(self) -> dict[str, Chapter]:
        """The chapter of every exercise of the course, graded or not."""
        return {exercise.id: chapter for chapter in self.manifest.chapters for exercise in chapter.exercises}

    def submission(self, name: str) -> Submission:
        """What the learner handed in. It stays in memory while its tests run."""
        return self._read(name)

    def program(self, name: str, exercise: str) -> Program:
        """The code of a submission that an exercise needs. Errors: Unusable with one line."""
        return self._cut_out(name, exercise)

    def _cut_out_program(self, name: str, exercise: str) -> Program:
        chapter = self.known[exercise]
        notebook = self.submission(name).notebooks.get(chapter.stem)
        if notebook is None:
            raise Unusable(f"{NO_NOTEBOOK}{chapter.stem if chapter.number is None else chapter.number}")
        return program_of(notebook, exercise, self._solution(exercise).names)

    def check_solutions(self) -> None:
        """Find the solution of every exercise that counts. Errors: InputError with one line."""
        for exercise in self.exercises:
            self._solution(exercise)

    def reference(self, exercise: str) -> types.ModuleType:
        """A fresh namespace with the course's own solution; what it computes is expected of the learner."""
        # Called __main__ as in a notebook: a dataclass looks its module up by this name.
        module = types.ModuleType("__main__")
        for piece in self._solution(exercise).pieces:
            code = compile(piece.source, REFERENCE, "exec", dont_inherit=True)
            exec(code, module.__dict__)
        return module

    def _read_submission(self, name: str) -> Submission:
        return read_submission(self.submissions[name], self.manifest, name)

    def _read_reference(self, exercise: str) -> Program:
        file = self.known[exercise].file
        notebook = self._own_notebook(file)
        try:
            return program_of(notebook, exercise, required_names(notebook, exercise))
        except Unusable as error:
            raise InputError(f"{file}: the solution of {exercise} cannot be run: {error}") from error


def graded_chapters(manifest: Manifest, numbers: Collection[int] = ()) -> tuple[Chapter, ...]:
    """The chapters with exercises, or those of them that `numbers` names. Errors: InputError for others.

    Without `numbers` every chapter counts, also one that nobody handed in: what a submission can earn must not
    depend on which others it is graded with.
    """
    return choose_chapters(tuple(chapter for chapter in manifest.chapters if chapter.exercises), numbers)
