"""Decode tokens one by one."""

import itertools
from collections.abc import Iterable

import torch
from torch import Tensor

from kvcourse.attention.padding import read_mask
from kvcourse.cache import KVCache
from kvcourse.counts import is_number, read_count
from kvcourse.errors import InputError
from kvcourse.model import Decoder, check_ids


@torch.no_grad()
def generate(
    model: Decoder,
    input_ids: Tensor,
    max_new_tokens: int = 64,
    cache: KVCache | None = None,
    attention_mask: Tensor | None = None,
    *,
    use_cache: bool = True,
    eos_token_id: int | Iterable[int] | None = None,
    temperature: float = 0.0,
    seed: int | None = None,
) -> Tensor:
    """Continue each row of `input_ids` by up to `max_new_tokens` tokens.

    input_ids: (batch, tokens). attention_mask: (batch, tokens), 0 for padding on the left. cache: a KVCache that
    may already hold earlier tokens; None makes one with the default plan. use_cache: False runs the whole text
    through the model for every token, as chapter 1 does first. eos_token_id: one id or several that end a row,
    which then repeats the first of them; the model's own by default, () for none. temperature: 0 takes the most
    likely token, more samples, reproducibly with `seed`.

    Returns (batch, new) int64: the new tokens only, `new` ≤ max_new_tokens. The cache then holds all but the last of
    them: begin the next call with it.
    """
    if not isinstance(model, Decoder):
        raise InputError(f"model is a {type(model).__name__}: expected what load_model or tiny_model gives")
    max_new_tokens = read_count("max_new_tokens", max_new_tokens, least=0)
    if not is_number(temperature) or temperature < 0:
        raise InputError(f"temperature={temperature!r}: expected 0 (greedy) or a positive number")
    if cache is not None and not isinstance(cache, KVCache):
        raise InputError(f"cache is a {type(cache).__name__}: expected a kvcourse.KVCache or None")
    if not use_cache and cache is not None:
        raise InputError("use_cache=False with a cache: leave one of the two out")
    check_ids(input_ids)
    if attention_mask is not None:
        attention_mask = read_mask(attention_mask, *input_ids.shape, model.device)
    _check_room(model, input_ids.shape[1], max_new_tokens, cache, attention_mask)
    ends = torch.tensor(_read_ends(model, eos_token_id), dtype=torch.long, device=model.device)
    batch = input_ids.shape[0]
    if use_cache and cache is None:
        cache = KVCache(model.config, batch_size=batch)
    generator = (
        None if seed is None else torch.Generator(model.device).manual_seed(read_count("seed", seed, least=0))
    )
    text, mask = input_ids.to(model.device), attention_mask
    done = torch.zeros(batch, dtype=torch.bool, device=model.device)
    new: list[Tensor] = []
    while len(new) < max_new_tokens and not done.all():
        logits = model(text, cache, mask, last_only=True)[:, 0]  # (batch, vocab)
        token = _choose(logits, temperature, generator)  # (batch,)
        if len(ends):
            token = torch.where(done, ends[0], token)
            done |= torch.isin(token, ends)
        new.append(token)
        if use_cache:
            text, mask = token[:, None], None
        else:
            text = torch.cat((text, token[:, None]), dim=1)
            mask = None if mask is None else torch.cat((mask, mask.new_ones(batch, 1)), dim=1)
    return torch.stack(new, dim=1) if new else input_ids.new_zeros(batch, 0).long()


def _read_ends(model: Decoder, eos_token_id: int | Iterable[int] | None) -> list[int]:
    """The ids that end a row."""
    ends = model.config.eos_token_ids if eos_token_id is None else eos_token_id
    single = not isinstance(ends, Iterable) or getattr(ends, "ndim", 1) == 0
    return [read_count("eos_token_id", end, least=0) for end in ([ends] if single else ends)]


def _check_room(
    model: Decoder, width: int, max_new_tokens: int, cache: KVCache | None, attention_mask: Tensor | None
) -> None:
    """Refuse before the first step what would fail at the last one; the last new token is never fed back."""
    new = [width] if attention_mask is None else attention_mask.sum(-1).tolist()
    past = (0,) if cache is None else cache.seen
    more = max(max_new_tokens - 1, 0)
    # Row by row where both differ: the row that has seen most need not be the one that gets most.
    rows = zip(past, new, strict=True) if len(past) == len(new) else itertools.product(past, new)
    totals = [sum(row) + more for row in rows]
    if max(totals) > model.config.max_position_embeddings:
        raise InputError(
            f"{max(totals)} positions for the text and {max_new_tokens} new tokens: this model has "
            f"{model.config.max_position_embeddings}; lower max_new_tokens or shorten the text"
        )
    if cache is not None and len(totals) == cache.batch_size:
        cache.require_room(totals)


def _choose(logits: Tensor, temperature: float, generator: torch.Generator | None) -> Tensor:
    if temperature == 0:
        return logits.argmax(-1)
    logits = logits.float() - logits.float().amax(-1, keepdim=True)  # the largest is 0 at any temperature
    chances = torch.softmax(logits.double() / temperature, dim=-1).float()
    return torch.multinomial(chances, 1, generator=generator)[:, 0]
