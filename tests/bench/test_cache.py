"""`kvcourse bench cache`: that both arms do the same work at the same context, and what the report says.

No speed is asserted; that depends on the machine.
"""

import json

import pytest
import torch
from transformers import DynamicCache

import kvcourse as kv
from kvcourse.bench import cache as bench
from kvcourse.bench import machine
from kvcourse.bench.harness import Arm, Comparison
from kvcourse.cli import main
from kvcourse.errors import InputError

VARIANTS = {
    "tied": {"tie_word_embeddings": True},
    "untied": {"tie_word_embeddings": False},
    "mqa": {"num_kv_heads": 1},
    "qwen2": {"attention_bias": True, "model_type": "qwen2"},
    "qwen3": {"qk_norm": True, "model_type": "qwen3"},
    "mistral_window": {"sliding_window": 6, "model_type": "mistral"},
    "llama3_rope": {
        "rope_scaling": {
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        }
    },
}  # fmt: skip


@pytest.fixture(autouse=True)
def bandwidth(monkeypatch):
    """1 GB/s: measuring the real one takes a second and is no subject here."""
    monkeypatch.setattr(machine, "read_bandwidth", lambda device="cpu": 1e9)


def tiny(**config):
    return kv.tiny_model(dtype=torch.float64, max_position_embeddings=64, **config)


@pytest.mark.parametrize("name", VARIANTS)
@torch.inference_mode()
def test_twin_computes_the_same_logits_from_the_same_storage(name):
    model = tiny(**VARIANTS[name])
    twin = bench.twin_of(model)
    ids = torch.randint(256, (2, 20))
    torch.testing.assert_close(twin(ids).logits, model(ids), rtol=0, atol=1e-5)  # its RoPE is float32 inside
    shared = {tensor.data_ptr() for tensor in model.parameters()}
    assert {tensor.data_ptr() for tensor in twin.parameters()} == shared
    assert twin.config._attn_implementation == "sdpa"


@pytest.mark.parametrize("window", [None, 6])
@torch.inference_mode()
def test_filling_equals_attending(window):
    """Both caches, filled directly, continue as ours does after attend() has stored the same K and V."""
    model = tiny(sliding_window=window, model_type="mistral" if window else "llama")
    config, context = model.config, 40
    keys, values = (torch.randn(2, config.num_kv_heads, context, config.head_dim).double() for _ in "kv")
    filled, attended = (kv.KVCache(config, kv.Plan(), 2) for _ in range(2))
    theirs = DynamicCache(config=bench.twin_of(model).config)
    bench._fill(filled, theirs, keys, values)
    for layer in range(config.num_layers):
        attended.attend(layer, keys.new_ones(2, config.num_heads, context, config.head_dim), keys, values)
    assert filled.seen == attended.seen == (context, context)
    assert theirs.get_seq_length() == context
    token = torch.tensor([[3], [5]])
    expected = model(token, cache=attended)
    torch.testing.assert_close(model(token, cache=filled), expected, rtol=0, atol=1e-12)
    twin = bench.twin_of(model)
    logits = twin(token, use_cache=True, **{bench._cache_keyword(twin): theirs}).logits
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-5)


def test_both_caches_grow_through_the_same_contexts_around_the_one_asked_for(monkeypatch):
    model = tiny(num_layers=1)
    seen = {"ours": [], "theirs": []}
    attend, update = kv.KVCache.attend, DynamicCache.update

    def spy_attend(self, layer, q, k, v):
        seen["ours"].append(self.seen[0])
        return attend(self, layer, q, k, v)

    def spy_update(self, k, v, layer, *args, **kwargs):
        out = update(self, k, v, layer, *args, **kwargs)
        seen["theirs"].append(out[0].shape[2] - k.shape[2])
        return out

    monkeypatch.setattr(kv.KVCache, "attend", spy_attend)
    monkeypatch.setattr(DynamicCache, "update", spy_update)
    report = bench.run(model, contexts=(37,), batches=(2,), repeats=6, progress=False)
    filling, *theirs = seen["theirs"]
    assert filling == 0
    assert seen["ours"] == theirs
    measured = theirs[1 + 2 * bench.WARMUP :]
    assert len(measured) == 2 * 6
    assert measured == list(range(37 - 6, 37 + 6))
    assert report.cases[0].difference < 1e-5


