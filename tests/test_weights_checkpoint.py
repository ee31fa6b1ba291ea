"""Reading model folders into a Decoder: names, shards, ties, types, errors; transformers is the oracle."""

import json

import httpx
import huggingface_hub
import pytest
import torch
from huggingface_hub.errors import LocalEntryNotFoundError, OfflineModeIsEnabled
from safetensors.torch import load_file, save_file
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

import kvcourse as kv
from kvcourse.errors import InputError
from kvcourse.weights import describe, load_model, load_state, locate

SHAPE = {
    "vocab_size": 61,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 6,
    "max_position_embeddings": 64,
}
FAMILIES = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}
IDS = torch.arange(2 * 9).view(2, 9) % 61


def save(folder, family="llama", tied=False, **options):
    """A random transformers model, saved to `folder`."""
    config_class, model_class = FAMILIES[family]
    torch.manual_seed(1)
    model = model_class(config_class(**SHAPE, tie_word_embeddings=tied)).eval()
    model.save_pretrained(folder, **options)
    return model


def rewrite(folder, change):
    """Change the tensors of a saved model in place."""
    state = load_file(folder / "model.safetensors")
    state = {name: tensor.clone() for name, tensor in state.items()}
    change(state)
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_loaded_model_has_the_logits_of_transformers(tmp_path, family, tied):
    theirs = save(tmp_path, family, tied)
    ours, tokenizer = load_model(tmp_path, device="cpu")
    assert tokenizer is None
    with torch.no_grad():
        torch.testing.assert_close(ours(IDS), theirs(IDS).logits, atol=1e-5, rtol=0)
    assert (ours.lm_head.weight is ours.embed_tokens.weight) == tied


def test_sharded_folder_gives_the_same_state_as_a_single_file(tmp_path):
    save(tmp_path / "one")
    save(tmp_path / "many", max_shard_size="8KB")
    assert not (tmp_path / "many" / "model.safetensors").exists()
    _, one = load_state(tmp_path / "one")
    _, many = load_state(tmp_path / "many")
    assert one.keys() == many.keys()
    assert all(torch.equal(one[name], many[name]) for name in one)
    sizes = describe(tmp_path / "many")
    assert sizes["parameters"] == sum(tensor.numel() for tensor in one.values())
    assert sizes["dtypes"] == ["F32"]
    assert sizes["bytes"] == sum(path.stat().st_size for path in (tmp_path / "many").iterdir())


def test_loaded_model_is_ready_to_run(tmp_path):
    save(tmp_path)
    model, _ = load_model(str(tmp_path), device="cpu")
    assert not model.training
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert all(tensor.device.type == "cpu" for tensor in [*model.parameters(), *model.buffers()])
    assert model.tokenizer is None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_dtype_is_that_of_every_weight(tmp_path, dtype):
    theirs = save(tmp_path, tied=True)
    model, _ = load_model(tmp_path, device="cpu", dtype=dtype)
    assert {parameter.dtype for parameter in model.parameters()} == {dtype}
    assert torch.equal(model.embed_tokens.weight, theirs.model.embed_tokens.weight.to(dtype))


def test_writing_to_a_loaded_weight_leaves_the_file_alone(tmp_path):
    save(tmp_path)
    before = (tmp_path / "model.safetensors").read_bytes()
    model, _ = load_model(tmp_path, device="cpu")
    with torch.no_grad():
        model.norm.weight.fill_(7)
    assert (tmp_path / "model.safetensors").read_bytes() == before


def test_head_stored_next_to_a_tie_is_ignored(tmp_path):
    theirs = save(tmp_path, tied=True)
    rewrite(tmp_path, lambda state: state.update({"lm_head.weight": torch.zeros(61, 24)}))
    model, _ = load_model(tmp_path, device="cpu")
    assert torch.equal(model.lm_head.weight, theirs.model.embed_tokens.weight)


def test_stored_rotary_frequencies_are_ignored(tmp_path):
    save(tmp_path)
    extra = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(3)}
    rewrite(tmp_path, lambda state: state.update(extra))
    load_model(tmp_path, device="cpu")


def test_tensors_that_do_not_fit_are_named(tmp_path):
    save(tmp_path)

    def change(state):
        del state["model.norm.weight"]
        state["model.layers.9.mlp.up_proj.weight"] = torch.zeros(1)
        state["model.layers.1.self_attn.k_proj.weight"] = torch.zeros(24, 12)  # as many numbers, transposed

    rewrite(tmp_path, change)
    with pytest.raises(InputError) as caught:
        load_model(tmp_path, device="cpu")
    message = str(caught.value)
    assert "1 missing: norm.weight" in message
    assert "1 unexpected: layers.9.mlp.up_proj.weight" in message
    assert "1 of another shape: layers.1.self_attn.k_proj.weight (24, 12) for (12, 24)" in message
    assert "\n" not in message


