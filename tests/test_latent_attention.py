"""Multi-head latent attention: two forms of one function, what the cache keeps of it, and merged states."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import MANY, seeds
from tiny_models import TIGHT, gap, model_named, new_cache, tokens
from torch.utils._python_dispatch import TorchDispatchMode

import kvcourse as kv
from kvcourse.attend import latent as latent_attention
from kvcourse.attention import merge_attention_states
from kvcourse.attention.gqa import attention_with_lse, causal_mask
from kvcourse.attention.mla import UpProjection, absorbed_attention, expanded_attention
from kvcourse.attention.rope import frequencies, rotate, rotations

dims = st.integers(1, 9)


def by_hand(q_nope, q_rope, latent, rope, up, scale, visible):
    """Every head's keys and values, one head, query and key at a time, in numpy. Arguments without the batch."""
    w_uk, w_uv = up.w_uk.numpy(), up.w_uv.numpy()
    q_nope, q_rope, latent, rope = (x.numpy() for x in (q_nope, q_rope, latent, rope))
    out = np.zeros((q_nope.shape[0], q_nope.shape[1], w_uv.shape[1]))
    for head in range(out.shape[0]):
        for query in range(out.shape[1]):
            seen = [key for key in range(len(latent)) if visible[query, key]]
            scores = [
                scale * (q_nope[head, query] @ (w_uk[head] @ latent[key]) + q_rope[head, query] @ rope[key])
                for key in seen
            ]
            weights = np.exp(np.array(scores) - max(scores))
            for weight, key in zip(weights / weights.sum(), seen, strict=True):
                out[head, query] += weight * (w_uv[head] @ latent[key])
    return torch.from_numpy(out)


class LargestTensor(TorchDispatchMode):
    """Bytes of the largest tensor that operations made while it was entered; views make none."""

    nbytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        given = {x.untyped_storage().data_ptr() for x in args if isinstance(x, torch.Tensor)}
        if (storage := out.untyped_storage()).data_ptr() not in given:
            self.nbytes = max(self.nbytes, storage.nbytes())
        return out


