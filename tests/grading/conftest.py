"""Sandboxes for the tests of the sandbox, as this system makes them and with means of the kernel taken away."""

import pytest

from kvcourse.course.grading.sandbox import Sandbox

WITHOUT = {
    "everything": (),
    "no namespaces": ("namespaces",),
    "only Python": ("namespaces", "landlock", "seccomp"),
}


@pytest.fixture(scope="session")
def sandbox():
    """A sandbox with all that this system offers."""
    with Sandbox() as box:
        yield box


@pytest.fixture(scope="session", params=WITHOUT.values(), ids=WITHOUT)
def any_sandbox(request):
    """Sandboxes from the strongest to the weakest."""
    with Sandbox(without=request.param) as box:
        yield box
