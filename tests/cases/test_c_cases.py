"""Faults that people reported of the cache classes of other projects, as tests of ours (C1 to C17).

C14 (huggingface/transformers: keyword arguments that change their names between releases) has no test here:
our model and cache call each other directly, and only the adapter for transformers has such arguments.
C3, C6, C9, C12 and C15 are not in the list of cases.
"""

# ruff: noqa: N802 (tests carry the name of their case)

import numpy
import pytest
import torch
from oracles import left_padded

import kvcourse as kv
from kvcourse.errors import InputError

VOCAB = 61


def tiny(**fields):
    return kv.tiny_model(vocab_size=VOCAB, dtype=torch.float64, **fields)


def new_cache(model, batch_size=1, **options):
    return kv.KVCache(model.config, kv.Plan(**options), batch_size=batch_size)


def tokens(*shape, seed=0):
    return torch.randint(VOCAB, shape, generator=torch.Generator().manual_seed(seed))


def same(a, b):
    return torch.allclose(a, b, rtol=0, atol=1e-10)


class TestC1:
    """huggingface/transformers#47433, #47977, #47720, #36616: what crop(0) and an oversized crop do has changed.

    Ours: n ≥ 0 keeps the first n tokens, n < 0 drops the last -n, at most all of them; a cache never grows by a crop.
    """

    @pytest.mark.parametrize(
        ("n", "left"), [(0, 0), (1, 1), (4, 4), (5, 5), (-1, 4), (-4, 1), (-5, 0), (-6, 0), (-100, 0)]
    )
    def test_C1_crop(self, n, left):
        model, ids = tiny(), tokens(2, 5)
        cache = new_cache(model, 2)
        model(ids, cache=cache)
        cache.crop(n)
        assert cache.seen == cache.lengths == (left, left)
        more = tokens(2, 3, seed=1)
        assert same(model(more, cache=cache), model(torch.cat([ids[:, :left], more], 1))[:, left:])

    def test_C1_crop_never_lengthens(self):
        model = tiny()
        cache = new_cache(model)
        model(tokens(1, 5), cache=cache)
        with pytest.raises(InputError):
            cache.crop(6)
        assert cache.seen == (5,)

    @pytest.mark.parametrize("n", [0, -1])
    def test_C1_crop_of_an_empty_cache(self, n):
        cache = new_cache(tiny())
        cache.crop(n)
        assert cache.seen == (0,)


@pytest.mark.parametrize("types", [("sliding_attention",) * 2, ("full_attention", "sliding_attention")])
@pytest.mark.parametrize("past_the_window", range(-6, 7))
def test_C2_rejected_drafts_leave_no_trace_in_window_layers(types, past_the_window):
    """huggingface/transformers#47447, #48280: rolling back a draft after a window layer had dropped old tokens.

    Draft 5, reject 3, several times over, around the point where the window fills up.
    """
    window = 8
    model = tiny(sliding_window=window, layer_types=types)
    history = tokens(1, window + past_the_window)
    cache = new_cache(model)
    model(history, cache=cache)
    for turn in range(6):
        draft = tokens(1, 5, seed=turn)
        model(draft, cache=cache)
        cache.crop(-3)
        history = torch.cat([history, draft[:, :2]], 1)
        assert cache.seen == (history.shape[1],)
        step = tokens(1, 1, seed=100 + turn)
        expected = model(torch.cat([history, step], 1))[:, -1:]
        assert same(model(step, cache=cache), expected)
        history = torch.cat([history, step], 1)


@pytest.mark.parametrize("length", [7, 8, 9, 16, 17])
@pytest.mark.parametrize("one_by_one", [True, False])
def test_C4_a_window_keeps_exactly_the_last_tokens(length, one_by_one):
    """huggingface/transformers#37574: wrong at the one step where the length reaches the window.

    Queries of zeros weigh all visible tokens alike, and each value marks its token, so the output shows what is kept.
    """
    window = 8
    config = tiny(num_layers=1, num_heads=1, num_kv_heads=1, head_dim=18, sliding_window=window).config
    cache = kv.KVCache(config, kv.Plan(), batch_size=1)
    marks = torch.eye(18, dtype=torch.float64)[None, None, :length]
    zeros = torch.zeros_like(marks)
    sizes = [1] * length if one_by_one else [length]
    pieces = zip(zeros.split(sizes, 2), marks.split(sizes, 2), strict=True)
    last = [cache.attend(0, zero, zero, mark) for zero, mark in pieces][-1][0, 0, -1]
    expected = torch.zeros(18, dtype=torch.float64)
    kept = min(length, window)
    expected[length - kept : length] = 1 / kept
    assert same(last, expected)


