"""kvcourse: every KV-cache optimisation, built, measured and combined."""

import importlib
from typing import Any

__version__ = "0.1.0"

# Loaded on first use, so that `import kvcourse` and the command line stay quick.
_NAMES = {
    "Decoder": "model",
    "InputError": "errors",
    "KVCache": "cache",
    "ModelConfig": "config",
    "Plan": "plan",
    "generate": "generation",
    "load_model": "weights",
    "tiny_model": "model",
}
_MODULES = (
    "attention", "bench", "claims", "codecs", "course", "evaluate", "figures", "flops", "kernels", "memory",
    "results", "storage", "training", "weights",
)  # fmt: skip

__all__ = sorted([*_NAMES, *_MODULES])


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        value = getattr(importlib.import_module(f"kvcourse.{_NAMES[name]}"), name)
    elif name in _MODULES:
        value = importlib.import_module(f"kvcourse.{name}")
    else:
        raise AttributeError(f"module 'kvcourse' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
