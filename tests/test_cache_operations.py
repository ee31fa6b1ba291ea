"""crop, fork, reset and the counters: afterwards the cache must equal one in which nothing else ever happened."""

import numpy as np
import pytest
import torch
from oracles import DenseRows, left_padded
from strategies import CACHE_VARIANTS
from tiny_models import TIGHT, check_next, model_named, new_cache, tokens

import kvcourse as kv
from kvcourse.errors import InputError

pytestmark = pytest.mark.usefixtures("every_storage")


@pytest.fixture(params=CACHE_VARIANTS)
def model(request):
    return model_named(request.param)


class TestInferenceMode:
    """torch forbids writing a tensor of inference mode outside of it; a cache may be used on both sides."""

    def test_filled_inside_and_continued_outside(self, model):
        cache, history = new_cache(model), []
        with torch.inference_mode():
            check_next(model, cache, [history], tokens(1, 5))
        check_next(model, cache, [history], tokens(1, 3, seed=1))
        with torch.inference_mode():
            check_next(model, cache, [history], tokens(1, 40, seed=2))
        check_next(model, cache, [history], tokens(1, 1, seed=3))

    def test_forked_inside(self, model):
        cache, history = new_cache(model), []
        check_next(model, cache, [history], tokens(1, 5))
        with torch.inference_mode():
            other = cache.fork()
        check_next(model, other, [history], tokens(1, 1, seed=1))


class TestCrop:
    @pytest.mark.parametrize("keep", [1, 7, 11, 12])
    def test_keep_the_first(self, keep):
        model = model_named("gqa")
        ids, cache = tokens(2, 12), new_cache(model, 2)
        model(ids, cache=cache)
        cache.crop(keep)
        assert cache.seen == cache.lengths == (keep, keep)
        check_next(model, cache, [row[:keep].tolist() for row in ids], tokens(2, 9, seed=5))

    @pytest.mark.parametrize("drop", [1, 5, 11])
    def test_drop_the_last(self, drop):
        model = model_named("mha")
        ids, cache = tokens(2, 12), new_cache(model, 2)
        model(ids, cache=cache)
        cache.crop(-drop)
        assert cache.seen == cache.lengths == (12 - drop,) * 2
        check_next(model, cache, [row[:-drop].tolist() for row in ids], tokens(2, 4, seed=5))

    def test_drop_the_last_of_ragged_rows(self):
        model = model_named("gqa")
        prompts = [[1, 2, 3, 4, 5, 6, 7, 8], [9, 10, 11], [12, 13, 14, 15]]
        ids, mask = left_padded(prompts)
        cache = new_cache(model, 3)
        model(ids, cache=cache, attention_mask=mask)
        cache.crop(-2)
        assert cache.seen == (6, 1, 2)
        check_next(model, cache, [row[:-2] for row in prompts], tokens(3, 3, seed=5))

    def test_keep_the_first_of_ragged_rows(self):
        model = model_named("gqa")
        prompts = [[1, 2, 3, 4, 5, 6, 7, 8], [9, 10, 11], [12, 13, 14, 15]]
        ids, mask = left_padded(prompts)
        cache = new_cache(model, 3)
        model(ids, cache=cache, attention_mask=mask)
        cache.crop(3)
        assert cache.seen == (3, 3, 3)
        check_next(model, cache, [row[:3] for row in prompts], tokens(3, 3, seed=5))

    @pytest.mark.parametrize("beyond", [13, 100])
    def test_beyond_the_length(self, beyond):
        model = model_named("gqa")
        ids, cache = tokens(1, 12), new_cache(model)
        model(ids, cache=cache)
        with pytest.raises(InputError, match="12"):
            cache.crop(beyond)
        assert cache.seen == cache.lengths == (12,)
        check_next(model, cache, [ids[0].tolist()], tokens(1, 2))

    def test_drop_more_than_a_row_has(self):
        """A row loses at most all its tokens; the others lose as many as was said."""
        model = model_named("gqa")
        prompts = [[1, 2, 3, 4, 5, 6, 7, 8], [9, 10, 11], [12, 13, 14, 15]]
        ids, mask = left_padded(prompts)
        cache = new_cache(model, 3)
        model(ids, cache=cache, attention_mask=mask)
        cache.crop(-4)
        assert cache.seen == (4, 0, 0)
        check_next(model, cache, [prompts[0][:4], [], []], tokens(3, 3, seed=5))

    @pytest.mark.parametrize("forked", [False, True])
    @pytest.mark.parametrize("between", [0, 1, 9])
    def test_a_ring_cannot_go_back_in_two_steps_where_it_cannot_in_one(self, between, forked):
        """What tells how far a ring has been overwritten is the most it ever held, not what it holds now."""
        model = model_named("window_4")
        ids, cache = tokens(1, 60), new_cache(model)
        model(ids, cache=cache)
        back = 10 if cache.memory is None else 5
        cache.crop(-back)
        rows = [ids[0, :-back].tolist()]
        if between:
            check_next(model, cache, rows, tokens(1, between, seed=5))
        cache = cache.fork() if forked else cache
        with pytest.raises(InputError, match="crop at most"):
            cache.crop(-10 - between)
        check_next(model, cache, rows, tokens(1, 3, seed=6))

    @pytest.mark.parametrize("back", range(14, 21))
    def test_a_full_ring_goes_back_a_block_and_never_further_than_is_right(self, back):
        model = model_named("window_4")
        ids, cache = tokens(1, 60), new_cache(model)
        for piece in ids.split([30, 1, 29], dim=1):
            model(piece, cache=cache)
        try:
            cache.crop(-back)
        except InputError:
            assert back > cache.plan.block_size
        else:
            check_next(model, cache, [ids[0, :-back].tolist()], tokens(1, 1, seed=6))

    def test_dropped_tokens_leave_no_trace(self):
        """Not even NaN, which would show through a mask that multiplies."""
        model = model_named("gqa")
        c, cache, dense = model.config, new_cache(model), DenseRows(1, [None, None])
        generator = torch.Generator().manual_seed(3)

        def draw(size):
            heads = (c.num_heads, c.num_kv_heads, c.num_kv_heads)
            return [
                torch.randn(1, h, size, c.head_dim, dtype=torch.float64, generator=generator) for h in heads
            ]

        good, bad = draw(4), [x.fill_(torch.nan) for x in draw(6)]
        for layer in range(2):
            cache.attend(layer, *good)
            dense.attend(layer, 0, *(x[0] for x in good))
        for layer in range(2):
            cache.attend(layer, *bad)
        cache.crop(-6)
        for size in (1, 2):
            new = draw(size)
            for layer in range(2):
                out = cache.attend(layer, *new)
                expected = dense.attend(layer, 0, *(x[0] for x in new))
                assert np.abs(out[0].numpy() - expected).max() <= TIGHT


