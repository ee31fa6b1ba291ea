"""Browser assets for pages that work without a network: fetched with npm at build time, never committed."""

import base64
import hashlib
import shutil
import subprocess
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

from kvcourse.errors import InputError
from kvcourse.weights import home


@dataclass(frozen=True)
class Package:
    """An npm package with its checksum, and which of its files go where."""

    name: str
    version: str
    sha512: str  # base64, as the registry's `integrity` field gives it
    files: dict[str, str]  # glob inside the package -> folder under the vendor folder

    @property
    def spec(self) -> str:
        return f"{self.name}@{self.version}"


_MANAGER = "@jupyter-widgets/html-manager"
PACKAGES = (
    Package(
        "mathjax",
        "3.2.2",
        "Bt+SSVU8eBG27zChVewOicYs7Xsdt40qm4+UpHyX7k0/O9NliPc+x77k1/FEsPsjKPZGJvtRZM1vO+geW0OhGw==",
        {"es5/tex-svg.js": "mathjax"},
    ),
    Package(
        "requirejs",
        "2.3.8",
        "7/cTSLOdYkNBNJcDMWf+luFvMriVm7eYxp4BcFCsAX0wF421Vyce5SXP17c+Jd5otXKGNehIonFlyQXSowL6Mw==",
        {"require.js": ""},
    ),
    Package(
        _MANAGER,
        "1.0.15",
        "5thBIV6ymNgmPVOHvzx+gGy8ZSKmSazhtGw4/c4xJDVzRhG9PTeQsRjF3FUTopvFi//SABeNz1yp47bCrJ3CQA==",
        {"dist/embed-amd.js": "", "dist/*.woff*": f"{_MANAGER}/dist", "dist/*.ttf": f"{_MANAGER}/dist"},
    ),
)
MATHJAX = "vendor/mathjax/tex-svg.js"
WIDGET_SCRIPTS = ("vendor/require.js", "vendor/widgets-config.js", "vendor/embed-amd.js")
# Widget code and fonts come from the folder of this script, never from another host.
WIDGETS_CONFIG = """\
requirejs.config({ baseUrl: document.currentScript.src.replace(/[^/]*$/, "") });
"""
_TIMEOUT = 120


def vendor_folder() -> Path:
    """Where the fetched files are kept: a folder per user, named by their versions."""
    key = hashlib.sha256("".join(package.sha512 for package in PACKAGES).encode()).hexdigest()[:12]
    return home() / f"browser-assets-{key}"


def fetch() -> Path:
    """The vendor folder, filled through npm if it is not there yet (6 MB).

    Errors: InputError if npm is missing, cannot reach its registry, or delivers something else than expected.
    """
    target = vendor_folder()
    if target.is_dir():
        return target
    npm = shutil.which("npm")
    if npm is None:
        raise InputError("npm was not found; install Node.js for pages that work offline")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".browser-assets-") as temporary:
        folder = Path(temporary) / "files"
        for package in PACKAGES:
            _unpack(_download(npm, package, Path(temporary)), package, folder)
        try:
            folder.rename(target)
        except OSError:
            if not target.is_dir():  # another build was here first, which is fine
                raise
    return target


def _download(npm: str, package: Package, folder: Path) -> Path:
    command = [npm, "pack", "--silent", package.spec]
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, encoding="utf-8", errors="replace", timeout=_TIMEOUT
        )
    except subprocess.TimeoutExpired as error:
        raise InputError(f"npm pack {package.spec} took over {_TIMEOUT} s") from error
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[0]
        raise InputError(f"npm pack {package.spec} failed ({reason})")
    archive = folder / done.stdout.strip().splitlines()[-1]
    digest = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
    if digest != package.sha512:
        raise InputError(f"npm delivered {package.spec} with another checksum than expected; not used")
    return archive


def _unpack(archive: Path, package: Package, folder: Path) -> None:
    """Copy the wanted files by name; nothing in the archive chooses where it lands."""
    with tarfile.open(archive) as tar:
        members = {member.name.partition("/")[2]: member for member in tar.getmembers() if member.isfile()}
        for pattern, place in package.files.items():
            wanted = [name for name in members if Path(name).match(pattern)]
            if not wanted:
                raise InputError(f"{package.spec} has no {pattern}")
            for name in wanted:
                target = folder / place / Path(name).name
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(tar.extractfile(members[name]).read())
