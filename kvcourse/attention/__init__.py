"""What one token stores: the attention axis."""

from typing import Any


def __getattr__(name: str) -> Any:
    if name == "merge_attention_states":  # needs torch, which takes a second to import
        from kvcourse.kernels import merge_states

        return merge_states
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
