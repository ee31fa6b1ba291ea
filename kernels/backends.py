"""Which backends there are, and whether one can be used here."""

import functools
import importlib
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


def fastest(queries, stored, any_stride=False):
    """The name of the fastest backend for attention of `queries` over `stored` tensors, both tuples.

    "triton" on a GPU; "cpu" for float32 on the CPU, where the last dimension of what is stored is contiguous or the
    kernel takes `any_stride` (others would copy all of it); "torch" for other types, where numba or Triton is
    missing, and where gradients are wanted, which the kernels do not compute.
    """
    first = queries[0]
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (*queries, *stored)):
        return "torch"
    if first.is_cuda and first.dtype != torch.float64:
        return "triton" if found("triton") else "torch"
    if first.device.type != "cpu" or first.dtype != torch.float32 or not found("numba"):
        return "torch"
    return "cpu" if any_stride or all(tensor.stride(-1) == 1 for tensor in stored) else "torch"


def attention_of(package, name, tensors, in_torch):
    """The function that computes the attention of an operation on a backend.

    package: the operation's, whose modules `cpu` and `triton` hold its kernels. They are imported when they are first
        used: numba and Triton take a moment.
    tensors: the queries first, and all else that the kernels read or that may want gradients.
    in_torch: the functions of "reference" and "torch", by these names.

    Errors: ValueError, saying what to do, unless the name is a backend that can compute with these tensors.
    """
    if isinstance(name, str) and name in in_torch:
        return in_torch[name]
    if name == "cpu":
        require_cpu(*tensors)
        return importlib.import_module(".cpu", package).attend_cpu
    if name == "triton":
        require_triton(*tensors)
        return importlib.import_module(".triton", package).attend_triton
    raise unknown(name)


def unknown(name):
    """The ValueError for a name that is no backend."""
    return ValueError(f"backend is {shown(name)}: use one of {', '.join(BACKENDS)}, or None to choose")
