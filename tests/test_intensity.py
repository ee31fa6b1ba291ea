"""FLOPs and bytes of MLA and of attention in a decode step, against torch's counter and sums written out."""

from functools import partial

import pytest
import torch
import transformers as hf
from hypothesis import given
from hypothesis import strategies as st
from strategies import MANY
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import kvcourse as kv
from kvcourse import flops, memory
from kvcourse.attend import latent as attend
from kvcourse.config import ExpertsConfig, ModelConfig
from kvcourse.errors import InputError

MLA = {
    "vocab_size": 50, "hidden_size": 24, "intermediate_size": 40, "num_layers": 3, "num_heads": 4, "num_kv_heads": 4,
    "head_dim": 1, "kv_lora_rank": 12, "qk_nope_head_dim": 10, "qk_rope_head_dim": 6, "v_head_dim": 8,
}  # fmt: skip
EXPERTS = ExpertsConfig(
    n_routed_experts=6, num_experts_per_tok=2, moe_intermediate_size=14, n_shared_experts=1,
    first_k_dense_replace=1,
)  # fmt: skip
CONFIGS = {
    "plain": ModelConfig(**MLA),
    "q latent": ModelConfig(**MLA, q_lora_rank=9),
    "experts": ModelConfig(**MLA, experts=EXPERTS),
}


@pytest.fixture(params=CONFIGS)
def config(request):
    return CONFIGS[request.param]


@pytest.fixture
def counted(monkeypatch):
    """Counts what torch computes in one pass of our decoder; attention by its plain products."""
    monkeypatch.setattr(attend, "mla_decode", partial(attend.mla_decode, backend="torch"))

    def count(config, tokens, past=0, cached=True):
        torch.manual_seed(0)
        model = kv.Decoder(config).eval()
        for weight in model.parameters():
            torch.nn.init.normal_(weight, std=0.2)
        cache = kv.KVCache(config, kv.Plan(), batch_size=1) if cached else None
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
            if past:
                model(torch.zeros(1, past, dtype=torch.long), cache=cache)
            with FlopCounterMode(display=False) as counter:
                model(torch.zeros(1, tokens, dtype=torch.long), cache=cache)
        return counter.get_total_flops()

    return count


@pytest.mark.parametrize(("tokens", "past"), [(1, 0), (1, 9), (7, 0), (5, 9)])
def test_a_pass_of_mla_equals_what_torch_counts(counted, config, tokens, past):
    """One token: the absorbed form. More: the expanded form, which expands what is cached again."""
    assert flops.forward(config, tokens, past).total == counted(config, tokens, past)


@pytest.mark.parametrize("tokens", [1, 6])
def test_without_a_cache_mla_is_expanded(counted, config, tokens):
    assert flops.forward(config, tokens, absorbed=False).total == counted(config, tokens, cached=False)


def test_generation_with_mla_is_the_sum_of_its_steps(counted, config):
    steps = [counted(config, 4)] + [counted(config, 1, past) for past in range(4, 8)]
    again = [counted(config, length, cached=False) for length in range(4, 9)]
    unscored = 2 * 24 * 50  # each token but the last of a pass goes through the head there, not here
    assert flops.generation(config, 5, prompt=4).total == sum(steps) - 3 * unscored
    got = flops.generation(config, 5, prompt=4, cached=False).total
    assert got == sum(again) - sum(range(3, 8)) * unscored


def test_the_expanded_form_equals_what_transformers_runs():
    fields = {
        "vocab_size": 50, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 4, "kv_lora_rank": 12, "q_lora_rank": 9,
        "qk_nope_head_dim": 10, "qk_rope_head_dim": 6, "v_head_dim": 8, "first_k_dense_replace": 2,
    }  # fmt: skip
    model = hf.DeepseekV3ForCausalLM(hf.DeepseekV3Config(**fields, attn_implementation="eager")).eval()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(torch.zeros(1, 7, dtype=torch.long), use_cache=False)
    by_module = counter.get_flop_counts()
    rotary = sum(by_module.get("DeepseekV3ForCausalLM.model.rotary_emb", {}).values())
    assert flops.forward(model.config, 7).total == counter.get_total_flops() - rotary