@pytest.mark.parametrize("window", [None, 5])
def test_C5_slots_without_a_token_do_not_count(window):
    """huggingface/transformers#45940: a static cache that is not full yet shows its empty slots to attention."""
    model = tiny(sliding_window=window)
    roomy, tight = new_cache(model, capacity=64), new_cache(model)
    for size in (3, 1, 1, 4, 1):
        ids = tokens(1, size, seed=size)
        assert same(model(ids, cache=roomy), model(ids, cache=tight))
    assert roomy.seen == tight.seen
    roomy.reset()
    ids = tokens(1, 2)
    assert same(model(ids, cache=roomy), model(ids))


class TestC7:
    """huggingface/transformers#46424: an option that one path ignores."""

    def test_C7_capacity_is_used(self):
        model = tiny()
        cache = new_cache(model, capacity=37)
        model(tokens(1, 2), cache=cache)
        assert cache.capacity == 37

    def test_C7_block_size_is_used(self):
        model, capacities = tiny(), set()
        for block_size in (4, 32):
            cache = new_cache(model, block_size=block_size)
            model(tokens(1, 1), cache=cache)
            capacities.add(cache.capacity)
        assert len(capacities) == 2

    def test_C7_codec_is_used(self):
        model = tiny()
        sizes = {}
        for codec in ("fp64", "fp32"):
            cache = new_cache(model, codec=codec)
            model(tokens(1, 1), cache=cache)
            sizes[codec] = cache.nbytes
        assert sizes["fp64"] == 2 * sizes["fp32"]

    @pytest.mark.parametrize("options", [{"sharing": "radix"}, {"codec": "int8"}, {"eviction": "h2o"}])
    def test_C7_what_cannot_run_yet_is_refused(self, options):
        """Never a plan that silently behaves like the default one."""
        with pytest.raises(InputError) as error:
            kv.KVCache(tiny().config, kv.Plan(**options), batch_size=1)
        assert next(iter(options.values())) in str(error.value)

    def test_C7_unknown_options_are_refused(self):
        with pytest.raises(TypeError):
            kv.Plan(colour="red")
        with pytest.raises(InputError):
            kv.Plan(codec="int3")


class TestC8:
    """unslothai/unsloth#3795, #4078; huggingface/transformers#18104: one shared position for a left-padded batch."""

    prompts = ([5, 6, 7], [10, 11, 12, 13, 14, 15, 16, 17, 18])

    @pytest.mark.parametrize("window", [None, 4])
    def test_C8_a_padded_batch_equals_single_runs(self, window):
        model = tiny(sliding_window=window)
        ids, mask = left_padded(self.prompts)
        together = kv.generate(model, ids, max_new_tokens=12, attention_mask=mask)
        for row, prompt in enumerate(self.prompts):
            assert torch.equal(
                together[row], kv.generate(model, torch.tensor([prompt]), max_new_tokens=12)[0]
            )

    def test_C8_positions_are_those_of_the_row(self):
        cache = new_cache(tiny(), 2)
        _, mask = left_padded(self.prompts)
        positions = cache.begin(9, mask)
        assert positions[mask.bool()].tolist() == [0, 1, 2, *range(9)]

    def test_C8_shared_positions_would_be_noticed(self):
        """The fault itself: without the mask the short row starts at position 6 behind six tokens of padding."""
        model = tiny()
        ids, mask = left_padded(self.prompts)
        alone = model(torch.tensor([self.prompts[0]]))[0]
        assert same(model(ids, attention_mask=mask)[0, 6:], alone)
        assert not torch.allclose(model(ids)[0, 6:], alone, atol=1e-3)