def test_long_lists_of_names_are_cut(tmp_path):
    save(tmp_path)
    rewrite(tmp_path, lambda state: [state.pop(name) for name in list(state) if ".mlp." in name])
    with pytest.raises(InputError, match=r"6 missing: (\S+, ){2}\S+ and 3 more"):
        load_model(tmp_path, device="cpu")


def test_truncated_file_is_one_line(tmp_path):
    save(tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    for read in (load_state, describe):
        with pytest.raises(InputError, match=r"model\.safetensors is truncated or damaged") as caught:
            read(tmp_path)
        assert "\n" not in str(caught.value)


def test_missing_shard_and_broken_index_are_one_line(tmp_path):
    save(tmp_path, max_shard_size="8KB")
    shard = sorted(tmp_path.glob("*.safetensors"))[1]
    shard.unlink()
    with pytest.raises(InputError, match=shard.name):
        load_state(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": 3}', encoding="utf-8")
    with pytest.raises(InputError, match="not an index"):
        load_state(tmp_path)


def test_folder_without_safetensors_or_config_says_so(tmp_path):
    with pytest.raises(InputError, match=r"config\.json"):
        load_state(tmp_path)
    save(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(InputError, match="only safetensors"):
        load_state(tmp_path)


def test_quantised_weights_are_refused(tmp_path):
    save(tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**config, "quantization_config": {"quant_method": "fp8"}}), encoding="utf-8")
    with pytest.raises(InputError, match="quantised with fp8"):
        load_model(tmp_path, device="cpu")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"device": "gpu"}, "device 'gpu'"),
        ({"dtype": torch.int8}, "torch.int8"),
        ({"dtype": "float32"}, "'float32'"),
    ],
)
def test_impossible_device_or_dtype_is_said_first(arguments, said):
    with pytest.raises(InputError, match=said):
        load_model("no such model at all", **arguments)


@pytest.mark.parametrize("name", ["smollm3", "./no/such/folder", "a/b/c", "org/name with space", ""])
def test_unknown_name_is_one_line_that_says_what_can_be_given(name):
    with pytest.raises(InputError, match="smollm2-135m") as caught:
        locate(name)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "error",
    [
        LocalEntryNotFoundError("no connection\nand more"),
        OfflineModeIsEnabled("offline"),
        httpx.ConnectError("refused"),
        ConnectionError("refused"),
        TimeoutError(),
    ],
)
def test_hub_out_of_reach_is_one_line(monkeypatch, error):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(InputError, match=r"cannot download org/name .* check the network") as caught:
        load_model("org/name")
    assert "\n" not in str(caught.value)


def test_hub_name_is_downloaded_without_other_formats(tmp_path, monkeypatch):
    theirs, asked = save(tmp_path), {}

    def download(name, **options):
        asked.update(options, name=name)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    model, _ = load_model("org/tiny-1.5_B", device="cpu")
    assert torch.equal(model.norm.weight, theirs.model.norm.weight)
    assert asked["name"] == "org/tiny-1.5_B"
    files = [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "pytorch_model.bin",
        "consolidated.safetensors",
    ]
    kept = huggingface_hub.utils.filter_repo_objects(
        files, allow_patterns=asked["allow_patterns"], ignore_patterns=asked["ignore_patterns"]
    )
    assert list(kept) == files[:3]


@pytest.fixture(scope="module")
def smollm2():
    return load_model("smollm2-135m", device="cpu")


@pytest.mark.model
def test_smollm2_knows_the_capital_of_france(smollm2):
    model, tokenizer = smollm2
    ids = torch.tensor([tokenizer.encode("The capital of France is")])
    assert tokenizer.decode(kv.generate(model, ids, max_new_tokens=2)[0]) == " Paris."


@pytest.mark.model
def test_smollm2_tokenizer_round_trip(smollm2):
    _, tokenizer = smollm2
    texts = [
        "The capital of France is",
        "  spaces \n\n and\ttabs ",
        "naïve café, 東京 🚀",
        "def f(x):\n    return x",
    ]
    for text in texts:
        assert tokenizer.decode(tokenizer.encode(text)) == text
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], tokenize=False)
    assert chat.endswith("<|im_start|>user\nHi<|im_end|>\n")


@pytest.mark.model
def test_smollm2_has_the_published_shape(smollm2):
    config = smollm2[0].config
    assert (config.num_layers, config.num_heads, config.num_kv_heads, config.head_dim) == (30, 9, 3, 64)
    assert (config.vocab_size, config.rope_theta, config.eos_token_ids) == (49152, 100_000.0, (2,))
    assert sum(parameter.numel() for parameter in smollm2[0].parameters()) == 134_515_008
