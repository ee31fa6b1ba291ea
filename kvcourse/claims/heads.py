"""Rows 6, 8, 9 and 12 of the ledger: how many heads store keys and values. Exact arithmetic."""

from typing import Any

from kvcourse import memory
from kvcourse.attention.config_reader import config_dict
from kvcourse.attention.families import layout_of
from kvcourse.claims.claim import Claim

# config.json of tiiuae/falcon-180B.
FALCON_180B = {
    "model_type": "falcon", "hidden_size": 14848, "num_hidden_layers": 80, "num_attention_heads": 232,
    "num_kv_heads": 8, "new_decoder_architecture": True,
}  # fmt: skip


def _one_kv_head() -> dict[str, Any]:
    """Row 6: the cache of Falcon-7B with a kv head for each query head, ÷ its own, also with other depths."""
    falcon = config_dict("falcon-7b")
    rows: dict[str, Any] = {
        "Falcon-7B: layers": falcon["num_hidden_layers"],
        "query heads": falcon["num_attention_heads"],
        "kv heads": _kv_heads(falcon),
    }
    for layers in (8, falcon["num_hidden_layers"], 128):
        own = falcon | {"num_hidden_layers": layers}
        ratio = memory.bytes_per_token(own | {"multi_query": False}) / memory.bytes_per_token(own)
        rows[f"MHA ÷ MQA with {layers} layers"] = ratio
    return rows


def _falcons() -> dict[str, Any]:
    """Row 8: query and kv heads of the Falcon models."""
    rows = {}
    for name, model in (("7B", "falcon-7b"), ("40B", "falcon-40b"), ("180B", FALCON_180B)):
        rows[f"Falcon-{name}: query heads"] = config_dict(model)["num_attention_heads"]
        rows[f"Falcon-{name}: kv heads"] = _kv_heads(model)
    return rows


def _eight_groups() -> dict[str, Any]:
    """Row 9: query heads ÷ kv heads, by which GQA shrinks the cache."""
    models = {"Llama-3-8B": "llama-3-8b", "Llama-3-70B": "llama-3-70b", "Llama 4 Scout": "llama-4-scout"}
    rows: dict[str, Any] = {}
    for title, name in models.items():
        heads, kv_heads = config_dict(name)["num_attention_heads"], _kv_heads(name)
        rows[f"{title}: {heads} query heads ÷ {kv_heads} kv heads"] = heads / kv_heads
    return rows


def _representatives() -> dict[str, Any]:
    """Row 12: what the layers of Llama 4 Scout and Qwen3.5-0.8B keep."""
    scout, qwen = layout_of("llama-4-scout"), layout_of("qwen3.5-0.8b")
    return {
        "Llama 4 Scout: layers": len(scout),
        "its layers with GQA": sum(bool(layer.fields) for layer in scout),
        "of these, layers that see one chunk only": sum(
            layer.fields[0].window is not None for layer in scout
        ),
        "Qwen3.5-0.8B: layers": len(qwen),
        "its layers with keys and values (GQA)": sum(bool(layer.fields) for layer in qwen),
        "its layers with a state of fixed size": sum(not layer.fields for layer in qwen),
        "kv heads of the GQA layers": next(layer.fields[0].shape[0] for layer in qwen if layer.fields),
    }


def _kv_heads(model: Any) -> int:
    return layout_of(model)[0].fields[0].shape[0]


ROWS: tuple[Claim, ...] = (
    Claim(
        6,
        said="MQA shrinks the cache to one part in the number of heads: 32 layers, so 32 times.",
        verdict="wrong, heads and layers are mixed up",
        finding="The ratio is query heads ÷ kv heads, whatever the number of layers. Falcon-7B has 32 layers and 71 "
        "query heads: its single kv head makes the cache 71 times smaller.",
        source="config.json of tiiuae/falcon-7b; Shazeer 2019, arXiv 1911.02150",
        status="source seen; computed",
        measure=_one_kv_head,
        command="kvcourse claims 6",
        chapter=2,
    ),
    Claim(
        8,
        said="Models with MQA are PaaS-BloonV3 and Falcon.",
        verdict="one does not exist, the other in one size",
        finding="We found no trace of a PaaS-BloonV3. Falcon-7B has 1 kv head, which is MQA; Falcon-40B and "
        "Falcon-180B have 8, which is GQA.",
        source="config.json of tiiuae/falcon-7b, falcon-40b and falcon-180B",
        status="source seen; computed",
        measure=_falcons,
        command="kvcourse claims 8",
        chapter=2,
    ),
    Claim(
        9,
        said="GQA with 8 groups makes the cache of Llama 4 70B, with 32 heads, 4 times smaller.",
        verdict="right for 32 heads, wrong for Llama 4",
        finding="32 query heads over 8 kv heads store a quarter: 4.0 times less, as in Llama-3-8B. Llama 4 has 40 "
        "query heads over 8, which is 5.0; a Llama 4 of 70B does not exist (row 4).",
        source="GQA, arXiv 2305.13245, §2.2; config files of the models",
        status="source seen; computed",
        measure=_eight_groups,
        command="kvcourse claims 9",
        chapter=2,
    ),
    Claim(
        12,
        said="Llama 4 and Qwen3.5 are the representatives of GQA.",
        verdict="half right",
        finding="All 48 layers of Llama 4 Scout have GQA, though 36 see one chunk of the text only. Qwen3.5-0.8B has "
        "it in 6 of 24 layers; the other 18 are linear attention with a state of fixed size.",
        source="config files of the models",
        status="source seen; computed",
        measure=_representatives,
        command="kvcourse claims 12",
        chapter=2,
    ),
)
