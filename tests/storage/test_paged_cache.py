"""Caches that share one paged memory: rows that move, prefixes that are found again, pools that run dry."""

import gc

import pytest
import torch
from oracles import left_padded
from strategies import CACHE_VARIANTS
from tiny_models import check_integrity, check_next, model_named, tokens

import kvcourse as kv
from kvcourse.errors import InputError, PoolExhausted

KINDS = ["gqa", "window_4", "window_then_full", "mla"]
SIZE = 4


def memory_of(model, num_blocks=60, **options):
    return kv.storage.PagedMemory(model.config, num_blocks, SIZE, torch.float64, **options)


def held(memory):
    return [pool.num_blocks - 1 - pool.num_free for pool in memory.pools]


@pytest.fixture(params=KINDS)
def model(request):
    return model_named(request.param)


class TestOneMemoryForMany:
    def test_caches_do_not_disturb_each_other(self, model):
        memory = memory_of(model)
        caches = [kv.KVCache(model.config, memory=memory) for _ in range(3)]
        rows = [[[]] for _ in caches]
        for seed in range(5):
            for number, (cache, row) in enumerate(zip(caches, rows, strict=True)):
                check_next(model, cache, row, tokens(1, 1 + number * seed, seed=10 * seed + number))

    def test_a_dropped_cache_gives_its_blocks_back(self, model):
        memory = memory_of(model)
        cache = kv.KVCache(model.config, memory=memory)
        model(tokens(1, 13), cache=cache)
        assert min(held(memory)) > 0
        child = cache.fork()
        del cache
        gc.collect()
        assert min(held(memory)) > 0
        del child
        gc.collect()
        assert held(memory) == [0] * len(memory.pools)

    def test_bytes_count_a_shared_block_once_in_each_cache(self):
        model = model_named("gqa")
        cache = kv.KVCache(model.config, memory=memory_of(model))
        model(tokens(1, 10), cache=cache)
        twice = cache.select([0, 0])
        assert twice.nbytes == cache.nbytes == kv.memory.bytes_at(model.config, 10, 1, cache.plan, "fp64")
        assert cache.nbytes < cache.memory.nbytes

    def test_measured_bytes_are_those_of_all_blocks(self, model):
        memory = memory_of(model, num_blocks=7)
        per_token = kv.memory.bytes_per_token(model.config, dtype="fp64")
        assert memory.nbytes == 7 * SIZE * per_token

    def test_a_memory_of_another_model_or_block_size_is_refused(self):
        memory = memory_of(model_named("gqa"))
        with pytest.raises(InputError, match="another model or block size"):
            kv.KVCache(model_named("mha").config, memory=memory)
        plan = kv.Plan(storage="paged", block_size=16)
        with pytest.raises(InputError, match="another model or block size"):
            kv.KVCache(model_named("gqa").config, plan, memory=memory)
        with pytest.raises(InputError, match="storage='paged'"):
            kv.KVCache(model_named("gqa").config, kv.Plan(), memory=memory)
        with pytest.raises(InputError, match="PagedMemory"):
            kv.KVCache(model_named("gqa").config, plan, memory={})

    def test_another_dtype_is_refused_before_anything_is_stored(self):
        model = model_named("gqa")
        cache = kv.KVCache(model.config, memory=kv.storage.PagedMemory(model.config, 9, SIZE))
        with pytest.raises(InputError, match="float64"):
            model(tokens(1, 3), cache=cache)
        assert held(cache.memory) == [0]

    @pytest.mark.parametrize(
        "options", [{"num_blocks": 1}, {"num_blocks": True}, {"block_size": 0}, {"device": "tape"}]
    )
    def test_bad_sizes(self, options):
        with pytest.raises(InputError):
            kv.storage.PagedMemory(model_named("gqa").config, **({"num_blocks": 9} | options))

    def test_models_with_other_states_are_refused(self):
        with pytest.raises(InputError, match="blocks of tokens"):
            kv.storage.PagedMemory("deepseek-v4-pro", 9)


