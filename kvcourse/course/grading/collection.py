"""Which tests run: each test for each submission, in the order of the course, and no test without points."""

import re

import pytest

from kvcourse.course.grading.points import Worth, check_points, worth_of
from kvcourse.course.grading.run import SEED_OF_WORKER, Run, or_usage_error

WORTH = pytest.StashKey[Worth]()
SUBMISSION = pytest.StashKey[str]()
TESTS = pytest.StashKey[dict[str, list[Worth]]]()  # of the run: the tests of each exercise, in order


class Collection:
    """The part of a grading run that collects, and that hands the seed to the workers of xdist."""

    def __init__(self, config: pytest.Config, run: Run) -> None:
        self.run = run
        self.failed: list[str] = []
        self.groups: dict[str, str] = {}
        names = list(run.course.submissions)
        self.ids = dict(zip(names, _ids(names), strict=True))
        self.distributed = config.getoption("dist", "no") != "no" and not config.option.collectonly
        if run.hidden is not None:
            config.args.append(str(run.hidden))
        if self.distributed:  # one submission after the other, so that records come early
            config.option.loadscopereorder = False

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node) -> None:
        """xdist: a worker draws the same inputs."""
        node.workerinput[SEED_OF_WORKER] = self.run.seed

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log):
        """xdist: the tests of one exercise of one submission run in one process."""
        from kvcourse.course.grading.scheduling import Scheduling

        return Scheduling(config, log, self.groups)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self, session: pytest.Session) -> None:
        """xdist: the process that keeps the scores collects too, to know all tests, and to say what is wrong."""
        if self.distributed:
            session.perform_collect()

    @pytest.hookimpl(trylast=True)
    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Every test runs once a submission; its id comes last, after a test's own parameters."""
        metafunc.parametrize("submission", list(self.ids), ids=list(self.ids.values()), indirect=True)

    def pytest_exception_interact(self, call: pytest.CallInfo, report) -> None:
        """Remember in one line why a file could not be collected."""
        if isinstance(report, pytest.CollectReport):
            error = call.excinfo.value
            error = error.__cause__ or error  # pytest wraps what an import raises
            first = (str(error).strip() or "no message").splitlines()[0]
            self.failed.append(f"{report.nodeid}: cannot be collected: {type(error).__name__}: {first}")

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Read and check the marks, leave out what is not graded, sort, and group for xdist."""
        run, course = self.run, self.run.course
        if self.failed:
            raise pytest.UsageError(self.failed[0])
        for item in items:
            self._read(item)
        hidden = {item.stash[WORTH].exercise for item in items if self._is_hidden(item)}
        if run.hidden is not None and not hidden:
            raise pytest.UsageError(f"--hidden {run.hidden}: no tests in files test_*.py")
        kept = [
            item
            for item in items
            if item.stash[WORTH].exercise in course.exercises
            and (item.stash[WORTH].exercise not in hidden or self._is_hidden(item))
        ]
        first = next(iter(course.submissions))
        mine = [item for item in kept if item.stash[SUBMISSION] == first]
        files = {item.stash[WORTH].exercise: item.path for item in mine}
        tests = {id: [] for id in course.exercises}
        for item in mine:
            tests[item.stash[WORTH].exercise].append(item.stash[WORTH])
        check_points(tests, course.exercises, files)
        or_usage_error(course.check_solutions)
        config.stash[TESTS] = tests
        self._sort(kept)
        self.groups = {item.nodeid: f"{item.stash[SUBMISSION]}/{item.stash[WORTH].exercise}" for item in kept}
        left_out = set(items) - set(kept)
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = kept

    def _read(self, item: pytest.Item) -> None:
        """Store the submission and the worth of a test."""
        parameters = getattr(item, "callspec", None)
        if parameters is None or "submission" not in parameters.params:
            raise pytest.UsageError(
                f"{item.nodeid}: not a test of an exercise; write a class of plain pytest tests"
            )
        name = parameters.params["submission"]
        own = parameters.id.removesuffix(self.ids[name]).removesuffix("-")
        test = f"{item.originalname}[{own}]" if own else item.originalname
        worth = worth_of(item, test, "hidden" if self._is_hidden(item) else "visible")
        if worth.exercise not in self.run.course.known:
            known = ", ".join(self.run.course.known)
            raise pytest.UsageError(
                f"{item.path.name}: no exercise {worth.exercise!r} in book.toml; known: {known}"
            )
        item.stash[SUBMISSION], item.stash[WORTH] = name, worth

    def _is_hidden(self, item: pytest.Item) -> bool:
        return self.run.hidden is not None and item.path.resolve().is_relative_to(self.run.hidden)

    def _sort(self, items: list[pytest.Item]) -> None:
        """By submission and exercise, in the order of the course; tests as they are written."""
        submissions, exercises = (
            {name: place for place, name in enumerate(names)}
            for names in (self.run.course.submissions, self.run.course.exercises)
        )
        items.sort(
            key=lambda item: (submissions[item.stash[SUBMISSION]], exercises[item.stash[WORTH].exercise])
        )


def _ids(names: list[str]) -> list[str]:
    """Submissions as pytest shows them: by name, or by number where a name would not be plain in a test's id."""
    return [
        name if re.fullmatch(r"[\w.-]+", name, re.A) else f"#{i}" for i, name in enumerate(names, start=1)
    ]
