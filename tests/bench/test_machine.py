"""What the label on a measurement says, and what it must not say. Bandwidths are measured on tiny arrays."""

import os
import subprocess

import pytest

from kvcourse.bench import machine
from kvcourse.errors import InputError


@pytest.fixture
def small_arrays(monkeypatch):
    """Arrays of 64 KiB, and no memory of what another test measured."""
    monkeypatch.setattr(machine, "CPU_BYTES", 1 << 16)
    measures = (machine.read_bandwidth, machine.copy_bandwidth, machine.peak_flops)
    for measure in measures:
        measure.cache_clear()
    yield
    for measure in measures:
        measure.cache_clear()


def test_bandwidth_divides_the_bytes_by_the_fastest_pass(small_arrays, monkeypatch):
    seconds = iter([0.5, 0.25])
    monkeypatch.setattr(machine, "_fastest", lambda function, device: next(seconds))
    assert machine.read_bandwidth() == (1 << 16) / 0.25
    monkeypatch.setattr(machine, "_fastest", lambda function, device: 0.5)
    assert machine.copy_bandwidth() == 2 * (1 << 16) / 0.5  # read and written


def test_flops_are_two_n_cubed(small_arrays, monkeypatch):
    monkeypatch.setattr(machine, "_fastest", lambda function, device: 2.0)
    assert machine.peak_flops() == 2048**3


def test_fastest_ignores_the_first_call_and_takes_the_minimum(monkeypatch):
    clock = [0.0]
    durations = iter([0.125, 5.0, 3.0, 4.0, 9.0, 7.0, 8.0, 6.0])
    monkeypatch.setattr(machine.time, "perf_counter", lambda: clock[0])

    def work():
        clock[0] += next(durations)

    assert machine._fastest(work, "cpu") == 3.0


def test_measured_once_per_process(small_arrays):
    assert machine.read_bandwidth() == machine.read_bandwidth() > 0
    assert machine.read_bandwidth.cache_info().misses == 1


def test_array_is_a_quarter_of_what_a_small_machine_has_free(monkeypatch):
    class Memory:
        available = 1 << 20

    monkeypatch.setattr(machine.psutil, "virtual_memory", Memory)
    assert machine._array_bytes("cpu") == 1 << 18


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["/opt/venv/bin/kvcourse", "bench", "--json", "/home/ann/x.json"], "kvcourse bench --json x.json"),
        (["kvcourse", "bench", "--json=/home/ann/x.json"], "kvcourse bench --json=x.json"),
        (["kvcourse", "bench", "C:\\Users\\ann\\x.json"], "kvcourse bench x.json"),
        (["kvcourse", "bench", "cache", "--contexts", "256,1024"], "kvcourse bench cache --contexts 256,1024"),
        (["/usr/lib/ipykernel_launcher.py", "-f", "/run/user/kernel.json"], "notebook"),
        (["", "a b"], "python 'a b'"),
    ],
)  # fmt: skip
def test_command_shows_no_folder(argv, expected):
    assert machine.command(argv) == expected


def git(folder, *arguments):
    """Run git with an identity of its own and no configuration of the user."""
    identity = {f"GIT_{who}_{what}": "t" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    environment = {**os.environ, **identity, "GIT_CONFIG_GLOBAL": os.devnull}
    done = subprocess.run(
        ["git", *arguments], cwd=folder, check=True, capture_output=True, text=True, env=environment
    )
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A repository with one committed file that stands for the package."""
    file = tmp_path / "machine.py"
    file.write_text("x = 1\n", encoding="utf-8")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "machine.py")
    git(tmp_path, "commit", "-q", "-m", "first")
    monkeypatch.setattr(machine, "__file__", str(file))
    machine.commit.cache_clear()
    yield tmp_path
    machine.commit.cache_clear()


def test_commit_of_a_clean_tree(repository):
    assert machine.commit() == {"revision": git(repository, "rev-parse", "HEAD"), "dirty": False}


def test_commit_of_a_changed_tree(repository):
    (repository / "machine.py").write_text("x = 2\n", encoding="utf-8")
    assert machine.commit()["dirty"] is True


def test_untracked_files_do_not_make_a_tree_dirty(repository):
    (repository / "notes.txt").write_text("", encoding="utf-8")
    assert machine.commit()["dirty"] is False


def test_an_installed_copy_inside_another_repository_has_no_commit(repository, monkeypatch):
    installed = repository / "site-packages"
    installed.mkdir()
    (installed / "machine.py").write_text("", encoding="utf-8")
    monkeypatch.setattr(machine, "__file__", str(installed / "machine.py"))
    assert machine.commit() is None


def test_no_git_means_no_commit(repository, monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert machine.commit() is None


def test_description_has_the_facts_and_no_host_name():
    import platform

    about = machine.describe()
    assert about["cpu"]
    assert about["cores"] >= 1
    assert about["ram_bytes"] > 1 << 20
    assert platform.node() not in about.values()
    assert about["cpu"] in machine.one_line()


@pytest.mark.skipif("__import__('torch').cuda.is_available()", reason="this machine has a GPU")
def test_a_device_that_is_absent_is_named():
    with pytest.raises(InputError, match="torch sees no CUDA device"):
        machine.read_bandwidth("cuda")
