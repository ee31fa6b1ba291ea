"""More bad input: odd types and numbers in configs, plans, calls and command lines get one clear line."""

import io
import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

import kvcourse as kv
from kvcourse.cli import main
from kvcourse.counts import read_count
from kvcourse.errors import InputError
from kvcourse.paths import user_path

LLAMA = {
    "model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "hidden_size": 64, "intermediate_size": 128, "vocab_size": 50,
}  # fmt: skip
CSA = "compressed_sparse_attention"
LONGROPE = {
    "rope_type": "longrope", "short_factor": 1, "long_factor": 1, "original_max_position_embeddings": 8,
}  # fmt: skip


def refuse(call):
    with pytest.raises(InputError) as error:
        call()
    assert str(error.value)
    assert "\n" not in str(error.value)


@pytest.fixture(scope="module")
def model():
    return kv.tiny_model(vocab_size=50)


def ids(*shape):
    return torch.ones(shape, dtype=torch.int64)


@pytest.mark.parametrize(
    "value", [True, 2.0, "2", None, [1], float("nan"), torch.tensor(1.5), torch.tensor(True), 0, 1 << 62]
)
def test_counts_refused(value):
    refuse(lambda: read_count("n", value))


@pytest.mark.parametrize("value", [3, np.int64(3), torch.tensor(3), np.uint8(3)])
def test_counts_read(value):
    assert type(read_count("n", value)) is int
    assert read_count("n", value) == 3


@pytest.mark.parametrize(
    "fields",
    [
        {"num_layers": True}, {"num_layers": 10**9}, {"num_heads": None}, {"head_dim": {}}, {"vocab_size": 1 << 70},
        {"sliding_window": 1.5}, {"sliding_window": "4"}, {"sliding_window": float("nan")}, {"layer_types": 3},
        {"layer_types": [["a"], ["b"]]}, {"rms_norm_eps": "1e-5"}, {"rms_norm_eps": float("nan")},
        {"rope_theta": -1.0},
        {"rope_theta": None}, {"rope_scaling": 2}, {"rope_scaling": {"rope_type": ["linear"]}},
        {"rope_scaling": {"rope_type": "linear", "factor": 0}},
        {"rope_scaling": {"rope_type": "linear", "factor": "2"}},
        {"rope_scaling": LONGROPE},
        {"eos_token_ids": 2}, {"eos_token_ids": ("a",)}, {"bos_token_id": "x"}, {"seed": 1.5}, {"seed": 1 << 70},
        {"dtype": torch.int64}, {"dtype": "float32"}, {"device": "nowhere"}, {"device": "meta"}, {"device": 1.5},
        {"nonsense": 1},
    ],
    ids=str,
)  # fmt: skip
def test_tiny_model(fields):
    refuse(lambda: kv.tiny_model(**fields))


@pytest.mark.parametrize(
    "change",
    [
        {"model_type": ["llama"]}, {"num_attention_heads": "4"}, {"num_attention_heads": 0}, {"hidden_size": None},
        {"rope_scaling": 3}, {"rope_theta": "big"}, {"rope_parameters": [1]},
        {"model_type": "mistral", "sliding_window": [4]},
        {"model_type": "mistral", "sliding_window": 8, "layer_types": 5},
        {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 8, "max_window_layers": "a"},
    ],
    ids=str,
)  # fmt: skip
def test_model_config_from_a_config(change):
    refuse(lambda: kv.ModelConfig.from_hf(LLAMA | change))


@pytest.mark.parametrize(
    "change",
    [
        {"model_type": ["llama"]}, {"model_type": {}}, {"num_hidden_layers": 10**12}, {"layer_types": 5},
        {"layer_types": [["a"], ["b"]]}, {"layer_types": {"a": 1, "b": 2}},
        {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 5, "max_window_layers": "a"},
        {"model_type": "llama4", "attention_chunk_size": 5, "no_rope_layers": 3},
        {"model_type": "llama4", "attention_chunk_size": 5, "no_rope_layers": [1]},
        {"model_type": "glm_moe_dsa", "kv_lora_rank": 4, "qk_rope_head_dim": 4, "indexer_types": 3},
        {"model_type": "deepseek_v4", "compress_ratios": 3},
        {"model_type": "deepseek_v4", "compress_ratios": [[], []]},
        {"model_type": "deepseek_v4", "compress_ratios": [4, 128], "compress_rates": 5},
        {"model_type": "deepseek_v4", "compress_ratios": [4, 128], "compress_rates": {CSA: 0}},
    ],
    ids=str,
)  # fmt: skip
def test_memory_of_a_config(change):
    common = {"head_dim": 16, "index_head_dim": 4, "sliding_window": 4}
    refuse(lambda: kv.memory.bytes_at(LLAMA | common | change, 100))


