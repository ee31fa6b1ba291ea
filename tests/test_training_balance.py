"""Balanced factors: the same function, and rows as large as what they are multiplied with."""

import pytest
import torch

import kvcourse as kv
from kvcourse.attention.convert import calibrate, to_latent
from kvcourse.errors import InputError
from kvcourse.training import balance


@pytest.fixture
def latent():
    model = kv.tiny_model(num_kv_heads=2, dtype=torch.float64, max_position_embeddings=32)
    ids = torch.randint(256, (2, 32), generator=torch.Generator().manual_seed(0))
    return to_latent(model, 12, 8, calibrate(model, ids))


def sizes(layer, config):
    """Root mean squares of each latent dimension's two factors, and of each rotary pair's."""
    attention, rank, nope = layer.self_attn, config.kv_lora_rank, config.qk_nope_head_dim
    down, up = attention.kv_a_proj_with_mqa.weight, attention.kv_b_proj.weight
    query = attention.q_proj.weight.view(config.num_heads, config.qk_head_dim, -1)[:, nope:]
    for i in range(rank):
        yield down[i].square().mean().sqrt(), up[:, i].square().mean().sqrt()
    half = config.rope_dim // 2
    for i in range(half):
        yield (
            down[[rank + i, rank + i + half]].square().mean().sqrt(),
            query[:, [i, i + half]].square().mean().sqrt(),
        )


def test_the_function_is_the_same_and_the_factors_are_even(latent):
    ids = torch.randint(256, (2, 20), generator=torch.Generator().manual_seed(1))
    before = latent(ids)
    uneven = [float(a / b) for layer in latent.layers for a, b in sizes(layer, latent.config)]
    assert max(uneven) > 1.5 * min(uneven)
    assert balance(latent) is latent
    torch.testing.assert_close(latent(ids), before, rtol=0, atol=1e-10)
    even = [float(a / b) for layer in latent.layers for a, b in sizes(layer, latent.config)]
    assert even == pytest.approx([1.0] * len(even), rel=1e-10)


def test_dimensions_without_energy_stay(latent):
    latent.layers[0].self_attn.kv_b_proj.weight[:, 3] = 0
    before = latent.layers[0].self_attn.kv_a_proj_with_mqa.weight[3].clone()
    balance(latent)
    assert torch.equal(latent.layers[0].self_attn.kv_a_proj_with_mqa.weight[3], before)
    assert latent(torch.arange(9)[None]).isfinite().all()


@pytest.mark.parametrize("config", [{}, {
    "num_kv_heads": 4, "kv_lora_rank": 6, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8,
}])  # fmt: skip
def test_models_whose_norms_or_heads_fix_the_scale_are_refused(config):
    with pytest.raises(InputError, match="to_latent"):
        balance(kv.tiny_model(**config))


@pytest.mark.parametrize("field", [{"q_lora_rank": 8}, {"rope_interleave": True}, {"attention_bias": True}])
def test_latents_of_another_kind_are_refused_and_unchanged(field):
    model = kv.tiny_model(kv_lora_rank=6, latent_norm=False, **field)
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    with pytest.raises(InputError, match=f"to_latent, without .*{next(iter(field))}"):
        balance(model)
    assert all(torch.equal(weight, before[name]) for name, weight in model.named_parameters())