class TestPools:
    def test_a_pool_grows_unless_the_plan_says_how_large_it_is(self, model):
        cache = kv.KVCache(model.config, kv.Plan(storage="paged", block_size=2))
        check_next(model, cache, [[]], tokens(1, 200))
        fixed = kv.KVCache(model.config, kv.Plan(storage="paged", block_size=2, num_blocks=5))
        with pytest.raises(PoolExhausted, match="num_blocks"):
            model(tokens(1, 200), cache=fixed)
        assert fixed.seen == (0,)
        assert held(fixed.memory) == [0] * len(fixed.memory.pools)

    def test_an_exhausted_pool_leaves_the_cache_as_it_was(self, model):
        memory = memory_of(model, num_blocks=9)
        first, second = (kv.KVCache(model.config, memory=memory) for _ in range(2))
        history = [[]]
        check_next(model, first, history, tokens(1, 13))
        check_next(model, second, [[]], tokens(1, 13))
        before = held(memory)
        with pytest.raises(PoolExhausted):
            model(tokens(1, 30), cache=first)
        assert held(memory) == before
        assert first.seen == (13,)
        second.reset()
        check_next(model, first, history, tokens(1, 7, seed=3))

    def test_an_abandoned_step_gives_back_what_it_had_reserved(self):
        model = model_named("gqa")
        cache = kv.KVCache(model.config, memory=memory_of(model))
        model(tokens(1, 5), cache=cache)
        before = held(cache.memory)
        cache.begin(9)
        c = model.config
        cache.attend(0, *(torch.ones(1, h, 9, c.head_dim).double() for h in (c.num_heads, 2, 2)))
        assert held(cache.memory) > before
        cache.rollback()
        assert held(cache.memory) == before

    def test_rows_that_alone_share_a_tail_need_one_copy_less(self):
        model = model_named("gqa")
        cache = kv.KVCache(model.config, memory=memory_of(model, num_blocks=5))
        ids = tokens(1, 6)
        model(ids, cache=cache)  # 2 of 4 blocks
        beams = cache.select([0, 0, 0])
        del cache
        rows = [ids[0].tolist() for _ in range(3)]
        check_next(model, beams, rows, tokens(3, 1, seed=1))  # two copies, and not a block is free
        assert held(beams.memory) == [4]

    def test_generate_refuses_at_once_what_would_fail_halfway(self):
        model = model_named("gqa")
        memory = memory_of(model, num_blocks=6)  # 20 tokens
        cache, other = (kv.KVCache(model.config, memory=memory) for _ in range(2))
        ids = tokens(1, 7)
        assert kv.generate(model, ids, 14, cache=cache, eos_token_id=()).shape == (1, 14)
        cache.reset()
        for call in (
            lambda: kv.generate(model, ids, 15, cache=cache),
            lambda: cache.require_room([21]),
            lambda: kv.KVCache(model.config, kv.Plan(capacity=20)).require_room([21]),
        ):
            with pytest.raises(InputError):
                call()
        assert cache.seen == (0,)
        model(ids, cache=other)
        cache.require_room([12])
        with pytest.raises(PoolExhausted):
            cache.require_room([13])
        with pytest.raises(InputError, match="expected 1"):
            cache.require_room([1, 2])


