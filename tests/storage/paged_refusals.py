"""What tests of refused and interrupted calls share: caches in one memory, and what such a call must not change."""

import gc

import pytest
import torch
from tiny_models import check_next, tokens

import kvcourse as kv
from kvcourse.errors import InputError
from kvcourse.storage import PagedMemory

KINDS = ["gqa", "window_4", "window_then_full", "mla"]


def memory_of(model, num_blocks=60, **options):
    return PagedMemory(model.config, num_blocks, 4, torch.float64, **options)


def filled(model, memory, rows=2, size=10, seed=0):
    """A cache of rows of one length, and the rows."""
    cache, texts = kv.KVCache(model.config, batch_size=rows, memory=memory), [[] for _ in range(rows)]
    check_next(model, cache, texts, tokens(rows, size, seed=seed))
    return cache, texts


def state(memory, *caches):
    """What a refused call must not change."""
    memory.check()
    pools = [(pool.free_order(), pool.num_labelled, pool.num_blocks) for pool in memory.pools]
    tables = [[list(t.blocks) for rows in c._storage.rows for t in rows.tables] for c in caches]
    return pools, tables, [cache.seen for cache in caches]


def refused(call, memory, *caches, error=InputError, match=None):
    """Check that a call raises one line that says what was expected or what to do, and changes nothing."""
    before = state(memory, *caches)
    with pytest.raises(error, match=match) as caught:
        call()
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) > 25
    assert state(memory, *caches) == before


def all_free(memory):
    gc.collect()
    memory.check()
    return all(pool.num_free == pool.num_blocks - 1 for pool in memory.pools)
