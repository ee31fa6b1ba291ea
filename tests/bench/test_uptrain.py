"""`kvcourse bench uptrain`: that every arm starts from one model and sees the same text, and what is reported."""

import json
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import kvcourse as kv
from kvcourse.attention.convert import calibrate
from kvcourse.bench import uptrain as bench
from kvcourse.cli import main
from kvcourse.errors import InputError
from kvcourse.text import SplitText
from kvcourse.training import Recipe, held_out_loss

RECIPE = Recipe(steps=4, batch=2, context=16, learning_rate=1e-2, warmup=1)
SIZES = {"recipe": RECIPE, "held_out": 64, "calibration": 128, "progress": False}
ARMS, CURVE = tuple(bench.CONVERSIONS), bench.CURVE[:3]


class Bytes:
    """A tokenizer whose tokens are bytes."""

    def encode(self, text, add_special_tokens=True):
        assert not add_special_tokens
        return list(text.encode())


def tiny(**options):
    model = kv.tiny_model(num_heads=6, num_kv_heads=3, head_dim=8, max_position_embeddings=32, **options)
    model.tokenizer = Bytes()
    return model


@pytest.fixture(autouse=True)
def text(monkeypatch):
    """A short text, whose second part is not in the first."""
    train, held_out = "the cache keeps what was read. " * 30, "what was read, the cache keeps. " * 10
    monkeypatch.setattr(bench, "split_text", lambda: SplitText(train, held_out, (), ()))


@pytest.fixture(scope="module")
def report():
    with pytest.MonkeyPatch.context() as patch:
        train, held_out = "the cache keeps what was read. " * 30, "what was read, the cache keeps. " * 10
        patch.setattr(bench, "split_text", lambda: SplitText(train, held_out, (), ()))
        return bench.run(tiny(), curve=CURVE, **SIZES)


def arm_of(report, method):
    return next(arm for arm in report.arms if arm.conversion.method == method)


# ---- the arms --------------------------------------------------------------------------------------


def test_the_control_is_the_model_itself_and_the_model_stays(report):
    model = tiny()
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    again = bench.run(model, arms=("not converted",), curve=(), **SIZES)
    assert all(torch.equal(before[name], weight) for name, weight in model.named_parameters())
    assert again.arms[0].curve == arm_of(report, "control").curve
    ids = torch.tensor(list(("what was read, the cache keeps. " * 10).encode())[:65])
    expected = torch.tensor(held_out_loss(model, ids, 16)).exp().item()
    assert report.baseline == (model.config, pytest.approx(expected, rel=1e-6))
    assert arm_of(report, "control").before == pytest.approx(expected, rel=1e-5)
    assert arm_of(report, "control").after < expected


def test_every_conversion_changes_the_function_and_caches_a_third(report):
    whole = bench.bytes_of(report.baseline[0])
    for arm in report.arms:
        if arm.conversion.method == "control":
            continue
        assert bench.bytes_of(arm.config) * 3 == whole
        assert arm.before != pytest.approx(report.baseline[1], rel=1e-4)
    assert {arm.config.num_kv_heads for arm in report.arms if arm.conversion.attention == "MQA"} == {1}
    assert {arm.conversion.method for arm in report.arms} == {
        "control",
        "mean",
        "first",
        "random",
        "low rank",
    }


@pytest.mark.parametrize("kv_heads", [2, 6])
def test_the_latent_caches_as_much_as_one_head_of_any_model(kv_heads):
    model = kv.tiny_model(num_heads=6, num_kv_heads=kv_heads, head_dim=8, max_position_embeddings=32)
    known = calibrate(model, torch.arange(64).view(2, 32))
    latent, one = (bench.CONVERSIONS[name].build(model, known) for name in ("MLA, as MQA", "MQA, first"))
    assert latent.config.is_latent
    assert bench.bytes_of(latent.config) == bench.bytes_of(one.config)


def test_a_latent_as_large_as_the_heads_is_the_same_function(report):
    (_, ppl), *smaller = report.untrained
    assert ppl == pytest.approx(report.baseline[1], rel=1e-3)
    assert [bench.bytes_of(config) for config, _ in smaller] < [bench.bytes_of(report.baseline[0])]


def test_all_arms_are_trained_alike_and_only_in_attention_and_norms(monkeypatch):
    calls, train = [], bench.train

    def spy(model, ids, recipe, **options):
        before = {name: weight.clone() for name, weight in model.named_parameters()}
        history = train(model, ids, recipe, **options)
        changed = {name for name, weight in model.named_parameters() if not torch.equal(before[name], weight)}
        kept = set(before) - changed
        assert all("mlp" in name or "embed" in name or "lm_head" in name for name in kept)
        assert not any("mlp" in name or "embed" in name or "lm_head" in name for name in changed)
        calls.append(
            (recipe, tuple(ids.tolist()), tuple(options["held_out"].tolist()), tuple(options["evaluate_at"]))
        )
        return history

    monkeypatch.setattr(bench, "train", spy)
    bench.run(tiny(), curve=(), **SIZES)
    assert len(calls) == len(ARMS)
    assert len(set(calls)) == 1


