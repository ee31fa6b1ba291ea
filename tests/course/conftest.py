"""The small course of `toy_book` in a temporary folder, with and without the outputs of its notebooks."""

from pathlib import Path

import pytest
from toy_book import make_project

from kvcourse.course.execute import execute_file


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The root of the small course; its notebooks have not been run."""
    return make_project(tmp_path / "course")


@pytest.fixture(scope="session")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The notebooks of the small course after a run, by name."""
    root = make_project(tmp_path_factory.mktemp("executed") / "course")
    paths = sorted((root / "notebooks").glob("*.ipynb"))
    for path in paths:
        execute_file(path)
    return {path.name: path.read_bytes() for path in paths}


@pytest.fixture
def executed(project: Path, outputs: dict[str, bytes]) -> Path:
    """The root of the small course with the outputs of its notebooks."""
    for name, content in outputs.items():
        (project / "notebooks" / name).write_bytes(content)
    return project
