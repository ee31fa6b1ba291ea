"""Reading the configs of Hugging Face models."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvcourse.config import FULL, MOST_LAYERS, SLIDING, ExpertsConfig, ModelConfig
from kvcourse.counts import read_count
from kvcourse.errors import InputError
from kvcourse.paths import user_path

# What differs between the families that our decoder runs, beyond what their config files say.
_FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {},
    "qwen2": {"attention_bias": True},
    "qwen3": {"qk_norm": True},
    "deepseek_v2": {"rope_interleave": True},
    "deepseek_v3": {"mlp_bias": False},
}
RUNNABLE = tuple(_FAMILIES)  # the model types that `ModelConfig.from_hf` reads
_OUT_BIAS = ("llama", "qwen3", "deepseek_v2", "deepseek_v3")  # attention_bias means the output projection too


def read_model_config(config: Any) -> ModelConfig:
    """`ModelConfig.from_hf`: from a transformers config, a dict, or a path to config.json (or its folder)."""
    raw = read_config(config)
    kind = raw.get("model_type")
    if not isinstance(kind, str) or kind not in _FAMILIES:
        raise InputError(
            f"model_type {kind!r} cannot be run by this decoder: expected one of {', '.join(_FAMILIES)} "
            "(the memory arithmetic knows many more: kvcourse memory --list)"
        )
    if raw.get("hidden_act", "silu") not in ("silu", "swish"):
        raise InputError(f"hidden_act {raw['hidden_act']!r}: this decoder has SwiGLU, which needs 'silu'")
    latent = kind.startswith("deepseek")
    try:
        num_heads = raw["num_attention_heads"]
        shape = {
            "vocab_size": raw["vocab_size"],
            "hidden_size": raw["hidden_size"],
            "intermediate_size": raw["intermediate_size"],
            "num_layers": raw["num_hidden_layers"],
            "num_heads": num_heads,
            "num_kv_heads": raw.get("num_key_value_heads") or num_heads,
        }
        if latent:
            shape |= _latent(raw)
        else:
            shape["head_dim"] = raw.get("head_dim") or raw["hidden_size"] // num_heads
    except (TypeError, ZeroDivisionError):
        raise InputError(f"the {kind} config has sizes that are no whole numbers of at least 1") from None
    except KeyError as missing:
        raise InputError(f"the {kind} config lacks {missing}: is this the model's own config.json?") from None
    bias = bool(raw.get("attention_bias", False))
    eos = raw.get("eos_token_id")
    window, types = _windows(raw)
    theta, scaling = _rope(raw)
    optional = {
        "max_position_embeddings": raw.get("max_position_embeddings", 2048),
        "rms_norm_eps": raw.get("rms_norm_eps", 1e-6),
        "rope_theta": theta,
        "rope_scaling": scaling,
        "tie_word_embeddings": bool(raw.get("tie_word_embeddings", False)),
        "attention_bias": bias,
        "attention_out_bias": bias and kind in _OUT_BIAS,
        "mlp_bias": bool(raw.get("mlp_bias", False)),
        "sliding_window": window,
        "layer_types": types,
        "eos_token_ids": tuple(eos) if isinstance(eos, (list, tuple)) else () if eos is None else (eos,),
        "bos_token_id": raw.get("bos_token_id"),
        "model_type": kind,
    }
    return ModelConfig(**(shape | optional | _FAMILIES[kind]))


def _latent(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of MLA and of the experts. DeepSeek files call qk_rope_head_dim "head_dim" too, or leave it out."""
    names = ("kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    fields = {name: raw[name] for name in names}
    if fields["kv_lora_rank"] is None:
        raise InputError(f"the {raw['model_type']} config has kv_lora_rank null: MLA needs its width")
    interleave = raw.get("rope_interleave")  # absent from the files of the published models, which do
    return fields | {
        "head_dim": 1,  # ModelConfig sets it
        "rope_interleave": True if interleave is None else bool(interleave),
        "experts": _experts(raw),
    }


def _experts(raw: Mapping[str, Any]) -> ExpertsConfig | None:
    """The mixture of experts as transformers builds it; None when no layer has one.

    Settings that transformers ignores and DeepSeek's own code follows are refused: the two would be two models.
    """
    first = raw.get("first_k_dense_replace")
    first = 0 if first is None else read_count("first_k_dense_replace", first, least=0)
    if raw.get("n_routed_experts") is None or first >= raw["num_hidden_layers"]:
        return None
    kind, second = raw["model_type"], raw["model_type"] == "deepseek_v2"
    allowed = {
        "scoring_func": ("softmax",) if second else ("sigmoid",),
        "topk_method": ("greedy", "group_limited_greedy") if second else ("noaux_tc",),
        "moe_layer_freq": (1,),
    }
    if second:
        allowed["norm_topk_prob"] = (False,)
    for name, values in allowed.items():
        if raw.get(name) is not None and raw[name] not in values:
            expected = " or ".join(map(repr, values))
            raise InputError(f"{name}={raw[name]!r} in a {kind} config: this decoder runs {expected}")
    groups = not second or raw.get("topk_method") == "group_limited_greedy"
    return ExpertsConfig(
        n_routed_experts=raw["n_routed_experts"],
        num_experts_per_tok=raw["num_experts_per_tok"],
        moe_intermediate_size=raw["moe_intermediate_size"],
        n_shared_experts=raw.get("n_shared_experts") or 0,
        first_k_dense_replace=first,
        n_group=raw["n_group"] if groups else 1,
        topk_group=raw["topk_group"] if groups else 1,
        scoring_func=allowed["scoring_func"][0],
        norm_topk_prob=not second and bool(raw.get("norm_topk_prob", True)),
        routed_scaling_factor=raw.get("routed_scaling_factor", 1.0 if second else 2.5),
    )


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
    """(sliding_window, layer_types). Llama and DeepSeek have none, whatever the file says; Qwen's has a switch."""
    qwen, window = raw["model_type"].startswith("qwen"), raw.get("sliding_window")
    never = raw["model_type"] in ("llama", "deepseek_v2", "deepseek_v3")
    if never or (qwen and not raw.get("use_sliding_window", False)):
        window = None
    types = raw.get("layer_types")
    if types is None and window is not None and qwen and raw.get("max_window_layers") is not None:
        first = read_count("max_window_layers", raw["max_window_layers"], least=0)
        layers = read_count("num_hidden_layers", raw["num_hidden_layers"], most=MOST_LAYERS)
        types = [FULL if i < first else SLIDING for i in range(layers)]
    return window, None if window is None else types
