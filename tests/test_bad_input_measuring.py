"""Bad input to the measuring tools and the memory arithmetic: one clear line each."""

import pytest
import torch

import kvcourse as kv
from kvcourse.training import Recipe, train


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prefill": 2.5}, "prefill"),
        ({"prefill": 0}, "prefill"),
        ({"chunk": True}, "chunk"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": "many"}, "max_tokens"),
    ],
)
def test_quality_needs_whole_numbers(options, message):
    model = kv.tiny_model()
    with pytest.raises(kv.InputError, match=message):
        kv.evaluate.perplexity(model, list(range(40)), **({"prefill": 8} | options))


@pytest.mark.parametrize("text", [None, 1.5, [1.5, 2.5], [True, False], object(), ["a"]])
def test_quality_needs_text_or_ids(text):
    with pytest.raises(kv.InputError, match="expected a string, or whole numbers"):
        kv.evaluate.perplexity(kv.tiny_model(), text, prefill=1)


@pytest.mark.parametrize(
    ("arms", "options"), [({"a": 3}, {}), ({"a": int}, {"repeats": 1.5}), ({"a": int}, {"warmup": -1})]
)
def test_timing_needs_functions_and_counts(arms, options):
    with pytest.raises(kv.InputError, match="compare"):
        kv.bench.compare(arms, **options)


@pytest.mark.parametrize("reserve", ["a", None, 1, -0.1, float("nan")])
def test_memory_needs_a_share_as_reserve(reserve):
    with pytest.raises(kv.InputError, match="expected a share of the memory"):
        kv.memory.fits("llama-3-8b", "80GB", 4096, reserve=reserve)


# ---- training and counting -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"recipe": None}, "recipe is a NoneType: expected a kvcourse.training.Recipe"),
        ({"evaluate_at": 3}, "evaluate_at=3: expected steps"),
        ({"parameters": None}, "parameters=None: expected names of weights"),
        ({"parameters": [None]}, "parameters=.None.: expected names of weights"),
    ],
)
def test_training(change, message):
    arguments = {
        "recipe": Recipe(steps=1, batch=1, context=4, learning_rate=1e-3, warmup=0),
        "held_out": range(9),
    } | change
    with pytest.raises(kv.InputError, match=message):
        train(kv.tiny_model(), range(9), progress=False, **arguments)


@pytest.mark.parametrize("count", ["2", None, 2.5, float("nan"), 0, -1, True])
def test_operations_of_what_is_no_count(count):
    model = kv.tiny_model().config
    for call in (kv.flops.forward, kv.flops.generation):
        with pytest.raises(kv.InputError, match="expected a whole number of at least 1"):
            call(model, count)


def test_a_generation_without_end_is_refused_at_once():
    with pytest.raises(kv.InputError, match="expected a whole number of at most"):
        kv.flops.generation(kv.tiny_model().config, 1 << 70)


def test_a_step_announced_on_another_device():
    cache = kv.KVCache(kv.tiny_model().config)
    cache.begin(3, device="meta")
    q, k = torch.zeros(1, 4, 3, 16), torch.zeros(1, 2, 3, 16)
    with pytest.raises(kv.InputError, match="announced on meta, and its tensors are on cpu"):
        cache.attend(0, q, k, k)
    assert cache.seen == (0,)
    assert cache.nbytes == 0


@pytest.mark.parametrize("device", ["tape", 1.5, None, "cuda:99"])
def test_a_step_announced_on_no_device(device):
    cache = kv.KVCache(kv.tiny_model().config)
    with pytest.raises(kv.InputError, match="device"):
        cache.begin(3, device=device)
