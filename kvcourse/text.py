"""Text to measure on, and how it becomes token ids."""

import math
import platform
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True)
class SplitText:
    """Two texts without a paragraph in common, short ones aside (`split_text`).

    train_topics, held_out_topics: the topics that each is made of.
    """

    train: str
    held_out: str
    train_topics: tuple[str, ...]
    held_out_topics: tuple[str, ...]


# Headings and one-line examples occur in many topics and say nothing of what the next topic holds.
_SHARED_CHARACTERS = 60


def split_text(share: float = 0.15, seed: int = 0) -> SplitText:
    """The text of `sample_text` in two parts, by topic: one to train on, one to measure on.

    Topics of `pydoc_data.topics` quote each other: "specialnames" holds all of "customization". Topics that have a
    paragraph of at least 60 characters in common therefore stay on one side, and a paragraph that comes again
    is left out. share: how much of the text is held out, as nearly as whole topics allow. seed: decides which ones.

    Errors: InputError for a share outside 0 to 1.
    """
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 < share < 1:
        raise InputError(f"share={share!r}: expected a number between 0 and 1, such as 0.15")
    from pydoc_data.topics import topics

    texts = _without_repeats(topics)
    groups = _groups_that_share(topics)
    random.Random(read_count("seed", seed, least=0)).shuffle(groups)
    wanted = share * sum(map(len, texts.values()))
    held_out: list[str] = []
    for group in groups:
        size = sum(len(texts[name]) for name in group)
        if size <= wanted:  # a group that is too large stays in the training text
            held_out += group
            wanted -= size
    train = [name for group in groups for name in group if name not in held_out]
    parts = ["\n\n".join(texts[name] for name in names if texts[name]) for names in (train, held_out)]
    return SplitText(*parts, tuple(train), tuple(held_out))


def _paragraphs(text: str) -> list[str]:
    return re.split(r"\n\s*\n", text.strip())


def _without_repeats(topics: Mapping[str, str]) -> dict[str, str]:
    """Each topic without the paragraphs that it, or a topic earlier in the alphabet, already has."""
    seen: set[str] = set()
    texts = {}
    for name in sorted(topics):
        kept = []
        for paragraph in _paragraphs(topics[name]):
            words = " ".join(paragraph.split())
            if len(words) < _SHARED_CHARACTERS or words not in seen:
                kept.append(paragraph)
                seen.add(words)
        texts[name] = "\n\n".join(kept)
    return texts


def _groups_that_share(topics: Mapping[str, str]) -> list[list[str]]:
    """The topics in groups, so that no long paragraph occurs in two groups. Sorted by their first topic."""
    group_of: dict[str, set[str]] = {name: {name} for name in sorted(topics)}
    first_with: dict[str, str] = {}
    for name in sorted(topics):
        for paragraph in _paragraphs(topics[name]):
            words = " ".join(paragraph.split())
            if len(words) < _SHARED_CHARACTERS:
                continue
            other = first_with.setdefault(words, name)
            if group_of[other] is not group_of[name]:
                joined = group_of[other] | group_of[name]
                group_of.update(dict.fromkeys(joined, joined))
    return sorted({id(group): sorted(group) for group in group_of.values()}.values())


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
