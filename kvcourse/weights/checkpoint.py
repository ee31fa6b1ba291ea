"""Read a model folder: config.json and safetensors, single or sharded, into a Decoder with its tokenizer."""

import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file

from kvcourse.config import ModelConfig
from kvcourse.errors import InputError
from kvcourse.hf_config import read_config
from kvcourse.paths import user_path
from kvcourse.placement import read_device, read_dtype
from kvcourse.weights.conversion import quiet
from kvcourse.weights.source import BUILT_IN
from kvcourse.weights.store import fetch

if TYPE_CHECKING:
    from kvcourse.model import Decoder

_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_SHOWN = 3  # names listed of each kind of mismatch


def load_model(
    name_or_path: str | Path = "smollm2-135m",
    device: str | torch.device | None = None,
    dtype: torch.dtype = torch.float32,
) -> "tuple[Decoder, Any]":
    """Load a model of the Llama or DeepSeek family and its tokenizer.

    name_or_path: a built-in name (fetched on first use), a folder, or a name on the Hugging Face Hub.
    device: where the weights go; None takes CUDA when there is one, else the CPU.
    dtype: floating-point type of the weights; routers of experts keep at least float32.

    Returns (model, tokenizer). The model is in eval mode, without gradients, and `model.tokenizer` is the same
    tokenizer; it is None for a folder that holds none.
    Errors: InputError for an unknown name, no network, a model type that the decoder does not run, tensors that are
    missing, unexpected or of another shape, an impossible device or dtype.
    """
    from kvcourse.model import Decoder

    device, dtype = read_device(device), read_dtype(dtype)
    folder = locate(name_or_path)
    raw, state = load_state(folder)
    config = ModelConfig.from_hf(raw)
    with torch.device("meta"):  # no memory and no random numbers for weights that are replaced at once
        model = Decoder(config)
    expected = {name: tensor.shape for name, tensor in model.state_dict().items()}
    if config.tie_word_embeddings:
        del expected["lm_head.weight"]
    _check_fit(folder, expected, state)
    state = {name: tensor.to(device=device, dtype=_dtype_of(name, dtype)) for name, tensor in state.items()}
    if config.tie_word_embeddings:
        state["lm_head.weight"] = state["embed_tokens.weight"]
    model.load_state_dict(state, assign=True)
    model.tie_weights()
    model.to(device).eval().requires_grad_(False)
    model.tokenizer = _load_tokenizer(folder)
    return model, model.tokenizer


def locate(name_or_path: str | Path) -> Path:
    """The folder of a model: built-in names are fetched, hub names downloaded, folders taken as they are."""
    text = str(name_or_path)
    if text in BUILT_IN:
        return fetch(text)
    folder = user_path(text)
    if text and os.path.isdir(folder):  # Path("") would be the current folder
        return folder
    if _HUB_NAME.fullmatch(text):
        return _download_from_hub(text)
    known = ", ".join(sorted(BUILT_IN))
    raise InputError(
        f"no model {text!r}: give a built-in name ({known}), a folder, or a hub name like org/name"
    )


