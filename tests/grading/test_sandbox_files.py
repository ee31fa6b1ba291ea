"""Files that a hostile program tries to read or to change: the course's, the system's and other people's."""

import contextlib
import subprocess
import sys
from pathlib import Path

import pytest
from sandboxed import outcome

import kvcourse
from kvcourse.course.grading.sandbox import Sandbox, SandboxError, StudentError

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(kvcourse.__file__).parent
SECRET = b"4711 is the expected value"


@pytest.fixture(scope="module")
def secret(tmp_path_factory):
    """A file that everybody on this machine may read."""
    path = tmp_path_factory.mktemp("open") / "secret"
    path.write_bytes(SECRET)
    path.chmod(0o644)
    for folder in (path.parent, *path.parent.parents[:-2]):
        with contextlib.suppress(PermissionError):
            folder.chmod(folder.stat().st_mode | 0o011)
    return path


# ---- files -----------------------------------------------------------------------------------------

CLOSED = [
    ROOT / "notebooks" / "01_naive_cache.ipynb",
    ROOT / "tests" / "conftest.py",
    ROOT / "pyproject.toml",
    PACKAGE / "course" / "grading" / "plugin.py",
    PACKAGE / "course" / "grading" / "sandbox" / "session.py",
    Path("/etc/passwd"),
    Path("/proc/self/environ"),
]
READS = {
    "open": "def attempt(path): return open(path, 'rb').read(100)",
    "os.open": "import os\ndef attempt(path): return os.read(os.open(path, os.O_RDONLY), 100)",
    "relative": "import os\ndef attempt(path): return open(os.path.relpath(path), 'rb').read(100)",
    "dots": "import sys\ndef attempt(path): return open(sys.prefix + '/lib/' + '../' * 20 + path, 'rb').read(100)",
    "symlink": "import os\ndef attempt(path): os.symlink(path, 'link'); return open('link', 'rb').read(100)",
    "hard link": "import os\ndef attempt(path): os.link(path, 'link'); return open('link', 'rb').read(100)",
    "moved": "import os\ndef attempt(path): os.rename(path, 'mine'); return open('mine', 'rb').read(100)",
    "bytes": "import os\ndef attempt(path): return open(os.fsencode(path), 'rb').read(100)",
    "path object": "import pathlib\ndef attempt(path): return pathlib.Path(path).read_bytes()[:100]",
    "own class of text": "class Path(str): pass\ndef attempt(path): return open(Path(path), 'rb').read(100)",
    "folder": "import os\ndef attempt(path):\n  fd = os.open(os.path.dirname(path), os.O_RDONLY)\n"
    "  return os.read(os.open(os.path.basename(path), os.O_RDONLY, dir_fd=fd), 100)",
    "chdir": "import os\ndef attempt(path):\n  os.chdir(os.path.dirname(path))\n"
    "  return open(os.path.basename(path), 'rb').read(100)",
    "numpy": "import numpy\ndef attempt(path): return bytes(numpy.fromfile(path, numpy.uint8))[:100]",
    "torch": "import torch\ndef attempt(path): return bytes(torch.from_file(path, size=20, dtype=torch.uint8))",
    "copy": "import shutil\ndef attempt(path): shutil.copy(path, 'mine'); return open('mine', 'rb').read(100)",
    "cat": "import subprocess\ndef attempt(path): return subprocess.check_output(['cat', path])",
    "exec": "import os\ndef attempt(path): os.execv('/bin/cat', ['cat', path])",
    "ctypes": "import ctypes\ndef attempt(path):\n  libc = ctypes.CDLL(None)\n"
    "  fd = libc.open(path.encode(), 0)\n  if fd < 0: raise PermissionError\n"
    "  data = ctypes.create_string_buffer(100); libc.read(fd, data, 100); return data.raw",
    "tracer": "import sys\ndef attempt(path):\n  sys.settrace(lambda *_: None)\n  return open(path, 'rb').read(100)",
}


@pytest.mark.parametrize("path", CLOSED, ids=lambda path: path.name)
def test_files_of_the_course_and_the_system_are_closed(any_sandbox, path):
    assert path.exists()
    got = outcome(any_sandbox, READS["open"], str(path))
    assert isinstance(got, StudentError), got
    assert got.kind in ("PermissionError", "FileNotFoundError")


