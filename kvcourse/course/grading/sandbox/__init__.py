"""The sandbox: a learner's code runs in a child process that can reach nothing but its own work folder."""

import importlib
from typing import Any

# Loaded on first use: the zygote and its children import this package too, and hold none of the parent's side.
_NAMES = {
    "Confinement": "confine",
    "Limits": "limits",
    "Names": "remote",
    "Remote": "remote",
    "Sandbox": "session",
    "SandboxError": "errors",
    "Session": "session",
    "Stopped": "errors",
    "StudentError": "errors",
}

__all__ = sorted(_NAMES)


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_NAMES[name]}"), name)
    globals()[name] = value
    return value