@pytest.mark.parametrize("n", [-1, -3, 2])
def test_C10_trimming_never_adds(n):
    """ml-explore/mlx-lm#1868: trimming by a negative count moved the offset forward."""
    model = tiny()
    cache = new_cache(model)
    model(tokens(1, 4), cache=cache)
    cache.crop(n)
    assert cache.seen[0] < 4
    assert cache.lengths[0] < 4


@pytest.mark.parametrize("length", [255, 256, 257])
def test_C11_capacity_is_not_the_length(length):
    """nicedreamzapp/claude-code-local#47: the step by which the cache grows was taken for its length."""
    model = tiny(num_layers=1, num_heads=2, num_kv_heads=1, head_dim=4)
    ids = tokens(1, length + 2)
    cache, full = new_cache(model), model(ids)
    assert same(model(ids[:, :length], cache=cache), full[:, :length])
    assert cache.seen == cache.lengths == (length,)
    assert cache.capacity >= length
    for t in (length, length + 1):
        assert same(model(ids[:, t : t + 1], cache=cache), full[:, t : t + 1])
        assert cache.seen == cache.lengths == (t + 1,)


def test_C13_a_length_that_was_read_stays_as_it_was():
    """ml-explore/mlx-lm#1100: the offset was changed in place, under the feet of those who had kept it."""
    model = tiny()
    cache = new_cache(model)
    model(tokens(1, 3), cache=cache)
    before, positions = cache.seen, cache.begin(2)
    model(tokens(1, 2), cache=cache)
    assert before == (3,)
    assert type(before[0]) is int
    assert positions.tolist() == [[3, 4]]


@pytest.mark.parametrize("count", [numpy.int64(3), torch.tensor(3)], ids=["numpy", "tensor"])
def test_C13_a_count_that_is_passed_in_is_not_kept(count):
    """The same fault from the other side: crop must not hold on to the caller's tensor."""
    model = tiny()
    cache = new_cache(model)
    model(tokens(1, 5), cache=cache)
    cache.crop(count)
    count += 1
    assert cache.seen == cache.lengths == (3,)
    assert type(cache.seen[0]) is type(cache.lengths[0]) is int


@pytest.mark.parametrize("past", [0, 1, 9])
def test_C16_new_tokens_take_the_positions_after_the_cached_ones(past):
    """TransformerLensOrg/TransformerLens#777: after p cached tokens, token i took the bias of row i, not p + i."""
    model, ids = tiny(), tokens(1, past + 4)
    cache = new_cache(model)
    if past:
        model(ids[:, :past], cache=cache)
    assert cache.begin(4).tolist() == [[past, past + 1, past + 2, past + 3]]
    assert same(model(ids[:, past:], cache=cache), model(ids)[:, past:])


class TestC17:
    """NVIDIA/kvpress#152 and empty caches of huggingface/transformers: a cache that exists and holds nothing."""

    def test_C17_an_empty_cache_has_length_zero(self):
        cache = new_cache(tiny(), 3)
        assert cache.seen == cache.lengths == (0, 0, 0)
        assert cache.begin(2).tolist() == [[0, 1]] * 3

    def test_C17_an_empty_cache_is_still_a_cache(self):
        """`if cache:` would skip it when its truth is its length."""
        model = tiny()
        cache = new_cache(model)
        model(tokens(1, 3), cache=cache)
        assert cache.seen == (3,)
        other = new_cache(model)
        kv.generate(model, tokens(1, 3), max_new_tokens=2, cache=other)
        assert other.seen[0] >= 4

    def test_C17_a_layer_that_was_never_reached_counts_for_nothing(self):
        model = tiny(num_heads=2, num_kv_heads=1, head_dim=4)
        cache = new_cache(model)
        q, k = torch.zeros(1, 2, 3, 4, dtype=torch.float64), torch.zeros(1, 1, 3, 4, dtype=torch.float64)
        cache.attend(0, q, k, k)
        assert cache.seen == (0,)
        cache.attend(1, q, k, k)
        assert cache.seen == (3,)
