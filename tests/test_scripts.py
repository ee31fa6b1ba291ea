"""The scripts under make: what they choose, what they skip the second time, and the one line they give up with."""

import collections
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
Disk = collections.namedtuple("Disk", "total used free")


def load(name):
    """A script as a fresh module."""
    spec = importlib.util.spec_from_file_location(f"scripts_{name}", ROOT / "scripts" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# ---- scripts/install.py ----------------------------------------------------------------------------


@pytest.fixture
def install(tmp_path, monkeypatch):
    """The installer in an empty project, with a pip and a venv that only note that they were called."""
    module = load("install")
    calls = []
    for name in ("pyproject.toml", "constraints.txt"):
        (tmp_path / name).write_text("one\n", encoding="utf-8")
    venv = tmp_path / ".venv"
    paths = {"ROOT": tmp_path, "VENV": venv, "STAMP": venv / "kvcourse-stamp", "LOG": venv / "install.log"}
    for name, path in paths.items():
        monkeypatch.setattr(module, name, path)

    def run(command, **options):
        if "venv" in command:
            calls.append("venv")
            shutil.rmtree(venv, ignore_errors=True)
            venv.mkdir()
        return subprocess.CompletedProcess(command, 0)

    def pip():
        calls.append("pip")
        module.LOG.write_text(module.pip_says, encoding="utf-8")
        return module.pip_code

    module.pip_says, module.pip_code = "", 0
    monkeypatch.setattr(module, "runs", lambda python: venv.is_dir())
    monkeypatch.setattr(module.subprocess, "run", run)
    monkeypatch.setattr(module, "pip_install", pip)
    module.calls = calls
    return module


def test_second_run_does_nothing(install):
    assert [install.main(), install.main()] == [0, 0]
    assert install.calls == ["venv", "pip"]


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt"])
def test_a_changed_list_installs_again_into_the_same_environment(install, name):
    install.main()
    (install.ROOT / name).write_text("two\n", encoding="utf-8")
    assert [install.main(), install.main()] == [0, 0]
    assert install.calls == ["venv", "pip", "pip"]


def test_a_moved_folder_gets_a_new_environment(install, monkeypatch, tmp_path):
    install.main()
    monkeypatch.setattr(install, "ROOT", tmp_path / "elsewhere")
    shutil.copytree(tmp_path, tmp_path / "elsewhere", ignore=shutil.ignore_patterns(".venv", "elsewhere"))
    assert install.main() == 0
    assert install.calls == ["venv", "pip", "venv", "pip"]


def test_another_python_gets_a_new_environment(install, monkeypatch):
    install.main()
    monkeypatch.setattr(install, "runs", lambda python: install.calls.count("venv") == 2)
    assert install.main() == 0
    assert install.calls == ["venv", "pip", "venv", "pip"]


def test_a_failed_install_leaves_no_stamp_and_is_tried_again(install, capsys):
    install.pip_says, install.pip_code = "ERROR: No matching distribution found for torch==99\n", 1
    assert install.main() == 2
    assert not install.STAMP.exists()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("kvcourse: pip failed: No matching distribution found for torch==99")
    install.pip_code = 0
    assert install.main() == 0
    assert install.calls == ["venv", "pip", "pip"]


def test_a_failed_update_takes_the_old_stamp_away(install):
    install.main()
    (install.ROOT / "constraints.txt").write_text("two\n", encoding="utf-8")
    install.pip_code = 1
    assert install.main() == 2
    (install.ROOT / "constraints.txt").write_text("one\n", encoding="utf-8")
    install.pip_code = 0
    assert install.main() == 0
    assert install.calls == ["venv", "pip", "pip", "pip"]


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        (
            "WARNING: Retrying after connection broken by 'NewConnectionError(…)'\nERROR: No matching\n",
            "no network",
        ),
        (
            "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device",
            "disk is full",
        ),
        (
            "error: subprocess-exited-with-error\nERROR: Failed building wheel for x\n",
            "Failed building wheel for x",
        ),
        ("", "no reason given"),
    ],
)
def test_the_reason_is_one_line(log, reason):
    line = load("install").diagnose(log)
    assert reason in line
    assert "install.log" in line
    assert "\n" not in line


def test_little_disk_stops_it_before_it_starts(install, monkeypatch, capsys):
    monkeypatch.setattr(install.shutil, "disk_usage", lambda path: Disk(10**12, 10**12, 5.9e9))
    assert install.main() == 2
    assert install.calls == []
    (line,) = capsys.readouterr().err.splitlines()
    assert "6 GB" in line
    assert "5.9 GB" in line


def test_an_old_or_too_new_python_says_so(install, monkeypatch, capsys):
    for version in ((3, 10, 1), (3, 14, 0)):
        monkeypatch.setattr(install.sys, "version_info", version)
        assert install.main() == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert all("3.11, 3.12 or 3.13" in line for line in lines)


# ---- scripts/find_python.sh ------------------------------------------------------------------------


@pytest.fixture
def find_python(tmp_path):
    """Run the script with a PATH that holds just these fake Pythons: {name: what the probe prints}."""
    if not shutil.which("sh"):
        pytest.skip("no sh on this machine")

    def run(pythons, **environment):
        for name, answer in pythons.items():
            fake = tmp_path / name
            fake.write_text(f"#!/bin/sh\necho {answer}\n", encoding="utf-8")
            fake.chmod(0o755)
        return subprocess.run(
            [shutil.which("sh"), ROOT / "scripts" / "find_python.sh"],
            env={"PATH": str(tmp_path), **environment},
            capture_output=True,
            text=True,
            check=False,
        )

    return run


@pytest.mark.parametrize(
    ("pythons", "chosen"),
    [
        ({"python3": "3.12", "python3.13": "3.13"}, "python3"),
        ({"python3": "3.9", "python3.11": "3.11"}, "python3.11"),
        ({"python3": "3.14", "python": "3.13"}, "python"),
        ({"python3": "3.11bare", "python3.12": "3.12"}, "python3.12"),
    ],
)
def test_the_first_usable_python_is_taken(find_python, pythons, chosen):
    done = find_python(pythons)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, chosen, "")


@pytest.mark.parametrize(
    ("pythons", "named", "reason"),
    [
        ({}, "", "no Python found"),
        ({"python3": "3.10"}, "", "but python3 is 3.10"),
        ({"python3": "3.12bare"}, "", "apt install python3.12-venv"),
        ({"python3": "3.12"}, "/no/such/python", "PYTHON=/no/such/python does not run"),
        ({"python3": "3.12", "old": "3.8"}, "old", "but old is 3.8"),
    ],
)
def test_no_usable_python_is_one_line(find_python, pythons, named, reason):
    done = find_python(pythons, PYTHON=named)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("kvcourse: ")
    assert reason in line


@pytest.mark.skipif(not shutil.which("sh"), reason="no sh on this machine")
def test_the_real_probe_takes_this_python():
    command = ["sh", str(ROOT / "scripts" / "find_python.sh")]
    environment = {**os.environ, "PYTHON": sys.executable}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, sys.executable)


# ---- scripts/gpu.sh --------------------------------------------------------------------------------


@pytest.mark.skipif(not shutil.which("sh"), reason="no sh on this machine")
def test_gpu_script_without_a_card_is_one_line(tmp_path):
    blind = tmp_path / "python"
    blind.write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    blind.chmod(0o755)
    done = subprocess.run(
        ["sh", str(ROOT / "scripts" / "gpu.sh"), str(tmp_path / "results")],
        env={**os.environ, "PYTHON": str(blind)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert "no CUDA card" in line
    assert not (tmp_path / "results").exists()
