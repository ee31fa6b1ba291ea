"""Generation against a loop written out here, and against transformers' `generate`."""

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from oracles import in_float64, left_padded
from strategies import CACHE_VARIANTS, FEW, cache_variants, seeds
from tiny_models import VOCAB, model_named, tokens

import kvcourse as kv

transformers.utils.logging.disable_progress_bar()


def greedy(model, prompt, count):
    """The whole text through the model for every new token."""
    text = list(prompt)
    for _ in range(count):
        text.append(model(torch.tensor([text]))[0, -1].argmax().item())
    return text[len(prompt) :]


@pytest.fixture(params=CACHE_VARIANTS)
def model(request):
    return model_named(request.param)


class TestGreedy:
    @pytest.mark.parametrize("use_cache", [True, False])
    def test_equals_the_written_out_loop(self, model, use_cache):
        prompt = tokens(1, 7)
        new = kv.generate(model, prompt, max_new_tokens=25, use_cache=use_cache)
        assert new.shape == (1, 25)
        assert new.dtype == torch.int64
        assert new[0].tolist() == greedy(model, prompt[0].tolist(), 25)

    @FEW
    @given(
        variant=cache_variants(),
        lengths=st.lists(st.integers(1, 12), min_size=1, max_size=4),
        use_cache=st.booleans(),
        seed=seeds(),
    )
    def test_a_padded_batch_equals_single_runs(self, variant, lengths, use_cache, seed):
        model = model_named(variant)
        prompts = [tokens(n, seed=seed + i).tolist() for i, n in enumerate(lengths)]
        ids, mask = left_padded(prompts, pad=1)
        new = kv.generate(model, ids, max_new_tokens=10, attention_mask=mask, use_cache=use_cache)
        assert new.tolist() == [greedy(model, prompt, 10) for prompt in prompts]

    def test_a_mask_of_ones_changes_nothing(self, model):
        ids = tokens(2, 6)
        masked = kv.generate(model, ids, max_new_tokens=8, attention_mask=torch.ones_like(ids))
        assert torch.equal(masked, kv.generate(model, ids, max_new_tokens=8))

    def test_a_cache_that_is_passed_in(self, model):
        ids, cache = tokens(2, 6), kv.KVCache(model.config, kv.Plan(), batch_size=2)
        new = kv.generate(model, ids, max_new_tokens=9, cache=cache)
        assert torch.equal(new, kv.generate(model, ids, max_new_tokens=9))
        # The last token was never fed back, so it may or may not be in the cache; nothing else may be missing.
        assert cache.seen in ((14, 14), (15, 15))

    def test_goes_on_from_a_prefilled_cache(self, model):
        """`input_ids` are the tokens that the cache has not seen."""
        ids, cache = tokens(1, 10), kv.KVCache(model.config, kv.Plan(), batch_size=1)
        model(ids[:, :6], cache=cache)
        new = kv.generate(model, ids[:, 6:], max_new_tokens=8, cache=cache)
        assert new[0].tolist() == greedy(model, ids[0].tolist(), 8)

    def test_room_is_counted_row_by_row(self):
        """16 positions: the row that has seen most is not the one that gets most, and both fit."""
        model = kv.tiny_model(vocab_size=VOCAB, dtype=torch.float64, max_position_embeddings=16)
        cache = kv.KVCache(model.config, batch_size=2)
        texts = [tokens(13).tolist(), tokens(11, seed=1).tolist()]
        ids, mask = left_padded([texts[0][:12], texts[1][:2]])
        model(ids, cache=cache, attention_mask=mask)
        ids, mask = left_padded([texts[0][12:], texts[1][2:]])
        new = kv.generate(model, ids, max_new_tokens=4, cache=cache, attention_mask=mask)
        assert new.tolist() == [greedy(model, text, 4) for text in texts]
        assert cache.seen == (16, 14)

    def test_a_second_turn(self, model):
        """Prompt, answer, next prompt, on one cache: feed what the cache lacks and get what a fresh run gets."""
        cache = kv.KVCache(model.config, kv.Plan(), batch_size=1)
        first, second = tokens(1, 5), tokens(1, 4, seed=1)
        answer = kv.generate(model, first, max_new_tokens=6, cache=cache)
        text = torch.cat([first, answer, second], 1)
        unseen = text[:, cache.seen[0] :]
        new = kv.generate(model, unseen, max_new_tokens=6, cache=cache)
        assert new[0].tolist() == greedy(model, text[0].tolist(), 6)

    def test_one_token(self, model):
        assert kv.generate(model, tokens(1, 1), max_new_tokens=1).tolist() == [
            greedy(model, tokens(1, 1)[0].tolist(), 1)
        ]

    def test_no_tokens(self, model):
        new = kv.generate(model, tokens(2, 3), max_new_tokens=0)
        assert new.shape == (2, 0)
        assert new.dtype == torch.int64

    def test_over_several_growths_of_the_cache(self):
        model = model_named("mqa")
        prompt = tokens(1, 250)
        assert torch.equal(
            kv.generate(model, prompt, max_new_tokens=20),
            kv.generate(model, prompt, max_new_tokens=20, use_cache=False),
        )


