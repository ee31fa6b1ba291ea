"""One model with several kinds of attention, to time them side by side."""

from dataclasses import replace
from typing import Any

import torch

from kvcourse.attention.convert import fewer_heads, more_heads, rebuild
from kvcourse.bench.cache import kv_bytes, weight_bytes
from kvcourse.config import SLIDING
from kvcourse.model import Decoder

MHA, GQA, MQA, MLA = "MHA", "GQA", "MQA", "MLA"


def versions_of(model: Decoder) -> dict[str, Decoder]:
    """MHA, GQA (where the model has fewer kv heads than heads, but more than one), MQA and MLA.

    Each has its own copy of the weights, so that none finds in the processor's cache what another one just read.

    MLA stores 3 · head_dim numbers a token and layer, half of what 3 kv heads do: a latent of 2 · head_dim and a rope
    key of head_dim. It is left out for models with sliding windows or norms on queries and keys.
    """
    config = model.config
    models = {MHA: more_heads(model, config.num_heads)}
    if 1 < config.num_kv_heads < config.num_heads:
        models[GQA] = more_heads(model, config.num_kv_heads)
    models[MQA] = fewer_heads(model, 1)
    if not config.qk_norm and SLIDING not in config.layer_types:
        models[MLA] = _as_latent(model)
    return models


def _as_latent(model: Decoder) -> Decoder:
    """The model with random projections of MLA in the place of its own."""
    dim, heads = model.config.head_dim, model.config.num_heads
    config = replace(
        model.config, num_kv_heads=heads, kv_lora_rank=2 * dim, qk_nope_head_dim=dim, qk_rope_head_dim=dim,
        v_head_dim=dim, rope_scaling=None, sliding_window=None, attention_bias=False, latent_norm=False,
    )  # fmt: skip
    with torch.device("meta"):
        shapes = {name: tensor.shape for name, tensor in type(model)(config).state_dict().items()}
    state, generator = model.state_dict(), torch.Generator().manual_seed(0)
    for name in [name for name in state if name not in shapes or state[name].shape != shapes[name]]:
        del state[name]
    for name in [name for name in shapes if name not in state]:
        values = torch.randn(shapes[name], generator=generator) * shapes[name][-1] ** -0.5
        state[name] = values.to(model.device, model.dtype)
    return rebuild(model, config, state)


def describe(name: str, model: Decoder) -> dict[str, Any]:
    """What a version stores, for a report."""
    config = model.config
    return {
        "name": name,
        "num_kv_heads": None if config.is_latent else config.num_kv_heads,
        "kv_lora_rank": config.kv_lora_rank,
        "qk_rope_head_dim": config.qk_rope_head_dim,
        "kv_bytes_per_token": kv_bytes(model, 1, 1),
        "weight_bytes": weight_bytes(model),
    }
