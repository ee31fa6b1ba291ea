"""Grouped-query attention as MLA: exact at full size, the best approximation below, and the old model left alone."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import FEW, MANY, head_counts, seeds, splits
from tiny_models import VOCAB, gap, tokens

import kvcourse as kv
from kvcourse.attention.convert import calibrate, fewer_heads, more_heads, to_latent
from kvcourse.text import split_text

EXACT = 1e-10  # float64
FLOAT32_ANGLES = 1e-6  # rotary angles, and YaRN's factor on their cosines, are float32 whatever the model is
DIM, HIDDEN = 6, 24
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "attention_factor": 1.5}
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip


def tiny(num_heads=4, num_kv_heads=2, seed=0, **config):
    config = {"head_dim": DIM, "hidden_size": HIDDEN, "vocab_size": VOCAB} | config
    return kv.tiny_model(
        num_heads=num_heads, num_kv_heads=num_kv_heads, seed=seed, dtype=torch.float64, **config
    )


def calibrated(model, seed=0):
    return calibrate(model, tokens(3, 40, seed=seed))


def full_size(model):
    return model.config.num_kv_heads * model.config.head_dim


# ---- exact at full size ----------------------------------------------------------------------------


@FEW
@given(head_counts(), seeds(), st.sampled_from([None, YARN, LLAMA3]), st.booleans())
def test_full_size_is_the_same_function(heads, seed, scaling, out_bias):
    model = tiny(*heads, seed, rope_scaling=scaling, attention_out_bias=out_bias, rope_theta=100.0)
    latent = to_latent(model, full_size(model), full_size(model), calibrated(model))
    ids = tokens(2, 90, seed=seed)
    assert gap(latent(ids), model(ids)) <= (10 * FLOAT32_ANGLES if scaling is YARN else EXACT)


@FEW
@given(splits(17), seeds())
def test_full_size_decodes_the_same_with_a_cache(pieces, seed):
    model = tiny(seed=seed)
    latent = to_latent(model, 12, 12, calibrated(model))
    ids = tokens(2, 17, seed=seed)
    cache = kv.KVCache(latent.config, kv.Plan(), batch_size=2)
    got = torch.cat([latent(piece, cache=cache) for piece in ids.split(pieces, dim=1)], 1)
    assert gap(got, model(ids)) <= EXACT


def test_a_window_that_no_layer_has_is_dropped():
    model = tiny(sliding_window=4, layer_types=("full_attention",) * 2)
    latent = to_latent(model, full_size(model), full_size(model), calibrated(model))
    ids = tokens(1, 20)
    assert gap(latent(ids), model(ids)) <= EXACT


def test_copied_heads_need_no_more_than_the_heads_they_copy():
    """MHA whose kv heads are copies of two holds two heads' worth: 2 · 6 rotary numbers and 2 · 6 values."""
    model = tiny(8, 2)
    copied = more_heads(model, 8)
    ids = tokens(1, 60)
    assert gap(to_latent(copied, 12, 12, calibrated(copied))(ids), model(ids)) <= EXACT


def test_smaller_sizes_are_not_the_same_function():
    model = tiny()
    calibration, ids = calibrated(model), tokens(1, 60)
    for rank, rope_dim in ((11, 12), (14, 10)):  # one number too few; enough, but a pair without its rotation
        assert gap(to_latent(model, rank, rope_dim, calibration)(ids), model(ids)) > 1e-3


def test_pairs_that_hardly_turn_need_no_rotation():
    model = tiny(4, 2, rope_theta=1e30)  # frequencies 1, 1e-10, 1e-20
    calibration, ids = calibrated(model), tokens(1, 60)
    assert gap(to_latent(model, 20, 4, calibration)(ids), model(ids)) <= 1e-6
    assert gap(to_latent(model, 22, 2, calibration)(ids), model(ids)) > 1e-3


# ---- the new model ---------------------------------------------------------------------------------