class TestEndOfSequence:
    def test_stops(self, model):
        prompt = tokens(1, 7)
        full = kv.generate(model, prompt, max_new_tokens=20)[0].tolist()
        eos = full[4]
        first = full.index(eos)
        new = kv.generate(model, prompt, max_new_tokens=20, eos_token_id=eos)[0].tolist()
        assert new == full[: first + 1], "ends with the end-of-sequence token"

    def test_a_row_that_ended_changes_no_other_row(self, model):
        prompts = tokens(3, 7)
        full = kv.generate(model, prompts, max_new_tokens=20)
        eos = full[0, 2].item()
        new = kv.generate(model, prompts, max_new_tokens=20, eos_token_id=eos)
        for row in range(3):
            expected = full[row].tolist()
            if eos in expected:
                end = expected.index(eos) + 1
                assert new[row, :end].tolist() == expected[:end]
                assert set(new[row, end:].tolist()) <= {eos}, "filled up with the end-of-sequence token"
            else:
                assert new[row].tolist() == expected[: new.shape[1]]
                assert new.shape[1] == 20

    def test_never_met(self):
        model = model_named("gqa")
        prompt = tokens(1, 7)
        full = kv.generate(model, prompt, max_new_tokens=10)
        absent = next(t for t in range(VOCAB) if t not in full[0].tolist())
        assert torch.equal(kv.generate(model, prompt, max_new_tokens=10, eos_token_id=absent), full)

    def test_any_of_several_ids_ends_a_row_and_the_first_fills_it_up(self):
        model, prompts = model_named("gqa"), tokens(3, 7)
        full = kv.generate(model, prompts, max_new_tokens=20).tolist()
        absent = next(t for t in range(VOCAB) if all(t not in row for row in full))
        ends = [absent, full[0][2], full[1][5]]
        stops = [next((i + 1 for i, t in enumerate(row) if t in ends), 20) for row in full]
        assert len(set(stops)) > 1, "one row must wait for another"
        width = max(stops)
        expected = [row[:stop] + [absent] * (width - stop) for row, stop in zip(full, stops, strict=True)]
        assert kv.generate(model, prompts, max_new_tokens=20, eos_token_id=ends).tolist() == expected

    def test_the_ids_of_the_model_are_the_default(self):
        def model(*ends):
            return kv.tiny_model(vocab_size=VOCAB, dtype=torch.float64, eos_token_ids=ends)

        prompt = tokens(1, 7)
        full = kv.generate(model(), prompt, max_new_tokens=20)[0].tolist()
        absent = next(t for t in range(VOCAB) if t not in full)
        stop = full.index(full[4]) + 1
        ending = model(absent, full[4])
        assert kv.generate(ending, prompt, max_new_tokens=20)[0].tolist() == full[:stop]
        assert kv.generate(ending, prompt, max_new_tokens=20, eos_token_id=())[0].tolist() == full
        assert kv.generate(ending, prompt, max_new_tokens=20, eos_token_id=absent)[0].tolist() == full


class TestRoom:
    """Refused before the first step, and only where a token that is fed back would have no position."""

    @pytest.fixture
    def model(self):
        return kv.tiny_model(vocab_size=VOCAB, max_position_embeddings=16)

    @pytest.mark.parametrize("seen", [0, 4])
    def test_the_last_token_needs_no_position(self, model, seen):
        cache = kv.KVCache(model.config)
        if seen:
            model(tokens(1, seen), cache=cache)
        prompt = tokens(1, 10 - seen, seed=1)
        with pytest.raises(kv.InputError, match="17 positions"):
            kv.generate(model, prompt, max_new_tokens=8, cache=cache)
        assert cache.seen == (seen,)
        assert kv.generate(model, prompt, max_new_tokens=7, cache=cache).shape == (1, 7)
        assert cache.seen == (16,)

    def test_padding_takes_none(self, model):
        prompt = tokens(1, 10)
        ids, mask = torch.zeros(1, 25, dtype=torch.int64), torch.zeros(1, 25, dtype=torch.int64)
        ids[:, -10:], mask[:, -10:] = prompt, 1
        padded = kv.generate(model, ids, max_new_tokens=7, attention_mask=mask)
        assert torch.equal(padded, kv.generate(model, prompt, max_new_tokens=7))
        with pytest.raises(kv.InputError, match="17 positions"):
            kv.generate(model, ids, max_new_tokens=8, attention_mask=mask)


