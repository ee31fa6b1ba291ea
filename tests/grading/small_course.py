"""A course of two chapters with one exercise each, without a book."""

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from kvcourse.course.manifest import Chapter, Exercise, Manifest, Part

CODE = "def double(n):\n    return 2 * n"
STEMS = ("00_start_here", "01_naive_cache")


def small_course(folder, points=2, code=CODE, prose="# One"):
    """The manifest of the course, with its notebooks written into `folder`."""
    (folder / "notebooks").mkdir(parents=True, exist_ok=True)
    chapters = []
    for number, stem in enumerate(STEMS):
        notebook = new_notebook(cells=[new_markdown_cell(prose, id="a"), new_code_cell(code, id="b")])
        nbformat.write(notebook, folder / "notebooks" / f"{stem}.ipynb")
        exercises = (Exercise(f"ex-{number}-double", points),)
        chapters.append(Chapter(f"notebooks/{stem}.ipynb", stem, 10, (), exercises=exercises))
    return Manifest(folder, "Toy", (), "", "en", "", (), "", (Part("p", tuple(chapters)),))
