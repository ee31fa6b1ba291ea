"""Weights of real models: fetch them once, keep them, load them fast."""

from kvcourse.weights.source import BUILT_IN, Source
from kvcourse.weights.store import fetch, home, remove, verify

__all__ = [
    "BUILT_IN",
    "Source",
    "describe",
    "fetch",
    "home",
    "load_model",
    "load_state",
    "locate",
    "remove",
    "verify",
]


def __getattr__(name: str):
    # These need torch, which takes seconds to import; fetching and removing do not.
    if name in ("describe", "load_model", "load_state", "locate"):
        from kvcourse.weights import checkpoint

        return getattr(checkpoint, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