class TestTheTwoForms:
    @MANY
    @given(
        heads=st.integers(1, 5), rank=st.integers(1, 20), nope=dims, rope=st.integers(1, 4), value=dims,
        queries=st.integers(1, 6), past=st.integers(0, 6), seed=seeds(),
    )  # fmt: skip
    def test_both_equal_attention_by_hand(self, heads, rank, nope, rope, value, queries, past, seed):
        generator = torch.Generator().manual_seed(seed)

        def draw(*shape):
            return torch.randn(shape, generator=generator, dtype=torch.float64)

        up = UpProjection(draw(heads, nope, rank), draw(heads, value, rank))
        keys, scale = past + queries, (nope + 2 * rope) ** -0.5
        parts = (draw(2, heads, queries, nope), draw(2, heads, queries, 2 * rope))
        stored = (draw(2, keys, rank), draw(2, keys, 2 * rope))
        positions = torch.arange(keys)[None]
        mask = causal_mask(positions[:, past:], positions)
        expanded = expanded_attention(*parts, *stored, up, scale, mask)
        absorbed = absorbed_attention(*parts, *stored, up, scale, mask)
        assert expanded.shape == (2, heads, queries, value)
        assert gap(expanded, absorbed) <= TIGHT
        for row in range(2):
            expected = by_hand(*(x[row] for x in (*parts, *stored)), up, scale, mask[0, 0])
            assert gap(expanded[row], expected) <= TIGHT

    @pytest.mark.parametrize("form", [expanded_attention, absorbed_attention])
    def test_deepseek_dims(self, form):
        """512 + 64 stored, 128 + 64 in a key, 128 in a value: the scale comes from 192, not from 576."""
        generator = torch.Generator().manual_seed(0)

        def draw(*shape):
            return torch.randn(shape, generator=generator, dtype=torch.float64)

        up = UpProjection(draw(4, 128, 512) / 512**0.5, draw(4, 128, 512) / 512**0.5)
        parts, stored = (draw(1, 4, 1, 128), draw(1, 4, 1, 64)), (draw(1, 50, 512), draw(1, 50, 64))
        seen = torch.ones(1, 50, dtype=torch.bool)
        expected = by_hand(*(x[0] for x in (*parts, *stored)), up, 192**-0.5, seen)
        assert gap(form(*parts, *stored, up, 192**-0.5)[0], expected) <= TIGHT
        assert gap(form(*parts, *stored, up, 576**-0.5)[0], expected) > 0.1

    @pytest.mark.parametrize("name", ["absorb", "project"])
    def test_projections_of_a_batch_do_not_copy_the_weights(self, name):
        weights = torch.randn(4, 64, 32)
        up = UpProjection(weights[:, :32], weights[:, 32:])  # views, as in a layer
        x = torch.randn(8, 1, 4, 32).transpose(1, 2)  # (B, H, 1, D)
        with LargestTensor() as largest:
            out = getattr(up, name)(x)
        assert largest.nbytes == out.nbytes == x.nbytes
        torch.testing.assert_close(out, x @ (up.w_uk if name == "absorb" else up.w_uv.mT))

    def test_gradients_flow_through_both(self):
        """For training; and they are the same, since the functions are."""
        grads = []
        for form in (expanded_attention, absorbed_attention):
            generator = torch.Generator().manual_seed(1)
            shapes = ((3, 5, 8), (3, 4, 8), (1, 3, 6, 5), (1, 3, 6, 2), (1, 6, 8), (1, 6, 2))
            w_uk, w_uv, q_nope, q_rope, latent, rope = leaves = [
                torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True)
                for shape in shapes
            ]
            form(
                q_nope,
                q_rope,
                latent,
                rope,
                UpProjection(w_uk, w_uv),
                0.3,
                causal_mask(*[torch.arange(6)[None]] * 2),
            ).square().sum().backward()
            grads.append([leaf.grad for leaf in leaves])
        for one, other in zip(*grads, strict=True):
            assert one.abs().max() > 1e-3
            assert gap(one, other) <= TIGHT


class TestWhatTheCacheKeeps:
    @pytest.fixture(params=["mla", "mla_unequal_dims", "mla_own_frequencies"])
    def model(self, request):
        return model_named(request.param)

    def test_the_normed_latent_and_the_rotated_key_and_nothing_else(self, model):
        """Seen from outside: the weights of the first layer, applied to the embeddings by hand."""
        config, cache, ids = model.config, new_cache(model, 2), tokens(2, 9)
        model(ids, cache=cache)
        attend = model.layers[0].self_attn
        x = attend.kv_a_proj_with_mqa(model.layers[0].input_layernorm(model.embed_tokens(ids)))
        latent, key = x[..., : config.kv_lora_rank], x[..., config.kv_lora_rank :]
        if config.latent_norm:
            rms = latent.square().mean(-1, keepdim=True).add(1e-6).sqrt()
            latent = attend.kv_a_layernorm.weight * latent / rms
        if config.rope_interleave:
            key = torch.cat((key[..., ::2], key[..., 1::2]), dim=-1)
        freqs, _ = frequencies(config)
        angle = torch.arange(9)[:, None] * (freqs if freqs.dim() == 1 else freqs[0])  # (T, D_r / 2)
        a, b = key.chunk(2, dim=-1)
        cos, sin = angle.cos().double(), angle.sin().double()
        rotated = torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
        arrays = cache._storage.layers[0].arrays
        assert set(arrays) == {"latent", "rope"}
        assert gap(arrays["latent"][:, 0, :9], latent) <= 1e-6  # angles are float32 in a float64 model
        assert gap(arrays["rope"][:, 0, :9], rotated) <= 1e-6

    def test_its_bytes_are_those_of_the_formula(self, model):
        config, cache = model.config, new_cache(model, 3)
        for width in (1, 16, 40):
            model(tokens(3, width), cache=cache)
            expected = (
                config.num_layers * 3 * cache.capacity * (config.kv_lora_rank + config.qk_rope_head_dim) * 8
            )
            assert cache.nbytes == expected
            seen = cache.seen[0]
            assert cache.nbytes == kv.memory.bytes_at(config, seen, 3, kv.Plan(), "fp64")
        values = config.kv_lora_rank + config.qk_rope_head_dim
        assert kv.memory.bytes_per_token(config, dtype="bf16") == config.num_layers * values * 2

    def test_a_long_past_is_expanded_part_by_part(self, model, monkeypatch):
        """Parts of 5 tokens, merged: nothing depends on where a part ends."""
        monkeypatch.setattr(latent_attention, "PART", 5)
        ids, cache, outs = tokens(2, 40, seed=3), new_cache(model, 2), []
        for first, last in ((0, 7), (7, 19), (19, 20), (20, 40)):
            outs.append(model(ids[:, first:last], cache=cache))
        assert gap(torch.cat(outs, dim=1), model(ids)) <= TIGHT

    def test_in_another_precision(self, model):
        """float32 in a float64 model: rounded once, when stored."""
        cache = kv.KVCache(model.config, kv.Plan(codec="fp32"))
        ids = tokens(1, 30, seed=5)
        out = torch.cat(
            [
                model(ids[:, :20], cache=cache),
                model(ids[:, 20:29], cache=cache),
                model(ids[:, 29:], cache=cache),
            ],
            1,
        )
        assert cache.nbytes == kv.memory.bytes_at(model.config, 30, 1, kv.Plan(codec="fp32"), "fp64")
        assert 1e-12 < gap(out, model(ids)) < 1e-4


