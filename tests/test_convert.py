"""Fewer and more kv heads: pooled by hand, copied exactly, and the old model left alone."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import CACHE_VARIANTS, FEW, MANY, head_counts, seeds
from tiny_models import VOCAB, gap, tokens

import kvcourse as kv
from kvcourse.attention.convert import METHODS, calibrate, fewer_heads, more_heads, to_latent
from kvcourse.errors import InputError

EXACT = 1e-12  # float64: the same products in another order
HEADS = sorted(name for name in CACHE_VARIANTS if "kv_lora_rank" not in CACHE_VARIANTS[name])


def tiny(num_heads, num_kv_heads, seed=0, **config):
    return kv.tiny_model(
        num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=6, vocab_size=VOCAB, seed=seed,
        dtype=torch.float64, **config,
    )  # fmt: skip


def divisors(number):
    return [n for n in range(1, number + 1) if number % n == 0]


def heads_of(projection, head_dim=6):
    """(heads, head_dim, hidden)"""
    return projection.weight.unflatten(0, (-1, head_dim))


# ---- more heads ------------------------------------------------------------------------------------


@MANY
@given(head_counts(), st.booleans(), st.booleans(), seeds())
def test_copied_heads_are_the_same_function_for_every_divisor(heads, bias, qk_norm, seed):
    num_heads, num_kv_heads = heads
    model = tiny(num_heads, num_kv_heads, seed, attention_bias=bias, qk_norm=qk_norm)
    ids = tokens(2, 9, seed=seed)
    expected = model(ids)
    for copies in divisors(num_heads // num_kv_heads):
        larger = more_heads(model, num_kv_heads * copies)
        assert larger.config.num_kv_heads == num_kv_heads * copies
        assert gap(larger(ids), expected) <= EXACT


@pytest.mark.parametrize("variant", HEADS)
def test_copied_heads_decode_the_same_with_a_cache(variant):
    model = kv.tiny_model(vocab_size=VOCAB, dtype=torch.float64, **CACHE_VARIANTS[variant])
    larger = more_heads(model, model.config.num_heads)
    ids = tokens(1, 13)
    expected = model(ids)
    cache = kv.KVCache(larger.config, kv.Plan(), batch_size=1)
    got = torch.cat([larger(piece, cache=cache) for piece in ids.split([6, 1, 1, 5], dim=1)], 1)
    assert gap(got, expected) <= EXACT


def test_four_heads_read_the_kv_heads_0_0_1_1():
    model = tiny(4, 2)
    attention, copied = model.layers[0].self_attn, more_heads(model, 4).layers[0].self_attn
    for name in ("k_proj", "v_proj"):
        old, new = heads_of(getattr(attention, name)), heads_of(getattr(copied, name))
        assert new.equal(torch.stack([old[0], old[0], old[1], old[1]]))


# ---- fewer heads -----------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_pooling_undoes_copying(method):
    """The mean of equal heads is that head, and so is the first of them; random ones are not."""
    model = tiny(12, 2, attention_bias=True)
    ids = tokens(1, 11)
    difference = gap(fewer_heads(more_heads(model, 12), 2, method)(ids), model(ids))
    assert (difference <= EXACT) == (method != "random")


def test_means_by_hand():
    model = tiny(4, 4, attention_bias=True)
    pooled = fewer_heads(model, 2)
    for old, new in zip(model.layers, pooled.layers, strict=True):
        for name in ("k_proj", "v_proj"):
            weights, biases = (
                heads_of(getattr(old.self_attn, name)),
                getattr(old.self_attn, name).bias.view(4, 6),
            )
            assert gap(heads_of(getattr(new.self_attn, name))[0], (weights[0] + weights[1]) / 2) <= EXACT
            assert gap(heads_of(getattr(new.self_attn, name))[1], (weights[2] + weights[3]) / 2) <= EXACT
            assert gap(getattr(new.self_attn, name).bias.view(2, 6)[1], (biases[2] + biases[3]) / 2) <= EXACT


def test_the_first_head_of_each_group_by_hand():
    model = tiny(6, 6)
    new, old = fewer_heads(model, 2, "first").layers[1].self_attn, model.layers[1].self_attn
    assert heads_of(new.v_proj).equal(heads_of(old.v_proj)[[0, 3]])
    assert heads_of(new.k_proj).equal(heads_of(old.k_proj)[[0, 3]])


def test_random_heads_follow_the_seed_and_the_spread_of_the_old_ones():
    model = kv.tiny_model(num_heads=8, num_kv_heads=8, head_dim=16, attention_bias=True)
    one, same, other = (
        fewer_heads(model, 4, "random", seed=seed).layers[0].self_attn.k_proj for seed in (1, 1, 2)
    )
    assert one.weight.equal(same.weight)
    assert not torch.isclose(one.weight, other.weight).any(1).all()
    assert math.isclose(one.weight.std(), model.layers[0].self_attn.k_proj.weight.std(), rel_tol=0.05)
    assert not one.bias.any()


@FEW
@given(head_counts(), st.sampled_from(METHODS), st.data())
def test_pooled_models_run_and_store_less(heads, method, data):
    num_heads, num_kv_heads = heads
    model = tiny(num_heads, num_kv_heads)
    fewer = data.draw(st.sampled_from(divisors(num_kv_heads)))
    pooled = fewer_heads(model, fewer, method)
    assert pooled(tokens(1, 5)).isfinite().all()
    ratio = kv.memory.bytes_per_token(model.config) / kv.memory.bytes_per_token(pooled.config)
    assert ratio == num_kv_heads / fewer


def test_queries_and_everything_else_stay():
    model = tiny(4, 2)
    changed = [
        name for name, tensor in fewer_heads(model, 1).state_dict().items()
        if not tensor.equal(model.state_dict()[name])
    ]  # fmt: skip
    assert {name.split(".", 2)[2] for name in changed} == {
        "self_attn.k_proj.weight",
        "self_attn.v_proj.weight",
    }
    assert len(changed) == 2 * model.config.num_layers


# ---- both ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("convert", [lambda m: fewer_heads(m, 1), lambda m: more_heads(m, 4)])
def test_the_new_model_shares_no_memory_with_the_old_one(convert, tied):
    model = tiny(4, 2, tie_word_embeddings=tied)
    model.tokenizer = object()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    new = convert(model)
    assert (type(new), new.tokenizer, new.dtype) == (type(model), model.tokenizer, model.dtype)
    assert not new.training
    assert not any(parameter.requires_grad for parameter in new.parameters())
    for parameter in new.parameters():
        parameter.add_(1)
    assert (new.lm_head.weight is new.embed_tokens.weight) == tied
    assert all(tensor.equal(before[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda m: fewer_heads(m, 3), r"num_kv_heads=3: .*has 4.*expected one of 1, 2, 4"),
        (lambda m: fewer_heads(m, 5), "num_kv_heads=5"),
        (lambda m: fewer_heads(m, 0), "num_kv_heads=0"),
        (lambda m: fewer_heads(m, 2, "median"), "'median'.*mean, first, random"),
        (lambda m: fewer_heads(m, 2, "random", seed=-1), "seed=-1"),
        (lambda m: more_heads(m, 6), r"num_kv_heads=6: .*one of 4, 8"),
        (lambda m: more_heads(m, 2), "num_kv_heads=2"),
        (lambda m: more_heads(m, 16), "num_kv_heads=16"),
        (lambda m: more_heads(m, True), "num_kv_heads=True"),
    ],
)
def test_wrong_numbers_are_refused(call, says):
    with pytest.raises(kv.InputError, match=says):
        call(tiny(8, 4))


@pytest.mark.parametrize("convert", [fewer_heads, more_heads])
def test_latent_models_have_no_heads_to_convert(convert):
    model = kv.tiny_model(kv_lora_rank=8)
    with pytest.raises(kv.InputError, match="no kv heads"):
        convert(model, 1)


@pytest.mark.parametrize("wrong", [None, "smollm2-135m", kv.tiny_model().config])
def test_what_is_no_model_is_refused(wrong):
    ids = torch.zeros(1, 4, dtype=torch.long)
    for call in (lambda m: fewer_heads(m, 1), lambda m: more_heads(m, 4), lambda m: calibrate(m, ids)):
        with pytest.raises(InputError, match="expected what load_model or tiny_model gives"):
            call(wrong)


@pytest.mark.parametrize("value", [0.0, torch.nan])
def test_a_model_without_usable_numbers_is_refused(value):
    model = kv.tiny_model()
    for weight in model.parameters():
        weight.fill_(value)
    calibration = calibrate(model, torch.zeros(1, 4, dtype=torch.long))
    with pytest.raises(InputError, match=r"layer 0: .* NaN, infinite or zero"):
        to_latent(model, 8, 8, calibration)
