"""Bad input to what serves multi-head latent attention: one clear line, and nothing is lost or left half done."""

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import kvcourse as kv
from kvcourse.attention.mla import UpProjection
from kvcourse.cli import main
from kvcourse.config import ExpertsConfig
from kvcourse.counts import read_count
from kvcourse.errors import InputError
from kvcourse.model import Decoder
from kvcourse.paths import user_path
from kvcourse.training import Recipe, train

MLA = {
    "num_layers": 2, "num_heads": 2, "head_dim": 8, "kv_lora_rank": 6, "qk_rope_head_dim": 4, "vocab_size": 50,
}  # fmt: skip
DEEPSEEK = {
    "model_type": "deepseek_v3", "vocab_size": 50, "hidden_size": 32, "intermediate_size": 32,
    "moe_intermediate_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2,
    "kv_lora_rank": 6, "q_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8,
    "n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1, "first_k_dense_replace": 1,
    "n_group": 2, "topk_group": 1,
}  # fmt: skip


def refuse(call, match=None):
    with pytest.raises(InputError, match=match) as error:
        call()
    assert str(error.value)
    assert "\n" not in str(error.value)


@pytest.fixture(scope="module")
def model():
    return kv.tiny_model(**MLA)


def ids(*shape):
    return torch.ones(shape, dtype=torch.int64)


# ---- the cache -------------------------------------------------------------------------------------


def entries(tokens=1):
    """What attend_latent takes besides layer and up."""
    shapes = {
        "q_nope": (1, 2, tokens, 8),
        "q_rope": (1, 2, tokens, 4),
        "latent": (1, tokens, 6),
        "rope": (1, tokens, 4),
    }
    return {name: torch.ones(shape) for name, shape in shapes.items()}


def up(rank=6, heads=2, value=8, **options):
    return UpProjection(torch.ones(heads, 8, rank, **options), torch.ones(heads, value, rank, **options))


UPS = {
    "none": None, "tensor": torch.ones(2, 16, 6), "no weights": UpProjection(None, None), "rank": up(rank=7),
    "heads": up(heads=3), "one head": up(heads=1), "value dim": up(value=5), "float64": up(dtype=torch.float64),
    "float16": up(dtype=torch.float16), "meta": up(device="meta"),
}  # fmt: skip


@pytest.mark.parametrize("tokens", [1, 3])
@pytest.mark.parametrize("bad", UPS)
def test_an_up_projection_that_does_not_fit_leaves_the_cache_as_it_was(model, bad, tokens):
    cache = kv.KVCache(model.config)
    refuse(lambda: cache.attend_latent(0, **entries(tokens), up=UPS[bad]), match="up")
    assert (cache.seen, cache.nbytes) == ((0,), 0)
    cache.begin(tokens)
    refuse(lambda: cache.attend_latent(0, **entries(tokens), up=UPS[bad]), match="up")
    for layer, block in enumerate(model.layers):  # the step that was begun goes on
        cache.attend_latent(layer, **entries(tokens), up=block.self_attn.up)
    cache.commit()
    assert cache.seen == (tokens,)


@pytest.mark.parametrize("name", ["q_nope", "q_rope", "latent", "rope"])
@pytest.mark.parametrize(
    "bad",
    [None, 1, np.ones((1, 1, 6)), torch.ones(0), torch.ones(1, 2, 1, 8, dtype=torch.int64), torch.ones(2, 1, 6),
     torch.ones(1, 1, 5), torch.ones(1, 0, 6), torch.ones(1, 1, 1, 6), torch.ones(1, 1, 6, device="meta"),
     torch.ones(1, 1, 6, dtype=torch.float16)],
    ids=["none", "int", "numpy", "empty", "whole", "batch", "dim", "no tokens", "heads", "meta", "float16"],
)  # fmt: skip
def test_tensors_that_are_no_entries_leave_the_cache_as_it_was(model, name, bad):
    cache = kv.KVCache(model.config)
    refuse(lambda: cache.attend_latent(0, **entries() | {name: bad}, up=model.layers[0].self_attn.up))
    assert (cache.seen, cache.nbytes) == ((0,), 0)


