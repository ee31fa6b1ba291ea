"""Where a training run keeps how far it is: one file, written in one go, and only for the run that it belongs to."""

import contextlib
import os
import pickle
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import asdict, fields
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kvcourse.errors import InputError
from kvcourse.paths import user_path

FILE = "state.pt"


class TrainingState:
    """The state of one run in `folder`.

    key: everything that decides the run, as plain values; a state with another key belongs to another run.

    Errors: InputError for a folder that cannot be made.
    """

    def __init__(self, folder: str | Path, key: Mapping[str, Any]) -> None:
        self.path, self.key = user_path(folder) / FILE, dict(key)
        with _explained(self.path.parent):
            self.path.parent.mkdir(parents=True, exist_ok=True)

    def load(self, weights: Mapping[str, Tensor], optimizer: torch.optim.Optimizer) -> dict[str, Any] | None:
        """Put the kept numbers into `weights` and `optimizer`. Returns step and history, None when nothing is kept.

        Errors: InputError for the state of another run, or a file that is not one of ours; nothing is changed.
        """
        if not self.path.exists():
            return None
        try:
            with zipfile.ZipFile(self.path) as archive:  # torch does not look at the checksums that it writes
                if archive.testzip() is not None:
                    raise zipfile.BadZipFile
            kept = torch.load(self.path, map_location="cpu", weights_only=True)
            step, key, moments, history = (kept[name] for name in ("step", "key", "optimizer", "history"))
            stored = {name: kept["weights"][name] for name in weights} if key == self.key else {}
        except (
            OSError, RuntimeError, EOFError, LookupError, TypeError, ValueError, pickle.UnpicklingError,
            zipfile.BadZipFile,
        ):  # fmt: skip
            raise InputError(f"{self.path}: not a readable training state; remove it to start anew") from None
        if key != self.key:
            differ = sorted(name for name in self.key | key if key.get(name) != self.key.get(name))
            raise InputError(
                f"{self.path} belongs to another run (its {', '.join(differ)} differ): "
                "give another folder, or remove it to start anew"
            )
        for name, weight in weights.items():
            weight.data.copy_(stored[name])
        if moments is not None:
            optimizer.load_state_dict(moments)
        return {"step": step, "history": history}

    def save(
        self, step: int, history: Any, weights: Mapping[str, Tensor], optimizer: torch.optim.Optimizer | None
    ) -> None:
        """Replace what is kept. optimizer: None when the run is finished and its moments are of no use."""
        state = {
            "key": self.key,
            "step": step,
            "history": asdict(history),
            "weights": {name: weight.detach() for name, weight in weights.items()},
            "optimizer": None if optimizer is None else optimizer.state_dict(),
        }
        fresh = self.path.with_suffix(f".{os.getpid()}")
        with _explained(self.path.parent):
            try:
                torch.save(state, fresh)
                os.replace(fresh, self.path)
            finally:
                fresh.unlink(missing_ok=True)


def fingerprint(model: Any, ids: Tensor, held_out: Tensor | None) -> dict[str, Any]:
    """Checksums of the weights, buffers and texts that a run starts with, and what else decides its numbers."""
    config, weights = model.config, 0
    for name, weight in chain(model.named_parameters(), model.named_buffers()):
        weights = zlib.crc32(_bytes(weight), zlib.crc32(name.encode(), weights))
    return {
        "config": {
            f.name: repr(getattr(config, f.name))
            for f in fields(config)
            if getattr(config, f.name) != f.default
        },
        "weights": weights,
        "text": zlib.crc32(_bytes(ids)),
        "held_out": None if held_out is None else zlib.crc32(_bytes(held_out)),
    }


def _bytes(tensor: Tensor) -> memoryview:
    return memoryview(tensor.detach().cpu().contiguous().numpy()).cast("B")


@contextlib.contextmanager
def _explained(folder: Path) -> Any:
    """What the operating system says about a folder that cannot be written, as one line."""
    try:
        yield
    except (OSError, RuntimeError, ValueError) as error:  # torch.save answers a full disk with a RuntimeError
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"cannot keep the training state in {folder}: {reason}") from error
