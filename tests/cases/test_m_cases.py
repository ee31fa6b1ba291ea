"""Faults that people reported of MLA in other projects, as tests of ours (M1 to M8).

Those of MHA, MQA and GQA (M10 to M14) are in test_m_head_cases.py.

M3, M6, M9, M12 and M15 are not in the list of cases.
"""

# ruff: noqa: N802 (tests carry the name of their case)

import math

import pytest
import torch
from doubles import far, numbers, same, step_by_step, tiny
from latent_reference import latent_logits, rotate_pairs
from oracles import left_padded
from tiny_models import tokens

import kvcourse as kv
from kvcourse.attention.gqa import attention, attention_with_lse
from kvcourse.kernels import mla_decode

LATENT = {
    "num_kv_heads": 4, "kv_lora_rank": 24, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 12,
}  # fmt: skip
DEEPSEEK = {
    "model_type": "deepseek_v3", "vocab_size": 64, "hidden_size": 5120, "intermediate_size": 64,
    "num_hidden_layers": 1, "first_k_dense_replace": 1, "num_attention_heads": 128, "num_key_value_heads": 128,
    "kv_lora_rank": 512, "q_lora_rank": 96, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 1, "moe_intermediate_size": 64,
    "n_group": 2, "topk_group": 1, "max_position_embeddings": 64,
}  # fmt: skip


class TestM1:
    """ollama/ollama#13893: scores of the absorbed form scaled by the latent's width, not by that of a head's key."""

    @pytest.mark.parametrize("q_lora_rank", [None, 20])
    @pytest.mark.parametrize("sizes", [None, 9, [4, 1, 3, 1]], ids=["absorbed", "expanded", "mixed"])
    def test_M1_scale_is_that_of_nope_and_rope_together(self, sizes, q_lora_rank):
        model, ids = tiny(**LATENT, q_lora_rank=q_lora_rank), tokens(1, 9)
        logits = step_by_step(model, ids, sizes)
        assert same(logits, latent_logits(model, ids, scale=(16 + 8) ** -0.5))
        assert far(logits, latent_logits(model, ids, scale=(24 + 8) ** -0.5))

    def test_M1_absorbed_equals_naive_in_the_sizes_of_deepseek(self):
        heads, nope, rope, rank, value, length = 3, 128, 64, 512, 128, 11
        q_nope, q_rope = numbers(heads, nope, seed=1), numbers(heads, rope, seed=2)
        w_uk, w_uv = numbers(heads, nope, rank, seed=3) / 20, numbers(heads, value, rank, seed=4) / 20
        latent, key = numbers(length, rank, seed=5), numbers(length, rope, seed=6)

        def naive(scale):
            keys = torch.einsum("hnr,tr->htn", w_uk, latent)  # (heads, length, nope)
            scores = torch.einsum("hn,htn->ht", q_nope, keys) + q_rope @ key.T  # (heads, length)
            values = torch.einsum("hvr,tr->htv", w_uv, latent)  # (heads, length, value)
            return torch.einsum("ht,htv->hv", torch.softmax(scores * scale, -1), values)

        def absorbed(scale):
            q_latent = torch.einsum("hn,hnr->hr", q_nope, w_uk)  # (heads, rank)
            table, lengths = torch.zeros(1, 1, dtype=torch.int32), torch.tensor([length])
            out = mla_decode(q_latent[None], q_rope[None], latent[None], key[None], table, lengths, scale)
            return torch.einsum("hr,hvr->hv", out[0], w_uv)

        right, wrong = (nope + rope) ** -0.5, (rank + rope) ** -0.5
        assert same(absorbed(right), naive(right))
        assert far(absorbed(wrong), naive(right))

    def test_M1_the_config_knows_the_scale(self):
        config = kv.ModelConfig.from_hf(DEEPSEEK)
        assert config.attention_scale == pytest.approx(192**-0.5, rel=1e-12)
        assert config.attention_scale != pytest.approx(576**-0.5, rel=1e-2)


