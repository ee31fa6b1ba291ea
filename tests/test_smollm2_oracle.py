"""The real model against transformers: SmolLM2-135M on real English text, float32."""

from pydoc_data.topics import topics

import pytest
import torch
import transformers
from oracles import left_padded, positions_of

import kvcourse as kv

pytestmark = pytest.mark.model
BOUND = 1e-4
PROMPTS = [
    "The capital of France is",
    "A key-value cache stores the keys and values of",
    "Once upon a time, in a small village at the foot of a very old mountain, there lived",
]


@pytest.fixture(scope="module")
def ours():
    return kv.load_model("smollm2-135m", dtype=torch.float32)[0]


@pytest.fixture(scope="module")
def theirs():
    from kvcourse.weights import fetch

    return transformers.LlamaForCausalLM.from_pretrained(fetch("smollm2-135m"), dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def text(ours):
    """512 tokens of the Python documentation, (1, 512)."""
    page = "\n\n".join(topics[name] for name in ("class", "function", "assignment", "lambda"))
    ids = ours.tokenizer.encode(page)
    return torch.tensor([list(getattr(ids, "ids", ids))[:512]])


@pytest.fixture(scope="module")
def reference(theirs, text):
    with torch.no_grad():
        return theirs(text).logits


def gap(a, b):
    assert a.shape == b.shape
    return (a - b).abs().max().item()


def new_cache(model, batch_size=1):
    return kv.KVCache(model.config, kv.Plan(), batch_size=batch_size)


def encode(model, prompt):
    ids = model.tokenizer.encode(prompt)
    return list(getattr(ids, "ids", ids))


def test_logits(ours, text, reference):
    assert text.shape == (1, 512)
    assert gap(ours(text), reference) <= BOUND


def test_logits_with_a_cache_in_chunks(ours, text, reference):
    cache = new_cache(ours)
    pieces = [ours(piece, cache=cache) for piece in text.split([200, 1, 63, 1, 1, 246], dim=1)]
    assert gap(torch.cat(pieces, 1), reference) <= BOUND
    assert cache.seen == cache.lengths == (512,)


def test_logits_with_a_cache_token_by_token(ours, text, reference):
    cache = new_cache(ours)
    assert gap(ours(text[:, :470], cache=cache, last_only=True), reference[:, 469:470]) <= BOUND
    for t in range(470, 512):
        assert gap(ours(text[:, t : t + 1], cache=cache), reference[:, t : t + 1]) <= BOUND


def test_64_greedy_tokens(ours, theirs, text):
    prompt = text[:, :448]
    expected = theirs.generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=64, do_sample=False, pad_token_id=0
    )[:, 448:]
    assert expected.shape == (1, 64), "the text goes on for 64 tokens"
    assert kv.generate(ours, prompt, max_new_tokens=expected.shape[1]).tolist() == expected.tolist()


def test_the_capital_of_france(ours):
    prompt = torch.tensor([encode(ours, PROMPTS[0])])
    assert "Paris" in ours.tokenizer.decode(kv.generate(ours, prompt, max_new_tokens=4)[0].tolist())


def test_left_padded_prompts_equal_single_ones(ours, theirs):
    prompts = [encode(ours, prompt) for prompt in PROMPTS]
    ids, mask = left_padded(prompts)
    with torch.no_grad():
        reference = theirs(ids, attention_mask=mask, position_ids=positions_of(mask)).logits
    cache = new_cache(ours, 3)
    assert gap(ours(ids, cache=cache, attention_mask=mask)[mask.bool()], reference[mask.bool()]) <= BOUND
    assert cache.seen == tuple(map(len, prompts))

    together = kv.generate(ours, ids, max_new_tokens=12, attention_mask=mask)
    for row, prompt in enumerate(prompts):
        alone = kv.generate(ours, torch.tensor([prompt]), max_new_tokens=12)
        assert together[row].tolist()[: alone.shape[1]] == alone[0].tolist()


def test_crop_and_fork_on_the_real_model(ours, text, reference):
    cache = new_cache(ours)
    ours(text[:, :300], cache=cache, last_only=True)
    child = cache.fork()
    ours(text[:, 100:140], cache=child, last_only=True)
    cache.crop(256)
    assert gap(ours(text[:, 256:300], cache=cache), reference[:, 256:300]) <= BOUND
    child.crop(-40)
    assert gap(ours(text[:, 300:320], cache=child), reference[:, 300:320]) <= BOUND


def test_bytes(ours, text):
    """2 x 30 layers x 3 kv heads x 64 x 4 bytes = 46,080 bytes a token slot."""
    cache = new_cache(ours)
    ours(text[:, :40], cache=cache, last_only=True)
    assert cache.nbytes == 46_080 * cache.capacity