@given(st.sampled_from([1, 2, 3, 8]), st.sampled_from([8, 64, 128]), st.floats(0.05, 1), st.floats(0.05, 0.5))
def test_latent_sizes_add_up_to_the_share(kv_heads, head_dim, share, rotary):
    config = replace(kv.tiny_model().config, num_heads=kv_heads, num_kv_heads=kv_heads, head_dim=head_dim)
    rank, rope_dim = bench.latent_sizes(config, share, rotary)
    values = 2 * kv_heads * head_dim
    assert abs(rank + rope_dim - share * values) <= 0.5
    assert rope_dim % 2 == 0
    assert 2 <= rope_dim <= max(2, rotary * (rank + rope_dim) + 1)


# ---- the report ------------------------------------------------------------------------------------


def test_json_and_table(report):
    data = json.loads(report.to_json())
    assert {"date", "command", "machine", "versions", "seed", "learning_rate"} <= set(data)
    assert (data["steps"], data["tokens_per_step"], data["held_out_tokens"]) == (4, 32, 64)
    assert data["baseline"] == {
        "ppl": report.baseline[1], "num_kv_heads": 3, "bytes_per_token": 2 * 2 * 3 * 8 * 4,
    }  # fmt: skip
    assert [arm["name"] for arm in data["arms"]] == list(ARMS)
    for arm in data["arms"]:
        assert [point["step"] for point in arm["curve"]] == [0, 1, 2, 4]
        assert (arm["curve"][0]["ppl"], arm["curve"][-1]["ppl"]) == (arm["ppl_before"], arm["ppl_after"])
        assert f"{arm['ppl_after']:.2f}" in str(report)
    assert len(data["conversion_curve"]) == len(CURVE)
    assert all(
        {"rank", "rope_dim", "bytes_per_token", "ppl"} == set(point) for point in data["conversion_curve"]
    )


def test_an_interrupted_benchmark_goes_on(report, tmp_path, monkeypatch):
    first = bench.run(tiny(), curve=(), folder=tmp_path, **SIZES)
    assert [arm.curve for arm in first.arms] == [arm.curve for arm in report.arms]
    monkeypatch.setattr("kvcourse.training.trainer._update", lambda *_: pytest.fail("trained again"))
    assert bench.run(tiny(), curve=(), folder=tmp_path, **SIZES).arms == first.arms


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"arms": ("MQA",)}, "arm 'MQA': expected one of not converted"),
        ({"held_out": 10_000}, "held_out=10000: the held-out text has"),
        ({"held_out": 0}, "held_out=0"),
        ({"recipe": replace(RECIPE, context=33)}, "33"),
    ],
)
def test_what_makes_no_sense_is_refused(changes, message):
    with pytest.raises(InputError, match=message):
        bench.run(tiny(), **SIZES | changes)


def test_a_model_without_a_tokenizer_is_refused():
    model = tiny()
    model.tokenizer = None
    with pytest.raises(InputError, match="no tokenizer"):
        bench.run(model, **SIZES)


# ---- the command -----------------------------------------------------------------------------------


def test_the_command_writes_table_and_json(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(kv, "load_model", lambda *_, **__: (tiny(), None))
    monkeypatch.setitem(bench.run.__kwdefaults__, "held_out", 64)
    monkeypatch.setitem(bench.run.__kwdefaults__, "curve", ((1 / 2, 1 / 4),))
    monkeypatch.setenv("KVCOURSE_HOME", str(tmp_path))
    target = tmp_path / "uptrain.json"
    command = [
        "bench",
        "uptrain",
        "--steps",
        "2",
        "--context",
        "16",
        "--batch",
        "1",
        "--learning-rate",
        "0.01",
    ]
    assert main([*command, "--json", str(target)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "2 steps of 16 tokens, learning rate 0.01" in printed
    assert "latents without training" in printed
    data = json.loads(target.read_text("utf-8"))
    assert (data["steps"], data["learning_rate"], len(data["arms"])) == (2, 0.01, len(ARMS))
    assert not (tmp_path / "trainings" / "uptrain").exists()


@pytest.mark.parametrize(
    "arguments",
    [["uptrain", "--steps", "0"], ["uptrain", "--learning-rate", "fast"], ["attention-quality", "--setting", "large"],
     ["mla", "--contexts", "12,x"], ["heads", "--dtype", "int3"]],
)  # fmt: skip
def test_bad_arguments_exit_2_with_one_line(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["bench", *arguments])
    assert stopped.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_learning_rate_without_sense_and_an_unwritable_file_are_refused_first(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(kv, "load_model", lambda *_, **__: pytest.fail("loaded the model first"))
    assert main(["bench", "uptrain", "--learning-rate", "-1"]) == 2
    assert main(["bench", "uptrain", "--json", str(tmp_path / "missing" / "out.json")]) == 2
    assert capsys.readouterr().err.count("\n") == 2