class TestRows:
    def test_select_repeats_and_reorders(self, model):
        ids, mask = left_padded([[1, 2, 3, 4, 5, 6, 7], [8, 9], [10, 11, 12, 13]])
        for plan in (kv.Plan(), kv.Plan(storage="paged", block_size=SIZE)):
            cache, rows = kv.KVCache(model.config, plan, batch_size=3), [[], [], []]
            check_next(model, cache, rows, ids, mask)
            beams = cache.select([2, 0, 2])
            copies = [list(rows[row]) for row in (2, 0, 2)]
            for seed in range(4):
                check_next(model, beams, copies, tokens(3, 3, seed=seed))
            check_next(model, cache, rows, tokens(3, 2, seed=9))

    def test_cat_moves_rows_of_any_length(self, model):
        memory = memory_of(model)
        for make in (
            lambda n: kv.KVCache(model.config, batch_size=n),
            lambda n: kv.KVCache(model.config, batch_size=n, memory=memory),
        ):
            parts, rows = [make(1), make(2), make(1)], [[[]], [[], []], [[]]]
            for part, row, size in zip(parts[:2], rows[:2], (3, 40), strict=True):
                check_next(model, part, row, tokens(len(row), size, seed=size))
            before = held(memory)
            joined = kv.KVCache.cat(parts)
            assert [part.seen for part in parts] == [(0,), (0, 0), (0,)]
            assert held(memory) == before
            every = [row for part in rows for row in part]
            assert joined.seen == (3, 40, 40, 0)
            for seed in range(3):
                check_next(model, joined, every, tokens(4, 2, seed=seed))
            check_next(model, parts[0], [[]], tokens(1, 3))

    def test_cat_refuses_what_does_not_belong_together(self):
        model = model_named("gqa")
        a, b = (kv.KVCache(model.config, memory=memory_of(model)) for _ in range(2))
        for caches, message in (
            ([], "list of caches"),
            ([a, None], "list of caches"),
            ([a, a], "twice"),
            ([a, b], "different memories"),
            ([a, kv.KVCache(model.config)], "different models or plans"),
            ([a, kv.KVCache(model_named("mha").config, a.plan)], "different models or plans"),
        ):
            with pytest.raises(InputError, match=message):
                kv.KVCache.cat(caches)

    @pytest.mark.parametrize("plan", [kv.Plan(), kv.Plan(storage="paged", block_size=SIZE)])
    @pytest.mark.parametrize(
        "move", [lambda c: kv.KVCache.cat([c]), lambda c: c.select([0]), lambda c: c.fork()]
    )
    def test_what_a_window_has_forgotten_stays_forgotten(self, plan, move):
        model = model_named("window_4")
        cache, ids = kv.KVCache(model.config, plan), tokens(1, 60)
        model(ids, cache=cache)
        moved = move(cache)
        with pytest.raises(InputError, match="crop at most"):
            moved.crop(-30)
        moved.crop(-SIZE)
        check_next(model, moved, [ids[0, :-SIZE].tolist()], tokens(1, 1))

    @pytest.mark.parametrize("rows", [[], [2], [-1], [0, True], ["0"]])
    def test_select_refuses_rows_that_do_not_exist(self, rows):
        with pytest.raises(InputError):
            kv.KVCache(model_named("gqa").config, batch_size=2).select(rows)


@pytest.mark.parametrize("variant", CACHE_VARIANTS)
@pytest.mark.parametrize("granular", [False, True])
def test_a_prompt_that_is_stored_is_not_computed_again(variant, granular):
    model = model_named(variant)
    windows = {store.window for store in kv.KVCache(model.config)._storage.layers}
    if granular and len(windows) > 1:
        with pytest.raises(InputError, match="token_granular"):
            memory_of(model, token_granular=True)
        return
    memory = memory_of(model, token_granular=granular)
    ids = tokens(1, 18)
    first = kv.KVCache(model.config, memory=memory)
    check_next(model, first, [[]], ids)
    first.publish(ids)
    first.reset()
    check_integrity(first)
    for length, other in ((18, 0), (16, 0), (17, 0), (11, 0), (9, 3), (3, 0), (1, 0)):
        prompt = torch.cat((ids[:, :length], tokens(1, other, seed=7)), dim=1)
        cache = kv.KVCache(model.config, memory=memory)
        (hit,) = cache.reuse(prompt)
        whole = prompt.shape[1] - 1
        if windows == {None}:
            assert hit == (min(length, whole, 16) if granular else min(length, whole) // SIZE * SIZE)
        assert hit <= whole
        check_next(model, cache, [prompt[0, :hit].tolist()], prompt[:, hit:])
        check_next(model, cache, [prompt[0].tolist()], tokens(1, 6, seed=8))


def test_what_reuse_and_publish_refuse():
    model = model_named("gqa")
    cache = kv.KVCache(model.config, memory=memory_of(model), batch_size=2)
    ids = tokens(2, 9)
    model(ids, cache=cache)
    for call, message in (
        (lambda: cache.reuse(ids), "row 0 has 9 tokens"),
        (lambda: cache.publish(ids[:, :8]), "9 tokens and 8"),
        (lambda: cache.publish(ids[:1]), "1 rows for a cache of 2"),
        (lambda: kv.KVCache(model.config).publish(ids), "storage='paged'"),
        (lambda: kv.KVCache(model.config).reuse(ids), "storage='paged'"),
    ):
        with pytest.raises(InputError, match=message):
            call()
    assert cache.seen == (9, 9)
