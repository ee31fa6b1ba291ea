"""Tiny float64 models of every kind of cache, and the check that all cache tests share."""

import contextlib
import functools

import torch
from strategies import CACHE_VARIANTS

import kvcourse as kv

VOCAB = 61
TIGHT = 1e-10  # float64 on tiny models: rounding stays below 1e-13, any fault is far above


@functools.cache
def model_named(variant):
    """The model of one of `strategies.CACHE_VARIANTS`, made once: a forward changes nothing in it."""
    return kv.tiny_model(vocab_size=VOCAB, dtype=torch.float64, **CACHE_VARIANTS[variant])


# Storages that every test of a cache runs on, see the fixture `every_storage`. The blocks are small and odd.
PLANS = {"contiguous": kv.Plan(), "paged": kv.Plan(storage="paged", block_size=5)}
_current = [kv.Plan()]


def current_plan():
    """The plan of the storage whose turn it is."""
    return _current[0]


@contextlib.contextmanager
def using(plan):
    """Make `plan` the current one."""
    _current[0] = plan
    try:
        yield
    finally:
        _current[0] = kv.Plan()


def new_cache(model, batch_size=1):
    return kv.KVCache(model.config, current_plan(), batch_size=batch_size)


def check_integrity(cache):
    """Every invariant of the pools, indexes and tables of a paged cache."""
    if cache.memory is not None:
        cache.memory.check()
        cache._storage.check()


def tokens(*shape, seed=0):
    """Random token ids."""
    return torch.randint(VOCAB, shape, generator=torch.Generator().manual_seed(seed))


def gap(a, b):
    """Largest absolute difference of two tensors of one shape."""
    assert a.shape == b.shape
    return (a - b).abs().max().item()


def check_next(model, cache, rows, ids, mask=None):
    """Run `ids` on the cache and compare every real token with a run of the whole row without a cache.

    rows: the tokens that each row has seen before; they grow here.
    """
    logits = model(ids, cache=cache, attention_mask=mask)
    for row, history in enumerate(rows):
        real = ids[row] if mask is None else ids[row][mask[row].bool()]
        history.extend(real.tolist())
        alone = model(torch.tensor([history]))[0, -len(real) :]
        assert gap(logits[row, -len(real) :], alone) <= TIGHT
    assert cache.seen == tuple(map(len, rows))
    check_integrity(cache)
    if "full_attention" in model.config.layer_types:
        assert cache.lengths == cache.seen
        assert cache.capacity >= max(cache.lengths)
