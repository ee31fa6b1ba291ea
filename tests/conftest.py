"""What all tests share: fixed random numbers, and the real model where it is."""

from collections.abc import Iterator

import pytest
from hypothesis import settings

from kvcourse.weights import BUILT_IN, home
from kvcourse.weights.manifest import is_complete

MODEL = "smollm2-135m"

# The same examples on every machine and in every run, and no deadline on a busy one.
settings.register_profile("kvcourse", derandomize=True, deadline=None, database=None)
settings.load_profile("kvcourse")

# Where the user keeps the model, looked up once: tests that change KVCOURSE_HOME do not move it.
MODEL_IS_THERE = is_complete(home() / "models" / MODEL, BUILT_IN[MODEL])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests of the real model where it has not been fetched; `make test` fetches it first."""
    if MODEL_IS_THERE:
        return
    for item in items:
        if item.get_closest_marker("model"):
            item.add_marker(pytest.mark.skip(reason=f"needs {MODEL}: run `kvcourse model` once"))


@pytest.fixture(scope="module", params=["contiguous", "paged"])
def every_storage(request: pytest.FixtureRequest) -> Iterator[str]:
    """Runs a whole module once on each storage, for all caches that it makes with `tiny_models.new_cache`."""
    from tiny_models import PLANS, using

    with using(PLANS[request.param]):
        yield request.param


@pytest.fixture(autouse=True)
def _fixed_seed() -> None:
    """A test that draws without a generator of its own draws the same numbers every time."""
    import torch

    torch.manual_seed(0)
