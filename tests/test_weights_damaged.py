"""Model folders whose small files are damaged: one clear line."""

import json

import pytest
from safetensors.torch import save_file

import kvcourse as kv
from kvcourse.errors import InputError


@pytest.fixture
def folder(tmp_path):
    """A loadable folder of a tiny Llama without a tokenizer."""
    model = kv.tiny_model(num_layers=1, num_heads=2, num_kv_heads=1, vocab_size=20, intermediate_size=8)
    config = {
        "model_type": "llama", "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
        "hidden_size": 32, "intermediate_size": 8, "vocab_size": 20,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    assert kv.load_model(tmp_path)[1] is None
    return tmp_path


def refuse(folder):
    with pytest.raises(InputError) as error:
        kv.load_model(folder)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "text"), [("tokenizer.json", "{"), ("tokenizer.json", "[]"), ("vocab.json", "{}")]
)
def test_tokenizer(folder, name, text):
    (folder / name).write_text(text)
    refuse(folder)


@pytest.mark.parametrize("text", ['{"weight_map": {"a": 3}}', "[" * 100_000], ids=["number", "deep"])
def test_index(folder, text):
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(text)
    refuse(folder)
