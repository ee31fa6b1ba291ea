"""Fused kernels, one folder an operation.

Each folder holds `reference.py` (plain torch, the truth, also in float64), `triton.py` (GPU) and `cpu.py`
(numba). Nothing here imports the rest of the package, so this folder can be used alone.
"""

from .contiguous_decode import contiguous_decode

__all__ = ["contiguous_decode"]