@MANY
@given(tokens=st.integers(2, 40), past=st.integers(0, 60))
def test_forms_of_mla_differ_in_attention_alone(tokens, past):
    plain, absorbed = (flops.forward(CONFIGS["plain"], tokens, past, absorbed=form) for form in (False, True))
    assert (plain.linear, plain.head) == (absorbed.linear, absorbed.head)
    pairs = tokens * (tokens + past)
    assert absorbed.attention == 3 * pairs * 2 * 4 * (12 + 6 + 12)
    assert plain.attention == 3 * (pairs * 2 * 4 * (16 + 8) + past * 2 * 12 * 4 * (10 + 8))


def test_only_the_experts_of_a_token_count():
    many = ModelConfig(**MLA, experts=EXPERTS)
    dense = flops.forward(CONFIGS["plain"], 5).linear
    layer = (
        3 * (2 + 1) * 14 * 24 + 6 * 24 - 3 * 40 * 24
    )  # chosen and shared experts, router, minus the dense one
    assert flops.forward(many, 5).linear == dense + 2 * 5 * 2 * layer


# ---- one decode step's attention -------------------------------------------------------------------


def multiplied(heads, keys, values):
    """FLOPs and bytes of one query a head over stored tensors, counted by torch on tensors without storage.

    keys, values: (kv heads, tokens, dim); the latent form passes the latents as a slice of its keys.
    """
    with torch.device("meta"):
        group = heads // keys[0]
        q = torch.empty(keys[0], group, keys[2], dtype=torch.bfloat16)
        k, v = (torch.empty(*shape, dtype=torch.bfloat16) for shape in (keys, values))
        with FlopCounterMode(display=False) as counter:
            torch.bmm(torch.bmm(q, k.mT), v)
    return counter.get_total_flops(), k.nbytes, v.nbytes


@MANY
@given(
    group=st.integers(1, 8), kv_heads=st.integers(1, 8), half=st.integers(1, 64), layers=st.integers(1, 5),
    context=st.integers(1, 3000), batch=st.integers(1, 9),
)  # fmt: skip
def test_heads_are_read_group_size_times(group, kv_heads, half, layers, context, batch):
    """MHA: 1 FLOP per byte in bf16 (2 · 2 · D FLOPs, 2 · D numbers of 2 bytes). GQA: group size. MQA: heads."""
    fields = {
        "model_type": "llama", "num_hidden_layers": layers, "num_attention_heads": group * kv_heads,
        "num_key_value_heads": kv_heads, "head_dim": 2 * half,
    }  # fmt: skip
    cost = flops.decode_attention(fields, context, batch)
    shape = (kv_heads, context, 2 * half)
    operations, keys, values = multiplied(group * kv_heads, shape, shape)
    assert cost.flops == batch * layers * operations
    assert cost.bytes == batch * layers * (keys + values) == memory.bytes_at(fields, context, batch)
    assert cost.intensity == group
    assert flops.decode_attention(fields, context, batch, dtype="fp32").intensity == group / 2


@MANY
@given(
    heads=st.integers(1, 128), rank=st.integers(1, 600), half=st.integers(1, 40), layers=st.integers(1, 5),
    context=st.integers(1, 3000), batch=st.integers(1, 9),
)  # fmt: skip
def test_latents_are_read_by_every_head(heads, rank, half, layers, context, batch):
    """Scores meet R + D_r numbers, values R of the same: heads · 2 (2R + D_r) FLOPs for 2 (R + D_r) bytes."""
    rope = 2 * half
    fields = {
        "model_type": "deepseek_v3", "num_hidden_layers": layers, "num_attention_heads": heads,
        "kv_lora_rank": rank, "qk_rope_head_dim": rope,
    }  # fmt: skip
    cost = flops.decode_attention(fields, context, batch)
    operations, keys, _ = multiplied(heads, (1, context, rank + rope), (1, context, rank))
    assert (cost.flops, cost.bytes) == (batch * layers * operations, batch * layers * keys)
    assert cost.bytes == memory.bytes_at(fields, context, batch)
    assert cost.intensity == pytest.approx(heads * (2 * rank + rope) / (rank + rope), rel=1e-12)


