"""Layouts against what transformers' own models put into their caches."""

import json

import pytest
import torch
import transformers as hf

from kvcourse.attention.config_reader import config_dict
from kvcourse.attention.families import FAMILIES, layout_of
from kvcourse.attention.known_models import KNOWN
from kvcourse.config import ModelConfig
from kvcourse.errors import InputError
from kvcourse.hf_config import RUNNABLE

TOKENS, WINDOW = 12, 7
SHAPE = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2,
}  # fmt: skip
EXPERTS = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 8}
LATENT = {
    "num_key_value_heads": 4, "kv_lora_rank": 16, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8, "v_head_dim": 8,
    "q_lora_rank": 8,
    "n_routed_experts": 2, "moe_intermediate_size": 8, "num_experts_per_tok": 1, "n_group": 1, "topk_group": 1,
}  # fmt: skip
SLIDES = {"sliding_window": WINDOW}
QWEN_SLIDES = SLIDES | {"use_sliding_window": True, "max_window_layers": 3}

CONFIGS = {
    "gpt2": lambda: hf.GPT2Config(vocab_size=64, n_layer=3, n_head=4, n_embd=32),
    "llama, head_dim apart from hidden / heads": lambda: hf.LlamaConfig(**SHAPE, head_dim=16),
    "llama, kv heads not given": lambda: hf.LlamaConfig(**(SHAPE | {"num_key_value_heads": None})),
    "mistral": lambda: hf.MistralConfig(**SHAPE, **SLIDES),
    "mistral, no window": lambda: hf.MistralConfig(**SHAPE, sliding_window=None),
    "mixtral": lambda: hf.MixtralConfig(**SHAPE, **SLIDES, num_local_experts=2),
    "qwen2": lambda: hf.Qwen2Config(**SHAPE, **QWEN_SLIDES),
    "qwen2, window switched off": lambda: hf.Qwen2Config(**SHAPE, **SLIDES, use_sliding_window=False),
    "qwen2_moe": lambda: hf.Qwen2MoeConfig(
        **SHAPE, **QWEN_SLIDES, **EXPERTS, shared_expert_intermediate_size=8
    ),
    "qwen3": lambda: hf.Qwen3Config(**SHAPE, **QWEN_SLIDES, head_dim=16),
    "qwen3_moe": lambda: hf.Qwen3MoeConfig(
        **SHAPE, **SLIDES, **EXPERTS, use_sliding_window=True, head_dim=16
    ),
    "phi3": lambda: hf.Phi3Config(**SHAPE, **SLIDES, pad_token_id=0),
    "gemma2": lambda: hf.Gemma2Config(**SHAPE, **SLIDES, head_dim=16),
    "gemma3_text": lambda: hf.Gemma3TextConfig(**(SHAPE | {"num_hidden_layers": 7}), **SLIDES, head_dim=16),
    "gpt_oss": lambda: hf.GptOssConfig(
        **SHAPE, **SLIDES, head_dim=16, num_local_experts=2, num_experts_per_tok=1
    ),
    "llama4_text": lambda: hf.Llama4TextConfig(
        **SHAPE,
        head_dim=16,
        intermediate_size_mlp=32,
        attention_chunk_size=WINDOW,
        num_local_experts=2,
        pad_token_id=0,
    ),
    "falcon, multi-query": lambda: hf.FalconConfig(
        vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4
    ),
    "falcon, multi-head": lambda: hf.FalconConfig(
        vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, multi_query=False
    ),
    "deepseek_v2": lambda: hf.DeepseekV2Config(**SHAPE | LATENT),
    "deepseek_v3": lambda: hf.DeepseekV3Config(**SHAPE | LATENT),
}


def stored(config, tokens=TOKENS):
    """The cache of a random transformers model after one forward pass."""
    torch.manual_seed(0)
    model = hf.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        out = model(torch.arange(tokens)[None], use_cache=True)
    return (out.get("cache") or out["past_key_values"]).layers


@pytest.mark.parametrize("name", CONFIGS)
def test_every_layer_has_the_fields_that_transformers_stores(name):
    """Per layer the same heads and dims; windows too: transformers keeps window − 1 tokens between steps."""
    config = CONFIGS[name]()
    layout = layout_of(config)
    layers = stored(config)
    assert len(layout) == len(layers)
    for ours, theirs in zip(layout, layers, strict=True):
        window = getattr(theirs, "sliding_window", None)
        assert [field.window for field in ours.fields] == [window] * 2
        kept = TOKENS if window is None else window - 1
        for field, array in zip(ours.fields, (theirs.keys, theirs.values), strict=True):
            assert field.values * kept == array.numel()
            assert field.shape[-1] == array.shape[-1]


@pytest.mark.parametrize("name", CONFIGS)
def test_files_without_a_list_of_layer_types(name):
    """Older config files leave it out, and the family's rule has to give the same layers."""
    config = CONFIGS[name]()
    fields = {key: value for key, value in config.to_dict().items() if key != "layer_types"}
    assert layout_of(fields) == layout_of(config)


