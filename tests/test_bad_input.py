"""Bad input gets one clear line, and changes nothing."""

import pytest
import torch
from tiny_models import VOCAB, check_next, model_named, new_cache, tokens

import kvcourse as kv
from kvcourse.errors import InputError


class TestModel:
    @pytest.fixture
    def model(self):
        return kv.tiny_model(vocab_size=50, dtype=torch.float64)

    @pytest.mark.parametrize(
        "ids",
        [
            torch.tensor([1, 2, 3]),
            torch.zeros(1, 2, 3, dtype=torch.int64),
            torch.tensor([[0.0, 1.0]]),
            torch.tensor([[0, 50]]),
            torch.tensor([[0, -1]]),
            torch.zeros(1, 0, dtype=torch.int64),
            torch.zeros(0, 3, dtype=torch.int64),
        ],
        ids=["1d", "3d", "floats", "beyond_vocabulary", "negative", "no_tokens", "no_rows"],
    )
    def test_input_ids(self, model, ids):
        with pytest.raises(InputError) as error:
            model(ids)
        assert "\n" not in str(error.value)

    @pytest.mark.parametrize(
        "mask",
        [
            [[1, 1, 0], [1, 1, 1]],
            [[1, 0, 1], [1, 1, 1]],
            [[0, 0, 0], [1, 1, 1]],
            [[1, 1, 2], [1, 1, 1]],
            [[1, 1], [1, 1]],
            [[1, 1, 1, 1], [1, 1, 1, 1]],
            [[1, 1, 1]],
            [1, 1, 1],
        ],
        ids=["right_padding", "hole", "all_padding", "not_0_or_1", "short", "long", "rows", "1d"],
    )
    def test_attention_mask(self, model, mask):
        ids = torch.tensor([[1, 2, 3], [4, 5, 6]])
        with pytest.raises(InputError) as error:
            model(ids, attention_mask=torch.tensor(mask))
        assert "\n" not in str(error.value)

    def test_more_tokens_than_positions(self):
        model = kv.tiny_model(vocab_size=VOCAB, max_position_embeddings=16, dtype=torch.float64)
        assert model(tokens(1, 16)).shape == (1, 16, VOCAB)
        with pytest.raises(InputError, match="16"):
            model(tokens(1, 17))
        cache = new_cache(model)
        model(tokens(1, 10), cache=cache)
        with pytest.raises(InputError, match="16"):
            model(tokens(1, 7), cache=cache)
        check_next(model, cache, [tokens(1, 10)[0].tolist()], tokens(1, 6))

    def test_padding_ids_may_be_anything_in_the_vocabulary(self, model):
        mask = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])
        a = model(torch.tensor([[0, 0, 7, 8], [1, 2, 3, 4]]), attention_mask=mask)
        b = model(torch.tensor([[49, 3, 7, 8], [1, 2, 3, 4]]), attention_mask=mask)
        assert torch.equal(a[mask.bool()], b[mask.bool()])

    @pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float32])
    def test_masks_of_any_dtype(self, model, dtype):
        ids, mask = torch.tensor([[0, 2, 3], [4, 5, 6]]), torch.tensor([[0, 1, 1], [1, 1, 1]])
        assert torch.equal(
            model(ids, attention_mask=mask.to(dtype))[mask.bool()],
            model(ids, attention_mask=mask)[mask.bool()],
        )


