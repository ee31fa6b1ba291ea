"""Published models by name: the config fields that decide what a token costs and count the parameters.

Fields are as in the `config.json` of the repository named under `hub`, reduced to what `layout_of` and
`memory.parameter_count` read.
"""

import difflib
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class KnownModel:
    """title: the name to print. hub: the repository whose config.json the fields come from."""

    title: str
    hub: str
    config: dict[str, Any]
    note: str = ""


def _dense(model_type, vocab, hidden, mlp, layers, heads, kv_heads, head_dim=None, tied=False, **more):
    """Config of a dense decoder with grouped-query attention, as its config.json spells it."""
    return {
        "model_type": model_type, "vocab_size": vocab, "hidden_size": hidden, "intermediate_size": mlp,
        "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
        "head_dim": head_dim or hidden // heads, "tie_word_embeddings": tied, **more,
    }  # fmt: skip


def _heads(model_type, layers, heads, kv_heads, head_dim, **more):
    """Config of a model whose parameters `parameter_count` does not count (experts, other norms)."""
    return {
        "model_type": model_type, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "head_dim": head_dim, **more,
    }  # fmt: skip


def _latent(model_type, layers, heads, **more):
    return {
        "model_type": model_type, "num_hidden_layers": layers, "num_attention_heads": heads,
        "kv_lora_rank": 512, "qk_rope_head_dim": 64, **more,
    }  # fmt: skip


def _deepseek(model_type, layers, heads, **more):
    return _latent(model_type, layers, heads, qk_nope_head_dim=128, v_head_dim=128, **more)


# What else decides the parameters of these three.
_V2 = {
    "vocab_size": 102_400, "hidden_size": 5120, "intermediate_size": 12_288, "q_lora_rank": 1536,
    "moe_intermediate_size": 1536, "n_routed_experts": 160, "n_shared_experts": 2, "num_experts_per_tok": 6,
    "first_k_dense_replace": 1, "n_group": 8, "topk_group": 3, "topk_method": "group_limited_greedy",
}  # fmt: skip
_V2_LITE = {
    "vocab_size": 102_400, "hidden_size": 2048, "intermediate_size": 10_944, "q_lora_rank": None,
    "moe_intermediate_size": 1408, "n_routed_experts": 64, "n_shared_experts": 2, "num_experts_per_tok": 6,
    "first_k_dense_replace": 1, "topk_method": "greedy",
}  # fmt: skip
_V3 = {
    "vocab_size": 129_280, "hidden_size": 7168, "intermediate_size": 18_432, "q_lora_rank": 1536,
    "moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8,
    "first_k_dense_replace": 3, "n_group": 8, "topk_group": 4,
}  # fmt: skip


def _v4(layers, heads, ratios):
    return {
        "model_type": "deepseek_v4", "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": 1, "head_dim": 512, "index_head_dim": 128, "sliding_window": 128,
        "compress_ratios": ratios,
    }  # fmt: skip


_LLAMA_3_8B = _dense("llama", 128256, 4096, 14336, 32, 32, 8)
_LLAMA_3_70B = _dense("llama", 128256, 8192, 28672, 80, 64, 8)
_QWEN3_5_08B = {
    "full_attention_interval": 4, "linear_num_key_heads": 16, "linear_num_value_heads": 16,
    "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
}  # fmt: skip
_FALCON_OLD = {
    "model_type": "falcon",
    "hidden_size": 4544,
    "num_hidden_layers": 32,
    "num_attention_heads": 71,
}
_FALCON_NEW = {
    "model_type": "falcon",
    "hidden_size": 8192,
    "num_hidden_layers": 60,
    "num_attention_heads": 128,
}

