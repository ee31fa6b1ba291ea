"""kvcourse memory and kvcourse claims, as a user runs them."""

import json

import pytest

from kvcourse import memory
from kvcourse.attention.known_models import KNOWN
from kvcourse.cli import main


@pytest.fixture
def cli(capsys, monkeypatch):
    """Run a command line: (exit code, stdout, stderr). Wide enough that no table cell wraps."""
    monkeypatch.setenv("COLUMNS", "200")

    def run(line):
        try:
            code = main(line.split())
        except SystemExit as stop:  # argparse
            code = stop.code
        out, err = capsys.readouterr()
        return code, out, err

    return run


def test_the_table_says_what_memory_says(cli):
    code, out, err = cli("memory llama-3-8b --context 128k --batch 32 --codec int8")
    assert (code, err) == (0, "")
    for number in (
        "67,584 bytes",
        "131,072 tokens",
        "8,858,370,048 bytes",
        "32 such",
        "283,467,841,536 bytes",
    ):
        assert number in out
    assert "int8" in out


def test_json_is_data_only(cli):
    code, out, _ = cli("memory gemma-3-27b --context 16k --batch 3 --dtype fp32 --json")
    data = json.loads(out)
    assert code == 0
    assert data["context"] == 16_384
    assert data["bytes_per_token"] == memory.bytes_per_token("gemma-3-27b", dtype="fp32")
    assert data["bytes_per_token_beyond_windows"] == 2 * 81_920
    assert (
        data["bytes_total"]
        == 3 * data["bytes_per_request"]
        == memory.bytes_at("gemma-3-27b", 16_384, 3, dtype="fp32")
    )
    assert "fits" not in data


def test_what_fits_on_a_gpu(cli):
    line = "memory llama-3-70b --context 8k --gpu 160GB"
    data = json.loads(cli(f"{line} --json")[1])
    assert data["weight_bytes"] == 141_107_412_992
    assert data["crossover_tokens"] == 430_626
    assert data["gpu_share"] == pytest.approx(8_192 * 327_680 / 160e9)
    assert data["fits"]["requests"] == (160 * 10**9 - 16 * 10**9 - 141_107_412_992) // (8_192 * 327_680)
    table = cli(line)[1]
    assert f"{data['fits']['tokens']:,}" in table
    assert "1.7 %" in table


@pytest.mark.parametrize(
    ("weights", "expected"),
    [("70B", 140 * 10**9), ("70GB", 70 * 10**9), ("1GiB", 2**30), ("500m", 10**9), ("123456", 123_456)],
)
def test_weights_are_bytes_or_parameters(cli, weights, expected):
    data = json.loads(cli(f"memory gemma-3-27b --weights {weights} --json")[1])
    assert data["weight_bytes"] == expected


def test_storage_rounds(cli):
    plain, paged, doubled = (
        json.loads(cli(f"memory smollm2-135m --context 65 --json {storage}")[1])["bytes_total"]
        for storage in ("", "--storage paged --block-size 32", "--storage contiguous --block-size 32")
    )
    assert (plain, paged, doubled) == (65 * 23_040, 96 * 23_040, 128 * 23_040)


def test_never_is_a_word(cli):
    assert "never" in cli("memory mistral-7b-v0.1 --weights 7B")[1]
    assert "not limited by memory" in cli("memory mistral-7b-v0.1 --gpu 24GiB")[1]


def test_list(cli):
    code, out, _ = cli("memory --list")
    assert code == 0
    assert all(name in out for name in KNOWN)
    data = json.loads(cli("memory --list --json")[1])
    assert [row["name"] for row in data] == list(KNOWN)
    assert all(row["source"].count("/") == 1 for row in data)


def test_a_config_file(cli, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(KNOWN["qwen3-0.6b"].config), "utf-8")
    assert json.loads(cli(f"memory {tmp_path} --json")[1])["bytes_per_token"] == 114_688


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("memory", "no model given"),
        ("memory lama-3-8b", "did you mean llama-3-8b"),
        ("memory nowhere/config.json", "no such file"),
        ("memory llama-3-8b --context many", "128k"),
        ("memory llama-3-8b --context 0", "at least one token"),
        ("memory llama-3-8b --batch 0", "batch=0"),
        ("memory llama-3-8b --batch x", "invalid int value"),
        ("memory llama-3-8b --codec int7", "did you mean"),
        ("memory llama-3-8b --dtype int8", "expected fp64"),
        ("memory llama-3-8b --storage tape", "'paged'"),
        ("memory llama-3-8b --storage paged --block-size 0", "block_size=0"),
        ("memory llama-3-8b --gpu big", "80GB"),
        ("memory llama-3-8b --gpu 8GB", "weights"),
        ("memory llama-3-8b --weights heavy", "140GB"),
        ("memory gemma-3-4b --gpu 80GB", "--weights"),
        ("claims 99", "no claim 99"),
        ("claims four", "invalid int value"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(cli, line, part):
    code, out, err = cli(line)
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1
    assert part in err


def test_unknown_family_says_what_it_needs(cli, tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "mamba2"}', "utf-8")
    code, _, err = cli(f"memory {tmp_path}")
    assert code == 2
    assert all(part in err for part in ("mamba2", "num_hidden_layers", "num_key_value_heads", "kv_lora_rank"))


def test_claims_table_row_and_data(cli):
    table = cli("claims")[1]
    assert "true only for full attention" in table
    assert "29,482,295,296" in cli("claims 4")[1]
    rows = json.loads(cli("claims --json")[1])
    assert [row["number"] for row in rows][:5] == [1, 2, 3, 4, 5]
    only = json.loads(cli("claims 5 --json")[1])
    assert [row["number"] for row in only] == [5]
    assert only[0]["measured"]["gemma-3-27b: 16K ÷ 4K"] == 2.3
