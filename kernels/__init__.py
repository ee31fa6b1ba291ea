"""Fused kernels, one folder an operation.

Each folder holds `reference.py` (plain torch, the truth, also in float64), `triton.py` (GPU) and `cpu.py`
(numba). Nothing here imports the rest of the package, so this folder can be used alone.
"""

from .contiguous_decode import contiguous_decode, merge_states
from .mla_decode import mla_decode
from .paged_decode import paged_decode
from .paged_prefill import paged_prefill
from .store_kv import slot_mapping, store_kv, store_pages

__all__ = [
    "contiguous_decode",
    "merge_states",
    "mla_decode",
    "paged_decode",
    "paged_prefill",
    "slot_mapping",
    "store_kv",
    "store_pages",
]