class TestFork:
    def test_children_go_their_own_ways(self, model):
        ids, parent = tokens(2, 11), new_cache(model, 2)
        model(ids, cache=parent)
        rows = [row.tolist() for row in ids]
        children = [parent.fork() for _ in range(3)]
        histories = [[list(row) for row in rows] for _ in children]
        for step in range(4):
            for number, (child, history) in enumerate(zip(children, histories, strict=True)):
                check_next(model, child, history, tokens(2, 1 + step, seed=10 * number + step))
        assert parent.seen == (11, 11)
        check_next(model, parent, [list(row) for row in rows], tokens(2, 3, seed=99))

    def test_the_parent_may_go_on_first(self, model):
        ids, parent = tokens(1, 9), new_cache(model)
        model(ids, cache=parent)
        child = parent.fork()
        history = ids[0].tolist()
        check_next(model, parent, [list(history)], tokens(1, 5, seed=1))
        parent.reset()
        check_next(model, child, [list(history)], tokens(1, 5, seed=2))

    def test_a_fork_of_a_fork(self, model):
        cache, history = new_cache(model), []
        for depth in range(5):
            check_next(model, cache, [history], tokens(1, 3, seed=depth))
            cache = cache.fork()

    def test_a_fork_of_an_empty_cache(self, model):
        check_next(model, new_cache(model).fork(), [[]], tokens(1, 3))

    def test_a_fork_of_ragged_rows(self, model):
        ids, mask = left_padded([[1, 2, 3, 4, 5], [6]])
        cache, rows = new_cache(model, 2), [[], []]
        check_next(model, cache, rows, ids, mask)
        child, copies = cache.fork(), [list(row) for row in rows]
        check_next(model, child, copies, *left_padded([[7], [8, 9, 10, 11]]))
        check_next(model, cache, rows, *left_padded([[12, 13], [14]]))


