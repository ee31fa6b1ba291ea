"""The pytest plugin of the grader; it does nothing in a run without `--submission`.

pytest loads it in every run of an environment that has the package, so it imports next to nothing, and its other
options exist only beside `--submission`: another project may have a `--seed` of its own.
"""

from pathlib import Path

import pytest

HERE = Path(__file__).parent
MARKERS = (
    "exercise(id): the exercise of book.toml that a class of tests belongs to",
    "points(n, hint='', visibility='visible'): what a test is worth, what to tell who fails it, and who sees it",
    "limits(**fields): other limits for the student's code in this test, such as cpu_seconds=20",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """The one option that is always there."""
    parser.getgroup("kvcourse", "grading submissions of the course").addoption(
        "--submission",
        action="append",
        default=[],
        metavar="PATH",
        dest="kvcourse_submissions",
        help="Grade this notebook, folder of notebooks or zip; may be repeated.",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config, parser: pytest.Parser) -> None:
    """The options of a grading run, and in the help of every run."""
    known = early_config.known_args_namespace
    if not (known.kvcourse_submissions or known.help):
        return
    group = parser.getgroup("kvcourse")
    for name, about in (
        ("hidden", "Folder of tests that replace the package's for the exercises that they cover."),
        ("records", "Folder for a record of each submission, written as soon as its last test is done."),
        ("course", "Clone of the course, with book.toml and the notebooks (default: found from here)."),
    ):
        group.addoption(
            f"--{name}", metavar="DIR", dest=f"kvcourse_{name}", help=f"{about} With --submission."
        )
    group.addoption(
        "--chapter",
        action="append",
        default=[],
        type=int,
        metavar="N",
        dest="kvcourse_chapters",
        help="Grade only chapter N, counted as in the file names; may be repeated. Without it all chapters count.",
    )
    group.addoption(
        "--seed",
        type=int,
        metavar="N",
        dest="kvcourse_seed",
        help="Seed of the tests' inputs (default: drawn, and shown). With --submission.",
    )
    if known.kvcourse_submissions:
        _stay_out_of(known.kvcourse_submissions, early_config)


def _stay_out_of(submissions: list[str], config: pytest.Config) -> None:
    """pytest looks for settings, and puts its cache, near the paths that it is given: not in a submission."""
    config.pluginmanager.consider_pluginarg("no:cacheprovider")
    settings = config.inipath and config.inipath.resolve()
    if settings and any(settings.is_relative_to(Path(path).resolve()) for path in submissions):
        raise pytest.UsageError(
            f"pytest would take its settings from a submission ({settings}); "
            f"run `kvcourse grade`, or add -c {HERE / 'pytest.ini'}"
        )


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers, which importing the tests needs, and in a grading run the parts that grade."""
    for line in MARKERS:
        config.addinivalue_line("markers", line)
    if config.getoption("kvcourse_submissions"):
        from kvcourse.course.grading import run

        run.register_parts(config)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Refuse to run the tests of exercises without a submission."""
    if not config.getoption("kvcourse_submissions") and any(item.path.parent == HERE for item in items):
        raise pytest.UsageError(
            "the tests of exercises need a submission: add --submission PATH (a notebook, a folder or a zip)"
        )
