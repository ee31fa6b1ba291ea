"""`kvcourse bench attention-quality`: that arms differ in nothing but their attention, and what the report says."""

import json
import math
from dataclasses import replace

import pytest

import kvcourse as kv
from kvcourse.bench import attention_quality as bench
from kvcourse.bench.quality_setting import (
    GQA,
    MHA,
    MLA_GQA,
    MLA_MQA,
    MQA,
    SETTINGS,
    Setting,
    configs_of,
    values_per_token,
)
from kvcourse.cli import main
from kvcourse.errors import InputError
from kvcourse.training import Recipe, initialise

TINY = Setting(
    layers=1, heads=4, head_dim=4, groups=2, feed_forward=2, seeds=2, held_out=100,
    recipe=Recipe(steps=4, batch=2, context=16, learning_rate=1e-2, warmup=1),
)  # fmt: skip


@pytest.fixture(scope="module")
def report():
    return bench.run(TINY, progress=False)


# ---- fairness --------------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", ["full", "quick"])
def test_arms_have_equal_sizes_and_latents_the_bytes_of_heads(setting):
    setting = SETTINGS[setting]
    configs = configs_of(setting)
    sizes = {
        name: sum(weight.numel() for weight in kv.Decoder(config).parameters())
        for name, config in configs.items()
    }
    assert max(sizes.values()) <= 1.01 * min(sizes.values())
    values = {name: values_per_token(config) for name, config in configs.items()}
    whole = setting.layers * 2 * setting.heads * setting.head_dim
    assert values == {
        MHA: whole,
        GQA: whole * setting.groups // setting.heads,
        MQA: whole // setting.heads,
        MLA_GQA: values[GQA],
        MLA_MQA: values[MQA],
    }
    depths = {(config.num_layers, config.hidden_size, config.num_heads) for config in configs.values()}
    assert len(depths) == 1


def test_arms_of_a_seed_read_the_same_windows_and_other_seeds_others(monkeypatch):
    calls = []

    def spy(model, ids, recipe, **options):
        calls.append((recipe, tuple(ids), tuple(options["held_out"]), options["evaluate_at"], model))
        return bench.train_(model, ids, recipe, **options)

    monkeypatch.setattr(bench, "train_", bench.train, raising=False)
    monkeypatch.setattr(bench, "train", spy)
    bench.run(TINY, progress=False)
    assert len(calls) == 2 * len(bench.ARMS)
    first, second = calls[: len(bench.ARMS)], calls[len(bench.ARMS) :]
    for part, seed in ((first, 0), (second, 1)):
        assert {call[0] for call in part} == {replace(TINY.recipe, seed=seed)}
    assert len({call[1:4] for call in calls}) == 1
    train, held_out = bytes(calls[0][1]).decode(), bytes(calls[0][2]).decode()
    assert len(held_out) == 100
    assert held_out not in train
    assert not set(map(id, (call[4] for call in first))) & set(map(id, (call[4] for call in second)))


def test_seeds_give_other_weights(monkeypatch):
    seeds = []
    monkeypatch.setattr(
        bench, "initialise", lambda model, seed: seeds.append(seed) or initialise(model, seed)
    )
    bench.run(TINY, arms=(MQA,), progress=False)
    assert seeds == [0, 1]


# ---- the report ------------------------------------------------------------------------------------


def test_report_has_every_arm_and_learning_lowers_the_loss(report):
    assert [arm.name for arm in report.arms] == list(bench.ARMS)
    assert {arm.attention for arm in report.arms} == {"MHA", "GQA", "MQA", "MLA"}
    for arm in report.arms:
        assert len(arm.loss) == 2
        assert [[step for step, _ in curve] for curve in arm.curves] == [[1, 2, 3, 4]] * 2
        assert all(
            curve[0][1] > curve[-1][1] == loss for curve, loss in zip(arm.curves, arm.loss, strict=True)
        )


