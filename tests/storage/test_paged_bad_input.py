"""Paged caches in clumsy hands: what is refused or interrupted says why, and changes nothing."""

import gc

import numpy as np
import pytest
import torch
from paged_refusals import KINDS, all_free, filled, memory_of, refused
from tiny_models import check_integrity, check_next, model_named, tokens

import kvcourse as kv
from kvcourse.errors import InputError, PoolExhausted
from kvcourse.storage import BlockPool, BlockTable, Offloaded, PagedMemory

NOT_ROWS = [None, 1.5, True, 3, torch.tensor(3), torch.empty(2, device="meta"), object(), [], [None]]
NO_TOKENS = [
    *NOT_ROWS,
    "x",
    [["a"]],
    [[1.5]],
    [[True]],
    [[-3]],
    [[2**63]],
    np.array([1.0]),
    torch.ones(1, 2, 3).long(),
    torch.ones(1, 3),
    torch.ones(1, 3, device="meta"),
    torch.ones(1, 3).long().to_sparse(),
]
NO_KEYS = [None, "x", 1.5, [1], [("a",)], [("a", "b")], [("", b"x")], [("a", b"b", 3, 2)], torch.ones(2)]


@pytest.fixture(params=KINDS)
def model(request):
    return model_named(request.param)


class TestWrongThings:
    @pytest.mark.parametrize("bad", NO_TOKENS, ids=lambda bad: type(bad).__name__)
    def test_tokens_that_are_none(self, bad):
        model = model_named("gqa")
        memory = memory_of(model)
        used, _ = filled(model, memory, rows=1)
        fresh = kv.KVCache(model.config, memory=memory)
        refused(lambda: fresh.reuse(bad), memory, used, fresh)
        refused(lambda: used.publish(bad), memory, used, fresh)

    @pytest.mark.parametrize("bad", NO_KEYS, ids=repr)
    def test_keys_that_are_none(self, bad):
        model = model_named("gqa")
        memory = memory_of(model)
        used, texts = filled(model, memory, rows=1)
        fresh = kv.KVCache(model.config, memory=memory)
        refused(lambda: fresh.reuse(texts, bad), memory, used, fresh)
        refused(lambda: used.publish(texts, bad), memory, used, fresh)

    @pytest.mark.parametrize(
        "bad", NOT_ROWS, ids=lambda bad: repr(bad) if bad.__class__ is not object else "object"
    )
    def test_rows_and_caches_that_are_none(self, bad):
        model = model_named("gqa")
        memory = memory_of(model)
        cache, _ = filled(model, memory)
        refused(lambda: cache.select(bad), memory, cache, match="expected a")
        refused(lambda: kv.KVCache.cat(bad), memory, cache, match="expected a list of caches")
        refused(lambda: cache.restore(bad), memory, cache)

    @pytest.mark.parametrize(
        "path", [1.5, True, b"x", [], torch.ones(2, 2), "", "/", "a\0b", "\ud800", "x" * 300], ids=repr
    )
    def test_paths_that_name_no_file(self, path, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        model = model_named("gqa")
        memory = memory_of(model)
        cache, texts = filled(model, memory)
        refused(lambda: cache.offload(path), memory, cache)
        with pytest.raises(InputError):
            Offloaded.open(path)
        check_next(model, cache, texts, tokens(2, 2))
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize(
        ("options", "match"),
        [
            ({"dtype": "float32"}, "floating-point"),
            ({"dtype": torch.int32}, "floating-point"),
            ({"dtype": torch.complex64}, "floating-point"),
            ({"dtype": None, "device": "tape"}, "device"),
            ({"device": "meta"}, "meta"),
            ({"codec": "fp16"}, "codecs.get"),
            ({"codec": 3, "dtype": None}, "codecs.get"),
            ({"num_blocks": 2**40}, "at most"),
            ({"num_blocks": 9.0}, "num_blocks"),
            ({"num_blocks": 2**16, "block_size": 2**20}, "no memory"),
            ({"seed": "salt"}, "bytes"),
        ],
    )
    def test_memories_that_cannot_be(self, options, match):
        with pytest.raises(InputError, match=match):
            PagedMemory(model_named("gqa").config, **({"num_blocks": 9} | options))

    def test_a_plan_that_says_something_else_than_the_memory(self):
        config = model_named("gqa").config
        fp16 = PagedMemory(config, 9, 4, codec=kv.codecs.get("fp16"))
        assert kv.KVCache(config, memory=fp16).plan.codec == "fp16"
        for plan in ({"codec": "auto"}, {"codec": "fp16", "num_blocks": 5}, {"codec": "bf16"}):
            with pytest.raises(InputError, match="alike"):
                kv.KVCache(config, kv.Plan(storage="paged", block_size=4, **plan), memory=fp16)

    def test_tables(self):
        pool = BlockPool(9, 4)
        table = BlockTable(pool)
        table.reserve(6)
        table.commit(6)
        for call in (
            lambda: BlockTable(None),
            lambda: BlockTable(pool, 0),
            lambda: table.reserve(-1),
            lambda: table.commit(-1),
            lambda: table.commit("1"),
            lambda: table.crop(7),
            lambda: table.crop(-1),
            lambda: table.slots(6, 3),
            lambda: table.slots(-1, 1),
            lambda: table.replace_tail(7),
            lambda: table.adopt([1], 4),
            lambda: BlockTable(pool).adopt([7], 4),
            lambda: BlockTable(pool).adopt(list(table.blocks), 9),
            lambda: BlockTable(pool).adopt(None, 1),
        ):
            with pytest.raises(InputError):
                call()
            assert (list(table.blocks), table.num_stored, pool.num_free) == ([1, 2], 6, 6)


class TestWrongOrder:
    def test_a_cache_in_the_middle_of_a_step(self, model):
        """fork and select leave the step with the original, which ends it; cat refuses."""
        memory = memory_of(model)
        for layer in range(model.config.num_layers):
            cache, texts = filled(model, memory)
            other, _ = filled(model, memory, seed=1)
            made = []
            ids = tokens(2, 3, seed=2)

            def meanwhile(module, args, made=made, cache=cache, other=other):
                refused(lambda: kv.KVCache.cat([other, cache]), memory, cache, match="rollback")
                made += [cache.fork(), cache.select([1, 1])]

            hook = model.layers[layer].mlp.register_forward_pre_hook(meanwhile)
            try:
                check_hooked = model(ids, cache=cache)
            finally:
                hook.remove()
            alone = model(torch.cat((torch.tensor(texts), ids), dim=1))[:, -3:]
            assert (check_hooked - alone).abs().max() < 1e-10
            for text, row in zip(texts, ids.tolist(), strict=True):
                text += row
            before = [text[:10] for text in texts]
            check_next(model, made[0], [list(text) for text in before], tokens(2, 4, seed=3))
            check_next(model, made[1], [list(before[1]), list(before[1])], tokens(2, 4, seed=4))
            check_next(model, cache, texts, tokens(2, 4, seed=5))

    def test_a_layer_may_try_again_when_there_is_room(self):
        model = model_named("window_then_full")
        memory = memory_of(model, num_blocks=9)
        hog, _ = filled(model, memory, rows=1, size=20)
        cache, c = kv.KVCache(model.config, memory=memory), model.config
        new = [torch.randn(1, heads, 17, c.head_dim).double() for heads in (c.num_heads, 2, 2)]
        cache.begin(17)
        refused(lambda: cache.attend(0, *new), memory, cache, error=PoolExhausted)
        del hog
        gc.collect()
        for layer in range(2):
            cache.attend(layer, *new)
        cache.commit()
        assert cache.seen == (17,)
        check_integrity(cache)

    def test_reuse_and_restore_after_a_step_that_was_left(self, model):
        memory = memory_of(model)
        used, texts = filled(model, memory, rows=1)
        used.publish(texts)
        saved = used.fork().offload()
        for method, given in (("reuse", texts), ("restore", saved)):
            cache = kv.KVCache(model.config, memory=memory)
            cache.begin(9)
            store = cache._storage.layers[0]
            cache.append(0, *[torch.zeros(1, *f.shape[:-1], 9, f.shape[-1]).double() for f in store.fields])
            getattr(cache, method)(given)
            done = cache.seen[0]
            check_next(model, cache, [texts[0][:done]], torch.tensor([[*texts[0][done:], 5]]))
        del used, cache
        assert all_free(memory)


class TestOneMemoryForMany:
    def test_two_steps_at_once(self):
        model = model_named("gqa")
        c = model.config
        memory = memory_of(model, num_blocks=2, grows=True)
        new = [
            [torch.randn(1, heads, 7, c.head_dim).double() for heads in (c.num_heads, 2, 2)] for _ in range(4)
        ]
        caches = [kv.KVCache(c, memory=memory) for _ in range(2)]
        alone = [kv.KVCache(c) for _ in range(2)]
        for cache in caches:
            cache.begin(7)
        for layer in range(2):
            for which, (cache, twin) in enumerate(zip(caches, alone, strict=True)):
                out, expected = (one.attend(layer, *new[2 * layer + which]) for one in (cache, twin))
                assert (out - expected).abs().max() < 1e-10
        for cache in caches:
            cache.commit()
            refused(cache.commit, memory, *caches, match="begin")
            check_integrity(cache)

    def test_wrong_tensors(self):
        model = model_named("gqa")
        c, memory = model.config, memory_of(model)
        cache, texts = filled(model, memory, rows=1)

        def zeros(heads, batch=1, tokens=3, dim=c.head_dim, **options):
            return torch.zeros(batch, heads, tokens, dim, **{"dtype": torch.float64} | options)

        q, k = zeros(c.num_heads), zeros(2)
        for layer, *new in (
            (0, q, k, None),
            (0, q, k, zeros(2, tokens=4)),
            (0, q.float(), k.float(), k.float()),
            (0, *[x.to("meta") for x in (q, k, k)]),
            (0, *[x.to_sparse() for x in (q, k, k)]),
            (0, zeros(c.num_heads, tokens=0), zeros(2, tokens=0), zeros(2, tokens=0)),
            (0, zeros(c.num_heads, batch=2), zeros(2, batch=2), zeros(2, batch=2)),
            (0, q.numpy(), k, k),
            (1, q, k, k),
            (2, q, k, k),
            (True, q, k, k),
        ):
            refused(lambda layer=layer, new=new: cache.attend(layer, *new), memory, cache)
        check_next(model, cache, texts, tokens(1, 2))

    def test_what_lay_in_the_pages_never_shows(self, model):
        memory = memory_of(model, num_blocks=6)
        for group in memory.groups:
            for pages in group.all_pages():
                pages.values.fill_(torch.nan)
        cache, texts = kv.KVCache(model.config, memory=memory), [[]]
        for size in (5, 1, 3, 1, 1):
            check_next(model, cache, texts, tokens(1, size, seed=size))
        cache.crop(9)
        check_next(model, cache, [texts[0][:9]], tokens(1, 4))

    def test_caches_that_the_garbage_collector_finds_give_back_their_blocks(self):
        model = model_named("gqa")
        memory = memory_of(model, num_blocks=2000)
        cache, texts = filled(model, memory, rows=1)
        thresholds = gc.get_threshold()
        gc.set_threshold(3, 1, 1)  # at any moment, also in the middle of a step of another cache
        try:
            for seed in range(20):
                dropped, _ = filled(model, memory, rows=1, seed=seed)
                dropped.myself = dropped
                del dropped
                check_next(model, cache, texts, tokens(1, 1, seed=seed))
        finally:
            gc.set_threshold(*thresholds)
        cache.reset()
        assert all_free(memory)

    def test_the_last_cache_keeps_its_memory(self):
        model = model_named("gqa")
        cache, texts = filled(model, memory_of(model), rows=1)
        child = cache.fork()
        del cache
        gc.collect()
        check_next(model, child, texts, tokens(1, 5))

    def test_sizes_beyond_all_measure(self):
        config = model_named("gqa").config
        cache = kv.KVCache(config, kv.Plan(storage="paged"))
        refused(lambda: cache.begin(2**45), cache.memory, cache, match="at most")
        for options in ({"batch_size": 2**20 + 1}, {"plan": kv.Plan(storage="paged", num_blocks=2**30)}):
            with pytest.raises(InputError, match="at most"):
                kv.KVCache(config, **({"plan": kv.Plan(storage="paged")} | options))
