"""Copies of tensors that keep their strides, which `.to` does not where it converts a view."""

import math

import torch


def copied(tensor, device, dtype):
    """A copy with the same strides, also those of a view; what lies between its elements is NaN.

    The tensor itself where nothing changes: some are views of far more memory than there is.
    """
    if tensor.dtype == dtype and tensor.device == torch.device(device):
        return tensor
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    buffer = torch.full((1 + max(0, last),), math.nan, dtype=dtype, device=device)
    return buffer.as_strided(tensor.shape, tensor.stride()).copy_(tensor)
