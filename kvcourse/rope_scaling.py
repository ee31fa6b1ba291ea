"""What a model's rotary scaling must say."""

from collections.abc import Mapping
from typing import Any

from kvcourse.counts import check_positive
from kvcourse.errors import InputError

# Kinds of scaling (attention/rope.py computes them), and the parameters that each cannot do without.
ROPE_SCALINGS = {
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": ("original_max_position_embeddings",),
    "longrope": ("short_factor", "long_factor", "original_max_position_embeddings"),
}
ROPE_NUMBERS = (
    "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings", "beta_fast",
    "beta_slow", "attention_factor",
)  # fmt: skip


def check_rope_scaling(scaling: Any, dim: int, dim_name: str) -> None:
    """Raise InputError unless `scaling` is None, empty, or a dict with a known "rope_type" and its parameters.

    dim: numbers of a head that are rotated, which the config calls `dim_name`.
    """
    if scaling is None:
        return
    if not isinstance(scaling, Mapping):
        raise InputError(f"rope_scaling={scaling!r}: expected None, or a dict with rope_type")
    if not scaling:
        return
    kind = scaling.get("rope_type")
    if not isinstance(kind, str) or kind not in ROPE_SCALINGS:
        raise InputError(f"rope_type {kind!r}: expected one of {', '.join(ROPE_SCALINGS)}, or no scaling")
    missing = [name for name in ROPE_SCALINGS[kind] if scaling.get(name) is None]
    if missing:
        raise InputError(f"rope_type {kind!r} needs {', '.join(missing)} in the model's rope scaling")
    lists = ("short_factor", "long_factor") if kind == "longrope" else ()
    for name in lists:
        found, half = scaling[name], dim // 2
        if not isinstance(found, (list, tuple)) or len(found) != half:
            has = f"has {len(found)} entries" if isinstance(found, (list, tuple)) else f"is {found!r}"
            raise InputError(f"{name} {has}: expected a list of {dim_name} / 2 = {half} numbers")
    numbers = {name: scaling[name] for name in ROPE_NUMBERS if scaling.get(name) is not None}
    numbers |= {f"{name}[{i}]": value for name in lists for i, value in enumerate(scaling[name])}
    numbers |= {name: scaling[name] for name in ("mscale", "mscale_all_dim") if scaling.get(name)}  # 0 is off
    for name, value in numbers.items():
        check_positive(name, value, " in the rope scaling")
