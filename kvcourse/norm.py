"""Root-mean-square normalisation."""

import torch
from torch import Tensor, nn


class RMSNorm(nn.Module):
    """x / rms(x) · weight (Zhang and Sennrich 2019), in at least float32 inside."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """x: (…, size). Returns the same shape and dtype."""
        wide = x if x.dtype == torch.float64 else x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)