class TestM2:
    """AI-Hypercomputer/maxtext#1370: the scores were divided by the scale instead of multiplied.

    Values that mark their token make the output the attention weights themselves.
    """

    size, keys = 64, 40

    def entropy(self, weights):
        return -(weights * weights.clamp(min=1e-300).log()).sum(-1).mean()

    def check(self, weights, products):
        scale = self.size**-0.5
        assert same(weights, torch.softmax(scale * products, -1))
        assert torch.equal(
            weights.argmax(-1), products.argmax(-1)
        )  # a sign turned round would favour the smallest
        assert self.entropy(weights) > 0.8 * math.log(self.keys)
        assert self.entropy(torch.softmax(products / scale, -1)) < 0.1 * math.log(self.keys)

    @pytest.mark.parametrize("with_lse", [False, True])
    def test_M2_heads_multiply(self, with_lse):
        q, k = numbers(1, 4, 3, self.size), numbers(1, 2, self.keys, self.size, seed=1)
        marks = torch.eye(self.keys, dtype=torch.float64).expand(1, 2, -1, -1)
        out = attention_with_lse(q, k, marks)[0] if with_lse else attention(q, k, marks)
        self.check(out, q @ k.repeat_interleave(2, 1).mT)

    def test_M2_latents_multiply(self):
        """Latents that mark their token are keys too: a query then lists its products with them."""
        products = numbers(1, 4, self.keys) * self.size**0.5
        marks = torch.eye(self.keys, dtype=torch.float64)[None]
        nothing = torch.zeros(1, 4, 2, dtype=torch.float64), torch.zeros(1, self.keys, 2, dtype=torch.float64)
        table, length = torch.zeros(1, 1, dtype=torch.int32), torch.tensor([self.keys])
        out = mla_decode(products, nothing[0], marks, nothing[1], table, length, self.size**-0.5)
        self.check(out, products)


class TestM4:
    """NVIDIA/Megatron-LM#1501: the size of a head was inferred as hidden size ÷ heads, 5,120 ÷ 128 = 40."""

    @pytest.mark.parametrize("hidden_size", [2048, 5120, 7168])
    def test_M4_heads_of_mla_do_not_depend_on_the_hidden_size(self, hidden_size):
        config = kv.ModelConfig.from_hf(DEEPSEEK | {"hidden_size": hidden_size})
        assert config.qk_head_dim == config.head_dim == 128 + 64
        assert config.qk_head_dim != hidden_size // config.num_heads
        with torch.device("meta"):
            layer = kv.Decoder(config).layers[0].self_attn
        assert layer.q_b_proj.weight.shape == (128 * 192, 96)
        assert layer.kv_b_proj.weight.shape == (128 * (128 + 128), 512)
        assert layer.o_proj.weight.shape == (hidden_size, 128 * 128)

    def test_M4_a_head_dim_that_is_given_is_believed(self):
        """The same of heads: Qwen3 has 16 heads of 128 in a hidden size of 1,024."""
        config = kv.ModelConfig.from_hf(
            {
                "model_type": "qwen3", "vocab_size": 64, "hidden_size": 1024, "intermediate_size": 64,
                "num_hidden_layers": 1, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
            }
        )  # fmt: skip
        with torch.device("meta"):
            layer = kv.Decoder(config).layers[0].self_attn
        assert layer.q_proj.weight.shape == (16 * 128, 1024)
        assert layer.k_proj.weight.shape == (8 * 128, 1024)


class TestM5:
    """junfanz1/MiniGPT-and-DeepSeek-MLA#1: nope and rope swapped in the down-projection and the rotary table."""

    def test_M5_the_down_projection_makes_latent_and_rotary_key(self):
        config = kv.ModelConfig.from_hf(DEEPSEEK)
        with torch.device("meta"):
            layer = kv.Decoder(config).layers[0].self_attn
        assert layer.kv_a_proj_with_mqa.weight.shape == (512 + 64, 5120)
        assert config.rope_dim == 64
        assert kv.memory.bytes_per_token(config, dtype="bf16") == (512 + 64) * 2

    def test_M5_weights_of_the_wrong_split_do_not_load(self):
        model, swapped = tiny(**LATENT), tiny(**LATENT | {"qk_nope_head_dim": 8, "qk_rope_head_dim": 16})
        with pytest.raises(RuntimeError, match="kv_a_proj_with_mqa"):
            model.load_state_dict(swapped.state_dict())

    @pytest.mark.parametrize("fault", [{"rope_first": True}, {"table": 16}, {"table": 24}])
    def test_M5_latent_first_and_a_table_of_the_rotary_part(self, fault):
        """table: the size that the angles are made for; 16 is the nope part and 24 the whole key."""
        model, ids = tiny(**LATENT), tokens(1, 7)
        assert same(model(ids), latent_logits(model, ids))
        assert far(model(ids), latent_logits(model, ids, **fault))


