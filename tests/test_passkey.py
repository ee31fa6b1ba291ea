"""Passkey prompts: exact length, place of the key, one key; and what counts as retrieved."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import MANY

import kvcourse as kv
from kvcourse import evaluate
from kvcourse.errors import InputError
from kvcourse.passkey import Passkey, PasskeyTrial, build_prompt

TEMPLATE_OPEN, TEMPLATE_CLOSE = "<|user|>", "<|end|><|assistant|>"


class Bytes:
    """A tokenizer whose tokens are bytes."""

    chat_template = None

    def encode(self, text, add_special_tokens):
        assert not add_special_tokens
        return list(text.encode("utf-8"))

    def decode(self, ids, skip_special_tokens=False):
        return bytes(ids).decode("utf-8", errors="replace")


class Chat(Bytes):
    """The same with a chat template."""

    chat_template = "yes"

    def apply_chat_template(self, messages, tokenize, add_generation_prompt):
        assert not tokenize
        assert add_generation_prompt
        return "".join(f"{TEMPLATE_OPEN}{message['content']}{TEMPLATE_CLOSE}" for message in messages)


def whole(prompt):
    return [*prompt.context, *prompt.question]


lengths = st.integers(260, 1500)
depths = st.floats(0, 1)


@given(lengths, depths, st.integers(0, 10_000), st.sampled_from([Bytes(), Chat()]))
@MANY
def test_prompt_has_the_length_and_the_key_once_where_it_was_asked_for(length, depth, seed, tokenizer):
    prompt = build_prompt(tokenizer, length, depth, seed)
    text = tokenizer.decode(whole(prompt))
    assert len(whole(prompt)) == length
    assert text.count(prompt.key) == 1
    assert 10_000 <= int(prompt.key) <= 99_999
    assert prompt.key in tokenizer.decode(prompt.context)
    assert "What is the secret pass key?" in tokenizer.decode(prompt.question)
    # The sentence with the key begins at `position`; before and after it lies filler in the asked proportion.
    sentence = f"\n\nThe secret pass key is {prompt.key}. Remember it.\n\n"
    assert tokenizer.decode(prompt.context[prompt.position :]).startswith(sentence)
    after = len(prompt.context) - prompt.position - len(sentence)
    head = len(tokenizer.decode(prompt.context).partition("remember it.\n\n")[0]) + len("remember it.\n\n")
    before = prompt.position - head
    assert before == round(depth * (before + after))


@given(lengths, depths, st.integers(0, 10_000))
@MANY
def test_prompt_depends_on_its_arguments_alone(length, depth, seed):
    assert build_prompt(Bytes(), length, depth, seed) == build_prompt(Bytes(), length, depth, seed)


def test_seeds_change_key_and_filler_and_depth_changes_neither():
    first, second = (build_prompt(Bytes(), 900, 0.5, seed) for seed in (0, 1))
    assert first.key != second.key
    fillers = [Bytes().decode(prompt.context).replace(prompt.key, "") for prompt in (first, second)]
    assert fillers[0] != fillers[1]
    deep = build_prompt(Bytes(), 900, 1.0, 0)
    assert deep.key == first.key
    assert sorted(whole(deep)) == sorted(whole(first))


def test_chat_template_wraps_the_whole_prompt_and_a_base_model_gets_the_start_of_an_answer():
    chat = Chat().decode(whole(build_prompt(Chat(), 600, 0.3, 0)))
    assert chat.startswith(TEMPLATE_OPEN)
    assert chat.endswith(TEMPLATE_CLOSE)
    assert chat.count(TEMPLATE_OPEN) == 1
    base = Bytes().decode(whole(build_prompt(Bytes(), 600, 0.3, 0)))
    assert base.endswith("The secret pass key is")


def test_depth_0_and_1_are_the_ends_of_the_filler():
    start, end = (build_prompt(Bytes(), 900, depth, 5) for depth in (0, 1))
    assert Bytes().decode(start.context[: start.position]).endswith("remember it.\n\n")
    assert Bytes().decode(end.context).endswith("Remember it.\n\n")


def test_filler_that_holds_the_key_is_drawn_again(monkeypatch):
    key = build_prompt(Bytes(), 600, 0.5, 0).key
    texts = [f" {key}" * 600, "no number here. " * 600]
    monkeypatch.setattr("kvcourse.passkey.sample_text", lambda tokens, seed: texts.pop(0))
    text = Bytes().decode(whole(build_prompt(Bytes(), 600, 0.5, 0)))
    assert not texts
    assert text.count(key) == 1


@pytest.mark.parametrize(
    ("answer", "hit"),
    [
        ("12345", True),
        ("The secret pass key is 12345.", True),
        ("12345 or 99999", True),
        ("99999 or 12345", False),
        ("123456", False),
        ("1234", False),
        ("", False),
    ],
)
def test_the_first_number_of_the_answer_counts(answer, hit):
    assert PasskeyTrial(256, 0.5, 0, "12345", answer).hit is hit


def test_totals_by_length_and_depth():
    answers = {(256, 0.1): "11111", (256, 0.9): "0", (1024, 0.1): "11111", (1024, 0.9): "11111"}
    trials = tuple(PasskeyTrial(n, depth, 0, "11111", answer) for (n, depth), answer in answers.items())
    result = Passkey(kv.Plan(), trials)
    assert (result.hits(), result.total()) == (3, 4)
    assert (result.hits(length=256), result.total(length=256)) == (1, 2)
    assert (result.hits(depth=0.9), result.hits(256, 0.9)) == (1, 0)
    columns = [list(column.cells) for column in result.__rich__().columns]
    assert columns == [["256", "1,024"], ["1 of 1", "1 of 1"], ["0 of 1", "1 of 1"], ["1 of 2", "2 of 2"]]


# ---- asking a model --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model():
    return kv.tiny_model(max_position_embeddings=512)


def test_every_combination_is_asked(model):
    result = evaluate.passkey(
        model, lengths=(260, 300), depths=(0, 1), seeds=(3, 4), max_new_tokens=2, tokenizer=Bytes()
    )
    asked = [(trial.length, trial.depth, trial.seed) for trial in result.trials]
    assert asked == [(n, depth, seed) for n in (260, 300) for depth in (0, 1) for seed in (3, 4)]
    assert (result.plan, result.total()) == (kv.Plan(), 8)


def test_context_comes_in_chunks_before_the_question_and_the_answer_is_greedy(model):
    """The answer equals that of the uncached model, and the question is not in the cache's first calls."""
    calls = []
    real = model.forward

    def spy(input_ids, *args, **kwargs):
        calls.append(input_ids.shape[1])
        return real(input_ids, *args, **kwargs)

    model.forward = spy
    try:
        (trial,) = evaluate.passkey(
            model, lengths=(300,), depths=(0.5,), seeds=(0,), chunk=100, max_new_tokens=6, tokenizer=Bytes()
        ).trials
    finally:
        del model.forward
    prompt = build_prompt(Bytes(), 300, 0.5, 0)
    context = len(prompt.context)
    assert context > 200
    assert calls == [100, 100, context - 200, len(prompt.question), *[1] * 5]
    expected = kv.generate(model, torch.tensor([whole(prompt)]), max_new_tokens=6, use_cache=False)
    assert trial.answer == Bytes().decode(expected[0].tolist()).strip()


def test_the_cache_follows_the_plan(model):
    with pytest.raises(InputError, match="capacity=299"):
        evaluate.passkey(
            model, kv.Plan(capacity=299), lengths=(300,), depths=(0.5,), seeds=(0,), tokenizer=Bytes()
        )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lengths": (100,)}, "the instruction, key and question alone are"),
        ({"lengths": (501,)}, "exceed the model's 512 positions; ask for at most 500"),
        ({"depths": (1.5,)}, "depth 1.5: expected 0"),
        ({"tokenizer": None}, "no tokenizer"),
        ({"plan": "h2o"}, "expected a kvcourse.Plan"),
        ({"chunk": 0}, "chunk=0"),
    ],
)
def test_bad_input_is_named(model, change, message):
    with pytest.raises(InputError, match=message):
        evaluate.passkey(model, **{"lengths": (300,), "tokenizer": Bytes(), **change})


@pytest.mark.model
@pytest.mark.parametrize("length", [256, 1024])
def test_real_model_retrieves_every_key(length):
    model, _ = kv.load_model("smollm2-135m")
    result = evaluate.passkey(model, lengths=(length,))
    assert (result.hits(), result.total()) == (6, 6)
