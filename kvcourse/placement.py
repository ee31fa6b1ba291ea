"""Where a model's numbers lie, and how they are written: the device and the dtype that a caller asks for."""

from typing import Any

import torch

from kvcourse.errors import InputError


def read_device(device: Any) -> torch.device:
    """The device; None takes CUDA when there is one, else the CPU. Errors: InputError for one that cannot be used."""
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    found = name_device(device)
    if found.type == "meta":
        raise InputError("device 'meta' holds no numbers; use device='cpu'")
    try:
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError, ImportError):
        raise InputError(f"device {str(found)!r} cannot be used by this torch; use device='cpu'") from None
    return found


def name_device(device: Any) -> torch.device:
    """The device, also one without numbers ("meta"). Errors: InputError for one that torch or this machine lacks."""
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError, ValueError):
        raise InputError(f"device {device!r} is not one that torch knows; try cpu or cuda") from None
    if found.type == "cuda" and not torch.cuda.is_available():
        raise InputError("device 'cuda' was asked for and torch sees no GPU; use device='cpu'")
    return found


def read_dtype(dtype: Any) -> torch.dtype:
    """The dtype. Errors: InputError for one that is not floating-point."""
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise InputError(f"dtype {dtype!r}: expected a floating-point type such as torch.float32")
    return dtype