def test_max_window_layers_may_be_zero():
    qwen = LLAMA | {
        "model_type": "qwen2",
        "use_sliding_window": True,
        "sliding_window": 5,
        "max_window_layers": 0,
    }
    assert kv.memory.bytes_per_token_beyond_windows(qwen) == 0


@pytest.mark.parametrize(
    "axis", ["attention", "storage", "sharing", "codec", "eviction", "block_size", "capacity", "num_blocks"]
)
@pytest.mark.parametrize("value", [[], {}, 1.5, True])
def test_plan(axis, value):
    refuse(lambda: kv.Plan(**{axis: value}))


@pytest.mark.parametrize("plan", [{"capacity": 10**15}, {"block_size": 10**15}])
def test_more_memory_than_there_is(model, plan):
    cache = kv.KVCache(model.config, kv.Plan(**plan))
    refuse(lambda: model(ids(1, 3), cache=cache))
    assert cache.seen == (0,)
    assert cache.nbytes == 0


@pytest.mark.parametrize(
    "bad",
    [[[1, 2]], None, "text", np.array([[1, 2]]), torch.ones(1, 2, dtype=torch.bool),
     torch.ones(1, 2, dtype=torch.uint8), torch.ones(1, 2, dtype=torch.complex64)],
    ids=["list", "none", "text", "numpy", "bool", "uint8", "complex"],
)  # fmt: skip
def test_input_ids(model, bad):
    refuse(lambda: model(bad))
    refuse(lambda: kv.generate(model, bad, 2))
    refuse(lambda: kv.generate(model, bad, 0))


@pytest.mark.parametrize(
    "mask", [[[1, 1]], 1, np.ones((1, 2)), torch.ones(1, 2, dtype=torch.complex64), torch.full((1, 2), float("nan"))]
)  # fmt: skip
def test_masks(model, mask):
    refuse(lambda: model(ids(1, 2), attention_mask=mask))
    refuse(lambda: model(ids(1, 2), attention_mask=mask, cache=kv.KVCache(model.config)))
    refuse(lambda: kv.generate(model, ids(1, 2), 2, attention_mask=mask))


@pytest.mark.parametrize("cache", ["x", {}, True, kv.Plan()], ids=["text", "dict", "bool", "plan"])
def test_no_cache(model, cache):
    refuse(lambda: model(ids(1, 2), cache=cache))
    refuse(lambda: kv.generate(model, ids(1, 2), 2, cache=cache))


@pytest.mark.parametrize(
    "options",
    [
        {"max_new_tokens": True}, {"temperature": "warm"}, {"temperature": None},
        {"temperature": 10**400}, {"seed": "a"}, {"seed": 1.5},
        {"eos_token_id": "a"}, {"eos_token_id": 1.5}, {"eos_token_id": [1, "a"]}, {"eos_token_id": 1 << 70},
        {"model": None}, {"model": "smollm2-135m"},
    ],
    ids=str,
)  # fmt: skip
def test_generate(model, options):
    refuse(lambda: kv.generate(**{"model": model, "input_ids": ids(1, 2), "max_new_tokens": 2} | options))


def test_what_generate_takes_for_a_number(model):
    expected = kv.generate(model, ids(1, 2), 3, eos_token_id=7)
    for end in (np.int64(7), torch.tensor(7), iter([7]), torch.tensor([7])):
        assert torch.equal(kv.generate(model, ids(1, 2), np.int64(3), eos_token_id=end), expected)


def test_a_very_low_temperature_is_greedy(model):
    greedy = kv.generate(model, ids(1, 2), 4)
    for temperature in (1e-40, 1e-320):
        assert torch.equal(kv.generate(model, ids(1, 2), 4, temperature=temperature, seed=0), greedy)


@pytest.mark.parametrize("layer", [None, "0", 0.0, True, torch.tensor(0.5)], ids=str)
def test_layers(model, layer):
    cache, q, k = kv.KVCache(model.config), torch.zeros(1, 4, 1, 16), torch.zeros(1, 2, 1, 16)
    refuse(lambda: cache.attend(layer, q, k, k))
    refuse(lambda: cache.append(layer, k, k))


