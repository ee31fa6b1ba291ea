"""`kvcourse bench heads`: that the versions are what they are called, at the same context, and what the report says.

No speed is asserted; that depends on the machine.
"""

import json

import pytest
import torch

import kvcourse as kv
from kvcourse.bench import cache, heads, machine, versions
from kvcourse.bench.harness import Arm, Comparison
from kvcourse.errors import InputError

NAMES = ("MHA", "GQA", "MQA", "MLA")


@pytest.fixture(autouse=True)
def bandwidth(monkeypatch):
    """1 GB/s: measuring the real one takes a second and is no subject here."""
    monkeypatch.setattr(machine, "read_bandwidth", lambda device="cpu": 1e9)


def tiny(**config):
    sizes = {"num_heads": 6, "num_kv_heads": 3, "head_dim": 8, "max_position_embeddings": 64, "num_layers": 2}
    return kv.tiny_model(dtype=torch.float64, **(sizes | config))


def test_versions_store_what_their_names_say():
    models = versions.versions_of(tiny())
    assert tuple(models) == NAMES
    about = {name: versions.describe(name, model) for name, model in models.items()}
    assert [about[name]["num_kv_heads"] for name in NAMES] == [6, 3, 1, None]
    # two layers of 8-byte numbers: keys and values of 6, 3 and 1 heads of 8, and a latent of 16 with a key of 8
    assert [about[name]["kv_bytes_per_token"] for name in NAMES] == [16 * n for n in (96, 48, 16, 24)]


@torch.inference_mode()
def test_mha_is_the_same_function_as_the_model_and_shares_no_weights_with_it():
    model = tiny()
    models = versions.versions_of(model)
    ids = torch.randint(256, (2, 9))
    torch.testing.assert_close(models["MHA"](ids), model(ids), rtol=0, atol=1e-12)
    owners = [{p.data_ptr() for p in m.parameters()} for m in models.values()]
    assert not any(a & b for i, a in enumerate(owners) for b in owners[:i])


@pytest.mark.parametrize(
    ("config", "names"),
    [
        ({"num_kv_heads": 6}, ["MHA", "MQA", "MLA"]),
        ({"num_kv_heads": 1}, ["MHA", "MQA", "MLA"]),
        ({"qk_norm": True, "model_type": "qwen3"}, ["MHA", "GQA", "MQA"]),
        ({"sliding_window": 5, "model_type": "mistral"}, ["MHA", "GQA", "MQA"]),
    ],
)
def test_versions_that_a_model_cannot_have_are_left_out(config, names):
    assert list(versions.versions_of(tiny(**config))) == names


def test_every_cache_grows_through_the_same_contexts_around_the_one_asked_for(monkeypatch):
    seen = {}
    for method in ("attend", "attend_latent"):
        original = getattr(kv.KVCache, method)

        def spy(self, layer, *tensors, original=original):
            if layer == 0:
                seen.setdefault(id(self), []).append(self.seen[0])
            return original(self, layer, *tensors)

        monkeypatch.setattr(kv.KVCache, method, spy)
    report = heads.run(tiny(), contexts=(37,), batches=(2,), repeats=6, progress=False)
    expected = list(range(37 - 6 - 2 * heads.WARMUP, 37 + 6))
    assert list(seen.values()) == [expected] * 4
    assert report.difference < 1e-12
    assert report.left_out == ()


def test_floors_count_weights_once_and_the_tokens_of_every_row():
    model = tiny()
    (case,) = heads.run(model, (20,), (3,), repeats=1, progress=False).cases
    models = versions.versions_of(model)
    for name in NAMES:
        read = cache.kv_bytes(models[name], 20, 3)
        # The KV part of MLA also maps queries and outputs: two layers of 6 heads, 8 + 8 rows of 16 numbers each.
        maps = 2 * 6 * 16 * 16 * 8 if name == "MLA" else 0
        assert case.floors[name][0] == pytest.approx((cache.weight_bytes(models[name]) + read) / 1e9)
        assert case.floors[name][1] == pytest.approx((read + maps) / 1e9)


def test_cases_too_large_for_the_memory_are_left_out_and_said(monkeypatch):
    model = tiny()
    each = sum(cache.kv_bytes(m, 1, 1) for m in versions.versions_of(model).values())
    monkeypatch.setattr(heads, "_room", lambda device: 20 * each)
    report = heads.run(model, (10, 15), (1, 2), repeats=1, progress=False)
    assert [(case.batch, case.context) for case in report.cases] == [(1, 10), (1, 15), (2, 10)]
    assert report.left_out == ((2, 15),)
    assert "2 × 15" in str(report)
    assert json.loads(report.to_json())["left_out"] == [[2, 15]]
    monkeypatch.setattr(heads, "_room", lambda device: each)
    with pytest.raises(InputError, match="shorter contexts"):
        heads.run(model, (10,), (1,), repeats=1)


def test_report_ratios_and_json():
    seconds = {"MHA step": 0.4, "MHA KV part": 0.3, "MQA step": 0.2, "MQA KV part": 0.06}
    timing = Comparison({name: Arm(name, (value,)) for name, value in seconds.items()}, "MHA step")
    case = heads.Case(4096, 8, timing, {"MHA": (0.2, 0.1), "MQA": (0.05, 0.02)})
    about = tuple({"name": name, "num_kv_heads": n} for name, n in (("MHA", 9), ("MQA", 1)))
    report = heads.Report(about, (case,), (), 0.0, "cpu", "float32", 40e9)
    data = json.loads(report.to_json())
    assert (data["benchmark"], data["device"], data["dtype"]) == ("heads", "cpu", "float32")
    assert {"machine", "versions", "commit", "command", "date"} <= set(data)
    (found,) = data["cases"]
    assert (found["context"], found["batch"]) == (4096, 8)
    assert found["models"]["MHA"]["step_speedup"] == 1.0
    assert found["models"]["MQA"]["step_speedup"] == pytest.approx(2.0)
    assert found["models"]["MQA"]["kv_speedup"] == pytest.approx(5.0)
    assert found["models"]["MQA"]["kv_floor_s"] == 0.02
    assert found["models"]["MQA"]["tokens_per_second"] == pytest.approx(40.0)
    text = str(report)
    for printed in ("4,096", "400 ms", "200 ms", "2.00×", "60 ms", "5.00×", "3.0×", "4.0×"):
        assert printed in text


@pytest.mark.parametrize(
    ("contexts", "batches", "message"),
    [((63,), (1,), "context"), ((0,), (1,), "context"), ((8,), (0,), "batch")],
)
def test_impossible_cases_are_named(contexts, batches, message):
    with pytest.raises(InputError, match=message):
        heads.run(tiny(), contexts, batches, repeats=1)


def test_a_model_without_kv_heads_is_refused():
    with pytest.raises(InputError, match="MLA"):
        heads.run(kv.tiny_model(kv_lora_rank=8), (8,), (1,), repeats=1)