@MANY
@given(heads=st.integers(1, 64), rank=st.integers(1, 300), context=st.integers(1, 2000))
def test_expanding_the_cache_counted_by_torch(heads, rank, context):
    fields = {
        "model_type": "deepseek_v2", "num_hidden_layers": 2, "num_attention_heads": heads, "kv_lora_rank": rank,
        "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 12,
    }  # fmt: skip
    cost = flops.expanded_attention(fields, context, batch=3)
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        made = torch.empty(context, rank) @ torch.empty(rank, heads * (16 + 12))
        k, v = made.unflatten(1, (heads, 28)).transpose(0, 1).split((16, 12), dim=-1)
        k = torch.cat((k, torch.empty(heads, context, 8)), dim=-1)
        torch.bmm(torch.bmm(torch.empty(heads, 1, 24), k.mT), v)
    assert cost.flops == 3 * 2 * counter.get_total_flops()
    assert cost.bytes == 3 * 2 * 2 * (context * (rank + 8) + 2 * made.numel())


@pytest.mark.parametrize(
    ("name", "intensity"),
    [
        ("gpt2", 1),
        ("llama-2-7b", 1),
        ("llama-3-8b", 4),
        ("falcon-7b", 71),
        ("gpt-oss-120b", 8),
        ("gemma-3-4b", 2),
    ],
)
def test_intensity_of_real_models(name, intensity):
    assert flops.decode_attention(name, 4096).intensity == intensity


def test_deepseek_v3_is_beyond_the_reach_of_memory():
    """128 heads read 576 numbers: 2 · 128 · (576 + 512) FLOPs per 1,152 bytes, 61 layers."""
    cost = flops.decode_attention("deepseek-v3", 1)
    assert (cost.flops, cost.bytes) == (61 * 2 * 128 * (576 + 512), 61 * 576 * 2)
    assert cost.intensity == pytest.approx(241.8, abs=0.05)
    expanded = flops.expanded_attention("deepseek-v3", 1)
    assert expanded.flops == 61 * (2 * 512 * 128 * 256 + 2 * 128 * (192 + 128))
    assert expanded.flops / cost.flops == pytest.approx(120.8, abs=0.1)


def test_a_sliding_layer_reads_its_window():
    fields = {
        "model_type": "mistral", "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 8, "sliding_window": 5,
    }  # fmt: skip
    assert flops.decode_attention(fields, 900) == flops.decode_attention(fields, 5)


def test_our_config_and_its_file_cost_the_same():
    fields = {
        "model_type": "deepseek_v2", "num_hidden_layers": 3, "num_attention_heads": 4, "kv_lora_rank": 12,
        "qk_nope_head_dim": 10, "qk_rope_head_dim": 6, "v_head_dim": 8,
    }  # fmt: skip
    for count in (flops.decode_attention, flops.expanded_attention):
        assert count(CONFIGS["plain"], 77, 2) == count(fields, 77, 2)
    nested = {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text", "num_hidden_layers": 6}}
    assert flops.decode_attention(nested, 10).intensity == 2  # 8 heads, 4 kv heads: the family's own


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: flops.decode_attention("llama-3-8b", 0), "context=0"),
        (lambda: flops.decode_attention("llama-3-8b", 5, batch=0), "batch=0"),
        (lambda: flops.decode_attention("deepseek-v3.2", 5), "keeps latent, rope, index"),
        (lambda: flops.decode_attention("deepseek-v4-pro", 5), "keeps kv, compressed"),
        (lambda: flops.decode_attention("qwen3.5-0.8b", 5), "keeps a fixed state"),
        (lambda: flops.decode_attention("gpt-9", 5), "no built-in model"),
        (lambda: flops.decode_attention("llama-3-8b", 5, dtype="bf8"), "bf8"),
        (lambda: flops.expanded_attention("llama-3-8b", 5), "nothing to expand"),
        (lambda: flops.expanded_attention("deepseek-v3.2", 5), "nothing to expand"),
        (lambda: flops.expanded_attention("deepseek-v3", True), "context=True"),
        (
            lambda: flops.expanded_attention(
                {"model_type": "deepseek_v3", "num_hidden_layers": 1, "num_attention_heads": 1, "kv_lora_rank": 1,
                 "qk_rope_head_dim": 2}, 5),
            "lacks qk_nope_head_dim",
        ),
    ],
)  # fmt: skip
def test_bad_input_says_what_was_expected(call, message):
    with pytest.raises(InputError, match=message):
        call()