class TestCache:
    """One clear line, and the cache as it was."""

    @pytest.fixture
    def filled(self):
        model = model_named("gqa")
        cache, rows = new_cache(model, 2), [[], []]
        check_next(model, cache, rows, tokens(2, 5))
        return model, cache, rows

    def refuse(self, filled, call):
        model, cache, rows = filled
        nbytes = cache.nbytes
        with pytest.raises(InputError) as error:
            call()
        assert str(error.value)
        assert "\n" not in str(error.value)
        assert cache.seen == cache.lengths == (5, 5)
        assert cache.nbytes == nbytes
        check_next(model, cache, rows, tokens(2, 2))

    @pytest.mark.parametrize(
        ("ids", "mask"),
        [
            (torch.zeros(1, 3, dtype=torch.int64), None),
            (torch.zeros(3, 3, dtype=torch.int64), None),
            (torch.zeros(2, 0, dtype=torch.int64), None),
            (torch.zeros(2, dtype=torch.int64), None),
            (torch.tensor([[1, VOCAB], [1, 2]]), None),
            (torch.tensor([[1, -1], [1, 2]]), None),
            (torch.zeros(2, 3), None),
            (torch.zeros(2, 3, dtype=torch.int64), torch.tensor([[1, 1, 0], [1, 1, 1]])),
            (torch.zeros(2, 3, dtype=torch.int64), torch.tensor([[1, 0, 1], [1, 1, 1]])),
            (torch.zeros(2, 3, dtype=torch.int64), torch.tensor([[0, 0, 0], [1, 1, 1]])),
            (torch.zeros(2, 3, dtype=torch.int64), torch.ones(2, 8)),
            (torch.zeros(2, 3, dtype=torch.int64), torch.ones(1, 3)),
        ],
        ids=[
            "fewer_rows",
            "more_rows",
            "no_tokens",
            "1d",
            "beyond_vocabulary",
            "negative_id",
            "floats",
            "right_padding",
            "hole",
            "all_padding",
            "mask_of_the_whole_length",
            "mask_of_one_row",
        ],
    )
    def test_forward(self, filled, ids, mask):
        model, cache, _ = filled
        self.refuse(filled, lambda: model(ids, cache=cache, attention_mask=mask))

    # (layer, rows, query heads, kv heads, query tokens, key tokens, head dim), right: (0, 2, 6, 2, 1, 1, 10)
    @pytest.mark.parametrize(
        "shape",
        [
            (2, 2, 6, 2, 1, 1, 10),
            (-1, 2, 6, 2, 1, 1, 10),
            (0, 1, 6, 2, 1, 1, 10),
            (0, 3, 6, 2, 1, 1, 10),
            (0, 2, 4, 2, 1, 1, 10),
            (0, 2, 6, 6, 1, 1, 10),
            (0, 2, 6, 1, 1, 1, 10),
            (0, 2, 6, 2, 2, 1, 10),
            (0, 2, 6, 2, 1, 2, 10),
            (0, 2, 6, 2, 0, 0, 10),
            (0, 2, 6, 2, 1, 1, 12),
        ],
        ids=[
            "layer",
            "negative_layer",
            "fewer_rows",
            "more_rows",
            "query_heads",
            "more_kv_heads",
            "fewer_kv_heads",
            "more_queries",
            "more_keys",
            "no_tokens",
            "head_dim",
        ],
    )
    def test_attend(self, filled, shape):
        layer, rows, num_heads, num_kv_heads, queries, keys, head_dim = shape
        q = torch.zeros(rows, num_heads, queries, head_dim, dtype=torch.float64)
        k = torch.zeros(rows, num_kv_heads, keys, head_dim, dtype=torch.float64)
        self.refuse(filled, lambda: filled[1].attend(layer, q, k, k.clone()))

    def test_layers_out_of_order(self, filled):
        q, k = torch.zeros(2, 6, 1, 10, dtype=torch.float64), torch.zeros(2, 2, 1, 10, dtype=torch.float64)
        self.refuse(filled, lambda: filled[1].attend(1, q, k, k.clone()))

    def test_layers_with_different_numbers_of_tokens(self, filled):
        q, k = torch.zeros(2, 6, 3, 10, dtype=torch.float64), torch.zeros(2, 2, 3, 10, dtype=torch.float64)
        filled[1].attend(0, q, k, k.clone())
        self.refuse(filled, lambda: filled[1].attend(1, q[:, :, :2], k[:, :, :2], k[:, :, :2]))

    def test_more_tokens_than_the_plan_allows(self):
        model = model_named("gqa")
        cache, rows = kv.KVCache(model.config, kv.Plan(capacity=10), batch_size=1), [[]]
        check_next(model, cache, rows, tokens(1, 8))
        with pytest.raises(InputError, match="10"):
            model(tokens(1, 3), cache=cache)
        check_next(model, cache, rows, tokens(1, 2))

    def test_values_of_another_shape(self, filled):
        q = torch.zeros(2, 6, 1, 10, dtype=torch.float64)
        k = torch.zeros(2, 2, 1, 10, dtype=torch.float64)
        self.refuse(filled, lambda: filled[1].attend(0, q, k, k[..., :8]))
        self.refuse_again(filled, lambda: filled[1].attend(0, q, k, k[:, :1]))

    def refuse_again(self, filled, call):
        _, cache, _ = filled
        seen = cache.seen
        with pytest.raises(InputError):
            call()
        assert cache.seen == seen

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
    def test_another_dtype(self, filled, dtype):
        q, k = torch.zeros(2, 6, 1, 10, dtype=dtype), torch.zeros(2, 2, 1, 10, dtype=dtype)
        self.refuse(filled, lambda: filled[1].attend(0, q, k, k.clone()))

    def test_mixed_dtypes(self, filled):
        q, k = torch.zeros(2, 6, 1, 10, dtype=torch.float64), torch.zeros(2, 2, 1, 10, dtype=torch.float64)
        self.refuse(filled, lambda: filled[1].attend(0, q, k, k.float()))

    def test_another_device(self, filled):
        q = torch.zeros(2, 6, 1, 10, dtype=torch.float64, device="meta")
        k = torch.zeros(2, 2, 1, 10, dtype=torch.float64, device="meta")
        self.refuse(filled, lambda: filled[1].attend(0, q, k, k.clone()))

    @pytest.mark.parametrize("count", [6, 100, True, 2.0, "2", None])
    def test_crop(self, filled, count):
        self.refuse(filled, lambda: filled[1].crop(count))

    @pytest.mark.parametrize("batch_size", [0, -1, 1.5])
    def test_batch_size(self, batch_size):
        with pytest.raises(InputError):
            kv.KVCache(model_named("gqa").config, kv.Plan(), batch_size=batch_size)

    @pytest.mark.parametrize(
        "options",
        [
            {"storage": "cloud"},
            {"attention": "psychic"},
            {"codec": "int3.5"},
            {"eviction": "fifo?"},
            {"sharing": "everything"},
            {"block_size": 0},
            {"capacity": -1},
        ],
        ids=lambda options: next(iter(options)),
    )
    def test_plan(self, options):
        with pytest.raises(InputError):
            kv.KVCache(model_named("gqa").config, kv.Plan(**options), batch_size=1)

    def test_a_cache_of_another_model(self):
        cache = new_cache(model_named("gqa"))
        with pytest.raises(InputError):
            model_named("mha")(tokens(1, 3), cache=cache)
        assert cache.seen == (0,)