def test_no_tensors(model):
    cache, q, k = kv.KVCache(model.config), torch.zeros(1, 4, 1, 16), torch.zeros(1, 2, 1, 16)
    for call in ((0, None, k, k), (0, q, k.numpy(), k), (0, q, k, None)):
        refuse(lambda call=call: cache.attend(*call))
    for tokens in (1.5, "2", None, True, 1 << 70):
        refuse(lambda tokens=tokens: cache.begin(tokens))
    refuse(lambda: cache.begin(2, [[1, 1]]))
    refuse(lambda: cache.crop(torch.tensor(1.5)))
    assert cache.seen == (0,)


def test_batch_sizes(model):
    for batch_size in (True, 2.0, "1", 1 << 70):
        refuse(lambda batch_size=batch_size: kv.KVCache(model.config, batch_size=batch_size))
    assert kv.KVCache(model.config, batch_size=np.int64(2)).fork().seen == (0, 0)


class TestFilesAndCommandLine:
    @pytest.fixture
    def cli(self, capsys):
        """Exit code 2 and one line on stderr."""

        def run(*arguments):
            assert main(list(arguments)) == 2
            out, err = capsys.readouterr()
            assert (out, err.count("\n")) == ("", 1)
            return err

        return run

    @pytest.mark.parametrize(
        "path", ["~nobody-of-that-name/x", "x" * 5000, "a\0b"], ids=["home", "long", "nul"]
    )
    def test_paths_that_cannot_be(self, path):
        refuse(lambda: kv.memory.bytes_at(path, 10))
        refuse(lambda: kv.load_model(path))

    def test_home_of_nobody(self, monkeypatch):
        refuse(lambda: user_path("~nobody-of-that-name"))
        monkeypatch.setenv("KVCOURSE_HOME", "~nobody-of-that-name/x")
        refuse(kv.weights.home)

    def test_cache_folder_with_a_name_too_long(self, monkeypatch):
        monkeypatch.setenv("KVCOURSE_HOME", "x" * 300)
        assert kv.weights.remove() is False

    def test_json_nested_too_deep(self, tmp_path, cli):
        path = tmp_path / "config.json"
        path.write_text("[" * 100_000)
        assert str(path) in cli("memory", str(path))

    @pytest.mark.parametrize("option", ["--context", "--gpu", "--weights"])
    def test_numbers_of_thousands_of_digits(self, cli, option):
        assert "too large" in cli("memory", "llama-3-8b", option, "9" * 5000) or option == "--weights"

    def test_a_folder_that_cannot_be_made(self, tmp_path, cli):
        (tmp_path / "file").write_text("")
        assert str(tmp_path / "file") in cli("start", str(tmp_path / "file" / "below"))

    def test_a_prompt_that_is_no_text(self, tmp_path, monkeypatch, capsys):
        from kvcourse.cli import model as command

        monkeypatch.setattr("kvcourse.weights.load_model", lambda *_, **__: (None, object()))
        refuse(lambda: command._continuation(tmp_path, "\udcff"))

    def test_output_that_cannot_be_written(self, monkeypatch, capsys):
        class Full(io.StringIO):
            def write(self, text):
                raise OSError(28, "No space left on device")

        monkeypatch.setattr(sys, "stdout", Full())
        assert main(["memory", "llama-3-8b", "--json"]) == 2
        assert capsys.readouterr().err == "kvcourse memory: standard output: No space left on device\n"

    @pytest.mark.parametrize(
        "arguments", [["claims"], ["memory", "llama-3-8b"], ["memory", "llama-3-8b", "--json"]]
    )
    def test_a_reader_that_left(self, arguments):
        """Tables too: rich ends the program with exit code 1 by itself."""
        read, write = os.pipe()
        os.close(read)
        command = [
            sys.executable,
            "-c",
            f"from kvcourse.cli import main; raise SystemExit(main({arguments}))",
        ]
        done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True)
        os.close(write)
        assert (done.returncode, done.stderr) == (0, "")

    def test_a_terminal_without_unicode(self):
        for arguments in (["claims"], ["claims", "--json"]):
            command = [
                sys.executable,
                "-c",
                f"from kvcourse.cli import main; raise SystemExit(main({arguments}))",
            ]
            environment = os.environ | {"PYTHONIOENCODING": "ascii"}
            done = subprocess.run(command, capture_output=True, env=environment, check=True)
            assert done.stdout.isascii()
        assert len(json.loads(done.stdout)) == len(kv.claims.CLAIMS)