@pytest.mark.parametrize("way", READS)
def test_no_way_of_reading_gets_a_file_of_others(any_sandbox, secret, way):
    got = outcome(any_sandbox, READS[way], str(secret))
    if way == "torch" and any_sandbox.confinement.files.startswith("blocked calls"):
        # A library that opens files by itself is beyond Python. When this fails, the words can promise more.
        assert SECRET.startswith(bytes(got))
    else:
        assert isinstance(got, SandboxError), got


@pytest.mark.parametrize("source", READS.values(), ids=READS)
def test_the_ways_of_reading_work_on_what_is_allowed(source, tmp_path, secret):
    """Otherwise the tests above would pass for the wrong reason: outside, each of them reads the secret."""
    if "execv" in source:
        source = source.replace(
            "os.execv('/bin/cat', ['cat', path])", "return os.popen(f'cat {path}').read().encode()"
        )
    if "rename" in source:
        source = source.replace("os.rename", "import shutil; shutil.copy")
    code = f"{source}\nimport sys; sys.stdout.buffer.write(attempt({str(secret)!r}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, check=False)
    assert SECRET[:20] in done.stdout, done.stderr


FOLDERS = ["ROOT", "ROOT/tests", "ROOT/notebooks", "/", "/etc", "/home", "/tmp"]


@pytest.mark.parametrize("folder", FOLDERS)
def test_folders_of_others_cannot_be_listed(any_sandbox, folder):
    got = outcome(
        any_sandbox,
        "import os\ndef attempt(path): return os.listdir(path)",
        folder.replace("ROOT", str(ROOT)),
    )
    if isinstance(got, list):  # in a file system of its own there is only what it may read
        assert not {"notebooks", "tests", "01_naive_cache.ipynb", "passwd", "conftest.py"} & set(got)
    else:
        assert isinstance(got, StudentError)


def test_hidden_folders_are_closed_wherever_they_lie():
    folder = PACKAGE / "attention"
    assert any(folder.iterdir())
    for without in ((), ("namespaces",)):
        with Sandbox(hidden=(folder,), without=without) as box:
            got = outcome(box, READS["open"], str(folder / "rope.py"))
            assert isinstance(got, StudentError), got
            assert isinstance(outcome(box, READS["open"], str(PACKAGE / "cache.py")), bytes)


WRITES = {
    "the package": "def attempt(root, package): open(package + '/cache.py', 'a').write('x')",
    "torch": "import torch\ndef attempt(root, package): open(torch.__file__, 'a').write('x')",
    "new module": "import torch\ndef attempt(root, package): open(torch.__path__[0] + '/evil.py', 'w').write('x')",
    "root": "def attempt(root, package): open(root + '/evil', 'w').write('x')",
    "tmp": "def attempt(root, package): open('/tmp/evil', 'w').write('x')",
    "beside": "def attempt(root, package): open('../evil', 'w').write('x')",
    "folder": "import os\ndef attempt(root, package): os.mkdir(package + '/evil')",
    "remove": "import os\ndef attempt(root, package): os.remove(package + '/step.py')",
    "mode": "import os\ndef attempt(root, package): os.chmod(package + '/step.py', 0)",
    "descriptor": "import os, torch\ndef attempt(root, package):\n  fd = os.open(torch.__path__[0], os.O_RDONLY)\n"
    "  os.open('evil.py', os.O_CREAT | os.O_WRONLY, dir_fd=fd)",
}


@pytest.mark.parametrize("source", WRITES.values(), ids=WRITES)
def test_nothing_can_be_written_outside_of_the_work_folder(any_sandbox, source):
    step = (PACKAGE / "step.py").read_bytes()
    got = outcome(any_sandbox, source, str(ROOT), str(PACKAGE))
    assert isinstance(got, StudentError), got
    assert (PACKAGE / "step.py").read_bytes() == step
    import torch

    places = (ROOT, PACKAGE, Path("/tmp"), Path(any_sandbox._zygote.folder), Path(torch.__file__).parent)
    assert not any((place / name).exists() for place in places for name in ("evil", "evil.py"))


def test_the_grader_cannot_be_imported(any_sandbox):
    got = outcome(
        any_sandbox, "def attempt():\n  import kvcourse.course.grading.plugin as p; return p.__file__"
    )
    assert isinstance(got, StudentError), got
    assert got.kind in ("ModuleNotFoundError", "ImportError", "PermissionError")
