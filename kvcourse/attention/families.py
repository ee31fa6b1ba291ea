"""What each family of models stores per token: from any config to a Layout.

The fields read here are those of the models' own `config.json`. Where such a file may leave a field out
because the family's class in transformers fills it in, the table below carries that default; nothing else is
guessed.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kvcourse.attention.config_reader import ConfigReader, config_dict
from kvcourse.attention.layout import Field, LayerLayout, Layout, grouped_query_layer
from kvcourse.config import FULL, SLIDING, ModelConfig
from kvcourse.errors import InputError


def layout_of(config: Any) -> Layout:
    """What every layer of a model stores.

    config: ours, a transformers config, a dict, a path to config.json or its folder, a built-in name such as
    "llama-3-8b" (`known_models`), or a hub name such as "org/model" where the network allows.
    Errors: InputError for an unknown family or name, and for a config that lacks a needed field.
    """
    if isinstance(config, ModelConfig):
        if config.is_latent:
            return (LayerLayout(_latent_fields(config.kv_lora_rank, config.rope_dim)),) * config.num_layers
        return tuple(
            grouped_query_layer(config.num_kv_heads, config.head_dim, config.window(layer))
            for layer in range(config.num_layers)
        )
    raw = config_dict(config)
    nested = raw.get("text_config")
    inner = dict(nested) if isinstance(nested, Mapping) else raw
    model_type = inner.get("model_type") or raw.get("model_type")
    family = FAMILIES.get(model_type) if isinstance(model_type, str) else None
    if family is None:
        raise InputError(_unknown_type(model_type))
    given = {name: value for name, value in inner.items() if value is not None}
    return family.build(ConfigReader(family.defaults | given, model_type, family.needs))


CHUNKED = "chunked_attention"
_WINDOW_FIELD = {SLIDING: "sliding_window", CHUNKED: "attention_chunk_size"}


def _grouped(default_types: Callable[[ConfigReader], list[str]]) -> Callable[[ConfigReader], Layout]:
    """Builder for MHA, GQA and MQA. `default_types`: the layer types where the config lists none."""

    def build(config: ConfigReader) -> Layout:
        heads = config.number("num_key_value_heads", default=config.num_heads)
        layers = []
        for kind in config.layer_types() or default_types(config):
            if kind != FULL and kind not in _WINDOW_FIELD:
                raise InputError(
                    f"{config.model_type}: layer type {kind!r}: expected {FULL}, {SLIDING} or {CHUNKED}"
                )
            # Qwen configs carry a window that only this switch turns on.
            unused = kind == SLIDING and config.values.get("use_sliding_window") is False
            window = None if kind == FULL or unused else config.number(_WINDOW_FIELD[kind])
            layers.append(grouped_query_layer(heads, config.head_dim, window))
        return tuple(layers)

    return build


def _no_window(config: ConfigReader) -> list[str]:
    return [FULL] * config.num_layers


def _one_window(config: ConfigReader) -> list[str]:
    """Mistral, Mixtral, Phi-3: every layer slides when the config has a window."""
    return [SLIDING if config.values.get("sliding_window") else FULL] * config.num_layers


def _qwen(config: ConfigReader) -> list[str]:
    """Qwen2 and Qwen3: layers from `max_window_layers` on slide, if `use_sliding_window` says so."""
    if not config.values.get("use_sliding_window"):
        return _no_window(config)
    first = config.number("max_window_layers", least=0, default=0)
    return [SLIDING if layer >= first else FULL for layer in range(config.num_layers)]


def _qwen2_moe(config: ConfigReader) -> list[str]:
    """Qwen2-MoE as transformers runs it: every second of the first `max_window_layers` layers."""
    if not config.values.get("use_sliding_window"):
        return _no_window(config)
    last = config.number("max_window_layers")
    return [SLIDING if layer % 2 == 0 and layer < last else FULL for layer in range(config.num_layers)]


def _qwen3_moe(config: ConfigReader) -> list[str]:
    return [SLIDING if config.values.get("use_sliding_window") else FULL] * config.num_layers


def _every_second(config: ConfigReader) -> list[str]:
    """Gemma 2, gpt-oss: even layers slide."""
    return [FULL if layer % 2 else SLIDING for layer in range(config.num_layers)]


def _gemma3(config: ConfigReader) -> list[str]:
    period = config.number("sliding_window_pattern")
    return [SLIDING if (layer + 1) % period else FULL for layer in range(config.num_layers)]


def _llama4(config: ConfigReader) -> list[str]:
    """Llama 4: layers with RoPE are local to a chunk, the ones without (every fourth) see everything.

    A chunked layer never holds more than one chunk; it needs less just after a boundary.
    """
    if not config.values.get("attention_chunk_size"):
        return _no_window(config)
    interval = config.number("no_rope_layer_interval")
    rope = None  # an empty list means the default too
    if config.values.get("no_rope_layers") != []:
        rope = config.per_layer("no_rope_layers")
    if rope is None:
        rope = [(layer + 1) % interval != 0 for layer in range(config.num_layers)]
    return [CHUNKED if local else FULL for local in rope]


def _falcon(config: ConfigReader) -> Layout:
    if config.values.get("new_decoder_architecture"):
        heads = config.number("num_kv_heads", "n_head_kv", default=config.num_heads)
    else:
        heads = 1 if config.values["multi_query"] else config.num_heads
    return (grouped_query_layer(heads, config.head_dim),) * config.num_layers


def _latent_fields(rank: int, rope_dim: int) -> tuple[Field, Field]:
    return Field("latent", (rank,)), Field("rope", (rope_dim,))


def _latent(config: ConfigReader) -> Layout:
    """MLA: one latent and one rotary key for all heads (DeepSeek-V2, §2.1). With DSA an index key as well.

    GLM-5.2 lets layers whose `indexer_types` entry is "shared" reuse the previous selection: they store no
    index key.
    """
    fields = _latent_fields(config.number("kv_lora_rank"), config.number("qk_rope_head_dim"))
    if "index_head_dim" not in config.needs:
        return (LayerLayout(fields),) * config.num_layers
    index = Field("index", (config.number("index_head_dim"),))
    indexers = config.per_layer("indexer_types") or ["full"] * config.num_layers
    return tuple(LayerLayout(fields if kind == "shared" else (*fields, index)) for kind in indexers)


def _compress_rates(config: ConfigReader) -> dict[str, int]:
    """Tokens that one entry of a compressed layer stands for."""
    rates = config.values.get("compress_rates") or {}
    if not isinstance(rates, Mapping):
        raise InputError(f"deepseek_v4: compress_rates is {rates!r}: expected one number a layer type")
    reader = ConfigReader({CSA: 4, HCA: 128} | dict(rates), config.model_type, config.needs)
    return {kind: reader.number(kind) for kind in (CSA, HCA)}


def _deepseek_v4(config: ConfigReader) -> Layout:
    """DeepSeek-V4: one vector is key and value; each layer keeps a window of it and a compressed past.

    Compressed-sparse layers keep an entry and an index key per 4 tokens, heavily compressed ones an entry
    per 128. The tokens of an entry that is not complete yet are not counted.
    """
    types = config.layer_types()
    if types is None:
        ratios = config.per_layer("compress_ratios")
        if ratios is None:
            raise InputError(
                "the deepseek_v4 config lacks layer_types or compress_ratios with one entry a layer: "
                f"it needs {', '.join(config.needs)}"
            )
        types = [_V4_TYPES.get(ratio, ratio) for ratio in ratios]
    rates = _compress_rates(config)
    shape, index = (config.number("head_dim"),), (config.number("index_head_dim"),)
    recent = Field("kv", shape, window=config.number("sliding_window"))
    choices = {
        SLIDING: LayerLayout((recent,)),
        CSA: LayerLayout(
            (recent, Field("compressed", shape, stride=rates[CSA]), Field("index", index, stride=rates[CSA]))
        ),
        HCA: LayerLayout((recent, Field("compressed", shape, stride=rates[HCA]))),
    }
    unknown = sorted({str(kind) for kind in types} - set(choices))
    if unknown:
        raise InputError(f"deepseek_v4: layer type {unknown[0]}: expected one of {', '.join(choices)}")
    return tuple(choices[kind] for kind in types)


CSA, HCA = "compressed_sparse_attention", "heavily_compressed_attention"
_V4_TYPES = {0: SLIDING, 4: CSA, 128: HCA}


def _gated_delta(config: ConfigReader) -> Layout:
    """Qwen3-Next and Qwen3.5: most layers are linear attention with a state that never grows.

    The state is one fp32 matrix (key dim, value dim) per value head, and in bf16 the last inputs of a short
    convolution over queries, keys and values. It needs kernel − 1 of them; transformers keeps one more.
    """
    full = grouped_query_layer(config.number("num_key_value_heads"), config.head_dim)
    key_dim, value_dim = config.number("linear_key_head_dim"), config.number("linear_value_head_dim")
    key_heads, value_heads = config.number("linear_num_key_heads"), config.number("linear_num_value_heads")
    channels = 2 * key_heads * key_dim + value_heads * value_dim
    past = config.number("linear_conv_kernel_dim") - 1
    linear = LayerLayout((), state_bytes=value_heads * key_dim * value_dim * 4 + channels * past * 2)
    types = config.layer_types()
    if types is None:
        every = config.number("full_attention_interval")
        types = ["linear_attention" if (layer + 1) % every else FULL for layer in range(config.num_layers)]
    return tuple(full if kind == FULL else linear for kind in types)


@dataclass(frozen=True)
class _Family:
    build: Callable[[ConfigReader], Layout]
    needs: tuple[str, ...]
    defaults: dict[str, Any] = field(default_factory=dict)


_HEADS = (
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads (if fewer)",
    "head_dim or hidden_size",
)
_MLA = ("num_hidden_layers", "kv_lora_rank", "qk_rope_head_dim")
_LINEAR = (
    "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "linear_num_key_heads",
    "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim", "linear_conv_kernel_dim",
    "layer_types or full_attention_interval",
)  # fmt: skip
_GEMMA3 = {
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "sliding_window": 4096,
    "sliding_window_pattern": 6,
}  # fmt: skip
_QWEN_WINDOW = ("sliding_window and max_window_layers (if use_sliding_window)",)

FAMILIES: dict[str, _Family] = {
    "gpt2": _Family(_grouped(_no_window), _HEADS),
    "llama": _Family(_grouped(_no_window), _HEADS),
    "mistral": _Family(_grouped(_one_window), (*_HEADS, "sliding_window (if any)")),
    "mixtral": _Family(_grouped(_one_window), (*_HEADS, "sliding_window (if any)")),
    "phi3": _Family(_grouped(_one_window), (*_HEADS, "sliding_window (if any)")),
    "qwen2": _Family(_grouped(_qwen), _HEADS + _QWEN_WINDOW),
    "qwen2_moe": _Family(_grouped(_qwen2_moe), _HEADS + _QWEN_WINDOW),
    "qwen3": _Family(_grouped(_qwen), _HEADS + _QWEN_WINDOW),
    "qwen3_moe": _Family(_grouped(_qwen3_moe), (*_HEADS, "sliding_window (if use_sliding_window)")),
    "gemma2": _Family(_grouped(_every_second), (*_HEADS, "sliding_window")),
    "gemma3": _Family(_grouped(_gemma3), (*_HEADS, "sliding_window", "layer_types (if not 5 to 1)"), _GEMMA3),
    "gpt_oss": _Family(_grouped(_every_second), (*_HEADS, "sliding_window")),
    "llama4": _Family(
        _grouped(_llama4), (*_HEADS, "attention_chunk_size", "no_rope_layers"), {"no_rope_layer_interval": 4}
    ),
    "falcon": _Family(_falcon, (*_HEADS, "multi_query", "new_decoder_architecture"), {"multi_query": True}),
    "deepseek_v2": _Family(_latent, _MLA),
    "deepseek_v3": _Family(_latent, _MLA),
    "deepseek_v32": _Family(_latent, (*_MLA, "index_head_dim")),
    "glm_moe_dsa": _Family(_latent, (*_MLA, "index_head_dim")),
    "deepseek_v4": _Family(
        _deepseek_v4,
        (
            "num_hidden_layers",
            "head_dim",
            "index_head_dim",
            "sliding_window",
            "layer_types or compress_ratios",
        ),
    ),
    "qwen3_next": _Family(_gated_delta, _LINEAR),
    "qwen3_5": _Family(_gated_delta, _LINEAR),
    "qwen3_5_moe": _Family(_gated_delta, _LINEAR),
}
FAMILIES |= {f"{name}_text": FAMILIES[name] for name in ("gemma3", "llama4", "qwen3_5", "qwen3_5_moe")}


def _unknown_type(model_type: Any) -> str:
    return (
        f"model_type {model_type!r} is not known here (known: {', '.join(FAMILIES)}); describe the model as "
        'a dict of a known family with the same attention: {"model_type": "llama", "num_hidden_layers": 32, '
        '"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128} for keys and values per head, '
        'or {"model_type": "deepseek_v3", "num_hidden_layers": 61, "kv_lora_rank": 512, '
        '"qk_rope_head_dim": 64} for MLA'
    )