class TestM7:
    """sqliteai/warp#27: the rotary key went into the cache before it was rotated."""

    @pytest.mark.parametrize("interleave", [False, True])
    @pytest.mark.parametrize("sizes", [1, 3, 8])
    def test_M7_the_cache_holds_rotated_keys(self, sizes, interleave):
        model, ids = tiny(**LATENT, rope_interleave=interleave), tokens(1, 8)
        cache = kv.KVCache(model.config)
        for piece in ids.split(sizes, 1):
            model(piece, cache=cache)
        layer, x = model.layers[0].self_attn, model.embed_tokens(ids)
        down = layer.kv_a_proj_with_mqa(model.layers[0].input_layernorm(x))[0]  # (8, 24 + 8)
        plain = down[:, 24:]
        rotated = rotate_pairs(plain, torch.arange(8), model.config.rope_theta, interleave)
        stored = cache._storage.layers[0].arrays
        assert set(stored) == {"latent", "rope"}
        assert same(stored["rope"][0, 0, :8], rotated)
        assert same(stored["latent"][0, 0, :8], layer.kv_a_layernorm(down[:, :24]))
        assert far(rotated[1:], plain[1:])

    @pytest.mark.parametrize("interleave", [False, True])
    def test_M7_decoding_continues_what_prefill_began(self, interleave):
        model, ids = tiny(**LATENT, rope_interleave=interleave), tokens(2, 10)
        expected = torch.cat([latent_logits(model, row[None]) for row in ids])
        assert same(model(ids), expected)
        for sizes in (None, [6, 1, 1, 1, 1], [1, 4, 5]):
            assert same(step_by_step(model, ids, sizes), expected)
        assert far(expected[:1], latent_logits(model, ids[:1], rotate_keys=False))

    def test_M7_a_padded_row_rotates_by_its_own_positions(self):
        model = tiny(**LATENT)
        prompts = ([5, 6, 7], [10, 11, 12, 13, 14, 15])
        ids, mask = left_padded(prompts)
        together = kv.generate(model, ids, max_new_tokens=8, attention_mask=mask)
        for row, prompt in enumerate(prompts):
            alone = kv.generate(model, torch.tensor([prompt]), max_new_tokens=8)
            assert torch.equal(together[row], alone[0])


class TestM8:
    """flashinfer-ai/flashinfer#941: NaN in slots of the last page that no token fills reached the output."""

    lengths = (0, 1, 5, 8, 13)

    @pytest.mark.parametrize("backend", ["reference", "torch", "cpu", None])
    @pytest.mark.parametrize("block_size", [1, 4, 16])
    def test_M8_unfilled_slots_are_never_read(self, block_size, backend):
        heads, rank, rope = 4, 16, 8
        width = -(-max(self.lengths) // block_size)
        table = torch.arange(len(self.lengths) * width).view(-1, width).int().flip(1)
        q_latent, q_rope = numbers(5, heads, rank).float(), numbers(5, heads, rope, seed=1).float()
        pages = numbers(table.numel(), block_size, rank + rope, seed=2).float()
        filled = torch.zeros(table.numel(), block_size, dtype=torch.bool)
        for row, length in enumerate(self.lengths):
            for token in range(length):
                filled[table[row, token // block_size], token % block_size] = True

        def run(unfilled):
            held = torch.where(filled[..., None], pages, torch.tensor(unfilled))
            latent, key = held[..., :rank], held[..., rank:]
            return mla_decode(
                q_latent,
                q_rope,
                latent,
                key,
                table,
                torch.tensor(self.lengths),
                0.2,
                backend,
                return_lse=True,
            )

        for clean, dirty in zip(run(0.0), run(math.nan), strict=True):
            assert torch.equal(clean, dirty)
        out, lse = run(math.nan)
        assert torch.isfinite(out).all()
        assert torch.equal(out[0], torch.zeros_like(out[0]))
        assert torch.isneginf(lse[0]).all()
        assert torch.isfinite(lse[1:]).all()

    @pytest.mark.parametrize("rows", [[6, 6], [2, 6]], ids=["even", "ragged"])
    def test_M8_nor_those_of_a_cache(self, rows):
        model = tiny(**LATENT)
        ids, mask = left_padded([tokens(n, seed=n).tolist() for n in rows])
        cache = kv.KVCache(model.config, batch_size=2)
        model(ids, cache=cache, attention_mask=mask)
        dirty = cache.fork()
        for store in dirty._storage.layers:
            for row, length in enumerate(rows):
                for array in store.arrays.values():
                    array[row, :, length + 1 :] = math.nan  # the next token fills slot `length`
        step = tokens(2, 1, seed=9)
        assert torch.equal(model(step, cache=cache), model(step, cache=dirty))
