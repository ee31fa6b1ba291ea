"""Room in a paged memory: blocks that a collected cache gives back, copies to come, pools at their limit."""

import dataclasses

import pytest
import torch
from paged_refusals import filled, memory_of, refused
from tiny_models import check_next, model_named, tokens

import kvcourse as kv
from kvcourse.errors import InputError, PoolExhausted
from kvcourse.storage import BlockPool, BlockTable, PagedMemory, block_pool, paged_memory


class TestCollector:
    """A cache that the collector finds in the middle of a call of the pool."""

    @pytest.mark.parametrize(
        ("place", "evicts"),
        [("__getitem__", False), ("__delitem__", False), ("__getitem__", True), ("clear", True)],
    )
    def test_a_cache_that_dies_within_an_allocation(self, place, evicts):
        model = model_named("gqa")
        memory = memory_of(model)
        (pool,) = memory.pools
        known, text = filled(model, memory, rows=1, seed=1)
        known.publish(text)
        known.reset()
        caches = [filled(model, memory, rows=1)[0]]  # which holds 3 blocks
        free = pool.num_free
        wanted = free if evicts else free - pool.num_cached

        def amid(self, *args):
            caches.clear()
            return getattr(list, place)(self, *args)

        pool._clean = type("Watched", (list,), {place: amid})(pool._clean)
        given = pool.allocate(wanted)
        assert not caches
        assert len(set(given)) == len(given) == wanted
        assert pool.num_free == free - wanted + 3  # those of the cache: none lost, none given out already
        pool.free(given)
        memory.check()
        assert pool.num_free == pool.num_blocks - 1

    @pytest.mark.parametrize(
        "ask",
        [
            lambda pool: pool.num_free == 7,
            lambda pool: len(pool.free_order()) == 7,
            lambda pool: pool.references(1) == 0,
            lambda pool: not pool.is_writable(1),
            lambda pool: len(pool.allocate(7)) == 7,
        ],
    )
    def test_what_was_returned_is_free_for_whoever_asks(self, ask):
        pool = BlockPool(8, 4)
        table = BlockTable(pool)
        table.reserve(9)
        table.commit(9)
        table.release_later()
        assert (list(table.blocks), table.num_stored) == ([], 0)
        assert ask(pool)
        pool.check()

    def test_a_labelled_block_that_was_returned_is_cached(self):
        pool = BlockPool(8, 4)
        table = BlockTable(pool)
        table.reserve(8)
        pool.label(1)
        table.release_later()
        assert pool.num_cached == 1
        pool.check()


class TestRequireRoom:
    @pytest.mark.parametrize("variant", ["gqa", "window_4"])
    def test_the_copy_of_a_shared_tail_needs_a_block(self, variant):
        model = model_named(variant)
        memory = memory_of(model, num_blocks=4)
        cache, texts = filled(model, memory, rows=1, size=6)
        fork = cache.fork()
        fork.require_room([8])  # the one free block takes the copy
        hog = kv.KVCache(model.config, memory=memory)
        check_next(model, hog, [[]], tokens(1, 2))
        refused(lambda: fork.require_room([8]), memory, cache, fork, hog, error=PoolExhausted)
        fork.require_room([6])  # does not grow, and writes nothing
        hog.reset()
        check_next(model, fork, [list(texts[0])], tokens(1, 2))

    def test_what_it_grants_can_be_done(self):
        model = model_named("gqa")
        memory = memory_of(model, num_blocks=4)
        cache, _ = filled(model, memory, rows=1, size=6)
        fork = cache.fork()
        refused(lambda: fork.require_room([12]), memory, cache, fork, error=PoolExhausted, match="2 blocks")

    def test_of_rows_that_alone_share_a_tail_the_last_needs_no_copy(self):
        model = model_named("gqa")
        memory = memory_of(model, num_blocks=4)
        cache, texts = filled(model, memory, rows=1, size=6)
        twice = cache.select([0, 0])
        cache.reset()
        twice.require_room([8, 8])
        check_next(model, twice, [list(texts[0]), list(texts[0])], tokens(2, 2))


