"""Memory arithmetic where keys and values, strides or the last byte make the difference; counted by hand."""

import math

import pytest

from kvcourse import memory
from kvcourse.attention.families import layout_of
from kvcourse.config import ModelConfig
from kvcourse.errors import InputError
from kvcourse.plan import Plan

PER_TOKEN = 2 * 3 * 2 * 10 * 2  # of SMALL in bf16: fields, layers, kv heads, head_dim, bytes
SMALL = ModelConfig(
    vocab_size=11, hidden_size=8, intermediate_size=8, num_layers=3, num_heads=4, num_kv_heads=2, head_dim=10
)


def test_kivi_groups_keys_along_tokens_and_values_along_channels():
    """head_dim 10: 32 tokens of 10 key channels share metadata by channel, a token's 10 values by themselves."""
    heads, encoded, tail = 2 * 3, 64, 128  # kv heads of all layers; tokens that are codes, and that are not
    keys = 10 * (encoded // 32) * (32 * 2 // 8 + 4)
    values = encoded * (math.ceil(10 * 2 / 8) + 4)
    assert keys != values
    assert memory.bytes_at(SMALL, encoded + tail, codec="int2") == heads * (keys + values) + tail * PER_TOKEN
    assert memory.bytes_per_token(SMALL, codec="int2") == math.ceil(heads * (keys + values) / encoded)
    # One token more: an open group of keys, a closed value.
    more = memory.bytes_at(SMALL, encoded + tail + 1, codec="int2")
    assert more == heads * (keys + values + 7) + tail * PER_TOKEN + heads * 10 * 2


def test_a_contiguous_plan_allocates_what_compression_leaves():
    """At 2,048 tokens every growing field of DeepSeek-V4 fills its slots; rings have a block more than the window."""
    windowed = [field for layer in layout_of("deepseek-v4-pro") for field in layer.fields if field.window]
    assert any(field.stride > 1 for layer in layout_of("deepseek-v4-pro") for field in layer.fields)
    extra = sum(16 * math.prod(field.shape) * 2 for field in windowed)
    ideal = memory.bytes_at("deepseek-v4-pro", 2048)
    assert memory.bytes_at("deepseek-v4-pro", 2048, plan=Plan(block_size=16)) == ideal + extra


def test_tokens_count_the_part_of_a_last_request():
    fit = memory.fits(SMALL, 250 * PER_TOKEN, 100, weight_bytes=0, reserve=0)
    assert (fit.requests, fit.tokens, fit.longest) == (2, 250, 250)


def test_the_reserve_is_rounded_up():
    fit = memory.fits(SMALL, 1_000_001, 1, weight_bytes=1, reserve=0.25)
    assert (fit.reserved_bytes, fit.room_bytes) == (250_001, 749_999)


def test_weights_that_leave_no_byte_do_not_fit():
    assert memory.fits(SMALL, 1_001, 1, weight_bytes=1_000, reserve=0).room_bytes == 1
    with pytest.raises(InputError, match="fill"):
        memory.fits(SMALL, 1_000, 1, weight_bytes=1_000, reserve=0)


def test_a_pool_of_fixed_size_holds_what_its_blocks_hold():
    plan = Plan(storage="paged", block_size=4, num_blocks=6)
    assert memory.bytes_at(SMALL, 20, plan=plan) == 20 * PER_TOKEN
    assert memory.bytes_at(SMALL, 8, 2, plan=plan) == 2 * 8 * PER_TOKEN
    for context, batch in ((21, 1), (9, 2)):
        with pytest.raises(InputError, match="num_blocks=6"):
            memory.bytes_at(SMALL, context, batch, plan=plan)
    assert memory.fits(SMALL, 10**9, 10, plan=plan, weight_bytes=0).longest == 20
    assert memory.crossover_tokens(SMALL, plan=plan, weight_bytes=21 * PER_TOKEN) is None
    assert memory.crossover_tokens(SMALL, plan=plan, weight_bytes=17 * PER_TOKEN) == 17


@pytest.mark.parametrize("plan", ["paged", {}, 3, True])
def test_a_plan_that_is_none(plan):
    for call in (memory.bytes_per_token, memory.bytes_per_token_beyond_windows, memory.crossover_tokens):
        with pytest.raises(InputError, match=r"expected a kvcourse\.Plan"):
            call(SMALL, plan=plan)
    with pytest.raises(InputError, match=r"expected a kvcourse\.Plan"):
        memory.bytes_at(SMALL, 3, plan=plan)
