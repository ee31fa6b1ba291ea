"""The same model and cache on the device under test (KVCOURSE_DEVICE) as on the CPU. `make gpu` sets it to cuda."""

import os

import pytest
import torch

import kvcourse as kv

SHAPE = {
    "num_layers": 3,
    "num_heads": 6,
    "num_kv_heads": 2,
    "head_dim": 16,
    "vocab_size": 61,
    "dtype": torch.float64,
}
KINDS = {
    "full": {},
    "window": {"sliding_window": 5, "layer_types": ("sliding_attention",) * 3},
    "mixed": {
        "sliding_window": 5,
        "layer_types": ("sliding_attention", "full_attention", "sliding_attention"),
    },
}


@pytest.fixture(scope="module")
def device():
    """The device under test; asking for one that is not there is an error, not a skip."""
    name = os.environ.get("KVCOURSE_DEVICE", "cpu")
    torch.empty(1, device=name)
    return name


@pytest.fixture(params=KINDS)
def models(request, device):
    """One model on the CPU and the same one on the device."""
    return [kv.tiny_model(**SHAPE, **KINDS[request.param], device=place) for place in ("cpu", device)]


def prompt(batch_size=3, length=13):
    """(ids, mask): rows of different length, padded on the left."""
    ids = torch.randint(0, 61, (batch_size, length), generator=torch.Generator().manual_seed(1))
    mask = (torch.arange(length)[None] >= torch.tensor([[0], [3], [6]])).long()
    return ids, mask


def test_logits_through_a_cache_equal_the_cpus(models):
    ids, mask = prompt()
    seen = []
    for model in models:
        place = next(model.parameters()).device
        cache = kv.KVCache(model.config, kv.Plan(), batch_size=3)
        first = model(ids[:, :8].to(place), cache=cache, attention_mask=mask[:, :8].to(place))
        second = model(ids[:, 8:].to(place), cache=cache, attention_mask=mask[:, 8:].to(place))
        assert second.device.type == place.type
        real = mask.bool().to(place)
        seen.append(torch.cat([first, second], dim=1)[real].cpu())
    torch.testing.assert_close(seen[1], seen[0], rtol=0, atol=1e-10)


def test_tokens_and_bytes_equal_the_cpus(models):
    ids, mask = prompt()
    seen = []
    for model in models:
        place = next(model.parameters()).device
        cache = kv.KVCache(model.config, kv.Plan(), batch_size=3)
        tokens = kv.generate(
            model,
            ids.to(place),
            max_new_tokens=12,
            cache=cache,
            attention_mask=mask.to(place),
            eos_token_id=(),
        )
        seen.append((tokens.tolist(), cache.nbytes, cache.seen))
    assert seen[1] == seen[0]


def test_fork_crop_and_reset_stay_on_the_device(models):
    ids, _ = prompt()
    model = models[1]
    place = next(model.parameters()).device
    cache = kv.KVCache(model.config, kv.Plan(), batch_size=3)
    model(ids.to(place), cache=cache)
    other = cache.fork()
    after = model(ids[:, :1].to(place), cache=other)
    again = model(ids[:, :1].to(place), cache=cache)
    torch.testing.assert_close(after, again, rtol=0, atol=1e-12)
    cache.reset()
    alone = model(ids.to(place), cache=cache)
    torch.testing.assert_close(alone, model(ids.to(place)), rtol=0, atol=1e-10)
