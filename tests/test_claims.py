"""The ledger: its rows are complete, and the numbers that they compute are those they talk about."""

import json
import math
import re

import pytest

from kvcourse import claims, results
from kvcourse.errors import InputError


def test_rows_are_numbered_and_complete():
    numbers = [claim.number for claim in claims.CLAIMS]
    assert numbers == sorted(set(numbers))
    assert numbers == list(range(1, 19))
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


def test_row_6_the_ratio_is_that_of_heads():
    layers, heads, kv_heads, *ratios = claims.get(6).measure().values()
    assert (layers, heads, kv_heads) == (32, 71, 1)
    assert ratios == [heads / kv_heads] * 3


def test_row_7_training_helps_and_does_not_bring_mqa_back():
    run = results.read("uptrain")
    after = {arm["method"]: arm["ppl_after"] for arm in run["arms"] if arm["attention"] != "MLA"}
    start, mean, mean_after, first, random, control, *_ = claims.get(7).measure().values()
    assert start == pytest.approx(run["baseline"]["ppl"], abs=0.005)
    assert [mean_after, first, random] == [round(after[kind]) for kind in ("mean", "first", "random")]
    assert control == pytest.approx(after["control"], abs=0.005)
    assert control < start < 10 * start < mean_after < min(first, random)
    assert mean > 10 * mean_after


@pytest.mark.parametrize(("number", "arm"), [(7, "MQA"), (10, "GQA"), (14, "MLA, as GQA")])
def test_rows_7_10_and_14_compare_models_seed_by_seed(number, arm):
    losses = {entry["name"]: entry["loss"] for entry in results.read("attention_quality")["arms"]}
    above = [(b - a) / a * 100 for a, b in zip(losses["MHA"], losses[arm], strict=True)]
    spread = math.sqrt(sum((x - sum(above) / 3) ** 2 for x in above) / 2)
    measured = claims.get(number).measure()
    assert measured[f"{arm} above MHA by %"] == pytest.approx(sum(above) / 3, abs=0.051)
    assert measured["standard error of that"] == pytest.approx(spread / math.sqrt(3), abs=0.051)
    signs = [float(value.replace("−", "-")) for value in measured["seed by seed"].split(", ")]
    assert signs == pytest.approx(above, abs=0.051)


@pytest.mark.parametrize("number", [7, 10, 11, 14, 15, 16, 17, 18])
def test_a_row_that_was_read_says_where_it_was_measured(number):
    lines = [value for label, value in claims.get(number).measure().items() if "measured by" in label]
    assert lines
    for line in lines:
        command, machine, date = line.split("; ")
        assert command.startswith("`kvcourse bench ")
        assert "cores" in machine
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", date)


def test_row_8_falcons():
    assert list(claims.get(8).measure().values()) == [71, 1, 128, 8, 232, 8]


def test_row_9_query_heads_over_kv_heads():
    ratios = {name.split(":")[0]: value for name, value in claims.get(9).measure().items()}
    assert ratios == {"Llama-3-8B": 4, "Llama-3-70B": 8, "Llama 4 Scout": 5}


def test_row_11_compares_medians_of_one_run():
    steps, parts = {}, []
    for case in results.read("heads")["cases"]:
        mha, gqa = case["models"]["MHA"], case["models"]["GQA"]
        steps[case["batch"], case["context"]] = mha["step_s"] / gqa["step_s"]
        parts.append(mha["kv_s"] / gqa["kv_s"])
    *measured, least, most, _ = claims.get(11).measure().values()
    assert measured == pytest.approx(list(steps.values()), abs=0.0051)
    assert (least, most) == pytest.approx((min(parts), max(parts)), abs=0.0051)
    assert {batch for batch, _ in steps} == {1, 4, 16}
    assert {context for _, context in steps} == {512, 1024, 2048, 4096}
    assert max(steps.values()) > 1.5 > 1.3 > min(steps.values())  # neither end of the article's range holds


def test_row_12_layers():
    assert list(claims.get(12).measure().values()) == [48, 48, 36, 24, 6, 18, 2]


def test_row_13_what_mla_stores_is_enough_and_needed():
    latent, rotary, rebuilt, ratio, *forms = claims.get(13).measure().values()
    assert (latent, rotary, rebuilt, ratio) == (512, 64, 128 * (192 + 128), 71.1)
    assert forms == ["yes", "no"]


