"""The Triton kernels: their checks in a process with the interpreter (or on the GPU), and what they compile to."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton exists on Linux only"
)


def run(*command, interpret):
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_INTERPRET": "1"} if interpret else {}
    return subprocess.run(
        [sys.executable, *command],
        env=environment,
        cwd=HERE.parents[1],
        capture_output=True,
        text=True,
        check=False,
    )


def test_checks_of_the_kernels():
    on_gpu = os.environ.get("KVCOURSE_DEVICE", "cpu").startswith("cuda")
    done = run(
        "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", HERE / "triton_checks.py", interpret=not on_gpu
    )
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout)


@pytest.fixture(scope="module")
def resources():
    done = run(HERE / "triton_resources.py", interpret=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(("target", "multiprocessor"), [("sm_80", 164), ("sm_90", 228), ("sm_100", 228)])
def test_no_register_spills_and_two_programs_fit(resources, target, multiprocessor):
    """Spills would move bytes that bytes_moved does not count; two programs at once hide each other's waits."""
    kernels = [kernel for kernel in resources if kernel["target"] == target]
    assert len(kernels) == 8
    for kernel in kernels:
        assert kernel["spills"] == 0, kernel
        assert 0 < kernel["registers"] * 128 * 2 <= 65536, kernel
        assert kernel["shared"] * 2 <= multiprocessor * 1024, kernel


def test_compiles_for_amd(resources):
    assert all(kernel["bytes"] > 0 for kernel in resources if kernel["target"] == "gfx942")
    assert {kernel["kernel"] for kernel in resources if kernel["target"] == "gfx942"} == {
        "attend_split",
        "merge_splits",
    }