def load_state(folder: str | Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Read the config and the tensors of a model folder.

    Names are Hugging Face's without the leading "model."; `lm_head.weight` is dropped when it is tied to the
    embedding, and so are DeepSeek-V3's layers for multi-token prediction, which come after the last one. Tensors
    keep their stored type. They are mapped from the file: bytes are read when first used.
    Errors: InputError for no config or no safetensors in the folder, a missing shard, a damaged file, or quantised
    weights.
    """
    folder = Path(folder)
    raw = read_config(folder)
    if quantized := raw.get("quantization_config"):
        method = quantized.get("quant_method") if isinstance(quantized, dict) else quantized
        raise InputError(f"{folder} holds weights quantised with {method}; give the unquantised model")
    state: dict[str, torch.Tensor] = {}
    for path in weight_files(folder):
        try:
            tensors = load_file(path)
        except (SafetensorError, OSError) as error:
            raise InputError(f"{path} is truncated or damaged ({error}); download it again") from error
        state.update((name.removeprefix("model."), tensor) for name, tensor in tensors.items())
    if raw.get("tie_word_embeddings"):
        state.pop("lm_head.weight", None)
    if raw.get("num_nextn_predict_layers"):
        state = {
            name: tensor
            for name, tensor in state.items()
            if not _is_beyond(name, raw.get("num_hidden_layers"))
        }
    # Old Llama checkpoints store the rotary frequencies, which follow from the config.
    return raw, {name: tensor for name, tensor in state.items() if not name.endswith("rotary_emb.inv_freq")}


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a model folder, in order. Errors: InputError when one is missing."""
    if (folder / _SINGLE).is_file():
        return [folder / _SINGLE]
    if not (folder / _INDEX).is_file():
        raise InputError(
            f"{folder} has neither {_SINGLE} nor {_INDEX}; only safetensors checkpoints are read"
        )
    try:
        names = sorted(set(json.loads((folder / _INDEX).read_text(encoding="utf-8"))["weight_map"].values()))
        missing = [name for name in names if not (folder / name).is_file()]
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise InputError(
            f"{folder / _INDEX} is not an index of safetensors files; download it again"
        ) from error
    if missing:
        raise InputError(f"{folder} lacks {_listed(missing)} that its index names; download the model again")
    return [folder / name for name in names]


def describe(folder: Path) -> dict[str, Any]:
    """Parameters, stored types and bytes of each file of a model folder; reads only the headers."""
    parameters, dtypes = 0, set()
    for path in weight_files(folder):
        try:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 (not a dict)
                    tensor = file.get_slice(name)
                    parameters += torch.Size(tensor.get_shape()).numel()
                    dtypes.add(tensor.get_dtype())
        except (SafetensorError, OSError) as error:
            raise InputError(f"{path} is truncated or damaged ({error}); download it again") from error
    files = {path.name: path.stat().st_size for path in sorted(folder.iterdir()) if path.is_file()}
    return {"parameters": parameters, "dtypes": sorted(dtypes), "bytes": sum(files.values()), "files": files}


def _dtype_of(name: str, dtype: torch.dtype) -> torch.dtype:
    """Routers stay wide, as in transformers: rounded scores would send tokens to other experts."""
    return torch.promote_types(dtype, torch.float32) if ".mlp.gate." in name else dtype


def _is_beyond(name: str, layers: Any) -> bool:
    """Whether a tensor belongs to a layer after the last of `layers`."""
    head, _, rest = name.partition(".")
    number = rest.partition(".")[0]
    return head == "layers" and number.isdecimal() and isinstance(layers, int) and int(number) >= layers


def _check_fit(folder: Path, expected: dict[str, torch.Size], state: dict[str, torch.Tensor]) -> None:
    problems = {
        "missing": [name for name in expected if name not in state],
        "unexpected": [name for name in state if name not in expected],
        "of whole numbers": [name for name, tensor in state.items() if not tensor.is_floating_point()],
        "of another shape": [
            f"{name} {tuple(tensor.shape)} for {tuple(expected[name])}"
            for name, tensor in state.items()
            if name in expected and tensor.shape != expected[name]
        ],
    }
    found = [f"{len(names)} {kind}: {_listed(names)}" for kind, names in problems.items() if names]
    if found:
        raise InputError(f"the tensors in {folder} do not fit its config.json; {'; '.join(found)}")


def _load_tokenizer(folder: Path) -> Any:
    if not any((folder / name).is_file() for name in _TOKENIZER_FILES):
        return None
    from transformers import AutoTokenizer

    with quiet():
        try:
            return AutoTokenizer.from_pretrained(folder, local_files_only=True)
        except Exception as error:  # a damaged tokenizer raises whatever the reader of its kind does
            raise InputError(
                f"{folder} has tokenizer files that cannot be read ({type(error).__name__}); download them again"
            ) from error


def _download_from_hub(name: str) -> Path:
    import huggingface_hub
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    try:
        return Path(
            huggingface_hub.snapshot_download(
                name,
                allow_patterns=["*.json", "*.safetensors", "*.jinja", "tokenizer*", "*.model"],
                ignore_patterns=["original/*", "consolidated*"],  # the same weights in another layout
            )
        )
    except GatedRepoError as error:
        raise InputError(
            f"{name} is gated: accept its licence on the hub, then run: hf auth login"
        ) from error
    except RepositoryNotFoundError as error:
        raise InputError(f"the hub has no model {name}, or it is private; check the name") from error
    except Exception as error:  # the client lets errors of several network libraries through
        kind = type(error).__name__
        raise InputError(
            f"cannot download {name} from the Hugging Face Hub ({kind}); check the network, or give a folder"
        ) from error


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