def test_falcon_40b_style_counts_the_heads_that_differ():
    """transformers repeats the kv heads before it stores them; what has to be stored is num_kv_heads."""
    config = hf.FalconConfig(
        vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_kv_heads=2,
        new_decoder_architecture=True,
    )  # fmt: skip
    keys = stored(config)[0].keys
    assert torch.equal(keys[:, 0], keys[:, 1])  # repeated
    assert not torch.equal(keys[:, 1], keys[:, 2])
    assert layout_of(config)[0].fields[0].shape == (2, 8)


def test_linear_layers_keep_a_state_that_does_not_grow():
    config = hf.Qwen3NextConfig(
        **SHAPE, **EXPERTS, head_dim=16, linear_key_head_dim=8, linear_value_head_dim=6,
        linear_num_key_heads=2, linear_num_value_heads=4, shared_expert_intermediate_size=8,
    )  # fmt: skip
    linear, full = layout_of(config)[0], layout_of(config)[3]
    theirs = stored(config)
    state, conv = theirs[0].recurrent_states[0], theirs[0].conv_states[0]
    needed = conv.numel() * (conv.shape[-1] - 1) // conv.shape[-1]  # transformers keeps one column more
    assert linear.fields == ()
    assert linear.state_bytes == state.numel() * 4 + needed * 2
    assert full.state_bytes == 0
    assert sum(field.values for field in full.fields) * TOKENS == theirs[3].keys.numel() * 2


def test_deepseek_v4_keeps_a_window_and_compressed_entries():
    types = ["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"]
    config = hf.DeepseekV4Config(
        vocab_size=64, hidden_size=32, num_hidden_layers=3, num_attention_heads=4, head_dim=16, q_lora_rank=8,
        moe_intermediate_size=8, n_routed_experts=2, num_experts_per_tok=1, o_groups=2, o_lora_rank=4,
        index_n_heads=2, index_head_dim=8, index_topk=4, sliding_window=WINDOW, layer_types=types,
        compress_rates={types[1]: 4, types[2]: 8}, mlp_layer_types=["moe"] * 3,
    )  # fmt: skip
    for ours, theirs in zip(layout_of(config), stored(config), strict=True):
        recent, *rest = ours.fields
        assert recent.window == theirs.sliding_window == WINDOW
        assert recent.values * (WINDOW - 1) == theirs.keys.numel()  # one vector is key and value
        compressed = getattr(theirs, "compressed_kv", {})
        expected = {"compressed": compressed.get("compressor"), "index": compressed.get("indexer")}
        assert {field.name for field in rest} == {
            name for name, array in expected.items() if array is not None
        }
        for field in rest:
            assert field.entries(TOKENS) * field.values == expected[field.name].numel()


@pytest.mark.parametrize(
    ("config_class", "extra"),
    [
        (hf.DeepseekV32Config, {}),
        (hf.GlmMoeDsaConfig, {"indexer_types": ["full", "shared", "full", "shared"]}),
    ],
)
def test_dsa_adds_an_index_key_where_a_layer_has_an_indexer(config_class, extra):
    config = config_class(**SHAPE | LATENT, index_head_dim=6, **extra)
    names = [[field.name for field in layer.fields] for layer in layout_of(config)]
    full, shared = ["latent", "rope", "index"], ["latent", "rope"]
    assert names == ([full, shared, full, shared] if extra else [full] * 4)
    assert sum(field.values for field in layout_of(config)[0].fields) == 16 + 4 + 6


def test_text_config_is_found_inside_a_multimodal_one():
    text = {"num_hidden_layers": 12, "hidden_size": 2560, "sliding_window": 1024}
    nested = {"model_type": "gemma3", "text_config": text}  # a published file: heads left to the class
    assert layout_of(nested) == layout_of(hf.Gemma3TextConfig(**text))
    windows = [layer.fields[0].window for layer in layout_of(nested)]
    assert windows == ([1024] * 5 + [None]) * 2
    assert layout_of(nested)[0].fields[0].shape == (4, 256)
    assert layout_of(hf.Gemma3Config(text_config=text)) == layout_of(nested)


def test_a_dict_a_file_a_folder_and_our_config_agree(tmp_path):
    fields = SHAPE | {"model_type": "mistral", "sliding_window": 7}
    file = tmp_path / "config.json"
    file.write_text(json.dumps(fields), "utf-8")
    expected = layout_of(fields)
    assert layout_of(file) == layout_of(str(file)) == layout_of(tmp_path) == expected
    assert layout_of(hf.MistralConfig(**fields)) == layout_of(ModelConfig.from_hf(fields)) == expected
    assert expected[0].fields[0].shape == (2, 8)


