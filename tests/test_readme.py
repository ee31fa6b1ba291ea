"""What README.md tells the reader to type works."""

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from kvcourse.cli import build_parser, main

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "README.md").read_text("utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", TEXT, flags=re.S | re.M)
SHELL = [line for language, body in BLOCKS if language == "sh" for line in body.splitlines() if line]
PYTHON = [body for language, body in BLOCKS if language == "python"]

# Quick enough to run here; the others need minutes, the model or the network, and are checked without running.
QUICK = ("kvcourse --help", "kvcourse memory", "kvcourse claims", "kvcourse book check")


def own_words(line):
    """The words of a command, without `.venv/bin/` and settings before it."""
    words = shlex.split(line, comments=True)
    while re.fullmatch(r"\w+=\S+", words[0]):
        words = words[1:]
    return [words[0].removeprefix(".venv/bin/"), *words[1:]]


def lines_of(program):
    return [line for line in SHELL if own_words(line)[0] == program]


def test_every_command_is_of_a_known_kind():
    assert {own_words(line)[0] for line in SHELL} == {"make", "kvcourse", "python"}


@pytest.mark.skipif(not shutil.which("make"), reason="no make on this machine")
@pytest.mark.parametrize("line", lines_of("make"))
def test_make_target_exists(line):
    command = ["make", "-n", *own_words(line)[1:]]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("line", lines_of("python"))
def test_script_exists(line):
    assert (ROOT / own_words(line)[1]).is_file()


@pytest.mark.parametrize("line", lines_of("kvcourse"))
def test_command_parses(line):
    with pytest.raises(SystemExit) if line.endswith("--help") else contextlib.nullcontext():
        build_parser().parse_args(own_words(line)[1:])


@pytest.mark.parametrize("line", [line for line in lines_of("kvcourse") if line.startswith(QUICK)])
def test_quick_command_runs(line):
    command = [
        sys.executable,
        "-c",
        "from kvcourse.cli import main; raise SystemExit(main())",
        *own_words(line)[1:],
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip()


def test_start_leaves_student_copies(tmp_path, monkeypatch, capsys):
    (line,) = [line for line in SHELL if line.startswith("kvcourse start")]
    monkeypatch.chdir(tmp_path)
    assert main(own_words(line)[1:]) == 0
    names = {path.name for path in (ROOT / "notebooks").glob("*.ipynb")}
    assert {path.name for path in (tmp_path / "student").glob("*.ipynb")} == names
    assert capsys.readouterr().err == ""


@pytest.mark.model
def test_model_continues_a_prompt(capsys):
    (line,) = [line for line in SHELL if "--try" in line]
    assert main(own_words(line)[1:]) == 0
    assert "Paris" in capsys.readouterr().out


@pytest.mark.parametrize("code", PYTHON, ids=lambda code: code.splitlines()[-1][:40])
def test_python_runs(code):
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_values_in_comments_are_right():
    """`expression   # number: …` in a Python block: the expression has that value."""
    claims = re.findall(r"^(kv\.\S.*?)\s+# (\d+):", "\n".join(PYTHON), flags=re.M)
    assert claims
    import kvcourse as kv

    for expression, value in claims:
        assert eval(expression, {"kv": kv}) == int(value), expression


def test_named_files_exist():
    folders = re.search(r"^```\n(notebooks/.*?)^```$", TEXT, flags=re.S | re.M).group(1)
    parent = Path()
    for line in folders.splitlines():
        name = line.split()[0]
        path = parent / name if line.startswith("  ") else Path(name)
        parent = parent if line.startswith("  ") else path
        assert (ROOT / path).exists(), path


def test_every_make_target_is_mentioned():
    makefile = (ROOT / "Makefile").read_text("utf-8")
    phony = re.search(r"^\.PHONY: (.*)$", makefile, flags=re.M).group(1).split()
    listed = set(re.findall(r"^\t@echo 'make (\w+)", makefile, flags=re.M))
    assert listed | {"help", "install", "model"} == set(phony)


def test_versions_agree():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    assert re.search(r"version = \{([\d.]+)\}", TEXT).group(1) == version
