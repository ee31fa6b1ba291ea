"""The contiguous cache against runs without a cache, and against attention written out in float64 numpy."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracles import DenseRows, left_padded
from strategies import CACHE_VARIANTS, MANY, cache_variants, head_counts, ragged_calls, seeds, splits, windows
from tiny_models import TIGHT, VOCAB, check_next, gap, model_named, new_cache, tokens

import kvcourse as kv

pytestmark = pytest.mark.usefixtures("every_storage")


@pytest.fixture(params=CACHE_VARIANTS)
def model(request):
    return model_named(request.param)


class TestSameLogits:
    def test_at_every_step(self, model):
        ids = tokens(2, 40)
        full, cache = model(ids), new_cache(model, 2)
        assert gap(model(ids[:, :5], cache=cache), full[:, :5]) <= TIGHT
        for t in range(5, 40):
            step = model(ids[:, t : t + 1], cache=cache)
            assert gap(step, full[:, t : t + 1]) <= TIGHT
            assert cache.seen == (t + 1,) * 2

    def test_token_by_token(self, model):
        ids = tokens(1, 23)
        full, cache = model(ids), new_cache(model)
        for t in range(23):
            assert gap(model(ids[:, t : t + 1], cache=cache), full[:, t : t + 1]) <= TIGHT

    def test_last_only(self, model):
        ids = tokens(2, 12)
        full, cache = model(ids), new_cache(model, 2)
        assert gap(model(ids[:, :7], cache=cache, last_only=True), full[:, 6:7]) <= TIGHT
        assert gap(model(ids[:, 7:], cache=cache, last_only=True), full[:, 11:]) <= TIGHT

    @MANY
    @given(variant=cache_variants(), sizes=splits(24), seed=seeds())
    def test_however_the_tokens_are_split(self, variant, sizes, seed):
        model, ids = model_named(variant), tokens(2, 24, seed=seed)
        cache, pieces = new_cache(model, 2), []
        for piece in ids.split(sizes, dim=1):
            pieces.append(model(piece, cache=cache))
        assert gap(torch.cat(pieces, 1), model(ids)) <= TIGHT

    @MANY
    @given(variant=cache_variants(), calls=ragged_calls(), seed=seeds())
    def test_rows_of_different_length(self, variant, calls, seed):
        """Every call pads its rows on the left; every row must come out as if it were alone."""
        model, rng = model_named(variant), np.random.default_rng(seed)
        rows, cache = [[] for _ in calls[0]], new_cache(model, len(calls[0]))
        for call in calls:
            ids, mask = left_padded([rng.integers(VOCAB, size=n).tolist() for n in call], pad=3)
            check_next(model, cache, rows, ids, mask)

    def test_padded_prompt_then_single_tokens(self, model):
        prompts = [[7, 8, 9, 10, 11, 12, 13, 14, 15], [1], [2, 3, 4, 5]]
        ids, mask = left_padded(prompts)
        rows, cache = [[], [], []], new_cache(model, 3)
        check_next(model, cache, rows, ids, mask)
        for t in range(12):
            check_next(model, cache, rows, tokens(3, 1, seed=t))

    @pytest.mark.parametrize("window", [15, 16, 17])
    def test_window_of_about_the_length(self, window):
        model = kv.tiny_model(vocab_size=VOCAB, dtype=torch.float64, sliding_window=window)
        ids = tokens(1, 20)
        full, cache = model(ids), new_cache(model)
        assert gap(model(ids[:, :16], cache=cache), full[:, :16]) <= TIGHT
        for t in range(16, 20):
            assert gap(model(ids[:, t : t + 1], cache=cache), full[:, t : t + 1]) <= TIGHT
        assert (gap(full[:, :16], without_window(model)(ids)[:, :16]) > 1e-6) == (window < 16)

    def test_long_run_over_a_short_window(self):
        model = model_named("window_then_full")
        ids = tokens(1, 300)
        full, cache, pieces = model(ids), new_cache(model), []
        for piece in ids.split([1, 2, 3, 4, 100, 1, 1, 50, 1, 100, 37], dim=1):
            pieces.append(model(piece, cache=cache))
        assert gap(torch.cat(pieces, 1), full) <= TIGHT


def without_window(model):
    """The same weights without the sliding window."""
    fields = {"num_layers": model.config.num_layers}
    other = kv.tiny_model(vocab_size=VOCAB, dtype=torch.float64, **fields)
    other.load_state_dict(model.state_dict())
    return other


class TestAttend:
    """`attend` alone, without a model around it: any keys and values, and K is never V."""

    @MANY
    @given(
        heads=head_counts(),
        head_dim=st.sampled_from([2, 6, 10, 18]),
        window=windows(),
        sizes=splits(15),
        batch=st.integers(1, 2),
        seed=seeds(),
    )
    def test_equals_plain_numpy(self, heads, head_dim, window, sizes, batch, seed):
        num_heads, num_kv_heads = heads
        config = kv.tiny_model(
            num_layers=2,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            sliding_window=window,
            layer_types=None if window is None else ("sliding_attention", "full_attention"),
        ).config
        rng = np.random.default_rng(seed)
        cache = kv.KVCache(config, kv.Plan(), batch_size=batch)
        dense = DenseRows(batch, [window, None])
        for size in sizes:
            for layer in range(2):
                q = rng.standard_normal((batch, num_heads, size, head_dim))
                k = rng.standard_normal((batch, num_kv_heads, size, head_dim))
                v = rng.standard_normal((batch, num_kv_heads, size, head_dim))
                out = cache.attend(layer, *map(torch.from_numpy, (q, k, v)))
                assert out.shape == q.shape
                for row in range(batch):
                    expected = dense.attend(layer, row, q[row], k[row], v[row])
                    assert np.abs(out[row].numpy() - expected).max() <= TIGHT

    @pytest.mark.parametrize("window", [None, 9, 255, 256, 257])
    def test_growth_never_loses_a_write(self, window):
        """Token by token over every capacity up to 300: old tokens survive each growth, new ones arrive."""
        config = kv.tiny_model(
            num_layers=1, num_heads=2, num_kv_heads=1, head_dim=2, sliding_window=window
        ).config
        cache, dense = kv.KVCache(config, kv.Plan(), batch_size=1), DenseRows(1, [window])
        rng, capacities = np.random.default_rng(0), set()
        for length in range(1, 301):
            q, k, v = (rng.standard_normal((1, heads, 1, 2)) for heads in (2, 1, 1))
            out = cache.attend(0, *map(torch.from_numpy, (q, k, v)))
            expected = dense.attend(0, 0, q[0], k[0], v[0])
            assert np.abs(out[0].numpy() - expected).max() <= TIGHT, f"at {length} tokens"
            assert cache.seen == (length,)
            assert window is not None or cache.capacity >= length
            capacities.add(cache.capacity)
        assert window is not None or 1 < len(capacities) < 20, "grows in steps, not at every token"

    @pytest.mark.parametrize("first", [254, 255, 256, 257, 300])
    @pytest.mark.parametrize("more", [1, 2, 300])
    def test_growth_in_chunks(self, first, more):
        model = kv.tiny_model(
            vocab_size=VOCAB, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=2, dtype=torch.float64
        )
        ids = tokens(1, first + more + 1)
        cache = new_cache(model)
        pieces = [model(piece, cache=cache) for piece in ids.split([first, more, 1], dim=1)]
        assert gap(torch.cat(pieces, 1), model(ids)) <= TIGHT

    def test_the_caller_keeps_its_tensors(self):
        """What was passed in may be overwritten afterwards, and is not changed by the cache."""
        model = model_named("gqa")
        c, cache = model.config, new_cache(model)
        shapes = [(1, h, 3, c.head_dim) for h in (c.num_heads, c.num_kv_heads, c.num_kv_heads)]
        q, k, v = (torch.randn(s, dtype=torch.float64) for s in shapes)
        before = [x.clone() for x in (q, k, v)]
        dense = DenseRows(1, [None, None])
        for layer in range(2):
            cache.attend(layer, q, k, v)
            dense.attend(layer, 0, q[0], k[0], v[0])
        assert all(torch.equal(a, b) for a, b in zip(before, (q, k, v), strict=True))
        k.fill_(torch.nan)
        v.fill_(torch.nan)
        q, k, v = (torch.randn(1, s[1], 1, s[3], dtype=torch.float64) for s in shapes)
        out = cache.attend(0, q, k, v)
        assert np.abs(out[0].numpy() - dense.attend(0, 0, q[0], k[0], v[0])).max() <= TIGHT

    @pytest.mark.parametrize("view", ["transposed", "sliced", "expanded"])
    def test_views_are_as_good_as_tensors(self, view):
        model = model_named("gqa")
        c = model.config

        def make(heads):
            if view == "transposed":
                return torch.randn(2, 5, heads, c.head_dim, dtype=torch.float64).transpose(1, 2)
            if view == "sliced":
                return torch.randn(2, heads, 5, 2 * c.head_dim, dtype=torch.float64)[..., ::2]
            return torch.randn(1, heads, 5, c.head_dim, dtype=torch.float64).expand(2, -1, -1, -1)

        q, k, v = make(c.num_heads), make(c.num_kv_heads), make(c.num_kv_heads)
        a, b = new_cache(model, 2), new_cache(model, 2)
        for layer in range(2):
            plain = b.attend(layer, q.contiguous(), k.contiguous(), v.contiguous())
            assert gap(a.attend(layer, q, k, v), plain) <= 1e-14

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
    def test_smaller_dtypes(self, dtype):
        model = model_named("gqa")
        c, cache, dense = model.config, new_cache(model), DenseRows(1, [None, None])
        bound = {torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}[dtype]
        generator = torch.Generator().manual_seed(0)
        for size in (6, 1, 1):
            for layer in range(2):
                q, k, v = (
                    torch.randn(1, h, size, c.head_dim, generator=generator).to(dtype)
                    for h in (c.num_heads, c.num_kv_heads, c.num_kv_heads)
                )
                out = cache.attend(layer, q, k, v)
                assert out.dtype == dtype
                expected = dense.attend(layer, 0, q[0].double(), k[0].double(), v[0].double())
                assert np.abs(out[0].double().numpy() - expected).max() <= bound

    @pytest.mark.parametrize("codec", ["bf16", "fp16", "fp32"])
    @pytest.mark.parametrize("sizes", [[8], [1] * 8, [5, 3]], ids=str)
    def test_a_shorter_codec_rounds_each_token_once(self, codec, sizes):
        """All tokens are read back rounded, also those of the chunk that is being written."""
        model = model_named("gqa")
        c = model.config
        cache, dense = kv.KVCache(c, kv.Plan(codec=codec), batch_size=1), DenseRows(1, [None, None])
        dtype = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[codec]
        for size in sizes:
            for layer in range(2):
                q, k, v = (
                    torch.randn(1, h, size, c.head_dim, dtype=torch.float64)
                    for h in (c.num_heads, c.num_kv_heads, c.num_kv_heads)
                )
                out = cache.attend(layer, q, k, v)
                expected = dense.attend(layer, 0, q[0], k[0].to(dtype), v[0].to(dtype))
                assert np.abs(out[0].numpy() - expected).max() <= TIGHT

    def test_scores_of_a_thousand_do_not_overflow(self):
        model = model_named("mqa")
        c, cache, dense = model.config, new_cache(model), DenseRows(1, [None, None])
        q, k, v = (
            1000 * torch.randn(1, h, 4, c.head_dim, dtype=torch.float64)
            for h in (c.num_heads, c.num_kv_heads, c.num_kv_heads)
        )
        out = cache.attend(0, q, k, v)
        assert np.abs(out[0].numpy() - dense.attend(0, 0, q[0], k[0], v[0])).max() <= 1e-7
