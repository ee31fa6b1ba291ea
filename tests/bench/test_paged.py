"""`kvcourse bench paged`: that all ways do the same work on the same tokens, and what the report says.

No speed is asserted; that depends on the machine.
"""

import json

import pytest
import torch

from kvcourse.bench import machine
from kvcourse.bench import paged as bench
from kvcourse.bench.harness import Arm, Comparison
from kvcourse.cli import main
from kvcourse.errors import InputError

TINY = {"tiny": bench.Shape(2, 4, 2, 8, 70)}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """1 GB/s: measuring the real bandwidth takes seconds and is no subject here."""
    monkeypatch.setattr(machine, "read_bandwidth", lambda device="cpu": 1e9)


def test_shapes_are_those_of_the_models():
    assert bench.SHAPES["SmolLM2-135M"] == bench.Shape(8, 9, 3, 64, 4096)
    assert bench.SHAPES["Llama-3-8B"] == bench.Shape(8, 32, 8, 128, 2048)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_all_ways_agree(dtype):
    (case,) = bench.run((1, 7, 128), repeats=1, dtype=dtype, shapes=TINY, progress=False).cases
    assert case.difference < (1e-12 if dtype == torch.float64 else 1e-5)
    assert list(case.timing.arms) == [
        bench.SDPA, bench.KERNEL, bench.GATHER, bench.GATHER_ONCE,
        "paged, 1", "paged, 7", "paged, 16", "paged, 128",
    ]  # fmt: skip
    assert case.timing.baseline == bench.SDPA


def test_a_kernel_that_computes_something_else_shows_in_the_difference(monkeypatch):
    monkeypatch.setattr(bench, "paged_decode", lambda q, *_: q)
    (case,) = bench.run((16,), repeats=1, shapes=TINY, progress=False).cases
    assert case.difference > 0.01


@pytest.mark.parametrize("block_size", [1, 16, 35, 256])
def test_pages_hold_the_tokens_of_every_row(block_size):
    tokens = torch.randn(2, 3, 2, 70, 5)
    pages, table = bench.in_pages(tokens, block_size)
    used = -(-70 // block_size)
    assert pages.shape == (2, 3 * used, 2, block_size, 5)
    assert table.shape == (3, used)
    assert sorted(table.flatten().tolist()) == list(range(3 * used))
    for row, position in ((0, 0), (1, 33), (2, 69)):
        block = int(table[row, position // block_size])
        assert torch.equal(pages[:, block, :, position % block_size], tokens[:, row, :, position])
    for gather in (bench.gathered, bench.gathered_in_one_copy):
        assert torch.equal(torch.stack(gather(pages, table, 70)), tokens)


def test_floor_is_one_read_of_every_key_and_value():
    (case,) = bench.run((16,), repeats=1, shapes=TINY, progress=False).cases
    assert case.floor == pytest.approx(2 * 2 * 2 * 70 * 8 * 4 / 1e9)


def test_report_ratios_and_json():
    times = {bench.SDPA: 0.03, bench.KERNEL: 0.015, bench.GATHER: 0.3, bench.GATHER_ONCE: 0.1}
    times |= {"paged, 16": 0.02, "paged, 64": 0.018}
    timing = Comparison({name: Arm(name, (seconds,)) for name, seconds in times.items()}, bench.SDPA)
    case = bench.Case("Llama-3-8B", bench.SHAPES["Llama-3-8B"], timing, floor=0.005, difference=1e-6)
    report = bench.Report((case,), "cpu", "float32", 40e9)
    data = json.loads(report.to_json())
    assert (data["benchmark"], data["block_size"], data["read_bytes_per_second"]) == ("paged", 16, 40e9)
    assert {"machine", "versions", "commit", "command", "date"} <= set(data)
    (found,) = data["cases"]
    assert (found["model"], found["num_kv_heads"], found["context"]) == ("Llama-3-8B", 8, 2048)
    assert found["paged_over_sdpa"] == pytest.approx(2 / 3)
    assert found["paged_over_contiguous"] == pytest.approx(4 / 3)
    assert found["gathering_over_paged"] == pytest.approx(15)
    assert found["gathering_in_one_copy_over_paged"] == pytest.approx(5)
    assert found["paged_over_floor"] == pytest.approx(4)
    assert found["arms"]["paged, 64"]["median_s"] == 0.018
    text = str(report)
    for printed in ("2,048 tokens", "paged, 16", "20 ms", "0.67×", "10.00×", "4.0×"):
        assert printed in text


@pytest.mark.parametrize("options", [{"block_sizes": (0,)}, {"repeats": 0}])
def test_impossible_cases_are_named(options):
    with pytest.raises(InputError, match=r"block size|repeats"):
        bench.run(shapes=TINY, **options)


def test_the_command_passes_on_what_was_given(monkeypatch, capsys):
    found = []

    class Nothing:
        def to_json(self):
            return "{}"

    monkeypatch.setattr(bench, "run", lambda **options: found.append(options) or Nothing())
    assert main(["bench", "paged", "--json", "-"]) == 0
    assert (
        main(
            ["bench", "paged", "--block-sizes", "3,8", "--repeats", "2", "--dtype", "float16", "--json", "-"]
        )
        == 0
    )
    same = {"device": "cpu", "progress": False}
    assert found == [
        {**same, "dtype": torch.float32},
        {**same, "dtype": torch.float16, "block_sizes": (3, 8), "repeats": 2},
    ]
