"""A forward that raises midway (out of memory, Ctrl-C) leaves the cache as it was."""

import pytest
import torch
from oracles import left_padded
from strategies import CACHE_VARIANTS
from tiny_models import check_next, model_named, new_cache, tokens

import kvcourse as kv
from kvcourse.errors import InputError

pytestmark = pytest.mark.usefixtures("every_storage")


class InterruptionError(Exception):
    """Raised in the middle of a forward."""


def method_of(model):
    """The name of the cache's method that the model's layers call."""
    return "attend_latent" if model.config.is_latent else "attend"


@pytest.fixture(params=CACHE_VARIANTS)
def model(request):
    return model_named(request.param)


class TestInterruptedForward:
    """A forward that raises midway (out of memory, Ctrl-C) leaves the cache as it was."""

    @pytest.mark.parametrize("when", ["before", "after"])
    @pytest.mark.parametrize("broken_layer", [0, 1])
    @pytest.mark.parametrize("start", [0, 9])
    def test_in_attention(self, model, monkeypatch, start, broken_layer, when):
        cache, history = new_cache(model), []
        if start:
            check_next(model, cache, [history], tokens(1, start))
        method = method_of(model)
        attend = getattr(kv.KVCache, method)

        def failing(self, layer, *args, **kwargs):
            if layer == broken_layer and when == "before":
                raise InterruptionError
            out = attend(self, layer, *args, **kwargs)
            if layer == broken_layer:
                raise InterruptionError
            return out

        for _ in range(2):
            with monkeypatch.context() as patch:
                patch.setattr(kv.KVCache, method, failing)
                with pytest.raises(InterruptionError):
                    model(tokens(1, 5, seed=1), cache=cache)
            assert cache.seen == (start,)
        check_next(model, cache, [history], tokens(1, 6, seed=2))
        check_next(model, cache, [history], tokens(1, 1, seed=3))

    def test_in_every_other_module(self, model):
        """Each submodule in turn raises, before and after its own work."""
        for name, module in list(model.named_modules())[1:]:
            for register in (module.register_forward_pre_hook, module.register_forward_hook):
                cache, history = new_cache(model), []
                check_next(model, cache, [history], tokens(1, 7))
                calls = []

                def fail(*_, calls=calls):
                    calls.append(1)
                    raise InterruptionError

                hook = register(fail)
                try:
                    model(tokens(1, 3, seed=1), cache=cache)
                except InterruptionError:
                    assert cache.seen == (7,), f"{name} left the cache changed"
                finally:
                    hook.remove()
                if calls:
                    check_next(model, cache, [history], tokens(1, 2, seed=2))

    def test_a_ragged_batch(self, model, monkeypatch):
        cache, rows = new_cache(model, 2), [[], []]
        check_next(model, cache, rows, *left_padded([[1, 2, 3, 4, 5], [6]]))
        method = method_of(model)
        attend = getattr(kv.KVCache, method)

        def failing(self, layer, *args, **kwargs):
            if layer == 1:
                raise InterruptionError
            return attend(self, layer, *args, **kwargs)

        ids, mask = left_padded([[7], [8, 9, 10, 11, 12, 13, 14, 15, 16]])
        with monkeypatch.context() as patch:
            patch.setattr(kv.KVCache, method, failing)
            with pytest.raises(InterruptionError):
                model(ids, cache=cache, attention_mask=mask)
        assert cache.seen == (5, 1)
        check_next(model, cache, rows, tokens(2, 2))
        check_next(model, cache, rows, ids, mask)


def test_a_refused_first_layer_does_not_bind_the_next_step():
    """attend alone, without begin: tokens that did not fit say nothing about how many come next."""
    config = model_named("gqa").config
    cache = kv.KVCache(config, kv.Plan(capacity=4))
    shape = lambda heads, n: torch.randn(1, heads, n, config.head_dim)  # noqa: E731
    with pytest.raises(InputError, match="5 tokens do not fit"):
        cache.attend(0, shape(config.num_heads, 5), *[shape(config.num_kv_heads, 5)] * 2)
    for layer in range(config.num_layers):
        cache.attend(layer, shape(config.num_heads, 2), *[shape(config.num_kv_heads, 2)] * 2)
    assert cache.seen == (2,)
