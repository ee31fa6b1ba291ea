"""Bad input to the measuring tools and the memory arithmetic: one clear line each."""

import pytest

import kvcourse as kv


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
