"""Kept results: readable from an installed package, with what a number needs beside it, consistent in itself."""

import json

import pytest

from kvcourse import results
from kvcourse.errors import InputError

PROVENANCE = {"command", "date", "machine", "versions"}


@pytest.mark.parametrize("name", results.names())
def test_every_result_says_where_it_comes_from_and_names_no_folder(name):
    data = results.read(name)
    assert set(data) >= PROVENANCE
    assert data["command"].startswith(f"kvcourse bench {data['benchmark']}")
    assert data["benchmark"].replace("-", "_") == name
    text = json.dumps(data)
    assert "/tmp" not in text
    assert "/home" not in text


def test_each_reading_is_a_new_dict():
    name = results.names()[0]
    results.read(name).clear()
    assert results.read(name)


def test_an_unknown_name_is_refused_with_the_names():
    with pytest.raises(InputError, match=r"result 'nothing': expected one of .*uptrain"):
        results.read("nothing")


def test_the_arms_of_the_attention_quality_are_of_equal_size():
    data = results.read("attention_quality")
    sizes = [arm["parameters"] for arm in data["arms"]]
    assert max(sizes) <= 1.01 * min(sizes)
    assert len(data["seeds"]) >= 3
    assert all(len(arm["loss"]) == len(data["seeds"]) for arm in data["arms"])
    values = {arm["name"]: arm["values_per_token"] for arm in data["arms"]}
    assert values["MLA, as GQA"] == values["GQA"] < values["MHA"]
    assert values["MLA, as MQA"] == values["MQA"] < values["GQA"]


def test_uptraining_is_reported_beside_the_control_that_starts_from_the_model():
    data = results.read("uptrain")
    (control,) = [arm for arm in data["arms"] if arm["method"] == "control"]
    assert control["ppl_before"] == pytest.approx(data["baseline"]["ppl"], rel=1e-6)
    assert control["bytes_per_token"] == data["baseline"]["bytes_per_token"]
    assert {arm["method"] for arm in data["arms"]} >= {"mean", "first", "random", "low rank"}
    for arm in data["arms"]:
        assert arm["curve"][0] == {"step": 0, "ppl": arm["ppl_before"]}
        assert arm["curve"][-1] == {"step": data["steps"], "ppl": arm["ppl_after"]}
    whole = data["conversion_curve"][0]
    assert whole["bytes_per_token"] == data["baseline"]["bytes_per_token"]
    assert whole["ppl"] == pytest.approx(data["baseline"]["ppl"], rel=0.01)
