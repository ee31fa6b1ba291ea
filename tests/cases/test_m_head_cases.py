"""Faults that people reported of MHA, MQA and GQA in other projects, as tests of ours (M10 to M14)."""

# ruff: noqa: N802 (tests carry the name of their case)

import math

import numpy
import pytest
import torch
from doubles import far, numbers, same, step_by_step, tiny
from tiny_models import tokens

import kvcourse as kv
from kvcourse.attention.gqa import attention, attention_with_lse
from kvcourse.attention.layout import Field


def one_head_at_a_time(q, k, v, kv_head):
    """Causal attention by loops; query head h reads key and value head kv_head[h]."""
    q, k, v = (x.numpy() for x in (q, k, v))
    out = numpy.zeros((*q.shape[:3], v.shape[3]))
    for h, n in enumerate(kv_head):
        for t in range(q.shape[2]):
            scores = k[:, n, : t + 1] @ q[:, h, t, :, None] / math.sqrt(q.shape[3])  # (batch, t + 1, 1)
            powers = numpy.exp(scores - scores.max(1, keepdims=True))
            out[:, h, t] = (powers * v[:, n, : t + 1]).sum(1) / powers.sum(1)
    return torch.from_numpy(out)


def through_a_cache(q, k, v, size):
    """The same in pieces of `size` tokens through KVCache.attend: 1 decodes, all at once is a prefill."""
    config = tiny(num_layers=1, num_heads=q.shape[1], num_kv_heads=k.shape[1], head_dim=q.shape[3]).config
    cache = kv.KVCache(config, batch_size=q.shape[0])
    pieces = zip(*(x.split(size, 2) for x in (q, k, v)), strict=True)
    return torch.cat([cache.attend(0, *piece) for piece in pieces], 2)


def lower_left(queries):
    return torch.ones(queries, queries, dtype=torch.bool).tril()[None, None]


PATHS = {
    "function": lambda q, k, v: attention(q, k, v, causal=True),
    "function with a mask": lambda q, k, v: attention(q, k, v, lower_left(q.shape[2])),
    "with log-sum-exp": lambda q, k, v: attention_with_lse(q, k, v, lower_left(q.shape[2]))[0],
    "prefill": lambda q, k, v: through_a_cache(q, k, v, q.shape[2]),
    "chunks": lambda q, k, v: through_a_cache(q, k, v, 2),
    "decode": lambda q, k, v: through_a_cache(q, k, v, 1),
}
each_path = pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)


def head_map(path, num_heads, num_kv_heads):
    """Which kv head each query head reads: every value is the number of its head."""
    q, k = numbers(1, num_heads, 3, 8), numbers(1, num_kv_heads, 3, 8, seed=1)
    v = torch.arange(num_kv_heads, dtype=torch.float64)[None, :, None, None].expand(k.shape).contiguous()
    out = path(q, k, v)
    assert same(out, out.round())
    assert same(out, out[:, :, :1, :1].expand(out.shape))
    return out[0, :, 0, 0].round().int().tolist()


class TestM10:
    """ekzhang/jax-js#180; apple/axlearn#842; onnx/onnx#7274: kv heads tiled, 0 1 0 1, not repeated, 0 0 1 1."""

    @each_path
    def test_M10_heads_that_share_lie_together(self, path):
        assert head_map(path, 4, 2) == [0, 0, 1, 1]
        q, k, v = numbers(2, 4, 5, 8), numbers(2, 2, 5, 8, seed=1), numbers(2, 2, 5, 8, seed=2)
        assert same(path(q, k, v), one_head_at_a_time(q, k, v, [0, 0, 1, 1]))
        assert far(path(q, k, v), one_head_at_a_time(q, k, v, [0, 1, 0, 1]))


class TestM11:
    """PSAL-POSTECH/ONNXim#34: the kv head was found by dividing by the wrong number of heads."""

    @each_path
    @pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(12, 12), (32, 32), (32, 8), (28, 4)])
    def test_M11_head_h_reads_kv_head_h_over_the_size_of_a_group(self, path, num_heads, num_kv_heads):
        group = num_heads // num_kv_heads
        read = head_map(path, num_heads, num_kv_heads)
        assert read == [h // group for h in range(num_heads)]
        assert set(read) == set(range(num_kv_heads))
        if num_kv_heads != group:
            assert read != [h // num_kv_heads for h in range(num_heads)]


class TestM13:
    """datawhalechina/tiny-universe#21; PrimeIntellect-ai/prime-rl#2681: heads repeated along the tokens' axis."""

    @each_path
    def test_M13_heads_are_repeated_not_tokens(self, path):
        q, k, v = numbers(1, 4, 3, 8), numbers(1, 2, 3, 8, seed=1), numbers(1, 2, 3, 8, seed=2)
        assert same(path(q, k, v), one_head_at_a_time(q, k, v, [0, 0, 1, 1]))
        # (1, 2, 6, 8) read as (1, 4, 3, 8): as many numbers, and each head has a mixture of tokens
        along_tokens = [x.repeat_interleave(2, 2).reshape(1, 4, 3, 8) for x in (k, v)]
        assert far(path(q, k, v), one_head_at_a_time(q, *along_tokens, range(4)))

    def test_M13_the_cache_stores_heads_once(self):
        model = tiny(num_heads=4, num_kv_heads=2, head_dim=8)
        cache = kv.KVCache(model.config)
        model(tokens(1, 3), cache=cache)
        (layer, *_) = kv.attention.families.layout_of(model.config)
        assert layer.fields == (Field("k", (2, 8)), Field("v", (2, 8)))
        assert all(array.shape[1] == 2 for store in cache._storage.layers for array in store.arrays.values())


DIVISORS = (1, 2, 3, 4, 6, 12)


class TestM14:
    """EricLBuehler/candle-vllm#52; foundation-model-stack#21: right for one kv head or all, and no other number."""

    @each_path
    @pytest.mark.parametrize("num_kv_heads", DIVISORS)
    def test_M14_every_divisor_equals_mha_with_duplicated_heads(self, path, num_kv_heads):
        q, k, v = (numbers(2, heads, 5, 8, seed=heads) for heads in (12, num_kv_heads, num_kv_heads))
        v = v + 1
        all_heads = [x.repeat_interleave(12 // num_kv_heads, 1) for x in (k, v)]
        assert same(path(q, k, v), one_head_at_a_time(q, *all_heads, range(12)))
        tiled = one_head_at_a_time(q, *(x.repeat(1, 12 // num_kv_heads, 1, 1) for x in (k, v)), range(12))
        assert far(path(q, k, v), tiled) == (num_kv_heads not in (1, 12))

    @pytest.mark.parametrize("num_kv_heads", DIVISORS)
    def test_M14_a_model_equals_its_mha_twin(self, num_kv_heads):
        model = tiny(num_heads=12, num_kv_heads=num_kv_heads, head_dim=8)
        twin = tiny(num_heads=12, num_kv_heads=12, head_dim=8)
        state = model.state_dict()
        for name in [name for name in state if "k_proj" in name or "v_proj" in name]:
            heads = state[name].unflatten(0, (num_kv_heads, 8))  # (num_kv_heads, 8, hidden)
            state[name] = heads.repeat_interleave(12 // num_kv_heads, 0).flatten(0, 1)
        twin.load_state_dict(state)
        ids = tokens(2, 9)
        assert same(model(ids), twin(ids))
        assert same(step_by_step(model, ids, [4, 1, 1, 3]), twin(ids))
        assert kv.memory.bytes_per_token(twin.config) == 12 // num_kv_heads * kv.memory.bytes_per_token(
            model.config
        )
