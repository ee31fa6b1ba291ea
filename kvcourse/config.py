"""The shape of a decoder, and where it is read from."""

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from kvcourse.counts import MOST, read_count
from kvcourse.errors import InputError
from kvcourse.paths import user_path

FULL, SLIDING = "full_attention", "sliding_attention"

# What differs between the families that our decoder runs, beyond what their config files say.
_FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {},
    "qwen2": {"attention_bias": True},
    "qwen3": {"qk_norm": True},
}
RUNNABLE = tuple(_FAMILIES)  # the model types that `ModelConfig.from_hf` reads

# Kinds of rotary scaling (attention/rope.py), and the parameters that each cannot do without.
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
MOST_LAYERS = 100_000  # far above any model: a wrong number should not fill the memory


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Hyperparameters of a Llama-family decoder. Names are those of Hugging Face configs where one exists.

    rope_scaling: None, or a dict with "rope_type" (linear, dynamic, llama3, yarn, longrope) and its parameters.
    attention_bias: bias on the q, k and v projections; attention_out_bias: on the output projection.
    qk_norm: RMSNorm over head_dim on queries and keys before RoPE (Qwen3).
    sliding_window: tokens that a sliding layer sees, the newest included.
    layer_types: per layer "full_attention" or "sliding_attention".
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int = 2048
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10_000.0
    rope_scaling: dict[str, Any] | None = None
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    attention_out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    sliding_window: int | None = None
    layer_types: tuple[str, ...] | None = None
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None
    model_type: str = "llama"

    def __post_init__(self) -> None:
        for name in (
            "vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_heads", "num_kv_heads",
            "head_dim", "max_position_embeddings",
        ):  # fmt: skip
            most = MOST_LAYERS if name == "num_layers" else MOST
            object.__setattr__(self, name, read_count(name, getattr(self, name), most=most))
        if self.num_heads % self.num_kv_heads:
            raise InputError(
                f"num_heads={self.num_heads} is not a multiple of num_kv_heads={self.num_kv_heads}: "
                "every kv head must serve the same number of query heads"
            )
        if self.head_dim % 2:
            raise InputError(f"head_dim={self.head_dim} is odd: rotary embeddings turn pairs of numbers")
        for name in ("rms_norm_eps", "rope_theta"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
                raise InputError(f"{name}={value!r}: expected a positive number")
        if self.sliding_window is not None:
            window = read_count("sliding_window (None for no window)", self.sliding_window)
            object.__setattr__(self, "sliding_window", window)
        self._check_ids()
        types = self.layer_types
        if types is None:
            types = (FULL if self.sliding_window is None else SLIDING,) * self.num_layers
        types = tuple(types) if isinstance(types, (list, tuple)) else (types,)
        if len(types) != self.num_layers or any(kind not in (FULL, SLIDING) for kind in types):
            raise InputError(
                f"layer_types={types}: expected {self.num_layers} entries, each {FULL!r} or {SLIDING!r}"
            )
        if SLIDING in types and self.sliding_window is None:
            raise InputError("layer_types names sliding layers, but sliding_window is None: give the window")
        object.__setattr__(self, "layer_types", types)
        self._check_rope_scaling()

    @property
    def group_size(self) -> int:
        """Query heads that share one kv head."""
        return self.num_heads // self.num_kv_heads

    def window(self, layer: int) -> int | None:
        """Tokens that `layer` sees, or None when it sees all of them."""
        return self.sliding_window if self.layer_types[layer] == SLIDING else None

    def _check_ids(self) -> None:
        if not isinstance(self.eos_token_ids, (list, tuple)):
            raise InputError(f"eos_token_ids={self.eos_token_ids!r}: expected a tuple of token ids")
        ids = tuple(read_count("eos_token_ids: id", token, least=0) for token in self.eos_token_ids)
        object.__setattr__(self, "eos_token_ids", ids)
        if self.bos_token_id is not None:
            read_count("bos_token_id", self.bos_token_id, least=0)

    def _check_rope_scaling(self) -> None:
        scaling = self.rope_scaling
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
            found, half = scaling[name], self.head_dim // 2
            if not isinstance(found, (list, tuple)) or len(found) != half:
                has = f"has {len(found)} entries" if isinstance(found, (list, tuple)) else f"is {found!r}"
                raise InputError(f"{name} {has}: expected a list of head_dim / 2 = {half} numbers")
        numbers = {name: scaling[name] for name in ROPE_NUMBERS if scaling.get(name) is not None}
        numbers |= {f"{name}[{i}]": value for name in lists for i, value in enumerate(scaling[name])}
        for name, value in numbers.items():
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
                raise InputError(f"{name}={value!r} in the rope scaling: expected a positive number")

    @classmethod
    def from_hf(cls, config: Any) -> "ModelConfig":
        """Read a transformers config, a dict, or a path to config.json (or its folder).

        Errors: InputError for a model type outside the Llama family, or when a needed field is missing.
        """
        raw = read_config(config)
        kind = raw.get("model_type")
        if not isinstance(kind, str) or kind not in _FAMILIES:
            raise InputError(
                f"model_type {kind!r} cannot be run by this decoder: expected one of {', '.join(_FAMILIES)} "
                "(the memory arithmetic knows many more: kvcourse memory --list)"
            )
        if raw.get("hidden_act", "silu") not in ("silu", "swish"):
            raise InputError(f"hidden_act {raw['hidden_act']!r}: this decoder has SwiGLU, which needs 'silu'")
        try:
            num_heads = raw["num_attention_heads"]
            shape = {
                "vocab_size": raw["vocab_size"],
                "hidden_size": raw["hidden_size"],
                "intermediate_size": raw["intermediate_size"],
                "num_layers": raw["num_hidden_layers"],
                "num_heads": num_heads,
                "num_kv_heads": raw.get("num_key_value_heads") or num_heads,
                "head_dim": raw.get("head_dim") or raw["hidden_size"] // num_heads,
            }
        except (TypeError, ZeroDivisionError):
            raise InputError(f"the {kind} config has sizes that are no whole numbers of at least 1") from None
        except KeyError as missing:
            raise InputError(
                f"the {kind} config lacks {missing}: is this the model's own config.json?"
            ) from None
        bias = bool(raw.get("attention_bias", False))
        eos = raw.get("eos_token_id")
        window, types = _windows(raw)
        known = {f.name for f in fields(cls)}
        optional = {
            "max_position_embeddings": raw.get("max_position_embeddings", 2048),
            "rms_norm_eps": raw.get("rms_norm_eps", 1e-6),
            "tie_word_embeddings": bool(raw.get("tie_word_embeddings", False)),
            "attention_bias": bias,
            "attention_out_bias": bias and kind in ("llama", "qwen3"),
            "mlp_bias": bool(raw.get("mlp_bias", False)),
            "sliding_window": window,
            "layer_types": types,
            "eos_token_ids": tuple(eos) if isinstance(eos, (list, tuple)) else () if eos is None else (eos,),
            "bos_token_id": raw.get("bos_token_id"),
            "model_type": kind,
        }
        optional |= dict(zip(("rope_theta", "rope_scaling"), _rope(raw), strict=True)) | _FAMILIES[kind]
        assert set(optional) <= known
        return cls(**shape, **optional)


def read_config(config: Any) -> dict[str, Any]:
    """A model's config as a dict: from a dict, a transformers config, a path to config.json, or its folder.

    Errors: InputError when the path does not exist, is not JSON, or the object is none of these.
    """
    if isinstance(config, Mapping):
        return dict(config)
    if hasattr(config, "to_dict"):
        return config.to_dict()
    if not isinstance(config, (str, Path)):
        raise InputError(
            f"cannot read a model config from {type(config).__name__}: "
            "expected a dict, a transformers config, or a path to config.json"
        )
    path = user_path(config)
    path = path / "config.json" if os.path.isdir(path) else path
    try:
        raw = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; give a config.json, or the folder that holds one") from None
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: not a readable JSON file ({error})") from None
    if not isinstance(raw, dict):
        raise InputError(
            f"{path}: expected a JSON object with the model's fields, found {type(raw).__name__}"
        )
    return raw


def _rope(raw: Mapping[str, Any]) -> tuple[float, dict[str, Any] | None]:
    """(theta, scaling) from transformers v5's `rope_parameters` or the older `rope_theta`/`rope_scaling`."""
    params = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    if not isinstance(params, Mapping):
        raise InputError(f"the config's rope scaling is {params!r}: expected an object with rope_type")
    params = dict(params)
    theta = params.pop("rope_theta", None) or raw.get("rope_theta") or 10_000.0
    kind = params.pop("rope_type", None) or params.pop("type", None) or "default"
    params.pop("type", None)
    if kind == "default":
        return theta, None
    if "original_max_position_embeddings" not in params and raw.get("original_max_position_embeddings"):
        params["original_max_position_embeddings"] = raw["original_max_position_embeddings"]
    return theta, {"rope_type": kind, **params}


def _windows(raw: Mapping[str, Any]) -> tuple[int | None, list[str] | None]:
    """(sliding_window, layer_types). Llama has no window, whatever the file says, and Qwen's needs its switch."""
    qwen, window = raw["model_type"].startswith("qwen"), raw.get("sliding_window")
    if raw["model_type"] == "llama" or (qwen and not raw.get("use_sliding_window", False)):
        window = None
    types = raw.get("layer_types")
    if types is None and window is not None and qwen and raw.get("max_window_layers") is not None:
        first = read_count("max_window_layers", raw["max_window_layers"], least=0)
        layers = read_count("num_hidden_layers", raw["num_hidden_layers"], most=MOST_LAYERS)
        types = [FULL if i < first else SLIDING for i in range(layers)]
    return window, None if window is None else types
