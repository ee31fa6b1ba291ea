"""The files of the set-up agree with each other, and an ordinary install works."""

import hashlib
import importlib.metadata
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
PROJECT = PYPROJECT["project"]
SETUPTOOLS = PYPROJECT["tool"]["setuptools"]
EXTRAS = PROJECT["optional-dependencies"]
CONDA_NAMES = {"torch": "pytorch", "matplotlib": "matplotlib-base"}
APACHE_2_SHA256 = "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"


def requirements():
    """Everything that pyproject.toml asks for at run time, extras included."""
    return [
        Requirement(line) for line in [*PROJECT["dependencies"], *(x for e in EXTRAS.values() for x in e)]
    ]


def constraints():
    """The pins of constraints.txt."""
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    return [Requirement(line) for line in lines if line.strip() and not line.startswith("#")]


def environment():
    """environment.yml as {name: range}, pip's part included."""
    wanted = {}
    for entry in yaml.safe_load((ROOT / "environment.yml").read_text("utf-8"))["dependencies"]:
        for line in entry["pip"] if isinstance(entry, dict) else [entry]:
            name, ranges = re.fullmatch(r"([\w.-]+)\s*(.*)", line).groups()
            wanted[name] = SpecifierSet(ranges)
    return wanted


# ---- the three lists of packages -------------------------------------------------------------------


def test_environment_equals_pyproject():
    expected = {CONDA_NAMES.get(r.name, r.name): r.specifier for r in requirements() if r.name != "triton"}
    expected |= {"python": SpecifierSet(PROJECT["requires-python"]), "pip": SpecifierSet()}
    assert environment() == expected


def test_constraints_pin_exactly():
    assert [str(pin) for pin in constraints() if not re.fullmatch(r"==[^*]+", str(pin.specifier))] == []


def test_constraints_pin_once():
    names = [canonicalize_name(pin.name) for pin in constraints()]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("wanted", requirements(), ids=lambda wanted: wanted.name)
def test_constraints_satisfy_pyproject(wanted):
    pins = {canonicalize_name(pin.name): str(pin.specifier).removeprefix("==") for pin in constraints()}
    assert wanted.specifier.contains(pins[canonicalize_name(wanted.name)], prereleases=True)


def test_ranges_are_honest():
    ranges = {r.name: r for r in requirements()}
    assert SpecifierSet(PROJECT["requires-python"]) == SpecifierSet(">=3.11,<3.14")
    assert ranges["torch"].specifier == SpecifierSet(">=2.9")
    assert ranges["transformers"].specifier == SpecifierSet(">=5.17,<6")
    assert ranges["triton"].specifier == SpecifierSet(">=3.5")
    assert not ranges["triton"].marker.evaluate({"sys_platform": "darwin"})
    assert not ranges["triton"].marker.evaluate({"sys_platform": "win32"})
    assert ranges["triton"].marker.evaluate({"sys_platform": "linux"})


def test_classifiers_name_every_python():
    wanted = SpecifierSet(PROJECT["requires-python"])
    minors = [
        name.rsplit(" ", 1)[1] for name in PROJECT["classifiers"] if re.search(r"Python :: 3\.\d+", name)
    ]
    assert minors == [f"3.{minor}" for minor in range(30) if f"3.{minor}" in wanted]


def test_constraints_pin_everything_that_gets_installed():
    pinned = {canonicalize_name(pin.name) for pin in constraints()}
    assert closure() - pinned == set()


def closure():
    """Names of all packages that an install with all extras brings into this environment."""
    found, todo = set(), requirements()
    while todo:
        wanted = todo.pop()
        name = canonicalize_name(wanted.name)
        if wanted.marker and not wanted.marker.evaluate({"extra": ""}):
            continue
        found.add(name)
        for line in importlib.metadata.requires(name) or []:
            needed = Requirement(line)
            extras = ["", *wanted.extras]
            if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in extras):
                needed.marker = None
                if canonicalize_name(needed.name) not in found or needed.extras:
                    todo.append(needed)
    return found


# ---- the package -----------------------------------------------------------------------------------


def packages_on_disk():
    """Every folder with an __init__.py under kvcourse/ and kernels/, by its import name."""
    found = set()
    for top, name in (("kvcourse", "kvcourse"), ("kernels", "kvcourse.kernels")):
        for init in (ROOT / top).rglob("__init__.py"):
            found.add(".".join([name, *init.parent.relative_to(ROOT / top).parts]))
    return found


def test_packages_equal_the_folders():
    assert SETUPTOOLS["packages"] == sorted(packages_on_disk())


def test_no_module_outside_a_package():
    for top in ("kvcourse", "kernels"):
        for module in (ROOT / top).rglob("*.py"):
            assert (module.parent / "__init__.py").is_file(), module


def test_licence_is_apache_2():
    assert PROJECT["license"] == "Apache-2.0"
    assert hashlib.sha256((ROOT / "LICENSE").read_bytes()).hexdigest() == APACHE_2_SHA256


def test_version_is_written_once_more_in_the_package():
    import kvcourse

    assert kvcourse.__version__ == PROJECT["version"]


def test_no_pins_are_broken_in_this_environment():
    done = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """An ordinary wheel of a copy of the sources, built in this environment without the network."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for name in ["pyproject.toml", "README.md", "LICENSE", *package_files()]:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes((ROOT / name).read_bytes())
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index"]
    done = subprocess.run(
        [*command, "-w", str(folder), str(source)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return next(folder.glob("kvcourse-*.whl"))


def package_files():
    """Paths of the files of the package, relative to the root: modules, scripts and styles alike."""
    files = [path for top in ("kvcourse", "kernels") for path in (ROOT / top).rglob("*") if path.is_file()]
    return [path.relative_to(ROOT) for path in files if "__pycache__" not in path.parts]


def test_wheel_holds_every_file(wheel):
    expected = {
        "kvcourse/" + path.as_posix() if path.parts[0] == "kernels" else path.as_posix()
        for path in package_files()
    }
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert names == expected


def test_wheel_says_what_pyproject_says(wheel):
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = importlib.metadata.PathDistribution(
            zipfile.Path(archive, name.split("/")[0] + "/")
        ).metadata
    assert metadata["License-Expression"] == "Apache-2.0"
    assert SpecifierSet(metadata["Requires-Python"]) == SpecifierSet(PROJECT["requires-python"])
    assert sorted(metadata.get_all("Provides-Extra")) == sorted(EXTRAS)
    assert metadata["Description-Content-Type"] == "text/markdown"


def test_ordinary_install_imports_the_kernels(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    code = "import kvcourse.kernels, kvcourse; print(kvcourse.kernels.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()) == tmp_path / "kvcourse" / "kernels" / "__init__.py"


# ---- make and CI -----------------------------------------------------------------------------------


@pytest.mark.skipif(os.name == "nt", reason="no file modes on Windows")
def test_ci_run_is_executable():
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111 == 0o111


def test_ci_run_is_make_test():
    script = (ROOT / ".ci" / "run").read_text("utf-8")
    commands = [line for line in script.splitlines() if line and not line.startswith("#")]
    assert commands == ['cd "$(dirname "$0")/.." && exec make test']
