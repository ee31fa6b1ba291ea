"""Text to measure on, and how it becomes token ids."""

import math
import platform
import random
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from kvcourse.counts import read_count
from kvcourse.errors import InputError

Text = str | Sequence[int] | Tensor

# No common tokenizer packs more characters of English prose into a token, on average.
_CHARACTERS_PER_TOKEN = 8


def sample_text(tokens: int, seed: int = 0) -> str:
    """English prose, at least `tokens` tokens of it for any common tokenizer: Python's own documentation.

    The topics of `pydoc_data.topics`, sorted by name and shuffled by `seed`, repeated only when they run out. The
    text is the same on every machine with the same Python version, and differs a little between versions: quote
    `text_source()` with a result.
    """
    tokens = read_count("tokens", tokens)
    from pydoc_data.topics import topics

    order = sorted(topics)
    random.Random(seed).shuffle(order)
    body = "\n\n".join(topics[name].strip() for name in order)
    characters = tokens * _CHARACTERS_PER_TOKEN
    return (body * math.ceil(characters / len(body)))[:characters]


def text_source() -> str:
    """Where `sample_text` comes from, with the Python version that decides its wording."""
    return f"pydoc_data.topics of Python {platform.python_version()}"


def token_ids(model: Any, text: Text, tokenizer: Any = None, max_tokens: int | None = None) -> list[int]:
    """The first `max_tokens` token ids of a string (needs a tokenizer) or of a sequence of ids.

    Errors: InputError for a string without a tokenizer, more tokens than the model has positions, or ids outside
    its vocabulary.
    """
    if isinstance(text, str):
        ids = list(find_tokenizer(model, tokenizer).encode(text, add_special_tokens=False))
    else:
        ids = _as_ids(text)
    ids = ids if max_tokens is None else ids[: read_count("max_tokens", max_tokens)]
    limit, vocabulary = model.config.max_position_embeddings, model.config.vocab_size
    if len(ids) > limit:
        raise InputError(
            f"{len(ids)} tokens, but the model has {limit} positions; pass max_tokens={limit} or less"
        )
    outside = [token for token in ids if not 0 <= token < vocabulary]
    if outside:
        raise InputError(
            f"token id {outside[0]} is outside the vocabulary of {vocabulary}: the ids come from another tokenizer"
        )
    return ids


def _as_ids(text: Any) -> list[int]:
    try:
        ids = torch.as_tensor(text)
    except (TypeError, ValueError, RuntimeError):
        ids = None
    if ids is not None and ids.numel() == 0:
        return []
    if ids is None or ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        raise InputError(f"text is a {type(text).__name__}: expected a string, or whole numbers as token ids")
    return ids.flatten().tolist()


def find_tokenizer(model: Any, tokenizer: Any = None) -> Any:
    """`tokenizer`, or the one that `load_model` put on the model. Errors: InputError when there is none."""
    found = tokenizer if tokenizer is not None else getattr(model, "tokenizer", None)
    if found is None:
        raise InputError("this model has no tokenizer: pass tokenizer=, or token ids instead of text")
    return found