class TestRefusals:
    def test_each_kind_of_model_has_its_method(self):
        for name, call, other in (("gqa", "attend_latent", "attend"), ("mla", "attend", "attend_latent")):
            cache, x = new_cache(model_named(name)), torch.zeros(1, 1, 1, 1)
            arguments = (x, x, x) if call == "attend" else (x, x, x, x, None)
            with pytest.raises(kv.InputError, match=rf"call {other}\(\)"):
                getattr(cache, call)(0, *arguments)
            assert cache.seen == (0,)

    @pytest.mark.parametrize(
        ("name", "shape"),
        [
            ("q_nope", (1, 3, 4, 7)), ("q_nope", (1, 2, 4, 6)), ("q_rope", (1, 3, 4, 4)), ("latent", (1, 4, 9)),
            ("latent", (2, 4, 10)), ("latent", (1, 1, 4, 10)), ("rope", (1, 3, 6)), ("rope", (1, 4, 5)),
        ],
    )  # fmt: skip
    def test_shapes_that_do_not_fit(self, name, shape):
        model = model_named("mla")
        cache, up = new_cache(model), model.layers[0].self_attn.up
        given = {"q_nope": (1, 3, 4, 6), "q_rope": (1, 3, 4, 6), "latent": (1, 4, 10), "rope": (1, 4, 6)}
        cache.attend_latent(0, *(torch.zeros(s, dtype=torch.float64) for s in given.values()), up)
        cache.reset()
        given[name] = shape
        with pytest.raises(kv.InputError, match=r"has shape .*: expected \(batch"):
            cache.attend_latent(0, *(torch.zeros(s, dtype=torch.float64) for s in given.values()), up)
        assert cache.seen == (0,)

    def test_append_wants_every_field(self):
        cache = new_cache(model_named("mla"))
        with pytest.raises(kv.InputError, match=r"append\(\) got 1 tensors: expected latent and rope"):
            cache.append(0, torch.zeros(1, 4, 10))

    def test_append_leaves_what_a_prefill_leaves(self):
        model = model_named("mla")
        ids, cache, copy = tokens(1, 12), new_cache(model), new_cache(model)
        model(ids[:, :11], cache=cache)
        for layer, store in enumerate(cache._storage.layers):
            copy.append(layer, *(store.arrays[name][:, 0, :11] for name in ("latent", "rope")))
        assert torch.equal(model(ids[:, 11:], cache=cache), model(ids[:, 11:], cache=copy))


