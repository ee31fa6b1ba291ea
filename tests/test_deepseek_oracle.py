"""DeepSeek-V2 and V3 against transformers: the same random weights must give the same logits and tokens.

In float64 the bound is 1e-10, against transformers in float64 too (`hf_models.latent_in_float64`). In float32 it is
1e-4, against transformers as it is.
"""

import json

import pytest
import torch
from hf_models import LATENT_CLASSES, difference, hf_latent_model, latent_in_float64, load, tokens
from hypothesis import given
from hypothesis import strategies as st
from oracles import left_padded, positions_of
from safetensors.torch import load_file, save_file
from strategies import FEW, seeds

import kvcourse as kv
from kvcourse.attention.rope import frequencies
from kvcourse.config import ModelConfig
from kvcourse.errors import InputError
from kvcourse.memory import bytes_at, parameter_count

YARN = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 32}
LITE = YARN | {"mscale": 0.707, "mscale_all_dim": 0.707}  # as in the files of DeepSeek-V2-Lite
UNEQUAL = YARN | {"mscale": 0.7, "mscale_all_dim": 1.2}
MOE = {"first_k_dense_replace": 1}
LIMITED = MOE | {"topk_method": "group_limited_greedy"}

ARCHITECTURES = {
    "v2": ("deepseek_v2", {}),
    "v2_query_latent": ("deepseek_v2", {"q_lora_rank": 18}),
    "v2_one_head": ("deepseek_v2", {"num_attention_heads": 1, "num_key_value_heads": 1}),
    "v2_wide_values": ("deepseek_v2", {"v_head_dim": 19}),
    "v2_tied": ("deepseek_v2", {"tie_word_embeddings": True}),
    "v2_biases": ("deepseek_v2", {"q_lora_rank": 18, "attention_bias": True, "mlp_bias": True}),
    "v2_biases_plain_queries": ("deepseek_v2", {"attention_bias": True}),
    "v2_eps": ("deepseek_v2", {"rms_norm_eps": 0.1, "q_lora_rank": 18}),
    "v2_theta": ("deepseek_v2", {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}),
    "v2_yarn": ("deepseek_v2", {"rope_parameters": YARN}),
    "v2_yarn_lite": ("deepseek_v2", {"rope_parameters": LITE}),
    "v2_yarn_unequal": ("deepseek_v2", {"rope_parameters": UNEQUAL}),
    "v2_experts": ("deepseek_v2", MOE),
    "v2_experts_scaled": ("deepseek_v2", MOE | {"routed_scaling_factor": 16.0}),
    "v2_experts_limited": ("deepseek_v2", LIMITED | {"first_k_dense_replace": 0}),
    "v2_experts_biases": ("deepseek_v2", LIMITED | {"mlp_bias": True, "n_shared_experts": 1}),
    "v3": ("deepseek_v3", {}),
    "v3_query_latent": ("deepseek_v3", {"q_lora_rank": 18}),
    "v3_half_split": ("deepseek_v3", {"rope_interleave": False}),
    "v3_wide_values": ("deepseek_v3", {"v_head_dim": 19}),
    "v3_biases": ("deepseek_v3", {"q_lora_rank": 18, "attention_bias": True}),
    "v3_eps": ("deepseek_v3", {"rms_norm_eps": 0.1, "q_lora_rank": 18}),
    "v3_yarn_for_all": ("deepseek_v3", {"rope_parameters": YARN | {"mscale_all_dim": 1.0}}),
    "v3_yarn_off": ("deepseek_v3", {"rope_parameters": YARN | {"mscale_all_dim": 0.0, "mscale": 1.0}}),
    "v3_yarn_unequal": ("deepseek_v3", {"rope_parameters": UNEQUAL}),
    "v3_yarn_half_split": ("deepseek_v3", {"rope_parameters": UNEQUAL, "rope_interleave": False}),
    "v3_yarn_shrinking": ("deepseek_v3", {"rope_parameters": LITE | {"factor": 0.5}}),
    "v3_linear": (
        "deepseek_v3",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 3.0}},
    ),
    "v3_experts": ("deepseek_v3", MOE),
    "v3_experts_one_group": ("deepseek_v3", MOE | {"n_group": 1, "topk_group": 1}),
    "v3_experts_not_normalised": ("deepseek_v3", MOE | {"norm_topk_prob": False}),
    "v3_experts_whole": (
        "deepseek_v3",
        MOE | {"q_lora_rank": 18, "attention_bias": True, "n_shared_experts": 1, "rope_parameters": UNEQUAL},
    ),
}
SOME = ["v2_query_latent", "v2_yarn_unequal", "v3_half_split", "v3_experts_whole"]


def named(name, **fields):
    family, own = ARCHITECTURES[name]
    return hf_latent_model(family, **own | fields)


