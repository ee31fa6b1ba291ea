"""Operation counts against torch's own counter on a transformers model, and against sums written out."""

import inspect

import pytest
import torch
import transformers as hf
from hypothesis import given
from hypothesis import strategies as st
from strategies import MANY
from torch.utils.flop_counter import FlopCounterMode

from kvcourse import flops
from kvcourse.config import ModelConfig
from kvcourse.errors import InputError

FIELDS = {
    "model_type": "llama", "vocab_size": 50, "hidden_size": 24, "intermediate_size": 40, "head_dim": 10,
    "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
}  # fmt: skip


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    config = hf.LlamaConfig(**FIELDS, attn_implementation="eager")
    return hf.LlamaForCausalLM(config).eval()


def counted(model, tokens, past=0, logits=0):
    """Operations that torch counts in one forward pass; RoPE's outer product of positions is not a layer's work."""
    name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
    cache = {name: hf.DynamicCache(config=model.config)}
    with torch.no_grad():
        if past:
            model(torch.zeros(1, past, dtype=torch.long), **cache)
        with FlopCounterMode(display=False) as counter:
            model(torch.zeros(1, tokens, dtype=torch.long), **cache, logits_to_keep=logits)
    by_module = counter.get_flop_counts()
    rotary = sum(by_module.get("LlamaForCausalLM.model.rotary_emb", {}).values())
    return counter.get_total_flops() - rotary


@pytest.mark.parametrize(
    ("tokens", "past", "logits"), [(1, 0, None), (7, 0, None), (7, 0, 1), (1, 9, 1), (5, 9, 2)]
)
def test_forward_equals_what_torch_counts(model, tokens, past, logits):
    expected = counted(model, tokens, past, logits or 0)
    assert flops.forward(FIELDS, tokens, past, logits).total == expected


def test_generation_is_the_sum_of_its_steps(model):
    steps = [counted(model, 4, logits=1)] + [counted(model, 1, past, logits=1) for past in range(4, 9)]
    assert flops.generation(FIELDS, 6, prompt=4).total == sum(steps)
    again = [counted(model, length, logits=1) for length in range(4, 10)]
    assert flops.generation(FIELDS, 6, prompt=4, cached=False).total == sum(again)


@MANY
@given(new=st.integers(1, 60))
def test_row_3_sums_of_squares_and_of_positions(new):
    """From one token on: scores of step t are t × t without a cache and 1 × t with one."""
    per_pair = 4 * 4 * 10 * 3
    uncached, cached = (flops.generation(FIELDS, new, cached=c) for c in (False, True))
    assert uncached.attention == per_pair * new * (new + 1) * (2 * new + 1) // 6
    assert cached.attention == per_pair * new * (new + 1) // 2
    assert uncached.linear * 2 == cached.linear * (new + 1)
    assert uncached.head == cached.head


def test_row_3_orders_of_growth():
    def ratio(part, cached):
        one, two = (getattr(flops.generation(FIELDS, n, cached=cached), part) for n in (2_000, 4_000))
        return two / one

    assert ratio("attention", cached=False) == pytest.approx(8, rel=2e-3)
    assert ratio("attention", cached=True) == pytest.approx(4, rel=2e-3)
    assert ratio("linear", cached=False) == pytest.approx(4, rel=2e-3)
    assert ratio("linear", cached=True) == 2


def test_a_window_bounds_the_keys_of_a_cached_step():
    fields = FIELDS | {"model_type": "mistral", "sliding_window": 5}
    assert flops.forward(fields, 1, past=3) == flops.forward(FIELDS, 1, past=3)
    assert flops.forward(fields, 1, past=100) == flops.forward(FIELDS, 1, past=4)
    config = ModelConfig.from_hf(fields)
    assert flops.forward(config, 1, past=100) == flops.forward(fields, 1, past=100)


@pytest.mark.parametrize(
    "call",
    [
        lambda: flops.forward(FIELDS, 0),
        lambda: flops.forward(FIELDS, 1, past=-1),
        lambda: flops.forward(FIELDS, 2, logits=3),
        lambda: flops.forward(FIELDS, 2, logits=-1),
        lambda: flops.generation(FIELDS, 0),
        lambda: flops.generation(FIELDS, 3, prompt=0),
        lambda: flops.forward("gemma-3-4b", 1),
    ],
)
def test_bad_input(call):
    with pytest.raises(InputError):
        call()