class TestRestore:
    @pytest.mark.parametrize("variant", ["gqa", "window_then_full"])
    def test_a_memory_without_a_dtype_that_refuses_keeps_none(self, variant):
        model = model_named(variant)
        saved = filled(model, memory_of(model))[0].offload()
        small = PagedMemory(model.config, 3, 4, dtype=None)
        cache = kv.KVCache(model.config, batch_size=2, memory=small)
        refused(lambda: cache.restore(saved), small, cache, error=PoolExhausted)
        assert small.kind is None
        assert small.nbytes == 0
        single = kv.tiny_model(vocab_size=61, dtype=torch.float32)
        other = PagedMemory(single.config, 3, 4, dtype=None)
        with pytest.raises(PoolExhausted):
            kv.KVCache(single.config, batch_size=1, memory=other).restore(
                filled_single(single, torch.float32, 20)
            )
        single(tokens(1, 3), cache=kv.KVCache(single.config, memory=other))

    @pytest.mark.parametrize("dtype", [torch.float64, None])
    @pytest.mark.parametrize(
        ("field", "wrong"),
        [
            ("seen", None),
            ("seen", 2),
            ("seen", [10, 10]),
            ("dtype", None),
            ("dtype", "float64"),
            ("dtype", torch.int64),
            ("planes", 5),
            ("planes", {"0.k.values": None}),
        ],
    )
    def test_what_is_no_row_dtype_or_plane(self, dtype, field, wrong):
        model = model_named("gqa")
        saved = filled(model, memory_of(model))[0].offload()
        memory = PagedMemory(model.config, 60, 4, dtype)
        cache = kv.KVCache(model.config, batch_size=2, memory=memory)
        bad = dataclasses.replace(saved, **{field: wrong})
        refused(lambda: cache.restore(bad), memory, cache, match=f"{field}=.* damaged")
        assert (memory.kind is None) == (dtype is None)
        cache.restore(saved)


def filled_single(model, dtype, size):
    cache = kv.KVCache(model.config, memory=PagedMemory(model.config, 20, 4, dtype))
    model(tokens(1, size), cache=cache)
    return cache.offload()


class TestLimit:
    @pytest.fixture(autouse=True)
    def small_limit(self, monkeypatch):
        for module in (block_pool, paged_memory):
            monkeypatch.setattr(module, "MOST_BLOCKS", 11)

    def test_a_pool_grows_up_to_the_limit(self):
        memory = memory_of(model_named("gqa"), num_blocks=6, grows=True)
        memory.require([7])
        assert memory.num_blocks == 11
        memory.require([10])

    def test_beyond_the_limit_the_message_speaks_of_the_plan(self):
        memory = memory_of(model_named("gqa"), num_blocks=6, grows=True)
        refused(lambda: memory.require([11]), memory, error=PoolExhausted, match="num_blocks is at most 11")
        with pytest.raises(InputError) as caught:
            memory.require([11])
        assert "grow" not in str(caught.value)


def test_a_second_crop_names_how_far_back_it_can_go():
    model = model_named("window_4")
    plan = kv.Plan(storage="paged", block_size=3)
    cache, texts = kv.KVCache(model.config, plan), [[]]
    check_next(model, cache, texts, tokens(1, 21))
    with pytest.raises(InputError, match="crop at most 3 tokens back, to 18, or"):
        cache.crop(17)
    cache.crop(19)
    with pytest.raises(InputError, match="crop at most 1 tokens back, to 18, or"):
        cache.crop(17)
    cache.crop(18)
    check_next(model, cache, [texts[0][:18]], tokens(1, 4))


@pytest.mark.parametrize("window", [1, 2, 4, 7])
def test_least_crop_is_the_fewest_that_can_be_cropped_to(window):
    for num_tokens in range(1, 30):
        table = BlockTable(BlockPool(40, 3), window)
        for _ in range(num_tokens):
            table.reserve(1)
            table.commit(1)
        assert all(table.can_crop(n) for n in range(table.least_crop, num_tokens + 1))
        if table.least_crop:
            assert window == 1 or not table.can_crop(table.least_crop - 1)
