"""Browser assets: taken only as pinned, kept once, and missing ones are said in one line."""

import base64
import hashlib
import io
import tarfile

import pytest

from kvcourse.course import build, vendor
from kvcourse.errors import InputError

FILES = {
    "package/dist/a.js": b"a",
    "package/dist/font.woff2": b"f",
    "package/dist/b.txt": b"no",
    "package/../../c.js": b"x",
}


@pytest.fixture
def archive() -> bytes:
    """An npm package with more in it than is wanted."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in FILES.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


@pytest.fixture
def npm(tmp_path, monkeypatch, archive):
    """A stand-in for npm that delivers `archive`; the list counts its calls."""
    calls = []
    digest = base64.b64encode(hashlib.sha512(archive).digest()).decode()
    package = vendor.Package("toy", "1.0.0", digest, {"dist/a.js": "", "dist/*.woff*": "fonts"})

    def run(command, cwd, **_):
        calls.append(command[-1])
        (cwd / "toy-1.0.0.tgz").write_bytes(archive)
        return type("Done", (), {"returncode": 0, "stdout": "toy-1.0.0.tgz\n", "stderr": ""})

    monkeypatch.setenv("KVCOURSE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(vendor, "PACKAGES", (package,))
    monkeypatch.setattr(vendor.shutil, "which", lambda name: name)
    monkeypatch.setattr(vendor.subprocess, "run", run)
    return calls


def test_only_the_wanted_files_are_kept_and_only_once(npm, tmp_path):
    folder = vendor.fetch()
    assert folder == vendor.fetch() == vendor.vendor_folder()
    assert npm == ["toy@1.0.0"]
    found = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert found == {f"home/{folder.name}/{name}" for name in ("a.js", "fonts/font.woff2")}


def test_another_checksum_is_not_used(npm, tmp_path, monkeypatch):
    other = vendor.Package("toy", "1.0.0", base64.b64encode(b"0" * 64).decode(), {"dist/a.js": ""})
    monkeypatch.setattr(vendor, "PACKAGES", (other,))
    with pytest.raises(InputError, match="another checksum than expected"):
        vendor.fetch()
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_file_that_is_not_there(npm, monkeypatch):
    package = vendor.PACKAGES[0]
    monkeypatch.setattr(
        vendor, "PACKAGES", (vendor.Package("toy", "1.0.0", package.sha512, {"dist/z.js": ""}),)
    )
    with pytest.raises(InputError, match=r"toy@1\.0\.0 has no dist/z\.js"):
        vendor.fetch()


def test_without_npm_the_cdn_is_said_in_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("KVCOURSE_HOME", str(tmp_path))
    monkeypatch.setattr(vendor.shutil, "which", lambda name: None)
    assert build.offline_assets(None) is None
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "CDN" in error
    assert "npm was not found" in error
    with pytest.raises(InputError, match="npm was not found"):
        build.offline_assets(True)
    assert build.offline_assets(False) is None


def test_npm_that_fails_is_reported(npm, monkeypatch):
    failed = type("Done", (), {"returncode": 1, "stdout": "", "stderr": "npm error code ENOTFOUND\nmore"})
    monkeypatch.setattr(vendor.subprocess, "run", lambda *a, **k: failed)
    with pytest.raises(InputError, match=r"npm pack toy@1\.0\.0 failed \(npm error code ENOTFOUND\)"):
        vendor.fetch()