def test_row_14_ratios():
    exact = list(claims.get(14).measure().values())[:8]
    assert exact == [576, 2.25, 56.9, 3.56, 5.63, 15.0, 93.3, 8.7]


def simulated(name):
    return next(arm for arm in results.read("utilisation")["arms"] if arm["name"] == name)


def test_row_15_shares_of_the_memory():
    measured = claims.get(15).measure()
    names = ("max length", "power of two", "oracle", "power of two, buddy", "oracle, buddy")
    names += ("paged, 16", "paged, 64", "paged, 128")
    shares = [100 * simulated(name)["utilisation"] for name in names]
    assert list(measured.values())[:-1] == pytest.approx(shares, abs=0.051)
    assert max(shares[:5]) < 60  # what the article starts from
    assert shares[5] > 90


def test_row_16_requests_at_once():
    measured = claims.get(16).measure()
    pages = simulated("paged, 16")["concurrency"]
    ratios = [value for label, value in measured.items() if "÷ arrays" in label]
    names = ("max length", "power of two", "oracle", "power of two, buddy", "oracle, buddy")
    assert ratios == pytest.approx([pages / simulated(name)["concurrency"] for name in names], abs=0.051)
    assert min(ratios) < 2 < 3 < max(ratios)
    run = results.read("concurrency")
    arms = run["arms"]
    assert measured["time with arrays ÷ with pages"] == pytest.approx(run["speedup"], abs=0.0051)
    assert (measured["steps with arrays"], measured["steps with pages"]) == (
        arms["static"]["steps"],
        arms["paged"]["steps"],
    )


def test_row_17_pages_change_nothing():
    requests, same, equal, *measured = claims.get(17).measure().values()
    assert (requests, same, equal) == (32, 32, "yes")
    ratios = []
    for case in results.read("paged")["cases"]:
        seconds = {name: arm["median_s"] for name, arm in case["arms"].items()}
        pages = seconds["paged, 16"]
        ratios += [pages / seconds["contiguous, kernel"], pages / seconds["contiguous, SDPA"]]
        ratios += [seconds["gathered in one copy, SDPA"] / pages]
    assert measured[: len(ratios)] == pytest.approx(ratios, abs=0.051)


def test_row_18_block_sizes():
    measured = [value for value in claims.get(18).measure().values() if isinstance(value, float)]
    shares, (points, short, shorter), times = measured[:9], measured[9:12], measured[12:]
    assert shares == sorted(shares, reverse=True)
    assert points == pytest.approx(shares[0] - shares[4], abs=0.11)
    assert short > shorter
    ratios = []
    for case in results.read("paged")["cases"]:
        seconds = {name: arm["median_s"] for name, arm in case["arms"].items()}
        ratios += [seconds[f"paged, {size}"] / seconds["paged, 16"] for size in (1, 256)]
    assert times == pytest.approx(ratios, abs=0.0051)
    assert max(times[1::2]) < 1 < min(times[::2])


NUMBER = re.compile(r"(?<![\w.-])\d[\d,]*(?:\.\d+)?(?![\w-])")


def numbers_in(text):
    """The numbers of a text, as they are written; those that are part of a name (Llama-3-8B, V2) are not."""
    return [found.rstrip(",").replace(",", "") for found in NUMBER.findall(text)]


def test_numbers_are_found_in_a_text():
    text = "Llama-3-8B needs 430,000 tokens, 5.63 times V2's 4 %; DeepSeek-67B, SmolLM2 and 2-bit not: 3."
    assert numbers_in(text) == ["430000", "5.63", "4", "3"]


@pytest.mark.parametrize(
    "claim", [claim for claim in claims.CLAIMS if claim.number > 5], ids=lambda c: c.number
)
def test_a_finding_quotes_what_is_measured(claim):
    """Each number of a finding is one that the row computes, or that the article or the source says."""
    measured = {label: value for label, value in claim.measure().items() if "measured by" not in label}
    known = [float(value) for value in measured.values() if isinstance(value, int | float)]
    for text in (claim.said, claim.source, *measured, *(v for v in measured.values() if isinstance(v, str))):
        known += map(float, numbers_in(text))
    for quoted in numbers_in(claim.finding):
        digits = len(quoted.partition(".")[2])
        assert float(quoted) in {round(value, digits) for value in known}, quoted


def test_unknown_row():
    with pytest.raises(InputError, match="no claim 99: this release has rows 1, 2, 3, 4, 5"):
        claims.get(99)
