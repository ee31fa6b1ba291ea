"""The manifest of a stored model: what it was made from and what every file must look like."""

import hashlib
import importlib.metadata
import json
from dataclasses import asdict
from pathlib import Path

from kvcourse.weights.source import Source

FILE_NAME = "manifest.json"
FORMAT = 1  # raise it when the conversion changes: folders of another format are made again


def write_manifest(folder: Path, name: str, source: Source) -> None:
    """Write `manifest.json` with the source, the versions used, and size and sha256 of every file."""
    files = {
        path.name: {"bytes": path.stat().st_size, "sha256": sha256_of(path)}
        for path in sorted(folder.iterdir())
        if path.name != FILE_NAME
    }
    packages = ("kvcourse", "transformers", "torch", "gguf")
    manifest = {
        "format": FORMAT,
        "name": name,
        "source": asdict(source),
        "versions": {package: _version(package) for package in packages},
        "files": files,
    }
    (folder / FILE_NAME).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


def read_manifest(folder: Path) -> dict | None:
    """The manifest of a folder, or None when it is absent, unreadable or of another format."""
    try:
        manifest = json.loads((folder / FILE_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    try:
        files = [(entry["bytes"], entry["sha256"]) for entry in manifest["files"].values()]
        usable = bool(files) and manifest["format"] == FORMAT and "sha256" in manifest["source"]
    except (KeyError, TypeError, AttributeError):
        return None
    return manifest if usable else None


def is_complete(folder: Path, source: Source) -> bool:
    """Whether the folder holds this source and every file has its size. Cheap: no file is read."""
    manifest = read_manifest(folder)
    if manifest is None or manifest["source"]["sha256"] != source.sha256:
        return False
    return all(_size_of(folder / name) == entry["bytes"] for name, entry in manifest["files"].items())


def damaged_files(folder: Path) -> list[str]:
    """Names of the files whose size or sha256 differs from the manifest. Reads every byte."""
    manifest = read_manifest(folder)
    if manifest is None:
        return [FILE_NAME]
    return [
        name
        for name, entry in manifest["files"].items()
        if _size_of(folder / name) != entry["bytes"] or sha256_of(folder / name) != entry["sha256"]
    ]


def sha256_of(path: Path) -> str:
    """Checksum of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