class TestSampling:
    def test_a_seed_gives_the_same_tokens(self, model):
        prompt = tokens(2, 5)
        a, b = (kv.generate(model, prompt, max_new_tokens=20, temperature=1.0, seed=3) for _ in range(2))
        assert torch.equal(a, b)
        assert not torch.equal(a, kv.generate(model, prompt, max_new_tokens=20, temperature=1.0, seed=4))

    def test_the_cache_does_not_change_the_draw(self, model):
        prompt = tokens(1, 5)
        a, b = (
            kv.generate(model, prompt, max_new_tokens=20, temperature=0.8, seed=3, use_cache=use)
            for use in (True, False)
        )
        assert torch.equal(a, b)

    def test_the_global_generator_is_left_alone(self):
        model = model_named("gqa")
        torch.manual_seed(0)
        expected = torch.rand(3)
        torch.manual_seed(0)
        kv.generate(model, tokens(1, 5), max_new_tokens=5, temperature=1.0, seed=3)
        assert torch.equal(torch.rand(3), expected)

    def test_cold_is_greedy(self, model):
        prompt = tokens(1, 5)
        cold = kv.generate(model, prompt, max_new_tokens=10, temperature=1e-9, seed=0)
        assert torch.equal(cold, kv.generate(model, prompt, max_new_tokens=10))

    @pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
    def test_frequencies_follow_the_softmax(self, temperature):
        """First tokens of 4,000 rows against softmax(logits / temperature): within five standard deviations."""
        model, prompt = model_named("gqa"), tokens(1, 4)
        probabilities = torch.softmax(model(prompt)[0, -1] / temperature, -1)
        new = kv.generate(model, prompt.expand(4000, -1), max_new_tokens=1, temperature=temperature, seed=0)
        share = torch.bincount(new[:, 0], minlength=VOCAB) / 4000
        spread = (probabilities * (1 - probabilities) / 4000).sqrt()
        assert ((share - probabilities).abs() <= 5 * spread + 1 / 4000).all()


@pytest.fixture(scope="module", params=["full", "window"])
def pair(request, tmp_path_factory):
    torch.manual_seed(0)
    config = transformers.MistralConfig(
        vocab_size=VOCAB,
        hidden_size=30,
        intermediate_size=40,
        num_hidden_layers=2,
        num_attention_heads=3,
        num_key_value_heads=1,
        head_dim=10,
        sliding_window=6 if request.param == "window" else None,
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    theirs = transformers.MistralForCausalLM(config)
    folder = tmp_path_factory.mktemp("mistral")
    theirs.save_pretrained(folder)
    return kv.load_model(folder, dtype=torch.float64)[0], in_float64(theirs)


class TestTransformers:
    """The same weights, through transformers' own generate."""

    def test_greedy(self, pair):
        ours, theirs = pair
        prompt = tokens(2, 8)
        expected = theirs.generate(
            prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=64, do_sample=False
        )
        assert torch.equal(kv.generate(ours, prompt, max_new_tokens=64), expected[:, 8:])

    def test_left_padding(self, pair):
        ours, theirs = pair
        ids, mask = left_padded([[5, 6, 7, 8, 9, 10, 11, 12, 13], [1, 2], [3, 4, 5, 6, 7]])
        expected = theirs.generate(ids, attention_mask=mask, max_new_tokens=32, do_sample=False)
        assert torch.equal(kv.generate(ours, ids, attention_mask=mask, max_new_tokens=32), expected[:, 9:])

    def test_end_of_sequence(self, pair):
        ours, theirs = pair
        prompt = tokens(1, 8)
        eos = kv.generate(ours, prompt, max_new_tokens=12)[0, 6].item()
        expected = theirs.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=32,
            do_sample=False,
            eos_token_id=eos,
            pad_token_id=0,
        )
        assert torch.equal(kv.generate(ours, prompt, max_new_tokens=32, eos_token_id=eos), expected[:, 8:])