def test_a_step_that_failed_leaves_the_next_one_right(model):
    failed, fresh = kv.KVCache(model.config), kv.KVCache(model.config)
    for cache in (failed, fresh):
        model(ids(1, 3), cache=cache)
    failed.begin(1)
    failed.attend_latent(0, **entries(), up=model.layers[0].self_attn.up)
    refuse(lambda: failed.attend_latent(1, **entries(2), up=model.layers[1].self_attn.up))
    refuse(failed.commit)
    failed.rollback()
    forked = failed.fork()
    for cache in (failed, forked):
        assert torch.equal(model(ids(1, 1), cache=cache), model(ids(1, 1), cache=fresh.fork()))


def test_models_and_caches_that_do_not_belong_together(model):
    heads = kv.tiny_model(vocab_size=50)
    for other in (heads, kv.tiny_model(**MLA | {"num_layers": 1}), kv.tiny_model(**MLA | {"num_layers": 3}),
                  kv.tiny_model(**MLA | {"kv_lora_rank": 8})):  # fmt: skip
        cache = kv.KVCache(model.config)
        refuse(lambda other=other, cache=cache: other(ids(1, 3), cache=cache))
        refuse(lambda other=other, cache=cache: kv.generate(other, ids(1, 3), 2, cache=cache))
        assert cache.seen == (0,)
        model(ids(1, 3), cache=cache)
        assert cache.seen == (3,)


def test_a_model_without_numbers():
    empty = kv.tiny_model(**MLA).to("meta")
    refuse(lambda: empty(ids(1, 3).to("meta")), match="meta")
    refuse(lambda: empty(ids(1, 3)), match="meta")


# ---- configs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value", [np.ones((2, 2)), torch.ones(2, 2), ((1.0, 2.0),), ((1.0, float("nan")),) * 2, ((10**400, 1.0),) * 2,
              ((True, 1.0),) * 2, (("1", 1.0),) * 2, 3, iter(())],
    ids=["numpy", "tensor", "short", "nan", "huge", "bool", "text", "int", "iterator"],
)  # fmt: skip
def test_rope_frequencies(model, value):
    refuse(lambda: replace(model.config, rope_frequencies=value))
    refuse(lambda: kv.tiny_model(rope_frequencies=value), match="kv_lora_rank")


@pytest.mark.parametrize("value", [2.5, -1, "1", [1], {}, True, 1 << 70, float("nan")], ids=str)
@pytest.mark.parametrize("name", ["first_k_dense_replace", "n_routed_experts", "kv_lora_rank"])
def test_numbers_of_a_deepseek_config(name, value):
    refuse(lambda: kv.ModelConfig.from_hf(DEEPSEEK | {name: value}), match=name)


def test_more_experts_than_any_model_has():
    refuse(lambda: ExpertsConfig(n_routed_experts=10**9, num_experts_per_tok=1, moe_intermediate_size=1))


def test_messages_about_tensors_are_one_line():
    refuse(lambda: read_count("n", torch.ones(2, 2)))


@pytest.mark.parametrize("path", [None, 1, [1], b"folder"])
def test_paths_that_are_none(path):
    refuse(lambda: user_path(path))


# ---- checkpoints -----------------------------------------------------------------------------------


@pytest.fixture
def checkpoint(tmp_path):
    """Writes a DeepSeek folder, after `change` has been to its tensors; returns the folder."""

    def write(change):
        state = Decoder(kv.ModelConfig.from_hf(DEEPSEEK)).state_dict()
        state = {
            name if name == "lm_head.weight" else f"model.{name}": t.clone() for name, t in state.items()
        }
        change(state)
        (tmp_path / "config.json").write_text(json.dumps(DEEPSEEK))
        save_file(state, tmp_path / "model.safetensors")
        return tmp_path

    return write


@pytest.mark.parametrize(
    "name",
    ["layers.1.mlp.experts.3.up_proj.weight", "layers.1.mlp.gate.e_score_correction_bias",
     "layers.0.self_attn.kv_b_proj.weight", "layers.0.self_attn.q_a_layernorm.weight"],
)  # fmt: skip
@pytest.mark.parametrize("damage", ["missing", "shape", "whole numbers"])
def test_damaged_deepseek_checkpoints(checkpoint, name, damage):
    def change(state):
        weight = state.pop(f"model.{name}")
        if damage == "shape":
            state[f"model.{name}"] = torch.zeros(3, 5)
        if damage == "whole numbers":
            state[f"model.{name}"] = weight.to(torch.int8)

    folder = checkpoint(change)
    refuse(lambda: kv.load_model(folder), match=f"{damage}.*{name}")