@torch.no_grad()
def check_same_model(theirs, folder, length=40):
    """Logits of a batch and of a left-padded one, in float32 and float64, cached and not; 40 greedy tokens."""
    ids = tokens(2, length, seed=1)
    ragged, mask = left_padded([ids[0].tolist(), ids[1, : length // 3].tolist(), [5, 6, 7]])
    positions = positions_of(mask)

    ours = load(theirs, folder, torch.float32)
    assert (
        parameter_count(ours.config) == sum(p.numel() for p in ours.parameters()) == theirs.num_parameters()
    )
    assert difference(ours(ids), theirs(ids).logits) <= 1e-4
    padded = theirs(ragged, attention_mask=mask, position_ids=positions).logits
    assert difference(ours(ragged, attention_mask=mask), padded, mask) <= 1e-4

    ours = kv.load_model(folder, dtype=torch.float64)[0]
    with latent_in_float64(theirs) as theirs:
        reference = theirs(ids).logits
        assert reference.abs().max() > 1, "logits this small would hide an error"
        assert difference(ours(ids), reference) <= 1e-10
        padded = theirs(ragged, attention_mask=mask, position_ids=positions).logits
        assert difference(ours(ragged, attention_mask=mask), padded, mask) <= 1e-10

        cache = kv.KVCache(ours.config, batch_size=2)
        chunks = [ours(chunk, cache=cache) for chunk in ids.split([11, 1, 1, length - 13], dim=1)]
        assert difference(torch.cat(chunks, 1), reference) <= 1e-10

        cache = kv.KVCache(ours.config, batch_size=3)
        steps = [ours(ragged[:, :-2], attention_mask=mask[:, :-2], cache=cache)]
        steps += [ours(ragged[:, t, None], cache=cache) for t in (length - 2, length - 1)]
        assert difference(torch.cat(steps, 1), padded, mask) <= 1e-10

        prompt = ids[:1, :9]
        expected = theirs.generate(
            prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=40, do_sample=False
        )
    assert kv.generate(ours, prompt, max_new_tokens=40).tolist() == expected[:, 9:].tolist()


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_architectures(name, tmp_path):
    check_same_model(named(name), tmp_path)


def test_the_variants_differ(tmp_path):
    """The comparison above could not fail if a variant were another one in disguise."""
    ids, results = tokens(1, 40), {}
    for name in ARCHITECTURES:
        results[name] = load(named(name), tmp_path / name, torch.float64)(ids)
    for family in LATENT_CLASSES:
        names = [name for name in results if ARCHITECTURES[name][0] == family]
        same = [
            (one, other)
            for i, one in enumerate(names)
            for other in names[i + 1 :]
            if torch.allclose(results[one], results[other])
        ]
        assert same == []


@pytest.mark.parametrize("name", [name for name in ARCHITECTURES if "yarn" in name or "linear" in name])
def test_the_two_factors_of_yarn(name, tmp_path):
    """One on cos and sin, mscale / mscale_all_dim; another on the scores, mscale_all_dim alone, squared."""
    theirs = named(name)
    theirs.save_pretrained(tmp_path)
    config = ModelConfig.from_hf(tmp_path)
    freqs, factor = frequencies(config)
    assert config.attention_scale == pytest.approx(theirs.model.layers[0].self_attn.scaling, rel=1e-15)
    assert factor == pytest.approx(theirs.model.rotary_emb.attention_scaling, rel=1e-15)
    assert torch.equal(freqs, theirs.model.rotary_emb.inv_freq)


@FEW
@given(
    family=st.sampled_from(sorted(LATENT_CLASSES)),
    heads=st.integers(1, 4),
    ranks=st.tuples(st.integers(1, 30), st.one_of(st.none(), st.integers(1, 20))),
    dims=st.tuples(st.integers(1, 12), st.integers(1, 5), st.integers(1, 12)),
    layers=st.integers(1, 3),
    dense=st.integers(0, 3),
    groups=st.sampled_from([(1, 1), (2, 1), (2, 2), (4, 2), (4, 3)]),
    chosen=st.integers(1, 4),
    rope=st.sampled_from([None, YARN, LITE, UNEQUAL]),
    switches=st.tuples(st.booleans(), st.booleans(), st.booleans()),
    length=st.integers(1, 30),
    seed=seeds(),
)
def test_random_configs(
    tmp_path_factory, family, heads, ranks, dims, layers, dense, groups, chosen, rope, switches, length, seed
):
    tied, bias, switch = switches
    fields = {
        "hidden_size": 8 * heads,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "kv_lora_rank": ranks[0],
        "q_lora_rank": ranks[1],
        "qk_nope_head_dim": dims[0],
        "qk_rope_head_dim": 2 * dims[1],
        "v_head_dim": dims[2],
        "num_hidden_layers": layers,
        "first_k_dense_replace": dense,
        "n_group": groups[0],
        "topk_group": groups[1],
        "num_experts_per_tok": chosen,
        "tie_word_embeddings": tied,
        "attention_bias": bias,
    }
    fields |= {"rope_interleave": switch} if family == "deepseek_v3" else {"mlp_bias": switch}
    if family == "deepseek_v2" and groups[0] > 1:
        fields["topk_method"] = "group_limited_greedy"
    if rope is not None:
        fields["rope_parameters"] = rope
    theirs = hf_latent_model(family, seed=seed, **fields)
    ours = load(theirs, tmp_path_factory.mktemp("model"), torch.float64)
    ids = tokens(2, length, seed=seed)
    with torch.no_grad(), latent_in_float64(theirs) as theirs:
        assert difference(ours(ids), theirs(ids).logits) <= 1e-10


@pytest.mark.parametrize("name", SOME)
def test_a_checkpoint_in_shards(name, tmp_path):
    theirs, ids = named(name), tokens(1, 12)
    theirs.save_pretrained(tmp_path / "whole")
    whole = kv.load_model(tmp_path / "whole", dtype=torch.float64)[0]
    sharded = load(theirs, tmp_path / "shards", torch.float64, max_shard_size="20KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 1
    assert torch.equal(sharded(ids), whole(ids))


def test_layers_that_predict_further_tokens_are_left_out(tmp_path):
    """Published V3 files hold one more layer than the model has, as transformers knows too."""
    named("v3").save_pretrained(tmp_path)
    ids = tokens(1, 12)
    expected = kv.load_model(tmp_path)[0](ids)
    state = load_file(tmp_path / "model.safetensors")
    extra = {name.replace(".2.", ".3."): t.clone() for name, t in state.items() if ".layers.2." in name}
    save_file(
        state | extra | {"model.layers.3.eh_proj.weight": torch.zeros(3)}, tmp_path / "model.safetensors"
    )
    assert torch.equal(kv.load_model(tmp_path)[0](ids), expected)

    file = tmp_path / "config.json"
    config = json.loads(file.read_text("utf-8")) | {"num_nextn_predict_layers": 0}
    file.write_text(json.dumps(config), "utf-8")
    with pytest.raises(InputError, match=r"unexpected: layers\.3"):
        kv.load_model(tmp_path)


def test_routers_keep_float32_in_short_types(tmp_path):
    theirs = named("v3_experts")
    ours = load(theirs, tmp_path, torch.bfloat16)
    kept = type(theirs).from_pretrained(tmp_path, dtype=torch.bfloat16).state_dict()
    for name in ("weight", "e_score_correction_bias"):
        mine, other = (
            state[f"{start}layers.1.mlp.gate.{name}"]
            for start, state in (("", ours.state_dict()), ("model.", kept))
        )
        assert mine.dtype == other.dtype == torch.float32
        assert torch.equal(mine, other)
    assert ours.layers[1].mlp.experts[0].up_proj.weight.dtype == torch.bfloat16
    assert ours(tokens(1, 5)).dtype == torch.bfloat16


@pytest.mark.parametrize("name", SOME)
def test_what_a_token_leaves_is_what_transformers_keeps(name, tmp_path):
    """The normed latent and the rotated key, cases M2 and M7: two small vectors, and not a number more."""
    theirs = named(name)
    ours, ids = load(theirs, tmp_path, torch.float64), tokens(1, 15)
    cache = kv.KVCache(ours.config, batch_size=1)
    ours(ids, cache=cache)
    with torch.no_grad(), latent_in_float64(theirs) as theirs:
        kept = theirs(ids, use_cache=True)
    kept = kept.cache if "cache" in kept else kept.past_key_values
    for layer, stored in enumerate(kept.layers):
        latent, rope = (
            cache._storage.layers[layer].arrays[name][:, :, : ids.shape[1]] for name in ("latent", "rope")
        )
        assert (latent - stored.keys).abs().max() <= 1e-10
        # Products of keys with keys: the order of the pairs inside a key is each implementation's own.
        assert (rope @ rope.mT - stored.values @ stored.values.mT).abs().max() <= 1e-10
    numbers = sum(stored.keys.numel() + stored.values.numel() for stored in kept.layers)
    assert bytes_at(ours.config, ids.shape[1], dtype="fp64") == 8 * numbers


@pytest.mark.parametrize(("latent", "rope"), [(24, 4), (20, 8), (6, 22), (22, 8), (24, 6)])
def test_a_wrong_split_of_the_down_projection_is_refused(latent, rope, tmp_path):
    """Case M5: 22 + 6 rows, latent first. The first three keep their sum, which alone would fit."""
    named("v3").save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    config = json.loads(file.read_text("utf-8"))
    file.write_text(json.dumps(config | {"kv_lora_rank": latent, "qk_rope_head_dim": rope}), "utf-8")
    with pytest.raises(InputError, match="another shape"):
        kv.load_model(tmp_path)
