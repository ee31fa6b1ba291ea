"""`kvcourse bench mla`: that the three forms do the same work on the same tokens, and what the report says.

No speed is asserted; that depends on the machine.
"""

import json

import pytest
import torch

from kvcourse.bench import machine
from kvcourse.bench import mla as bench
from kvcourse.bench.harness import Arm, Comparison
from kvcourse.errors import InputError

TINY = {"tiny": bench.Shape(4, 24, 8, 12, 10)}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """1 GB/s and two copies: measuring the real bandwidth and filling memory take seconds and are no subject here."""
    monkeypatch.setattr(machine, "read_bandwidth", lambda device="cpu": 1e9)
    monkeypatch.setattr(bench, "DISPLACED", 0)


def test_shapes_are_those_of_deepseek():
    assert {name: shape.num_heads for name, shape in bench.SHAPES.items()} == {
        "DeepSeek-V2-Lite": 16,
        "DeepSeek-V3": 128,
    }
    assert bench.SHAPES["DeepSeek-V3"].scale == 192**-0.5


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_three_forms_agree(dtype):
    report = bench.run((130, 3), (2,), repeats=1, dtype=dtype, shapes=TINY, progress=False)
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
    assert [case.context for case in report.cases] == [130, 3]
    assert all(case.difference < tolerance for case in report.cases)
    assert set(report.cases[0].timing.arms) == {bench.KERNEL, bench.TORCH, bench.EXPANDED, bench.PROJECTIONS}


def test_a_kernel_that_computes_something_else_shows_in_the_difference(monkeypatch):
    monkeypatch.setattr(bench, "mla_decode", lambda q, *_: q)
    (case,) = bench.run((20,), (1,), repeats=1, shapes=TINY, progress=False).cases
    assert case.difference > 0.01


def test_pages_hold_the_tokens_of_every_row():
    cached = torch.randn(3, 150, 20)
    pages, table = bench.paged(cached)
    assert table.shape == (3, 3)
    assert sorted(table.flatten().tolist()) == list(range(9))
    whole = pages[table.long()].flatten(1, 2)[:, :150]
    assert torch.equal(whole, cached)


def test_no_copy_comes_back_before_the_caches_have_forgotten_it(monkeypatch):
    monkeypatch.setattr(bench, "DISPLACED", 10_000)
    cached = torch.randn(1, 50, 20)  # 4,000 bytes
    turn = bench.copies(cached)
    seen = [next(turn) for _ in range(6)]
    assert [copy.data_ptr() for copy in seen[3:]] == [copy.data_ptr() for copy in seen[:3]]
    assert len({copy.data_ptr() for copy in seen}) == 3
    assert all(torch.equal(copy, cached) for copy in seen)


def test_floor_is_one_read_of_every_cached_number():
    (case,) = bench.run((50,), (3,), repeats=1, shapes=TINY, progress=False).cases
    assert case.floor == pytest.approx(3 * 50 * (24 + 8) * 4 / 1e9)


def test_report_ratios_and_json():
    times = {bench.KERNEL: 0.01, bench.TORCH: 0.03, bench.EXPANDED: 0.3, bench.PROJECTIONS: 0.02}
    timing = Comparison({name: Arm(name, (seconds,)) for name, seconds in times.items()}, bench.TORCH)
    case = bench.Case(
        "DeepSeek-V3", bench.SHAPES["DeepSeek-V3"], 4096, 4, timing, floor=0.005, difference=1e-6
    )
    report = bench.Report((case,), "cpu", "float32", 40e9)
    data = json.loads(report.to_json())
    assert (data["benchmark"], data["dtype"], data["read_bytes_per_second"]) == ("mla", "float32", 40e9)
    assert {"machine", "versions", "commit", "command", "date"} <= set(data)
    (found,) = data["cases"]
    assert (found["model"], found["num_heads"], found["kv_lora_rank"]) == ("DeepSeek-V3", 128, 512)
    assert found["speedup_over_absorbed_torch"] == pytest.approx(3.0)
    assert found["speedup_over_expanded_torch"] == pytest.approx(10.0)
    assert found["over_floor"] == pytest.approx(2.0)
    text = str(report)
    for printed in ("4,096", "10 ms", "30 ms", "300 ms", "3.00×", "10.0×", "2.0×"):
        assert printed in text


@pytest.mark.parametrize(("contexts", "batches"), [((0,), (1,)), ((4,), (0,))])
def test_impossible_cases_are_named(contexts, batches):
    with pytest.raises(InputError, match=r"context|batch"):
        bench.run(contexts, batches, repeats=1, shapes=TINY)