def test_floor_counts_weights_once_and_the_context_of_every_row():
    tied, untied = tiny(tie_word_embeddings=True), tiny(tie_word_embeddings=False)
    table = tied.embed_tokens.weight.nbytes
    assert bench.weight_bytes(tied) == sum(p.numel() * 8 for p in tied.parameters())
    # The head of its own is read as a whole, the embedding table only in single rows.
    assert bench.weight_bytes(untied) == sum(p.numel() * 8 for p in untied.parameters()) - table
    assert bench.kv_bytes(tied, context=10, batch=3) == 3 * 10 * 2 * 2 * 2 * 16 * 8
    windowed = tiny(sliding_window=4, layer_types=("sliding_attention", "full_attention"))
    assert bench.kv_bytes(windowed, context=10, batch=3) == 3 * (4 + 10) * 2 * 2 * 16 * 8


def report_of(times):
    timing = Comparison({name: Arm(name, (seconds,)) for name, seconds in times.items()}, bench.STEP_HF)
    case = bench.Case(4096, 8, timing, floor=0.01, kv_floor=0.005, difference=1e-6)
    return bench.Report((case,), "cpu", "float32", 40e9)


def test_report_ratios_and_json():
    report = report_of({bench.STEP: 0.1, bench.STEP_HF: 0.2, bench.KV: 0.02, bench.KV_HF: 0.08})
    data = json.loads(report.to_json())
    assert (data["benchmark"], data["device"], data["dtype"]) == ("cache", "cpu", "float32")
    assert data["read_bytes_per_second"] == 40e9
    assert {"machine", "versions", "commit", "command", "date"} <= set(data)
    (case,) = data["cases"]
    assert (case["context"], case["batch"]) == (4096, 8)
    assert case["step_speedup"] == pytest.approx(2.0)
    assert case["kv_speedup"] == pytest.approx(4.0)
    assert case["tokens_per_second"] == {bench.STEP: pytest.approx(80.0), bench.STEP_HF: pytest.approx(40.0)}
    assert case["arms"][bench.KV]["median_s"] == 0.02
    assert case["floor_s"] == 0.01
    text = str(report)
    for printed in ("4,096", "100 ms", "200 ms", "2.00", "80.0", "20 ms", "4.00", "10.0"):
        assert printed in text


@pytest.mark.parametrize(
    ("contexts", "batches", "message"),
    [((63,), (1,), "context 63: expected 1 to 62"), ((0,), (1,), "context 0"), ((8,), (0,), "batch 0")],
)
def test_impossible_cases_are_named(contexts, batches, message):
    with pytest.raises(InputError, match=message):
        bench.run(tiny(), contexts, batches, repeats=1)


# ---- the command -----------------------------------------------------------------------------------


@pytest.fixture
def tiny_command(monkeypatch):
    """`kvcourse bench cache` with a tiny model in the place of the real one."""
    monkeypatch.setattr(kv, "load_model", lambda name, device, dtype: (kv.tiny_model(dtype=dtype), None))


def test_no_name_lists_the_benchmarks(capsys):
    assert main(["bench"]) == 0
    assert capsys.readouterr().out.startswith("kvcourse bench cache")


@pytest.mark.parametrize(
    "arguments",
    [
        ["bench", "nothing"],
        ["bench", "cache", "--contexts", "12,x"],
        ["bench", "cache", "--batch", "0"],
        ["bench", "cache", "--dtype", "int3"],
        ["bench", "cache", "--repeats", "-1"],
    ],
)
def test_bad_arguments_exit_2_with_one_line(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_json_on_standard_output_is_only_json(tiny_command, capsys):
    assert (
        main(["bench", "cache", "--contexts", "8,16", "--batch", "1,2", "--repeats", "1", "--json", "-"]) == 0
    )
    printed = capsys.readouterr()
    cases = json.loads(printed.out)["cases"]
    assert [(case["batch"], case["context"]) for case in cases] == [(1, 8), (1, 16), (2, 8), (2, 16)]
    assert printed.err == ""


def test_table_and_json_file(tiny_command, tmp_path, capsys):
    target = tmp_path / "out.json"
    assert (
        main(["bench", "cache", "--contexts", "8", "--batch", "1", "--repeats", "1", "--json", str(target)])
        == 0
    )
    assert "one decode step, float32 on cpu" in capsys.readouterr().out
    text = target.read_text(encoding="utf-8")
    assert json.loads(text)["cases"][0]["context"] == 8
    assert str(tmp_path) not in text


def test_unwritable_json_is_refused_before_anything_is_measured(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(kv, "load_model", lambda *_, **__: pytest.fail("loaded the model first"))
    target = tmp_path / "missing" / "out.json"
    assert main(["bench", "cache", "--json", str(target)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_model_that_stores_latents_has_a_benchmark_of_its_own():
    with pytest.raises(InputError, match="bench mla"):
        bench.run(kv.tiny_model(kv_lora_rank=8), contexts=(4,), batches=(1,), repeats=1)
