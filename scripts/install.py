"""Make .venv and install the course into it; a second run changes nothing.

    python scripts/install.py

Standard library only, and old syntax, so that a Python that is too old can still say so.
The stamp .venv/kvcourse-stamp names what was installed: it is written last, so a failed install leaves none.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
STAMP = VENV / "kvcourse-stamp"
LOG = VENV / "install.log"
FREE_GB = 6
CPU_INDEX = "https://download.pytorch.org/whl/cpu"


def main():
    """Install what is missing. Returns the exit code: 0, or 2 with one line that says what to do."""
    if not (3, 11) <= sys.version_info[:2] <= (3, 13):
        return refuse(f"needs Python 3.11, 3.12 or 3.13; this is {sys.version.split()[0]}")
    if STAMP.is_file() and STAMP.read_text(encoding="utf-8") == stamp() and runs(PYTHON):
        return 0
    free = shutil.disk_usage(ROOT).free / 1e9
    if free < FREE_GB:
        return refuse(f"needs {FREE_GB} GB of free disk at {ROOT}; there are {free:.1f} GB")
    try:
        ready = make_venv()
    except OSError as error:
        return refuse(f"cannot write {VENV}: {error.strerror}")
    if not ready:
        return refuse(f"cannot make .venv with {sys.executable} (is its venv module there?)")
    start = time.time()
    print("kvcourse: installing into .venv (some minutes the first time)", flush=True)
    hint_cpu_build()
    if pip_install() != 0:
        return refuse(diagnose(LOG.read_text(encoding="utf-8", errors="replace")))
    STAMP.write_text(stamp(), encoding="utf-8")
    print(f"kvcourse: installed in {time.time() - start:.0f} s", flush=True)
    return 0


def refuse(reason):
    """Print the one line and give the exit code."""
    print("kvcourse: " + reason, file=sys.stderr)
    return 2


def stamp():
    """What the environment depends on: this Python, this folder, the two files that say what to install."""
    digest = hashlib.sha256()
    for name in ("pyproject.toml", "constraints.txt"):
        digest.update((ROOT / name).read_bytes())
    version = "{}.{}".format(*sys.version_info)
    return "\n".join([version, str(ROOT), digest.hexdigest(), ""])


def runs(python):
    """Whether the environment's Python starts and has this Python's version (its base may be gone)."""
    code = f"import sys; sys.exit(sys.version_info[:2] != {sys.version_info[:2]})"
    try:
        done = subprocess.run([str(python), "-c", code], stderr=subprocess.DEVNULL, check=False)
    except OSError:
        return False
    return done.returncode == 0


def make_venv():
    """Make .venv, anew where it was made by another Python or in another folder. Returns whether it runs."""
    moved = STAMP.is_file() and STAMP.read_text(encoding="utf-8").split("\n")[1] != str(ROOT)
    if STAMP.is_file():
        STAMP.unlink()
    if not moved and runs(PYTHON):
        return True
    if Path(sys.prefix).resolve() == VENV:
        return False  # it cannot rebuild the environment that it runs in
    made = subprocess.run(
        [sys.executable, "-m", "venv", "--clear", str(VENV)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    return made.returncode == 0 and runs(PYTHON)


def hint_cpu_build():
    """On Linux, PyPI's PyTorch is the CUDA build: say how to save gigabytes where there is no card."""
    chosen = any(os.environ.get(name) for name in ("PIP_EXTRA_INDEX_URL", "PIP_INDEX_URL", "PIP_FIND_LINKS"))
    if sys.platform == "linux" and not shutil.which("nvidia-smi") and not chosen:
        print(f"kvcourse: no NVIDIA card seen; PIP_EXTRA_INDEX_URL={CPU_INDEX} gets the small PyTorch")


def pip_install():
    """Run pip with its output in the log and, on a terminal, its present step on one line."""
    command = [str(PYTHON), "-m", "pip", "install", "--disable-pip-version-check", "--progress-bar", "off"]
    command += ["-c", "constraints.txt", "-e", ".[course,grade,test,book]"]
    environment = dict(os.environ, PIP_USER="0", PYTHONUTF8="1")
    pip = subprocess.Popen(
        command,
        cwd=str(ROOT),
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
    )
    width = shutil.get_terminal_size().columns - 1
    with LOG.open("w", encoding="utf-8") as log:
        for line in pip.stdout:
            log.write(line)
            if sys.stdout.isatty():
                sys.stdout.write("\r" + line.strip()[:width].ljust(width))
                sys.stdout.flush()
    if sys.stdout.isatty():
        sys.stdout.write("\r" + " " * width + "\r")
    return pip.wait()


def diagnose(log):
    """One line from pip's log: the usual reasons by name, or else pip's own last error."""
    seen = f"(whole log: {LOG})"
    if "No space left on device" in log:
        return f"the disk is full: free {FREE_GB} GB and run it again {seen}"
    if re.search("connection broken by|Max retries exceeded|Temporary failure in name resolution", log):
        return f"no network: pip could not reach its package index; connect and run it again {seen}"
    errors = [line.strip() for line in log.splitlines() if line.strip().lower().startswith("error: ")]
    reason = errors[-1][len("error: ") :] if errors else "no reason given"
    return f"pip failed: {reason} {seen}"


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