class TestReset:
    def test_starts_afresh(self, model):
        cache = new_cache(model, 2)
        model(tokens(2, 13), cache=cache)
        cache.reset()
        assert cache.seen == cache.lengths == (0, 0)
        check_next(model, cache, [[], []], tokens(2, 6, seed=4))

    def test_an_empty_cache(self, model):
        cache = new_cache(model)
        cache.reset()
        check_next(model, cache, [[]], tokens(1, 6))


class TestCounters:
    def test_are_snapshots(self):
        model = model_named("gqa")
        cache = new_cache(model, 2)
        assert cache.seen == cache.lengths == (0, 0)
        model(tokens(2, 5), cache=cache)
        seen, lengths, capacity, nbytes = cache.seen, cache.lengths, cache.capacity, cache.nbytes
        for counter in (*seen, *lengths, capacity, nbytes):
            assert type(counter) is int
        assert type(seen) is type(lengths) is tuple
        model(tokens(2, 500), cache=cache)
        assert seen == lengths == (5, 5)
        assert cache.seen == cache.lengths == (505, 505)
        assert capacity < cache.capacity
        assert nbytes < cache.nbytes

    def test_cannot_be_assigned(self):
        cache = new_cache(model_named("gqa"))
        for name in ("seen", "lengths", "capacity", "nbytes"):
            with pytest.raises((AttributeError, TypeError)):
                setattr(cache, name, 3)

    def test_bytes_follow_the_capacity(self):
        """2 fields x layers x rows x slots x heads x dim x bytes: nothing else is stored for full attention."""
        model = model_named("gqa")
        c, cache = model.config, new_cache(model, 3)
        last = 0
        for _ in range(40):
            model(tokens(3, 17), cache=cache)
            assert cache.nbytes == 2 * c.num_layers * 3 * cache.capacity * c.num_kv_heads * c.head_dim * 8
            assert cache.nbytes >= last
            last = cache.nbytes

    def test_a_window_stops_growing(self):
        model = model_named("window_4")
        cache = new_cache(model)
        for _ in range(3):
            model(tokens(1, 40), cache=cache)
        before = cache.nbytes
        for _ in range(20):
            model(tokens(1, 40), cache=cache)
        assert cache.nbytes == before
        assert cache.seen == (920,)

    def test_crop_does_not_grow_and_fork_is_no_smaller_than_its_content(self):
        model = model_named("gqa")
        c, cache = model.config, new_cache(model)
        model(tokens(1, 100), cache=cache)
        before = cache.nbytes
        cache.crop(50)
        assert cache.nbytes <= before
        assert cache.fork().nbytes >= 2 * c.num_layers * 50 * c.num_kv_heads * c.head_dim * 8

    def test_capacity_given_in_the_plan(self):
        model = model_named("gqa")
        cache = kv.KVCache(model.config, kv.Plan(capacity=100), batch_size=1)
        check_next(model, cache, [[]], tokens(1, 100))
        assert cache.capacity == 100

    @pytest.mark.parametrize(
        ("variant", "kept"), [("window_4", (2, 4)), ("window_then_full", (2, 9)), ("gqa", (2, 9))]
    )
    def test_lengths_end_at_the_window_where_no_layer_sees_more(self, variant, kept):
        model = model_named(variant)
        cache = new_cache(model, 2)
        ids, mask = left_padded([[1, 2], [3, 4, 5, 6, 7, 8, 9, 10, 11]])
        model(ids, cache=cache, attention_mask=mask)
        assert cache.seen == (2, 9)
        assert cache.lengths == kept

    @pytest.mark.parametrize(
        ("filled", "slots"), [(1, 16), (16, 16), (17, 32), (32, 32), (33, 64), (100, 128)]
    )
    def test_capacity_doubles_when_it_is_exceeded_and_not_before(self, filled, slots):
        model = model_named("gqa")
        cache = kv.KVCache(model.config, kv.Plan(block_size=16))
        model(tokens(1, filled), cache=cache)
        assert cache.capacity == slots