class TestGenerate:
    @pytest.mark.parametrize(
        "options",
        [
            {"max_new_tokens": -1},
            {"max_new_tokens": 1.5},
            {"temperature": -0.1},
            {"temperature": float("nan")},
            {"attention_mask": torch.tensor([[1, 1, 0]])},
            {"attention_mask": torch.tensor([[0, 0, 0]])},
        ],
        ids=[
            "negative",
            "fraction",
            "below_zero",
            "nan",
            "right_padding",
            "all_padding",
        ],
    )
    def test_options(self, options):
        with pytest.raises(InputError) as error:
            kv.generate(model_named("gqa"), tokens(1, 3), **options)
        assert "\n" not in str(error.value)

    def test_more_tokens_than_positions(self):
        """Said before the work is done, not after it."""
        model = kv.tiny_model(vocab_size=VOCAB, max_position_embeddings=16)
        assert kv.generate(model, tokens(1, 10), max_new_tokens=6).shape == (1, 6)
        cache = new_cache(model)
        with pytest.raises(InputError, match="16"):
            kv.generate(model, tokens(1, 10), max_new_tokens=20, cache=cache)
        assert cache.seen == (0,)

    def test_an_empty_prompt(self):
        with pytest.raises(InputError):
            kv.generate(model_named("gqa"), torch.zeros(1, 0, dtype=torch.int64))

    def test_a_cache_for_another_batch(self):
        model = model_named("gqa")
        cache = kv.KVCache(model.config, kv.Plan(), batch_size=2)
        with pytest.raises(InputError):
            kv.generate(model, tokens(1, 3), cache=cache)
        assert cache.seen == (0, 0)

    def test_a_cache_that_may_not_be_used(self):
        model = model_named("gqa")
        cache = kv.KVCache(model.config, kv.Plan(), batch_size=1)
        with pytest.raises(InputError):
            kv.generate(model, tokens(1, 3), cache=cache, use_cache=False)
