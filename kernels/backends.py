"""Which backends there are, and whether one can be used here."""

import functools
import importlib.util

import torch

from .paging import shown

BACKENDS = ("reference", "torch", "cpu", "triton")


@functools.cache
def found(package):
    """Whether a package is installed."""
    return importlib.util.find_spec(package) is not None


def require_tensors(**arguments):
    """Errors: ValueError, with the name, for an argument that is no tensor, or one without strides (sparse)."""
    for name, value in arguments.items():
        if not isinstance(value, torch.Tensor):
            raise ValueError(f"{name} is a {type(value).__name__}: pass a tensor")
        if value.layout != torch.strided:
            raise ValueError(f"{name} has layout {value.layout}: pass a dense tensor, .to_dense()")


def refuse_gradients(backend, tensors):
    """Errors: ValueError where autograd wants gradients, which no kernel computes."""
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        raise ValueError(
            f"backend {backend!r} computes no gradients, and an argument wants them: pass backend='torch', or call "
            "it under torch.no_grad()"
        )


def require_cpu(q, *others):
    """Errors: ValueError, saying what to do, unless the numba kernels can compute with q and tensors like it."""
    refuse_gradients("cpu", (q, *others))
    if q.device.type != "cpu" or q.dtype != torch.float32:
        raise ValueError(
            f"backend 'cpu' got {q.dtype} on {q.device}: pass float32 on the CPU, or backend='torch'"
        )
    if not found("numba"):
        raise ValueError("backend 'cpu' needs numba: pip install numba, or pass backend='torch'")


def require_triton(q, *others):
    """Errors: ValueError, saying what to do, unless the Triton kernels can compute with q and tensors like it."""
    refuse_gradients("triton", (q, *others))
    if not found("triton"):
        raise ValueError(
            "backend 'triton' needs Triton (Linux only): pip install triton, or pass backend='torch'"
        )
    if q.dtype == torch.float64:
        raise ValueError(
            "backend 'triton' got torch.float64: pass float32, float16 or bfloat16, or backend='reference'"
        )
    from .triton import runs_on

    if not runs_on(q.device):
        raise ValueError(
            f"backend 'triton' got tensors on {q.device}: move them to a GPU, or pass backend='torch'"
        )


def unknown(name):
    """The ValueError for a name that is no backend."""
    return ValueError(f"backend is {shown(name)}: use one of {', '.join(BACKENDS)}, or None to choose")