@pytest.mark.parametrize("switch", [True, False, None])
@pytest.mark.parametrize("first", [0, 3, None])
@pytest.mark.parametrize("model_type", RUNNABLE)
def test_what_the_decoder_runs_has_the_windows_that_are_counted(model_type, first, switch):
    """A window in a Llama or DeepSeek config is there for nobody, as in transformers; Qwen's has a switch."""
    fields = {"sliding_window": WINDOW, "max_window_layers": first}
    if model_type.startswith("qwen"):
        fields["use_sliding_window"] = switch
    shape = SHAPE | LATENT if model_type.startswith("deepseek") else SHAPE
    raw = shape | {"model_type": model_type} | {name: v for name, v in fields.items() if v is not None}
    config = ModelConfig.from_hf(raw)
    counted = [layer.fields[0].window for layer in layout_of(raw)]
    assert [config.window(layer) for layer in range(config.num_layers)] == counted


def test_head_dim_is_not_always_hidden_over_heads():
    """Case M4: 5120 / 128 heads is 40, and MLA's key is 192 wide all the same."""
    gqa = SHAPE | {"model_type": "llama", "hidden_size": 5120, "num_attention_heads": 128, "head_dim": 128}
    assert layout_of(gqa)[0].fields[0].shape == (2, 128)
    mla = {
        "model_type": "deepseek_v3",
        "hidden_size": 5120,
        "num_attention_heads": 128,
        "num_hidden_layers": 1,
    }
    mla |= {"kv_lora_rank": 512, "qk_rope_head_dim": 64}
    assert sum(field.values for field in layout_of(mla)[0].fields) == 576


def test_extra_entries_for_prediction_layers_are_dropped():
    """DeepSeek-V4 files list one ratio more than there are layers."""
    config = config_dict("deepseek-v4-flash")
    longer = config | {"compress_ratios": [*config["compress_ratios"], 0]}
    assert layout_of(longer) == layout_of(config)
    assert len(layout_of(config)) == 43


@pytest.mark.parametrize("name", KNOWN)
def test_known_models_are_complete(name):
    model = KNOWN[name]
    assert len(layout_of(name)) == model.config.get("num_hidden_layers", model.config.get("n_layer"))
    assert model.config["model_type"] in FAMILIES
    assert layout_of(name.upper()) == layout_of(model.config)


@pytest.mark.parametrize(
    ("config", "parts"),
    [
        ({"model_type": "mamba"}, ["'mamba'", "llama", "num_hidden_layers"]),
        ({"num_hidden_layers": 3}, ["None", "llama"]),
        ({"model_type": "llama", "num_hidden_layers": 3}, ["num_attention_heads", "head_dim or hidden_size"]),
        (SHAPE | {"model_type": "llama", "num_hidden_layers": 0}, ["num_hidden_layers=0", "whole number"]),
        (SHAPE | {"model_type": "llama", "num_hidden_layers": 2.5}, ["num_hidden_layers=2.5"]),
        (SHAPE | {"model_type": "llama", "hidden_size": 33}, ["33", "give head_dim"]),
        (SHAPE | {"model_type": "gemma2"}, ["sliding_window"]),
        (SHAPE | {"model_type": "mistral", "layer_types": ["full_attention"]}, ["1 entries", "4 layers"]),
        (SHAPE | {"model_type": "llama", "layer_types": ["conv"] * 4}, ["'conv'", "sliding_attention"]),
        ({"model_type": "deepseek_v3", "num_hidden_layers": 2}, ["kv_lora_rank", "qk_rope_head_dim"]),
        ({"model_type": "deepseek_v4", "num_hidden_layers": 2}, ["layer_types or compress_ratios"]),
        ("lama-3-8b", ["did you mean llama-3-8b", "kvcourse memory --list", "hub name"]),
        ("no/such/config.json", ["no such file"]),
        (7, ["int", "config.json"]),
    ],
)
def test_bad_input_says_what_is_needed(config, parts):
    with pytest.raises(InputError) as caught:
        layout_of(config)
    message = str(caught.value)
    assert "\n" not in message
    for part in parts:
        assert part in message


def test_unknown_v4_layer_type():
    config = config_dict("deepseek-v4-pro") | {"compress_ratios": [2] * 61}
    with pytest.raises(InputError, match="layer type 2"):
        layout_of(config)


def test_hub_name_without_network_names_the_other_ways(monkeypatch):
    def offline(*args, **kwargs):
        raise OSError("no network")

    monkeypatch.setattr("kvcourse.attention.config_reader.urlopen", offline)
    with pytest.raises(InputError, match=r"could not fetch .*'org/model'.*path.*dict.*built-in") as caught:
        layout_of("org/model")
    assert "\n" not in str(caught.value)


def test_hub_name_is_fetched_once_with_its_own_config(monkeypatch, tmp_path):
    from io import BytesIO

    asked = []

    def answer(request, timeout):
        asked.append(request.full_url)
        return BytesIO(json.dumps(SHAPE | {"model_type": "llama"}).encode())

    monkeypatch.setattr("kvcourse.attention.config_reader.urlopen", answer)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    assert layout_of("org/model") == layout_of(SHAPE | {"model_type": "llama"})
    assert len(asked) == 1
    assert asked[0].endswith("/org/model/resolve/main/config.json")
