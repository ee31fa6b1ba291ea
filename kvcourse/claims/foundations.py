"""Rows 1 to 5 of the ledger: how large the cache is, and what it saves."""

from typing import Any

from kvcourse import flops, memory
from kvcourse.attention.config_reader import config_dict
from kvcourse.claims.claim import Claim


def _biggest_user() -> dict[str, Any]:
    """Row 1: tokens at which the cache outgrows the weights."""
    return {
        "Llama-3-70B weights, bf16 bytes": memory.weight_size("llama-3-70b"),
        "bytes per token": memory.bytes_per_token("llama-3-70b"),
        "tokens at which the cache equals the weights": memory.crossover_tokens("llama-3-70b"),
        "the same for Llama-3-8B": memory.crossover_tokens("llama-3-8b"),
        "the same for Llama-2-13B (MHA)": memory.crossover_tokens("llama-2-13b"),
    }


def _half_million_tokens() -> dict[str, Any]:
    """Row 2: GiB of one request of 524,288 tokens in bf16."""
    models = ("llama-3-8b", "llama-3-70b", "qwen3-32b", "gemma-3-27b", "deepseek-v3", "deepseek-v4-pro")
    return {f"{name}, GiB": round(memory.bytes_at(name, 524_288) / 2**30, 1) for name in models}


def _recomputation() -> dict[str, Any]:
    """Row 3: how the operations of generating n tokens grow when n doubles, far from the start."""
    rows: dict[str, Any] = {}
    for cached, word in ((False, "no cache"), (True, "cache")):
        short, long = (flops.generation("smollm2-135m", n, cached=cached) for n in (1024, 2048))
        rows[f"{word}: attention, 2,048 tokens ÷ 1,024"] = round(long.attention / short.attention, 3)
        rows[f"{word}: projections, 2,048 tokens ÷ 1,024"] = round(long.linear / short.linear, 3)
        rows[f"{word}: all operations for 2,048 tokens"] = long.total
    return rows


def _llama_4_70b() -> dict[str, Any]:
    """Row 4: parameters of a Llama-3 model of width 8,192 with 32 and with 80 layers."""
    base = config_dict("llama-3-70b")
    return {
        f"hidden 8,192 and {layers} layers, parameters": memory.parameter_count(
            base | {"num_hidden_layers": layers}
        )
        for layers in (32, 80)
    }


def _four_times_context() -> dict[str, Any]:
    """Row 5: growth of the cache from 4,096 to 16,384 tokens."""
    models = ("llama-3-8b", "gemma-3-27b", "gpt-oss-120b", "mistral-7b-v0.1", "llama-4-scout", "qwen3.5-0.8b")
    return {
        f"{name}: 16K ÷ 4K": round(memory.bytes_at(name, 16_384) / memory.bytes_at(name, 4_096), 2)
        for name in models
    }


ROWS: tuple[Claim, ...] = (
    Claim(
        1,
        said="The KV cache is the biggest memory user in inference.",
        verdict="only under conditions",
        finding="Weights are constant and come first: Llama-3-70B in bf16 needs about 430,000 cached tokens, over "
        "all requests together, before the cache is as large.",
        source="vLLM, arXiv 2309.06180, Fig. 1: 13B on an A100-40GB, about 65 % weights and 30 % KV",
        status="source seen; crossover computed",
        measure=_biggest_user,
        command="kvcourse claims 1",
        chapter=0,
    ),
    Claim(
        2,
        said="A context of 512K tokens takes tens of gigabytes.",
        verdict="only under conditions",
        finding="At 524,288 tokens in bf16 six recent models need from 4.8 GiB (DeepSeek-V4-Pro) to 160 GiB "
        "(Llama-3-70B).",
        source="config files of the models",
        status="computed",
        measure=_half_million_tokens,
        command="kvcourse claims 2",
        chapter=0,
    ),
    Claim(
        3,
        said="Without a cache, recomputation costs O(n²); a cache solves it.",
        verdict="imprecise",
        finding="Over n generated tokens attention is O(n³) without a cache and O(n²) with one; projections are "
        "O(n²) and O(n). Per step it is O(t²) against O(t).",
        source="counted here: attention of step t computes t² scores without a cache, Σt² = n(n+1)(2n+1)/6",
        status="computed",
        measure=_recomputation,
        command="kvcourse claims 3",
        chapter=1,
    ),
    Claim(
        4,
        said="Llama 4 70B has 32 layers and a hidden size of 8192.",
        verdict="wrong, no such model",
        finding="Width 8,192 with 32 layers is a 29.5B model; 80 layers give 70.55B. Llama 4 is Scout "
        "(109B, 17B active) and Maverick (400B, 17B active).",
        source="torchtune's Llama 4 builders: 48 layers, 40 query and 8 kv heads, hidden 5,120",
        status="source seen; parameters computed",
        measure=_llama_4_70b,
        command="kvcourse claims 4",
        chapter=1,
    ),
    Claim(
        5,
        said="Four times the context takes four times the KV memory.",
        verdict="true only for full attention",
        finding="Gemma-3-27B grows 2.30 times from 4K to 16K, and a model whose layers all slide stops growing.",
        source="config files of the models (sliding, chunked and linear layers)",
        status="computed",
        measure=_four_times_context,
        command="kvcourse claims 5",
        chapter=1,
    ),
)
