"""What a cache was made to forget, and what was interrupted, never reaches a result."""

import pytest
import torch
from tiny_models import new_cache

import kvcourse as kv
from kvcourse.errors import InputError

pytestmark = pytest.mark.usefixtures("every_storage")
SLIDING, FULL = "sliding_attention", "full_attention"
CONFIGS = {
    "heads": {},
    "window": {"sliding_window": 4, "layer_types": (SLIDING, SLIDING)},
    "window and full": {"sliding_window": 4, "layer_types": (SLIDING, FULL)},
    "latents": {"num_kv_heads": None, "kv_lora_rank": 6, "qk_rope_head_dim": 4},
}
each_config = pytest.mark.parametrize("fields", CONFIGS.values(), ids=CONFIGS)
FORGETS = {
    "reset": lambda cache: cache.reset(),
    "crop to nothing": lambda cache: cache.crop(0),
    "crop": lambda cache: cache.crop(2),
    "rollback": lambda cache: cache.rollback(),
}


def model_of(fields):
    options = {"num_layers": 2, "num_heads": 2, "num_kv_heads": 1, "head_dim": 8, "vocab_size": 31} | fields
    return kv.tiny_model(dtype=torch.float64, **{k: v for k, v in options.items() if v is not None})


def padded(rows):
    """Token ids and mask of rows of different lengths, padded on the left."""
    width = max(map(len, rows))
    ids = torch.tensor([[0] * (width - len(row)) + list(row) for row in rows])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
    return ids, mask


def poison(cache, value, num_tokens):
    """A chunk of tokens whose keys and values, or latents, are all `value`."""
    for layer, store in enumerate(cache._storage.layers):
        shapes = [(2, *field.shape[:-1], num_tokens, field.shape[-1]) for field in store.fields]
        fields = [torch.full(shape, value) for shape in shapes]
        cache.append(layer, *(field.double() for field in fields))


@each_config
@pytest.mark.parametrize("value", [torch.inf, torch.nan])
@pytest.mark.parametrize("forget", FORGETS.values(), ids=FORGETS)
def test_numbers_that_were_forgotten_are_never_read(fields, value, forget):
    """A weight of zero times infinity is NaN, so a mask alone does not keep them out."""
    model = model_of(fields)
    cache = new_cache(model, batch_size=2)
    kept = [[], []]
    if forget is FORGETS["crop"]:
        kept = [[3, 4], [5, 6]]
        model(torch.tensor(kept), cache=cache)
    if forget is FORGETS["rollback"]:
        cache.begin(6)
        layer = cache._storage.layers[0]
        shapes = [(2, *field.shape[:-1], 6, field.shape[-1]) for field in layer.fields]
        cache.append(0, *(torch.full(shape, value, dtype=torch.float64) for shape in shapes))
    else:
        poison(cache, value, 6 if kept[0] else 200)  # the latter in every slot of a ring
    forget(cache)
    prompts, more = [[7, 8], [9, 10, 11, 12, 13, 14]], [[15, 16], [17, 18]]
    ids, mask = padded(prompts)
    model(ids, cache=cache, attention_mask=mask)
    got = model(torch.tensor(more), cache=cache)
    for row in range(2):
        whole = torch.tensor([kept[row] + prompts[row] + more[row]])
        torch.testing.assert_close(got[row], model(whole)[0, -2:], rtol=0, atol=1e-10)


def offloaded(cache):
    saved = cache.offload()
    cache.restore(saved)
    return cache


def cropped(cache):
    cache.crop(9)
    return cache


def rolled_back(cache):
    cache.rollback()
    return cache


CALLS = {
    "begin": lambda cache: cache,
    "rollback": rolled_back,
    "crop": cropped,
    "fork": lambda cache: cache.fork(),
    "select": lambda cache: cache.select([0]),
    "cat": lambda cache: kv.KVCache.cat([cache]),
    "offload": offloaded,
}


@each_config
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("done", range(2))
def test_an_interrupted_commit_is_finished_by_the_next_call(fields, call, done, monkeypatch):
    """Rings have begun to lose what they held, so there is no way back."""
    model, ids = model_of(fields), torch.arange(1, 13)[None]
    cache = new_cache(model)
    if call is offloaded and cache.memory is None:
        assert isinstance(refused(cache.offload), InputError)  # arrays stay where they are
        return
    model(ids[:, :5], cache=cache)
    positions = cache.begin(4)
    model._run(ids[:, 5:9], positions, {}, cache, False)
    real = type(cache._storage).commit

    def interrupted(self, step):
        monkeypatch.undo()
        staged, step.staged = step.staged, step.staged[:done]
        real(self, step)
        step.staged = staged
        raise KeyboardInterrupt

    monkeypatch.setattr(type(cache._storage), "commit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        cache.commit()
    cache = call(cache)
    torch.testing.assert_close(model(ids[:, 9:], cache=cache), model(ids)[:, 9:], rtol=0, atol=1e-10)
    assert cache.seen == (12,)


def refused(call):
    with pytest.raises(InputError) as caught:
        call()
    return caught.value


def test_a_commit_that_fails_leaves_nothing_under_way(monkeypatch):
    model = model_of({})
    cache = new_cache(model)

    def refuse():
        raise InputError("no")

    monkeypatch.setattr(cache, "commit", refuse)
    with pytest.raises(InputError, match="no"):
        model(torch.ones(1, 20, dtype=torch.long), cache=cache)
    assert cache.seen == (0,)
    assert cache.memory is None or cache.nbytes == 0  # blocks are given back
    kv.KVCache.cat([cache])  # refused in the middle of a step


def test_a_cache_of_another_config_is_refused():
    """Else its windows, and not the model's, would decide what is seen."""
    model, other = model_of({}), model_of(CONFIGS["window"])
    cache = new_cache(other)
    with pytest.raises(InputError, match=r"KVCache\(model\.config"):
        model(torch.ones(1, 3, dtype=torch.long), cache=cache)
    assert cache.seen == (0,)
