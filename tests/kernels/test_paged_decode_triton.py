"""The Triton kernel of decode over pages: its checks in a process with the interpreter (or on the GPU), and what it
compiles to."""

import json
import os

import pytest
from test_contiguous_decode_triton import HERE, pytestmark, run  # noqa: F401


def test_checks_of_the_kernel():
    on_gpu = os.environ.get("KVCOURSE_DEVICE", "cpu").startswith("cuda")
    command = ("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", HERE / "paged_triton_checks.py")
    done = run(*command, interpret=not on_gpu)
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout)


@pytest.fixture(scope="module")
def resources():
    done = run(HERE / "paged_triton_resources.py", interpret=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(("target", "multiprocessor"), [("sm_80", 164), ("sm_90", 228), ("sm_100", 228)])
def test_no_register_spills_and_two_programs_fit(resources, target, multiprocessor):
    """Spills would move bytes that bytes_moved does not count; two programs at once hide each other's waits."""
    kernels = [kernel for kernel in resources if kernel["target"] == target]
    assert len(kernels) == 7
    for kernel in kernels:
        assert kernel["spills"] == 0, kernel
        assert 0 < kernel["registers"] * kernel["threads"] * 2 <= 65536, kernel
        assert 0 < kernel["shared"] * 2 <= multiprocessor * 1024, kernel


def test_compiles_for_amd(resources):
    kernels = [kernel for kernel in resources if kernel["target"] == "gfx942"]
    assert len(kernels) == 3
    assert all(kernel["bytes"] > 0 for kernel in kernels)