class TestStates:
    @MANY
    @given(
        heads=st.sampled_from([(4, 1), (4, 2), (3, 3)]), queries=st.integers(1, 4), keys=st.integers(1, 12),
        cuts=st.lists(st.integers(0, 12), max_size=3), seed=seeds(),
    )  # fmt: skip
    def test_parts_merge_to_the_whole(self, heads, queries, keys, cuts, seed):
        """Any cut of the keys, empty parts and queries that see nothing of a part included."""
        generator = torch.Generator().manual_seed(seed)

        def draw(*shape):
            return torch.randn(shape, generator=generator, dtype=torch.float64)

        q, k, v = draw(2, heads[0], queries, 6), draw(2, heads[1], keys, 6), draw(2, heads[1], keys, 5)
        mask = torch.rand(2, 1, queries, keys, generator=generator) < 0.5
        mask[..., 0] = True
        whole, lse = attention_with_lse(q, k, v, mask)
        group = heads[0] // heads[1]
        scores = (q @ k.repeat_interleave(group, 1).mT * 6**-0.5).masked_fill(~mask, -torch.inf)
        assert gap(whole, scores.softmax(-1) @ v.repeat_interleave(group, 1)) <= TIGHT
        assert gap(lse, scores.exp().sum(-1).log()) <= TIGHT
        state = torch.zeros_like(whole), torch.full_like(lse, -torch.inf)
        edges = sorted({0, keys, *(min(cut, keys) for cut in cuts)})
        for first, last in pairwise(edges):
            part = slice(first, last)
            state = merge_attention_states(
                *state, *attention_with_lse(q, k[:, :, part], v[:, :, part], mask[..., part])
            )
        assert gap(state[0], whole) <= TIGHT
        assert gap(state[1], lse) <= TIGHT

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_parts_of_narrow_types_merge_in_float32(self, dtype):
        """A bfloat16 lse alone would move the result by a hundredth."""
        generator = torch.Generator().manual_seed(4)
        q, k, v = torch.randn(3, 1, 2, 1024, 32, generator=generator, dtype=torch.float64).to(dtype)
        state = merge_attention_states(
            *attention_with_lse(q[:, :, :4], k[:, :, :512], v[:, :, :512]),
            *attention_with_lse(q[:, :, :4], k[:, :, 512:], v[:, :, 512:]),
        )
        scores = q[:, :, :4].double() @ k.double().mT * 32**-0.5
        assert gap(state[0], scores.softmax(-1) @ v.double()) <= 1e-5
        assert gap(state[1], scores.logsumexp(-1)) <= 1e-5

    def test_a_query_that_sees_nothing_is_the_empty_state(self):
        q = k = v = torch.ones(1, 1, 2, 3)
        out, lse = attention_with_lse(q, k, v, torch.tensor([[[[False, False], [True, True]]]]))
        assert out[0, 0, 0].tolist() == [0, 0, 0]
        assert lse[0, 0, 0] == -math.inf
        assert torch.isfinite(lse[0, 0, 1])


def test_interleaved_pairs_give_the_scores_of_pairs_by_hand():
    """As complex numbers: x[2i] + i x[2i+1], turned by position times frequency."""
    generator = torch.Generator().manual_seed(2)
    q, k = torch.randn(2, 1, 1, 5, 8, generator=generator, dtype=torch.float64)
    freqs = torch.tensor([1.0, 0.5, 0.1, 0.02])
    cos, sin = rotations(freqs, torch.arange(5)[None], 1.0, torch.float64)
    scores = rotate(q, cos, sin, interleave=True) @ rotate(k, cos, sin, interleave=True).mT
    turn = torch.polar(torch.ones(5, 4), torch.arange(5)[:, None] * freqs)  # complex64: angles are float32
    a, b = (torch.view_as_complex(x[0, 0].unflatten(-1, (4, 2))) * turn for x in (q, k))
    assert gap(scores[0, 0], (a @ b.conj().mT).real) <= 1e-5