@MANY
@given(head_counts(), st.data())
def test_what_it_stores_is_rank_and_rope_dim(heads, data):
    model = tiny(*heads, num_layers=1)
    widest = full_size(model)
    rope_dim = 2 * data.draw(st.integers(1, widest // 2))
    rank = data.draw(st.integers(1, 2 * widest - rope_dim))
    latent = to_latent(model, rank, rope_dim, calibrate(model, tokens(1, 30)))
    assert kv.memory.bytes_per_token(latent.config, dtype="fp64") == (rank + rope_dim) * 8
    assert latent(tokens(1, 9)).isfinite().all()


@pytest.mark.parametrize("tied", [False, True])
def test_the_new_model_shares_no_memory_with_the_old_one(tied):
    model = tiny(tie_word_embeddings=tied)
    model.tokenizer = object()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    latent = to_latent(model, 8, 4, calibrated(model))
    assert (type(latent), latent.tokenizer, latent.dtype) == (type(model), model.tokenizer, model.dtype)
    assert not latent.training
    assert not any(parameter.requires_grad for parameter in latent.parameters())
    for parameter in latent.parameters():
        parameter.add_(1)
    assert (latent.lm_head.weight is latent.embed_tokens.weight) == tied
    assert all(tensor.equal(before[name]) for name, tensor in model.state_dict().items())
    assert not any(layer.self_attn._forward_pre_hooks for layer in model.layers)


def test_the_same_calibration_gives_the_same_model():
    model = tiny()
    one, two = (to_latent(model, 8, 4, calibrated(model)).state_dict() for _ in range(2))
    assert all(one[name].equal(two[name]) for name in one)


# ---- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rank", "rope_dim", "says"),
    [
        (0, 4, "rank=0"),
        (21, 4, "rank=21: .*at most 20"),
        (2.5, 4, "rank=2.5"),
        (8, 0, "rope_dim=0"),
        (8, 3, "rope_dim=3 is odd"),
        (8, 14, "rope_dim=14: .*at most 12"),
    ],
)
def test_sizes_out_of_range_are_refused(rank, rope_dim, says):
    model = tiny()
    with pytest.raises(kv.InputError, match=says):
        to_latent(model, rank, rope_dim, calibrated(model))


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"qk_norm": True}, "qk_norm.*no linear map"),
        ({"attention_bias": True}, "attention_bias"),
        ({"sliding_window": 4}, "sliding windows"),
        ({"kv_lora_rank": 8}, "already"),
    ],
)
def test_models_that_cannot_become_mla_are_refused(config, says):
    model = tiny(**config)
    with pytest.raises(kv.InputError, match=says):
        calibrate(model, tokens(1, 9))
    with pytest.raises(kv.InputError, match=says):
        to_latent(model, 8, 4, calibrated(tiny()))


def test_calibrations_of_other_models_are_refused():
    with pytest.raises(kv.InputError, match="another shape"):
        to_latent(tiny(), 8, 4, calibrated(tiny(num_layers=1)))
    with pytest.raises(kv.InputError, match="is a Tensor: expected what calibrate"):
        to_latent(tiny(), 8, 4, tokens(1, 5))


@pytest.mark.parametrize(
    "ids", [torch.tensor([[VOCAB]]), torch.zeros(1, 0, dtype=torch.long), [[1, 2]], tokens(5)]
)
def test_calibration_texts_that_the_model_refuses(ids):
    model = tiny()
    with pytest.raises(kv.InputError):
        calibrate(model, ids)
    assert not any(layer.self_attn._forward_pre_hooks for layer in model.layers)


# ---- the real model --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def smollm2():
    return kv.load_model("smollm2-135m", dtype=torch.float32)[0]


@pytest.fixture(scope="module")
def texts(smollm2):
    """Token ids of two texts without a common topic: (1, 512) to calibrate on, (1, 512) to measure on."""
    parts = split_text()
    return [
        torch.tensor([smollm2.tokenizer.encode(text[:8000], add_special_tokens=False)[:512]])
        for text in (parts.train, parts.held_out)
    ]


@pytest.fixture(scope="module")
def calibration(smollm2, texts):
    return calibrate(smollm2, texts[0])


def nats(model, ids):
    """Mean cross entropy per token after the first 64."""
    logp = model(ids)[0, 63:-1].double().log_softmax(-1)
    return -float(logp.gather(-1, ids[0, 64:, None]).mean())


@pytest.mark.model
def test_the_real_model_at_full_size(smollm2, texts, calibration):
    latent, ids = to_latent(smollm2, 192, 192, calibration), texts[1][:, :256]
    expected = smollm2(ids)
    assert gap(latent(ids), expected) <= 1e-3
    cache = kv.KVCache(latent.config, kv.Plan(), batch_size=1)
    assert (
        gap(torch.cat([latent(piece, cache=cache) for piece in ids.split([243, 1, 1, 11], 1)], 1), expected)
        <= 1e-3
    )


@pytest.mark.model
def test_the_real_model_at_a_third_of_the_bytes(smollm2, texts, calibration):
    """Untrained, MLA stays readable where MQA of the same bytes is lost."""
    before = nats(smollm2, texts[1])
    latent, pooled = to_latent(smollm2, 80, 48, calibration), fewer_heads(smollm2, 1)
    assert kv.memory.bytes_per_token(latent.config) == kv.memory.bytes_per_token(pooled.config)
    assert before < nats(latent, texts[1]) < before + 1 < nats(pooled, texts[1])