# ---- the command line ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [["mla", "--device", "tpu"], ["mla", "--device", "meta"], ["mla", "--threads", "9" * 11],
     ["attention-quality", "--threads", "9" * 30]],
)  # fmt: skip
def test_machines_that_there_are_not(arguments, capsys):
    assert main(["bench", *arguments]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_an_interrupted_benchmark_leaves_files_as_they_were(tmp_path):
    """Ctrl-C: exit code 130 and one line; a JSON that was there stays, and no empty one appears."""
    (tmp_path / "old.json").write_text("{}")
    for name in ("old.json", "new.json"):
        code = (
            "import sys; from kvcourse import cli; from kvcourse.bench import attention_quality as bench\n"
            "def run(*_, **__): raise KeyboardInterrupt\n"
            "bench.run = run; sys.exit(cli.main(sys.argv[1:]))"
        )
        options = ["--json", str(tmp_path / name), "--folder", str(tmp_path / "kept")]
        command = [sys.executable, "-c", code, "bench", "attention-quality", *options]
        done = subprocess.run(command, capture_output=True, text=True)
        assert (done.returncode, done.stdout, done.stderr) == (130, "", "kvcourse bench: interrupted\n")
    assert [path.name for path in tmp_path.iterdir()] == ["old.json"]
    assert (tmp_path / "old.json").read_text() == "{}"


def test_a_result_is_written_even_if_nobody_reads_the_table(tmp_path, monkeypatch):
    from kvcourse.cli import bench

    class Report:
        def to_json(self):
            return '{"new": 1}'

        def __rich__(self):
            raise BrokenPipeError

    path = tmp_path / "result.json"
    path.write_text('{"old": 1}')
    with pytest.raises(BrokenPipeError):
        bench.finish(Report(), str(path))
    assert json.loads(path.read_text()) == {"new": 1}
    assert [each.name for each in tmp_path.iterdir()] == ["result.json"]


# ---- training --------------------------------------------------------------------------------------

TEXT = torch.arange(60) % 50


def recipe(**changes):
    return Recipe(**{"steps": 2, "batch": 1, "context": 4, "learning_rate": 1e-3} | changes)


@pytest.mark.parametrize(
    "betas", [None, 0.9, "ab", (0.9,), (0.9, 1.0), (-0.1, 0.9), (0.9, float("nan")), (True, 0.9)], ids=str
)
def test_betas(betas):
    refuse(lambda: recipe(betas=betas), match="betas")


@pytest.mark.parametrize("name", ["learning_rate", "final", "weight_decay", "clip"])
def test_numbers_of_a_recipe_that_no_float_holds(name):
    refuse(lambda: recipe(**{name: 10**400}), match=name)


def test_a_run_with_numbers_of_numpy_goes_on(tmp_path):
    options = {"folder": tmp_path, "progress": False}
    plan = recipe(learning_rate=np.float64(1e-3), steps=np.int64(2), betas=[np.float64(0.9), 0.95])
    first = train(kv.tiny_model(**MLA), TEXT, plan, **options)
    assert train(kv.tiny_model(**MLA), TEXT, plan, **options) == first


def test_one_changed_byte_of_a_kept_weight_is_noticed(tmp_path):
    options, model = {"folder": tmp_path, "progress": False}, kv.tiny_model(**MLA)
    train(model, TEXT, recipe(), **options)
    path, kept = tmp_path / "state.pt", model.lm_head.weight.numpy().tobytes()
    data = bytearray(path.read_bytes())
    data[data.index(kept) + len(kept) // 2] ^= 0xFF
    path.write_bytes(data)
    model = kv.tiny_model(**MLA)
    refuse(lambda: train(model, TEXT, recipe(), **options), match="not a readable training state")
    assert path.read_bytes() == data
    assert torch.equal(model.lm_head.weight, kv.tiny_model(**MLA).lm_head.weight)


def test_folders_that_cannot_be(tmp_path):
    for folder in ("a\0b", 1, tmp_path / "file" / "below"):
        (tmp_path / "file").touch()
        refuse(lambda folder=folder: train(kv.tiny_model(**MLA), TEXT, recipe(), folder=folder))
