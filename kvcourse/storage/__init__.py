"""Where tokens live: the storage axis."""

import importlib
from typing import Any

_NAMES = {
    "BlockPool": "block_pool",
    "BlockTable": "block_table",
    "ExtraKey": "prefix_hash",
    "Offloaded": "offload",
    "PagedMemory": "paged_memory",
    "PrefixIndex": "prefix_index",
    "blocks_for": "block_pool",
    "content_key": "prefix_hash",
}

__all__ = sorted(_NAMES)


def __getattr__(name: str) -> Any:  # on first use: a pool needs no torch
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_NAMES[name]}"), name)
    globals()[name] = value
    return value
