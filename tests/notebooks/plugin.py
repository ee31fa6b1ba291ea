"""How nbval runs the notebooks; loaded with `-p tests.notebooks.plugin`."""

import os

import pytest

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # for the kernels, as in kvcourse/course/execute.py

OUTPUT_TIMEOUT_S = 60  # nbval waits 5 s for each output of a cell, whatever --nbval-cell-timeout says


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give slow cells their time, and skip the cells that need a GPU where there is none."""
    on_gpu = os.environ.get("KVCOURSE_DEVICE", "cpu").startswith("cuda")
    for item in items:
        cell = getattr(item, "cell", None)
        if cell is None:
            continue
        item.output_timeout = OUTPUT_TIMEOUT_S
        if "gpu" in cell.metadata.get("tags", []) and not on_gpu:
            item.add_marker(pytest.mark.skip(reason="needs a GPU (KVCOURSE_DEVICE=cuda)"))
