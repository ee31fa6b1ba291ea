"""Quality measures against one-shot computations in float64, and KL against a sum written out by hand."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import FEW
from torch.nn.functional import cross_entropy

import kvcourse as kv
from kvcourse import evaluate
from kvcourse.errors import InputError
from kvcourse.text import token_ids

FULL = kv.Plan()
COARSE = kv.Plan(codec="bf16")


@pytest.fixture(scope="module")
def model():
    return kv.tiny_model(dtype=torch.float64, vocab_size=97, max_position_embeddings=128)


@pytest.fixture(scope="module")
def ids():
    return torch.randint(97, (60,), generator=torch.Generator().manual_seed(1)).tolist()


@torch.inference_mode()
def one_shot(model, ids):
    """Logits of the whole text in one call without a cache: (tokens, vocab)."""
    return model(torch.tensor([ids]))[0]


# ---- perplexity ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("prefill", "chunk"), [(1, 1), (1, 59), (20, 7), (20, 1), (59, 4), (30, 1000)])
def test_perplexity_is_the_cross_entropy_of_one_uncached_call(model, ids, prefill, chunk):
    result = evaluate.perplexity(model, ids, prefill=prefill, chunk=chunk)
    expected = cross_entropy(one_shot(model, ids)[prefill - 1 : -1], torch.tensor(ids[prefill:]))
    assert result.nats == pytest.approx(float(expected), abs=1e-10)
    assert result.ppl == pytest.approx(math.exp(expected), rel=1e-10)
    assert (result.tokens, result.plan) == (60 - prefill, FULL)


@given(prefill=st.integers(1, 30), chunk=st.integers(1, 40), length=st.integers(31, 60))
@FEW
def test_chunks_do_not_change_the_full_cache(model, ids, prefill, chunk, length):
    by_chunk = evaluate.perplexity(model, ids[:length], prefill=prefill, chunk=chunk)
    by_token = evaluate.perplexity(model, ids[:length], prefill=prefill, chunk=1)
    assert by_chunk.nats == pytest.approx(by_token.nats, abs=1e-10)
    assert by_chunk.tokens == by_token.tokens == length - prefill


def test_max_tokens_cuts_the_text(model, ids):
    cut = evaluate.perplexity(model, ids, prefill=5, max_tokens=40)
    assert cut == evaluate.perplexity(model, ids[:40], prefill=5)
    assert cut.tokens == 35


@pytest.mark.parametrize("form", [list, tuple, torch.tensor, lambda ids: torch.tensor([ids])])
def test_ids_come_as_lists_or_tensors(model, ids, form):
    assert evaluate.perplexity(model, form(ids), prefill=5) == evaluate.perplexity(model, ids, prefill=5)


def test_a_string_goes_through_the_tokenizer(model):
    class Letters:
        def encode(self, text, add_special_tokens):
            assert not add_special_tokens
            return [ord(letter) - 32 for letter in text]

    text = "the quick brown fox jumps over the lazy dog"
    letters = [ord(letter) - 32 for letter in text]
    assert evaluate.perplexity(model, text, prefill=3, tokenizer=Letters()) == evaluate.perplexity(
        model, letters, prefill=3
    )


# ---- KL and agreement ------------------------------------------------------------------------------


def test_full_cache_against_itself(model, ids):
    result = evaluate.compare_plans(model, ids, {"same": FULL}, prefill=10, chunk=3)["same"]
    assert result.kl == pytest.approx(0, abs=1e-12)
    assert result.top1 == 1
    assert evaluate.kl(model, ids, FULL, prefill=10).nats == pytest.approx(0, abs=1e-12)
    assert evaluate.top1_agreement(model, ids, FULL, prefill=10).share == 1


def brute_force_kl(p, q):
    """KL of two lists of probabilities, term by term."""
    return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True) if a > 0)


@given(st.lists(st.tuples(st.floats(0.01, 1), st.floats(0.01, 1)), min_size=2, max_size=9))
@FEW
def test_kl_is_the_sum_written_out(pairs):
    p, q = ([weight / sum(side) for weight in side] for side in zip(*pairs, strict=True))
    log_p, log_q = (torch.tensor([side], dtype=torch.float64).log() for side in (p, q))
    assert evaluate._kl_sum(log_p, log_q) == pytest.approx(brute_force_kl(p, q), abs=1e-12)
    both = evaluate._kl_sum(torch.cat((log_p, log_q)), torch.cat((log_q, log_p)))
    assert both == pytest.approx(brute_force_kl(p, q) + brute_force_kl(q, p), abs=1e-12)


def test_kl_of_known_distributions():
    half = torch.tensor([[0.5, 0.5]], dtype=torch.float64).log()
    quarter = torch.tensor([[0.25, 0.75]], dtype=torch.float64).log()
    certain = torch.tensor([[1.0, 0.0]], dtype=torch.float64).log()  # log 0 is −inf
    assert evaluate._kl_sum(half, quarter) == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(2 / 3))
    assert evaluate._kl_sum(certain, half) == pytest.approx(math.log(2))
    assert evaluate._kl_sum(half, certain) == math.inf


def test_kl_of_rounding_errors_is_not_negative():
    """The second distribution is the first one rounded up, so that p (log p − log q) is below 0 everywhere."""
    half = torch.tensor([[0.5, 0.5]], dtype=torch.float64).log()
    above = torch.nextafter(half, torch.zeros_like(half))
    assert float((half.exp() * (half - above)).sum()) < 0
    assert evaluate._kl_sum(half, above) == 0
    quarter = torch.tensor([[0.25, 0.75]], dtype=torch.float64).log()
    known = evaluate._kl_sum(half, quarter)
    assert evaluate._kl_sum(torch.cat((half, half)), torch.cat((above, quarter))) == known


def test_a_coarser_cache_is_compared_with_the_full_one_position_by_position(model, ids):
    """Against two caches driven by hand in the same chunks."""
    prefill, chunk = 12, 5
    arms = {}
    with torch.inference_mode():
        for plan in (FULL, COARSE):
            cache, parts = kv.KVCache(model.config, plan, batch_size=1), []
            for start, stop in [(0, prefill), *((s, min(s + chunk, 59)) for s in range(prefill, 59, chunk))]:
                parts.append(model(torch.tensor([ids[start:stop]]), cache=cache)[0])
            arms[plan] = torch.cat(parts)[prefill - 1 :]
    full, coarse = arms[FULL], arms[COARSE]
    targets = torch.tensor(ids[prefill:])
    p, q = full.softmax(-1), coarse.softmax(-1)
    expected_kl = sum(brute_force_kl(a, b) for a, b in zip(p.tolist(), q.tolist(), strict=True)) / len(
        targets
    )
    result = evaluate.compare_plans(model, ids, {"coarse": COARSE}, prefill=prefill, chunk=chunk)["coarse"]
    assert expected_kl > 1e-9
    assert result.kl == pytest.approx(expected_kl, rel=1e-9)
    assert result.nats == pytest.approx(float(cross_entropy(coarse, targets)), abs=1e-12)
    assert result.top1 == float((full.argmax(-1) == coarse.argmax(-1)).double().mean())
    assert (result.plan, result.tokens) == (COARSE, 48)


def test_agreement_counts_disagreements(model, ids, monkeypatch):
    """An arm whose most likely token is wrong at known positions, and nowhere else."""
    logits = torch.randn(48, 97, dtype=torch.float64)
    other = logits.clone()
    for position in (0, 7, 47):
        other[position, (logits[position].argmax() + 1) % 97] = 99.0

    def walk(model, ids, plans, prefill, chunk):
        yield torch.tensor(ids[12:]), dict(zip(plans, (logits, other), strict=True))

    monkeypatch.setattr(evaluate, "_walk", walk)
    assert evaluate.top1_agreement(model, ids, COARSE, prefill=12).share == 45 / 48


def test_several_plans_run_the_reference_once(model, ids, monkeypatch):
    made = []
    real = evaluate.KVCache
    monkeypatch.setattr(evaluate, "KVCache", lambda *args, **kw: made.append(args[1]) or real(*args, **kw))
    together = evaluate.compare_plans(model, ids, {"a": COARSE, "b": FULL}, prefill=12, chunk=4)
    assert made == [FULL, COARSE, FULL]
    assert list(together) == ["a", "b"]
    assert together["a"] == evaluate.compare_plans(model, ids, {"a": COARSE}, prefill=12, chunk=4)["a"]
    assert together["a"].kl == evaluate.kl(model, ids, COARSE, prefill=12, chunk=4).nats


def test_every_arm_gets_the_same_calls(model, ids):
    calls = []

    class Spy:
        config, parameters = model.config, model.parameters

        def __call__(self, tokens, cache, last_only):
            calls.append((id(cache), tokens.tolist()[0]))
            return model(tokens, cache=cache, last_only=last_only)

    evaluate.compare_plans(Spy(), ids, {"a": COARSE, "b": FULL}, prefill=20, chunk=16)
    by_cache = {}
    for cache, tokens in calls:
        by_cache.setdefault(cache, []).append(tokens)
    first, *others = by_cache.values()
    assert first == [ids[:20], ids[20:36], ids[36:52], ids[52:59]]
    assert all(other == first for other in others)
    assert len(by_cache) == 3


# ---- bad input -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prefill": 60}, "60 tokens and prefill=60: nothing is left to score"),
        ({"prefill": 61}, "give at least 62 tokens"),
        ({"prefill": 0}, "prefill=0"),
        ({"chunk": 0, "prefill": 5}, "chunk=0"),
        ({"text": [], "prefill": 5}, "0 tokens"),
        ({"text": [1, 97, 2], "prefill": 1}, "token id 97 is outside the vocabulary of 97"),
        ({"text": [1] * 200, "prefill": 5}, "the model has 128 positions; pass max_tokens=128"),
        ({"text": "plain text", "prefill": 5}, "no tokenizer"),
        ({"plan": "kivi", "prefill": 5}, "plan 'kivi': expected a kvcourse.Plan"),
    ],
)
def test_bad_input_is_named(model, ids, change, message):
    with pytest.raises(InputError, match=message):
        evaluate.perplexity(model, **{"text": ids, **change})


def test_bad_plans_are_named_everywhere(model, ids):
    for measure in (evaluate.kl, evaluate.top1_agreement):
        with pytest.raises(InputError, match=r"expected a kvcourse\.Plan"):
            measure(model, ids, "h2o", prefill=5)


# ---- the text --------------------------------------------------------------------------------------


def test_sample_text_is_the_same_every_time_and_differs_by_seed():
    assert evaluate.sample_text(500, seed=3) == evaluate.sample_text(500, seed=3)
    assert evaluate.sample_text(500, seed=3) != evaluate.sample_text(500, seed=4)
    assert evaluate.sample_text(900).startswith(evaluate.sample_text(500))


def test_sample_text_comes_from_the_documentation_of_python():
    from pydoc_data.topics import topics

    assert any(evaluate.sample_text(20) in " ".join((text.strip(), "")) for text in topics.values())


def test_sample_text_repeats_when_it_runs_out():
    assert len(evaluate.sample_text(200_000)) == 200_000 * 8


def test_sample_text_of_nothing_is_refused():
    with pytest.raises(InputError, match="tokens=0: expected a whole number of at least 1"):
        evaluate.sample_text(0)


def test_source_names_the_python_version():
    import platform

    assert evaluate.text_source() == f"pydoc_data.topics of Python {platform.python_version()}"


# ---- the real model --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def smollm2():
    return kv.load_model("smollm2-135m")[0]


@pytest.mark.model
def test_real_model_perplexity(smollm2):
    """The oracle is the loss that transformers computes itself; the text differs a little between Python versions."""
    import transformers

    result = evaluate.perplexity(smollm2, evaluate.sample_text(2048))
    ids = torch.tensor([token_ids(smollm2, evaluate.sample_text(2048), max_tokens=2048)])
    oracle = transformers.AutoModelForCausalLM.from_pretrained(kv.weights.fetch("smollm2-135m"))
    labels = ids.masked_fill(torch.arange(2048) < 256, -100)
    assert result.tokens == 2048 - 256
    assert result.nats == pytest.approx(oracle(ids, labels=labels).loss.item(), abs=1e-4)
    assert 5 < result.ppl < 25, "not a model that reads English"


@pytest.mark.model
def test_sample_text_is_long_enough_for_the_real_tokenizer(smollm2):
    assert len(token_ids(smollm2, evaluate.sample_text(1000), max_tokens=1000)) == 1000
