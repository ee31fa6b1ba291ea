"""The decoder against transformers: the same random weights must give the same logits.

In float64 the bound is 1e-10, against transformers with norms in float64 too (`oracles.in_float64`). In float32 it
is 1e-4, against transformers as it is.
"""

import math

import pytest
import torch
from hf_models import CLASSES, ROPES, difference, hf_model, load, tokens
from hypothesis import assume, given
from hypothesis import strategies as st
from oracles import in_float64, left_padded, positions_of
from strategies import FEW, head_counts, seeds, windows
from transformers.models.llama.modeling_llama import LlamaRMSNorm

import kvcourse as kv
from kvcourse.attention.rope import frequencies
from kvcourse.model import RMSNorm

# Odd sizes on purpose: nothing is a power of two, and head_dim is not hidden_size / num_heads.
ARCHITECTURES = {
    "llama": ("llama", {}),
    "llama_mha": ("llama", {"num_key_value_heads": 6}),
    "llama_mqa": ("llama", {"num_key_value_heads": 1}),
    "llama_tied": ("llama", {"tie_word_embeddings": True}),
    "llama_biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama_eps": ("llama", {"rms_norm_eps": 0.1}),
    "mistral_full": ("mistral", {"sliding_window": None}),
    "mistral_window": ("mistral", {"sliding_window": 7}),
    "mistral_window_1": ("mistral", {"sliding_window": 1}),
    "mistral_window_of_the_length": ("mistral", {"sliding_window": 40}),
    "mistral_window_below_the_length": ("mistral", {"sliding_window": 39}),
    "qwen2": ("qwen2", {}),
    "qwen2_tied": ("qwen2", {"tie_word_embeddings": True}),
    "qwen2_window": ("qwen2", {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}),
    "qwen2_window_off": ("qwen2", {"use_sliding_window": False, "sliding_window": 5, "max_window_layers": 0}),
    "qwen2_layer_types": (
        "qwen2",
        {
            "use_sliding_window": True,
            "sliding_window": 6,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "qwen3": ("qwen3", {}),
    "qwen3_biases": ("qwen3", {"attention_bias": True}),
    "qwen3_window": ("qwen3", {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 2}),
}


@torch.no_grad()
def check_same_model(theirs, folder, length=40):
    """Logits of one batch and of a left-padded batch: 1e-4 in float32, 1e-10 in float64; same 64 greedy tokens."""
    ids = tokens(2, length, seed=1)
    ragged, mask = left_padded([ids[0].tolist(), ids[1, : length // 3].tolist(), [5]])
    positions = positions_of(mask)

    ours = load(theirs, folder, torch.float32)
    assert difference(ours(ids), theirs(ids).logits) <= 1e-4
    padded = theirs(ragged, attention_mask=mask, position_ids=positions).logits
    assert difference(ours(ragged, attention_mask=mask), padded, mask) <= 1e-4

    ours, theirs = kv.load_model(folder, dtype=torch.float64)[0], in_float64(theirs)
    reference = theirs(ids).logits
    assert reference.abs().max() > 1, "logits this small would hide an error"
    assert difference(ours(ids), reference) <= 1e-10
    padded = theirs(ragged, attention_mask=mask, position_ids=positions).logits
    assert difference(ours(ragged, attention_mask=mask), padded, mask) <= 1e-10

    prompt = ids[:1, :9]
    expected = theirs.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=64,
        do_sample=False,
        # With a window of 1, the cache of transformers 5.24 keeps everything: its slice ends at -0.
        use_cache=getattr(theirs.config, "sliding_window", None) != 1,
    )
    assert kv.generate(ours, prompt, max_new_tokens=64).tolist() == expected[:, 9:].tolist()


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_architectures(name, tmp_path):
    family, fields = ARCHITECTURES[name]
    check_same_model(hf_model(family, **fields), tmp_path)


@pytest.mark.parametrize("rope", [name for name in ROPES if name != "default" and "longrope" not in name])
def test_rope_scaling(rope, tmp_path):
    # 9 + 64 tokens stay inside the 128 of the config, where "dynamic" does nothing.
    check_same_model(hf_model("llama", rope_parameters={"rope_theta": 10_000.0} | ROPES[rope]), tmp_path)


@pytest.mark.parametrize("rope", [name for name in ROPES if "longrope" in name])
@pytest.mark.parametrize(("max_positions", "length"), [(128, 65), (128, 128), (64, 64), (64, 5)])
def test_longrope(rope, max_positions, length, tmp_path):
    """Long factors when the model is meant for more than the trained 64 tokens, short ones otherwise.

    transformers changes from short to long when a text grows past 64, which makes a cached run differ from an
    uncached one; ours never changes, so the two are compared where they use the same set.
    """
    parameters = {"rope_theta": 10_000.0} | ROPES[rope]
    theirs = hf_model("llama", rope_parameters=parameters, max_position_embeddings=max_positions)
    ours = load(theirs, tmp_path, torch.float64)
    theirs, ids = in_float64(theirs), tokens(2, length, seed=1)
    with torch.no_grad():
        assert difference(ours(ids), theirs(ids).logits) <= 1e-10


def test_the_rope_variants_differ(tmp_path):
    """The comparison above could not fail if a variant were the default one in disguise."""
    ids = tokens(1, 60)
    results = {}
    for name, parameters in ROPES.items():
        theirs = hf_model("llama", rope_parameters={"rope_theta": 10_000.0} | parameters)
        results[name] = load(theirs, tmp_path / name, torch.float64)(ids)
    same = [
        name for name in results if name != "default" and torch.allclose(results[name], results["default"])
    ]
    assert same == ["dynamic"], "dynamic scaling starts beyond max_position_embeddings, the others at once"


def test_yarn_without_a_factor_stretches_to_the_positions_of_the_model():
    def rope(**given):
        scaling = {"rope_type": "yarn", "original_max_position_embeddings": 32, **given}
        model = kv.tiny_model(max_position_embeddings=128, rope_scaling=scaling)
        return frequencies(model.config)

    (found, factor), (expected, expected_factor) = rope(), rope(factor=4.0)
    assert torch.equal(found, expected)
    assert factor == expected_factor == pytest.approx(0.1 * math.log(4) + 1)


@FEW
@given(
    family=st.sampled_from(sorted(CLASSES)),
    heads=head_counts(),
    half_head_dim=st.integers(1, 7),
    layers=st.integers(1, 3),
    rope=st.sampled_from([name for name in ROPES if not name.startswith("longrope")]),
    window=windows(),
    tied=st.booleans(),
    length=st.integers(1, 30),
    seed=seeds(),
)
def test_random_configs(
    tmp_path_factory, family, heads, half_head_dim, layers, rope, window, tied, length, seed
):
    assume(rope != "dynamic" or half_head_dim > 1)  # transformers 5.24 divides by head_dim - 2 there
    num_heads, num_kv_heads = heads
    fields = {
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_kv_heads,
        "num_hidden_layers": layers,
        "hidden_size": num_heads * 2 * half_head_dim,
        "intermediate_size": 19,
        "tie_word_embeddings": tied,
        "rope_parameters": {"rope_theta": 10_000.0} | ROPES[rope],
    }
    if family != "qwen2":
        fields["head_dim"] = 2 * half_head_dim
    if family == "mistral":
        fields["sliding_window"] = window
    elif family != "llama" and window is not None:
        fields |= {"use_sliding_window": True, "sliding_window": window, "max_window_layers": layers // 2}
    theirs = hf_model(family, seed=seed, **fields)
    ours = load(theirs, tmp_path_factory.mktemp("model"), torch.float64)
    theirs, ids = in_float64(theirs), tokens(2, length, seed=seed)
    with torch.no_grad():
        assert difference(ours(ids), theirs(ids).logits) <= 1e-10


def test_float32_on_a_longer_text(tmp_path):
    theirs = hf_model("llama", max_position_embeddings=1024)
    ours, ids = load(theirs, tmp_path, torch.float32), tokens(1, 512)
    with torch.no_grad():
        assert difference(ours(ids), theirs(ids).logits) <= 1e-4


def test_last_only(tmp_path):
    ours = load(hf_model("llama"), tmp_path, torch.float64)
    ids = tokens(3, 11)
    assert torch.allclose(ours(ids, last_only=True), ours(ids)[:, -1:], rtol=0, atol=1e-12)


def test_no_gradient_and_right_dtype(tmp_path):
    ours = load(hf_model("llama"), tmp_path, torch.bfloat16)
    logits = ours(tokens(1, 3))
    assert logits.dtype == torch.bfloat16
    assert not logits.requires_grad


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_norms_of_short_types_are_computed_in_float32(dtype):
    ours, theirs = RMSNorm(96, 1e-5).to(dtype), LlamaRMSNorm(96, 1e-5).to(dtype)
    weight = torch.randn(96).to(dtype)
    ours.weight.data, theirs.weight.data = weight, weight
    x = (300 * torch.randn(50, 96)).to(dtype)  # squares beyond the range of float16
    assert torch.equal(ours(x), theirs(x))
