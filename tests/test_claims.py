"""The ledger: its rows are complete, and the numbers that they compute are those they talk about."""

import json

import pytest

from kvcourse import claims
from kvcourse.errors import InputError


def test_rows_are_numbered_and_complete():
    numbers = [claim.number for claim in claims.CLAIMS]
    assert numbers == sorted(set(numbers))
    assert set(numbers) >= {1, 2, 3, 4, 5}
    for claim in claims.CLAIMS:
        assert all((claim.said, claim.verdict, claim.finding, claim.source, claim.status))
        assert claim.command.startswith("kvcourse ")
        assert claims.get(claim.number) is claim
        assert json.loads(json.dumps(claim.measure()))


def test_row_1_weights_come_first():
    values = list(claims.get(1).measure().values())
    assert values[:3] == [141_107_412_992, 327_680, 430_626]
    assert "430,000" in claims.get(1).finding
    assert values[4] < values[3] < values[2]  # MHA reaches its weights soonest


def test_row_2_sizes_at_512k():
    sizes = {name.split(",")[0]: size for name, size in claims.get(2).measure().items()}
    assert sizes == {
        "llama-3-8b": 64.0, "llama-3-70b": 160.0, "qwen3-32b": 128.0, "gemma-3-27b": 40.4, "deepseek-v3": 34.3,
        "deepseek-v4-pro": 4.8,
    }  # fmt: skip


def test_row_3_exponents():
    measured = claims.get(3).measure()
    growth = [value for name, value in measured.items() if "÷" in name]
    assert growth == pytest.approx([8, 4, 4, 2], rel=2e-3)


def test_row_4_parameters():
    assert list(claims.get(4).measure().values()) == [29_482_295_296, 70_553_706_496]


def test_row_5_growth():
    growth = {name.split(":")[0]: value for name, value in claims.get(5).measure().items()}
    assert growth["llama-3-8b"] == 4
    assert growth["gemma-3-27b"] == 2.3
    assert growth["mistral-7b-v0.1"] == 1
    assert all(1 <= value <= 4 for value in growth.values())


def test_unknown_row():
    with pytest.raises(InputError, match="no claim 99: this release has rows 1, 2, 3, 4, 5"):
        claims.get(99)
