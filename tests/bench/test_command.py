"""`kvcourse bench`: that every benchmark has a command, and gets what was given and nothing else."""

import importlib
import json

import pytest
import torch

import kvcourse as kv
from kvcourse.bench import BENCHMARKS
from kvcourse.cli import main


class Nothing:
    """A report."""

    def to_json(self):
        return json.dumps({"benchmark": "none"})

    def __rich__(self):
        return "a table"


@pytest.fixture
def calls(monkeypatch):
    """Arguments of every benchmark's run, none of which measures anything."""
    found = []
    monkeypatch.setattr(kv, "load_model", lambda *_, **__: (kv.tiny_model(), None))
    for name in BENCHMARKS:
        module = importlib.import_module(f"kvcourse.bench.{name.replace('-', '_')}")
        monkeypatch.setattr(module, "run", lambda *a, **k: found.append((a, k)) or Nothing())
    return found


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_prints_its_table_or_its_json(name, calls, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("KVCOURSE_HOME", str(tmp_path))
    target = tmp_path / "out.json"
    assert main(["bench", name, "--json", str(target)]) == 0
    assert capsys.readouterr().out.strip() == "a table"
    assert json.loads(target.read_text("utf-8")) == {"benchmark": "none"}
    assert main(["bench", name, "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out) == {"benchmark": "none"}
    assert [options["progress"] for _, options in calls] == [None, False]


@pytest.mark.parametrize("name", ["cache", "heads", "mla"])
def test_timings_get_the_numbers_that_were_given_and_their_own_defaults_otherwise(name, calls):
    where = {"device": "cpu", "dtype": torch.float32} if name == "mla" else {}
    assert main(["bench", name]) == 0
    assert main(["bench", name, "--contexts", "8,16", "--batch", "2", "--repeats", "3"]) == 0
    (_, plain), (models, chosen) = calls
    assert plain == {"progress": None, **where}
    assert chosen == {"contexts": (8, 16), "batches": (2,), "repeats": 3, "progress": None, **where}
    assert len(models) == (name != "mla")


def test_bf16_lets_matrix_products_be_shorter(calls, tmp_path):
    before = torch.get_float32_matmul_precision()
    try:
        assert main(["bench", "uptrain", "--bf16", "--folder", str(tmp_path)]) == 0
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)