KNOWN: dict[str, KnownModel] = {
    "gpt2": KnownModel(
        "GPT-2 124M",
        "openai-community/gpt2",
        {"model_type": "gpt2", "n_layer": 12, "n_head": 12, "n_embd": 768},
    ),
    "smollm2-135m": KnownModel(
        "SmolLM2-135M", "HuggingFaceTB/SmolLM2-135M", _dense("llama", 49152, 576, 1536, 30, 9, 3, tied=True)
    ),
    "smollm2-360m": KnownModel(
        "SmolLM2-360M", "HuggingFaceTB/SmolLM2-360M", _dense("llama", 49152, 960, 2560, 32, 15, 5, tied=True)
    ),
    "falcon-7b": KnownModel(
        "Falcon-7B", "tiiuae/falcon-7b", _FALCON_OLD | {"multi_query": True}, "MQA: one kv head for 71"
    ),
    "falcon-40b": KnownModel(
        "Falcon-40B", "tiiuae/falcon-40b", _FALCON_NEW | {"num_kv_heads": 8, "new_decoder_architecture": True}
    ),
    "llama-2-7b": KnownModel(
        "Llama-2-7B", "meta-llama/Llama-2-7b-hf", _dense("llama", 32000, 4096, 11008, 32, 32, 32), "MHA"
    ),
    "llama-2-13b": KnownModel(
        "Llama-2-13B", "meta-llama/Llama-2-13b-hf", _dense("llama", 32000, 5120, 13824, 40, 40, 40), "MHA"
    ),
    "llama-2-70b": KnownModel(
        "Llama-2-70B", "meta-llama/Llama-2-70b-hf", _dense("llama", 32000, 8192, 28672, 80, 64, 8)
    ),
    "llama-3-8b": KnownModel("Llama-3-8B", "meta-llama/Meta-Llama-3-8B", _LLAMA_3_8B),
    "llama-3.1-8b": KnownModel("Llama-3.1-8B", "meta-llama/Llama-3.1-8B", _LLAMA_3_8B),
    "llama-3-70b": KnownModel("Llama-3-70B", "meta-llama/Meta-Llama-3-70B", _LLAMA_3_70B),
    "llama-3.1-405b": KnownModel(
        "Llama-3.1-405B", "meta-llama/Llama-3.1-405B", _dense("llama", 128256, 16384, 53248, 126, 128, 8)
    ),
    "llama-3.2-3b": KnownModel(
        "Llama-3.2-3B", "meta-llama/Llama-3.2-3B", _dense("llama", 128256, 3072, 8192, 28, 24, 8, tied=True)
    ),
    "llama-4-scout": KnownModel(
        "Llama-4-Scout (109B-A17B)",
        "meta-llama/Llama-4-Scout-17B-16E",
        _heads("llama4_text", 48, 40, 8, 128, attention_chunk_size=8192),
        "36 of 48 layers are local to a chunk",
    ),
    "qwen2.5-0.5b": KnownModel(
        "Qwen2.5-0.5B", "Qwen/Qwen2.5-0.5B", _dense("qwen2", 151936, 896, 4864, 24, 14, 2, tied=True)
    ),
    "qwen2.5-72b": KnownModel(
        "Qwen2.5-72B", "Qwen/Qwen2.5-72B", _dense("qwen2", 152064, 8192, 29568, 80, 64, 8)
    ),
    "qwen3-0.6b": KnownModel(
        "Qwen3-0.6B",
        "Qwen/Qwen3-0.6B",
        _dense("qwen3", 151936, 1024, 3072, 28, 16, 8, head_dim=128, tied=True),
    ),
    "qwen3-32b": KnownModel(
        "Qwen3-32B", "Qwen/Qwen3-32B", _dense("qwen3", 151936, 5120, 25600, 64, 64, 8, head_dim=128)
    ),
    "qwen3.5-0.8b": KnownModel(
        "Qwen3.5-0.8B",
        "Qwen/Qwen3.5-0.8B",
        _heads("qwen3_5_text", 24, 8, 2, 256, **_QWEN3_5_08B),
        "18 of 24 layers are linear attention with a fixed state",
    ),
    "mistral-7b-v0.1": KnownModel(
        "Mistral-7B-v0.1",
        "mistralai/Mistral-7B-v0.1",
        _dense("mistral", 32000, 4096, 14336, 32, 32, 8, sliding_window=4096),
        "every layer slides",
    ),
    "mistral-7b-v0.3": KnownModel(
        "Mistral-7B-v0.3", "mistralai/Mistral-7B-v0.3", _dense("mistral", 32768, 4096, 14336, 32, 32, 8)
    ),
    "gemma-2-27b": KnownModel(
        "Gemma-2-27B", "google/gemma-2-27b", _heads("gemma2", 46, 32, 16, 128, sliding_window=4096)
    ),
    "gemma-3-4b": KnownModel(
        "Gemma-3-4B", "google/gemma-3-4b-pt", _heads("gemma3_text", 34, 8, 4, 256, sliding_window=1024)
    ),
    "gemma-3-12b": KnownModel(
        "Gemma-3-12B", "google/gemma-3-12b-pt", _heads("gemma3_text", 48, 16, 8, 256, sliding_window=1024)
    ),
    "gemma-3-27b": KnownModel(
        "Gemma-3-27B", "google/gemma-3-27b-pt", _heads("gemma3_text", 62, 32, 16, 128, sliding_window=1024)
    ),
    "gpt-oss-120b": KnownModel(
        "gpt-oss-120b", "openai/gpt-oss-120b", _heads("gpt_oss", 36, 64, 8, 64, sliding_window=128)
    ),
    "deepseek-v2": KnownModel(
        "DeepSeek-V2", "deepseek-ai/DeepSeek-V2", _deepseek("deepseek_v2", 60, 128, **_V2), "MLA"
    ),
    "deepseek-v2-lite": KnownModel(
        "DeepSeek-V2-Lite",
        "deepseek-ai/DeepSeek-V2-Lite",
        _deepseek("deepseek_v2", 27, 16, **_V2_LITE),
        "MLA",
    ),
    "deepseek-v3": KnownModel(
        "DeepSeek-V3 / R1 / V3.1", "deepseek-ai/DeepSeek-V3", _deepseek("deepseek_v3", 61, 128, **_V3), "MLA"
    ),
    "deepseek-v3.2": KnownModel(
        "DeepSeek-V3.2",
        "deepseek-ai/DeepSeek-V3.2",
        _deepseek("deepseek_v32", 61, 128, index_head_dim=128),
        "MLA with an index key per token (DSA)",
    ),
    "glm-5": KnownModel(
        "GLM-5",
        "zai-org/GLM-5",
        _latent("glm_moe_dsa", 78, 64, index_head_dim=128),
        "MLA with an index key (DSA)",
    ),
    "deepseek-v4-pro": KnownModel(
        "DeepSeek-V4-Pro",
        "deepseek-ai/DeepSeek-V4-Pro",
        _v4(61, 128, [128, *[128, 4] * 30]),
        "30 compressed-sparse and 31 heavily compressed layers",
    ),
    "deepseek-v4-flash": KnownModel(
        "DeepSeek-V4-Flash",
        "deepseek-ai/DeepSeek-V4-Flash",
        _v4(43, 64, [0, 0, *[4, 128] * 20, 4]),
        "21 compressed-sparse, 20 heavily compressed and 2 sliding layers",
    ),
}


def unknown_name(name: str) -> str:
    """One line that says what `name` was mistaken for and what else would do."""
    close = difflib.get_close_matches(name.lower(), KNOWN, n=3, cutoff=0.5)
    hint = f"did you mean {', '.join(close)}? " if close else ""
    return (
        f"no built-in model {name!r}: {hint}See kvcourse memory --list, "
        "or give a path to a config.json, a dict, or a hub name (org/model)"
    )
