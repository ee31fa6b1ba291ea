"""Storing without attending, and caches that are written in another precision than the model computes in."""

import pytest
import torch

import kvcourse as kv


def random_kv(model, batch, tokens, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shape = (batch, model.config.num_kv_heads, tokens, model.config.head_dim)
    return [[torch.randn(shape, generator=generator, dtype=model.dtype) for _ in "kv"] for _ in model.layers]


@pytest.mark.parametrize("window", [None, 5, 64])
def test_append_leaves_what_attend_leaves(window):
    """The next tokens see the same cache, however its contents were stored."""
    model = kv.tiny_model(dtype=torch.float64, sliding_window=window)
    attended, appended = (kv.KVCache(model.config, batch_size=2) for _ in range(2))
    for tokens in (33, 1, 20):
        for layer, (k, v) in enumerate(random_kv(model, 2, tokens, seed=tokens)):
            q = torch.randn(2, model.config.num_heads, tokens, model.config.head_dim, dtype=model.dtype)
            attended.attend(layer, q, k, v)
            appended.append(layer, k, v)
        assert appended.seen == attended.seen
    ids = torch.randint(0, 256, (2, 7), generator=torch.Generator().manual_seed(1))
    assert torch.equal(model(ids, attended), model(ids, appended))


def test_append_counts_after_the_last_layer_only():
    model = kv.tiny_model()
    cache = kv.KVCache(model.config)
    (k, v), _ = random_kv(model, 1, 3)
    cache.append(0, k, v)
    assert cache.seen == (0,)
    with pytest.raises(kv.InputError, match="expected layer 1 with 3 tokens"):
        cache.append(1, k[:, :, :2], v[:, :, :2])
    cache.append(1, k, v)
    assert cache.seen == (3,)


@pytest.mark.parametrize(
    ("change", "left"), [(lambda cache: cache.reset(), 0), (lambda cache: cache.crop(2), 2)]
)
def test_a_step_that_was_announced_before_a_change_is_void(change, left):
    model = kv.tiny_model()
    cache = kv.KVCache(model.config)
    model(torch.zeros(1, 5, dtype=torch.long), cache)
    cache.begin(3)
    change(cache)
    for layer, (k, v) in enumerate(random_kv(model, 1, 4)):
        cache.append(layer, k, v)
    assert cache.seen == (left + 4,)


def test_a_step_cannot_end_before_its_last_layer():
    model = kv.tiny_model(num_layers=3)
    cache = kv.KVCache(model.config)
    cache.begin(4)
    for layer, (k, v) in enumerate(random_kv(model, 1, 4)):
        with pytest.raises(kv.InputError, match=f"{layer} of 3 layers"):
            cache.commit()
        cache.append(layer, k, v)
        assert cache.seen == (0,)
    cache.commit()
    assert cache.seen == (4,)


def test_a_fork_has_the_same_limit():
    model = kv.tiny_model()
    cache = kv.KVCache(model.config, kv.Plan(capacity=10))
    model(torch.zeros(1, 8, dtype=torch.long), cache)
    child = cache.fork()
    with pytest.raises(kv.InputError, match="capacity=10"):
        model(torch.zeros(1, 3, dtype=torch.long), child)
    model(torch.zeros(1, 2, dtype=torch.long), child)
    assert (cache.seen, child.seen, child.capacity) == ((8,), (10,), 10)


@pytest.mark.parametrize("codec", ["fp16", "bf16", "fp32"])
@pytest.mark.parametrize("window", [None, 6])
def test_a_rounded_cache_does_not_depend_on_chunks(codec, window):
    """Every token is rounded once, so prefill at once and token by token attend to the same numbers."""
    model = kv.tiny_model(dtype=torch.float64, sliding_window=window)
    ids = torch.randint(0, 256, (2, 30), generator=torch.Generator().manual_seed(0))
    outputs = []
    for chunk in (30, 1, 7):
        cache = kv.KVCache(model.config, kv.Plan(codec=codec), batch_size=2)
        outputs.append(torch.cat([model(part, cache) for part in ids.split(chunk, dim=1)], dim=1))
    assert (outputs[1] - outputs[0]).abs().max() < 1e-10
    assert (outputs[2] - outputs[0]).abs().max() < 1e-10
    exact = model(ids)
    assert 1e-10 < (outputs[0] - exact).abs().max() < 0.5, "rounding must show, and stay rounding"


def test_a_rounded_cache_takes_the_bytes_of_its_dtype():
    model = kv.tiny_model(dtype=torch.float64)
    ids = torch.zeros(1, 10, dtype=torch.long)
    sizes = {}
    for codec in ("auto", "fp64", "fp32", "bf16", "fp16"):
        cache = kv.KVCache(model.config, kv.Plan(codec=codec))
        model(ids, cache)
        sizes[codec] = cache.nbytes
    assert sizes["auto"] == sizes["fp64"] == 2 * sizes["fp32"] == 4 * sizes["bf16"] == 4 * sizes["fp16"]


def test_an_interrupted_append_leaves_the_ring_as_it_was():
    """A chunk overwrites the slots that older tokens are still read from, so it may do so only once it counts."""
    model = kv.tiny_model(dtype=torch.float64, sliding_window=24)
    untouched, interrupted = (kv.KVCache(model.config) for _ in range(2))
    for cache in (untouched, interrupted):
        for layer, (k, v) in enumerate(random_kv(model, 1, 45)):
            cache.append(layer, k, v)
    interrupted.append(0, *random_kv(model, 1, 33, seed=1)[0])
    ids = torch.randint(0, 256, (1, 3), generator=torch.Generator().manual_seed(2))
    assert torch.equal(model(ids, interrupted), model(ids, untouched))


@pytest.mark.parametrize("window", [None, 5])
def test_the_caller_may_write_to_its_tensors_before_the_step_ends(window):
    """What a ring holds back until the last layer must not be a view of the caller's keys and values."""
    model = kv.tiny_model(dtype=torch.float64, sliding_window=window)
    kept, spoiled = (kv.KVCache(model.config) for _ in range(2))
    for tokens in (30, 4):
        for layer, (k, v) in enumerate(random_kv(model, 1, tokens, seed=tokens)):
            kept.append(layer, k, v)
            copies = k.clone(), v.clone()
            spoiled.append(layer, *copies)
            for copy in copies:
                copy.fill_(torch.nan)
    ids = torch.randint(0, 256, (1, 3), generator=torch.Generator().manual_seed(2))
    assert torch.equal(model(ids, spoiled), model(ids, kept))


def test_a_refused_model_call_leaves_no_step_behind():
    """A forward that is refused after `begin` must not make the next bare `attend` wait for a commit."""
    model = kv.tiny_model(max_position_embeddings=8)
    cache = kv.KVCache(model.config)
    with pytest.raises(kv.InputError, match="positions for 8"):
        model(torch.zeros(1, 9, dtype=torch.long), cache)
    for layer, (k, v) in enumerate(random_kv(model, 1, 9)):
        cache.append(layer, k, v)
    assert cache.seen == (9,)


def test_rollback_drops_an_announced_step():
    model = kv.tiny_model()
    cache = kv.KVCache(model.config)
    cache.begin(3)
    cache.append(0, *random_kv(model, 1, 3)[0])
    cache.rollback()
    assert cache.seen == (0,)
    with pytest.raises(kv.InputError, match=r"commit\(\) after 0"):
        cache.commit()


def test_generate_refuses_what_a_fixed_capacity_cannot_hold():
    model = kv.tiny_model()
    cache = kv.KVCache(model.config, kv.Plan(capacity=10))
    ids = torch.zeros(1, 4, dtype=torch.long)
    with pytest.raises(kv.InputError, match="capacity=10"):
        kv.generate(model, ids, 8, cache=cache, eos_token_id=())
    assert cache.seen == (0,)
    assert kv.generate(model, ids, 7, cache=cache, eos_token_id=()).shape == (1, 7)
    sliding = kv.tiny_model(sliding_window=6)
    cache = kv.KVCache(sliding.config, kv.Plan(capacity=100, block_size=4))
    assert kv.generate(sliding, ids, 120, cache=cache, eos_token_id=()).shape == (1, 120)
