"""From a GGUF file to a folder that loads fast: config.json, float32 safetensors, tokenizer files."""

import contextlib
import errno
import io
import json
import shutil
import sys
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from unittest import mock

from tqdm import tqdm

# Steps differ too much in length for a rate or a remaining time to mean anything.
_BAR = "{desc}|{bar}| step {n_fmt} of {total_fmt}, {elapsed}{postfix}"


def convert_gguf(gguf: Path, folder: Path) -> None:
    """Dequantise a GGUF model with transformers and write it to `folder`.

    The weights are stored as float32: the values of Q4_1 (a 4-bit code times a float16 scale plus a float16
    minimum) are not exact in bfloat16.
    Errors: OSError when a file could not be written.
    """
    with tqdm(total=4, desc="loading transformers", bar_format=_BAR, file=sys.stderr, disable=None) as bar:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        where = {"gguf_file": gguf.name, "local_files_only": True}
        with quiet(), _tensors_shown_on(bar):
            _next_step(bar, "reading the tokenizer")
            tokenizer = AutoTokenizer.from_pretrained(gguf.parent, **where)
            _next_step(bar, "dequantising")
            model = AutoModelForCausalLM.from_pretrained(gguf.parent, dtype=torch.float32, **where)
            _next_step(bar, "writing float32 weights")
            folder.mkdir(parents=True, exist_ok=True)
            tokenizer.save_pretrained(folder)
        _write_config(model, folder / "config.json")
        _write_weights(model, folder / "model.safetensors")
        shutil.copymode(folder / "config.json", folder / "model.safetensors")  # safetensors makes it private
        _next_step(bar, "converted")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep messages and bars of transformers off the terminal, then put its settings back."""
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def _write_config(model, path: Path) -> None:
    config = model.config.to_diff_dict()
    config["architectures"] = [type(model).__name__]
    for packed_file_only in ("quantization_config", "_name_or_path", "_model_name_or_path"):
        config.pop(packed_file_only, None)
    path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _write_weights(model, path: Path) -> None:
    """Write the tensors directly: transformers refuses `save_pretrained` for a model that came from GGUF."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    state = model.state_dict()
    if model.config.tie_word_embeddings:
        state.pop("lm_head.weight", None)
    try:
        save_file(
            {name: tensor.contiguous() for name, tensor in state.items()}, path, metadata={"format": "pt"}
        )
    except SafetensorError as error:  # its only sign of a full disk
        raise OSError(errno.EIO, str(error)) from error


@contextlib.contextmanager
def _tensors_shown_on(bar: tqdm) -> Iterator[None]:
    """Let the GGUF loader report on `bar`: its own bar ignores the switch for the bars of transformers."""
    from transformers import modeling_gguf_pytorch_utils as loader

    def counted(tensors: Iterable, **_) -> Iterator:
        for done, tensor in enumerate(tensors, start=1):
            bar.set_postfix_str(f"{done} tensors")
            yield tensor

    with mock.patch.object(loader, "tqdm", counted, create=True):
        yield
    bar.set_postfix_str("")


def _next_step(bar: tqdm, description: str) -> None:
    bar.update()
    bar.set_description(description)
