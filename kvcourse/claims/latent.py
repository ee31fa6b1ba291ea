"""Rows 13 and 14 of the ledger: what multi-head latent attention stores, computes and saves."""

from typing import Any

from kvcourse import memory
from kvcourse.attention.config_reader import config_dict
from kvcourse.claims.claim import Claim
from kvcourse.claims.recorded import from_scratch

HEAD_DIM = 128  # of a key without its rotary part, and of a value, in DeepSeek-V2 and V3

# DeepSeek LLM (arXiv 2401.02954), Table 2. Llama's layout.
DEEPSEEK_67B = {
    "model_type": "llama", "num_hidden_layers": 95, "num_attention_heads": 64, "num_key_value_heads": 8,
    "head_dim": HEAD_DIM,
}  # fmt: skip


def _stored_and_computed() -> dict[str, Any]:
    """Row 13: numbers that a layer of DeepSeek-V3 keeps per token, and the two forms on a small model."""
    v3 = config_dict("deepseek-v3")
    latent, rotary = v3["kv_lora_rank"], v3["qk_rope_head_dim"]
    # per head: a key of 128 numbers and the rotary ones, and a value
    rebuilt = v3["num_attention_heads"] * (HEAD_DIM + rotary + HEAD_DIM)
    difference, unrotated = _forms()
    return {
        "DeepSeek-V3, a layer and token: numbers of the latent": latent,
        "numbers of the rotary key, shared by all heads": rotary,
        "numbers of keys and values, if they were rebuilt": rebuilt,
        "rebuilt ÷ stored": round(rebuilt / (latent + rotary), 1),
        "decoding from the stored numbers equals rebuilding, to 1e-10 in float64": _yes(difference < 1e-10),
        "it still does when the rotary key is left out": _yes(unrotated < 1e-10),
    }


def _yes(holds: bool) -> str:
    return "yes" if holds else "no"


def _forms() -> tuple[float, float]:
    """How far logits of one-token steps over the cache lie from those of one pass that rebuilds keys and values.

    Largest absolute difference on a random model in float64: as it is, and when the steps lack the rotary key.
    """
    import torch

    from kvcourse.cache import KVCache
    from kvcourse.model import tiny_model

    model = tiny_model(
        num_kv_heads=4, vocab_size=64, dtype=torch.float64, kv_lora_rank=24, qk_nope_head_dim=16,
        qk_rope_head_dim=8, v_head_dim=12,
    )  # fmt: skip
    ids = torch.randint(64, (1, 24), generator=torch.Generator().manual_seed(0))
    expanded = model(ids)  # (1, 24, 64)

    def steps() -> torch.Tensor:
        cache = KVCache(model.config)
        return torch.cat([model(token, cache=cache) for token in ids.split(1, 1)], 1)

    difference = float((steps() - expanded).abs().max())
    for layer in model.layers:
        layer.self_attn.kv_a_proj_with_mqa.weight[model.config.kv_lora_rank :] = 0
    return difference, float((steps() - expanded).abs().max())


def _ratios() -> dict[str, Any]:
    """Row 14: bytes of MLA against what it replaced, of V4 against its predecessor; loss of small models."""
    v2 = config_dict("deepseek-v2")
    stored = v2["kv_lora_rank"] + v2["qk_rope_head_dim"]
    v2_bytes, v1_bytes = (memory.bytes_per_token(model) for model in (v2, DEEPSEEK_67B))
    v32, v4 = (memory.bytes_at(model, 2**20) for model in ("deepseek-v3.2", "deepseek-v4-pro"))
    return {
        "MLA: numbers a layer and token": stored,
        "the same as GQA with that many kv heads of 128": stored / (2 * HEAD_DIM),
        "MHA with V2's 128 heads ÷ MLA": round(2 * HEAD_DIM * v2["num_attention_heads"] / stored, 1),
        "GQA with 8 kv heads of 128 ÷ MLA": round(2 * HEAD_DIM * 8 / stored, 2),
        "DeepSeek-67B ÷ V2, both bf16": round(v1_bytes / v2_bytes, 2),
        "DeepSeek-67B, bf16 ÷ V2 in 6 bits": round(v1_bytes / (v2_bytes * 6 / 16), 1),
        "the same as a saving, %": round(100 * (1 - v2_bytes * 6 / 16 / v1_bytes), 1),
        "V3.2 (MLA) ÷ V4-Pro (no MLA), 2^20 tokens, bf16": round(v32 / v4, 1),
        **from_scratch("MLA, as GQA"),
    }


ROWS: tuple[Claim, ...] = (
    Claim(
        13,
        said="MLA stores a latent vector, and rebuilds keys and values from it at inference.",
        verdict="incomplete",
        finding="Next to the latent of 512 numbers it stores a rotary key of 64, and without that one the result is "
        "wrong. And decoding, unlike a prefill, rebuilds nothing: with the up-projections absorbed into query and "
        "output, attention over the stored numbers gives the same result as over keys and values that are 71.1 times "
        "as many.",
        source="DeepSeek-V2, arXiv 2405.04434, §2.1.2, §2.1.3 and appendix C; FlashMLA's README: decoding is MQA "
        "with keys of 576 and values of 512",
        status="source seen; both forms computed",
        measure=_stored_and_computed,
        command="kvcourse claims 13",
        chapter=3,
    ),
    Claim(
        14,
        said="MLA 2.0, in DeepSeek V4, compresses 8 to 10 times, loses less than 1 % and is 28 % faster.",
        verdict="MLA 2.0 does not exist",
        finding="DeepSeek-V4 has no MLA: it compresses tokens, and needs 8.7 times less than V3.2 at a million. We "
        "found no source for 1 % and 28 %. MLA itself stores as much as 2.25 kv heads: 56.9 times less than V2's "
        "own heads would take, and 5.63 times less than DeepSeek-67B with GQA; only with the 6 bits that V2 was "
        "served in is it 15.0 times, the 93.3 % of its report. There MLA does better than MHA. In our small models, "
        "trained for minutes, it does not: with the bytes of GQA its loss ends 4.3 % above.",
        source="DeepSeek-V2, arXiv 2405.04434, Table 1 and Table 9 (MMLU 59.0 with MLA, 57.5 with MHA, at 4 % of "
        "the cache); model card and vLLM's description of DeepSeek-V4",
        status="source seen; ratios computed, loss measured",
        measure=_ratios,
        command="kvcourse claims 14",
        chapter=3,
    ),
)