def test_differences_are_taken_within_a_seed():
    config = configs_of(TINY)[MHA]
    arms = (bench.Arm(MHA, config, (1.0, 3.0)), bench.Arm(MQA, config, (1.1, 3.3)))
    gap, error = bench.Report(arms, TINY, "text").difference(MQA)
    assert gap == pytest.approx(0.2)
    assert error == pytest.approx(0.1)  # the deviation of 0.1 and 0.3 is 0.1414, over √2
    alone = (bench.Arm(MHA, config, (1.0,)), bench.Arm(MQA, config, (1.1,)))
    gap, error = bench.Report(alone, replace(TINY, seeds=1), "text").difference(MQA)
    assert gap == pytest.approx(0.1)
    assert math.isnan(error)


def test_json_and_table(report):
    data = json.loads(report.to_json())
    assert {"arms", "steps", "seeds", "bytes_per_step", "date", "command", "machine", "versions"} <= set(data)
    assert (data["steps"], data["seeds"], data["bytes_per_step"]) == (4, [0, 1], 32)
    rows = {arm["name"]: arm for arm in data["arms"]}
    assert rows[GQA]["num_kv_heads"] == 2
    assert rows[MLA_MQA]["rank"] + rows[MLA_MQA]["rope_dim"] == rows[MQA]["values_per_token"]
    assert rows[MQA]["difference_to_MHA"] == pytest.approx(report.difference(MQA)[0])
    for arm in data["arms"]:
        assert {"attention", "values_per_token", "parameters", "loss"} <= set(arm)
        assert f"{arm['parameters']:,}" in str(report)
    one = json.loads(bench.run(TINY, seeds=1, steps=1, arms=(MQA,), progress=False).to_json())
    assert one["arms"][0]["standard_error"] is None
    assert one["arms"][0]["difference_to_MQA"] == 0


def test_an_interrupted_benchmark_goes_on(report, tmp_path, monkeypatch):
    first = bench.run(TINY, arms=(MHA, MLA_GQA), folder=tmp_path, progress=False)
    assert [arm.loss for arm in first.arms] == [report[arm.name].loss for arm in first.arms]
    monkeypatch.setattr(kv.Decoder, "forward", lambda *_: pytest.fail("trained again"))
    assert bench.run(TINY, arms=(MHA, MLA_GQA), folder=tmp_path, progress=False).arms == first.arms


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"setting": "large"}, "setting 'large': expected one of full, quick"),
        ({"setting": TINY, "arms": ("MHA", "NSA")}, "arm 'NSA'"),
        ({"setting": TINY, "arms": ()}, "name at least one"),
        ({"setting": TINY, "steps": 0}, "steps=0"),
        ({"setting": TINY, "seeds": 0}, "seeds=0"),
    ],
)
def test_what_makes_no_sense_is_refused(options, message):
    with pytest.raises(InputError, match=message):
        bench.run(**options, progress=False)


# ---- the command -----------------------------------------------------------------------------------


def test_the_command_prints_json_alone_and_leaves_nothing_behind(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(SETTINGS, "quick", TINY)
    monkeypatch.setenv("KVCOURSE_HOME", str(tmp_path))
    command = [
        "bench",
        "attention-quality",
        "--setting",
        "quick",
        "--steps",
        "2",
        "--seeds",
        "1",
        "--json",
        "-",
    ]
    assert main(command) == 0
    printed = capsys.readouterr()
    data = json.loads(printed.out)
    assert (data["steps"], len(data["arms"]), printed.err) == (2, 5, "")
    assert not (tmp_path / "trainings" / "attention-quality").exists()


def test_the_command_keeps_a_folder_that_was_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(SETTINGS, "quick", TINY)
    command = ["bench", "attention-quality", "--setting", "quick", "--steps", "1", "--seeds", "1"]
    assert main([*command, "--folder", str(tmp_path)]) == 0
    assert "held-out nats per byte after 1 steps of 32 bytes" in capsys.readouterr().out
    assert len(list(tmp_path.glob("*/state.pt"))) == 5
