"""Passkey retrieval: can the model still read a number that it saw long ago?

A five-digit number is hidden in English filler and asked for at the end (Mohtashami and Jaggi 2023, §4.2). A plan
that drops or coarsens the wrong tokens loses it, while perplexity hardly moves.
"""

import random
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from rich.table import Table
from tqdm import tqdm

from kvcourse.cache import KVCache
from kvcourse.errors import InputError
from kvcourse.generation import generate
from kvcourse.plan import Plan, plan_or_default
from kvcourse.text import find_tokenizer, sample_text

_INSTRUCTION = "Below is a long text with a secret pass key in it. Find the pass key and remember it.\n\n"
_NEEDLE = "\n\nThe secret pass key is {key}. Remember it.\n\n"
_QUESTION = "\n\nWhat is the secret pass key? Answer with the number only."
_ANSWER = "The secret pass key is"
_CONTENT = "<<content>>"  # stands for the message while the chat template is rendered


@dataclass(frozen=True)
class PasskeyPrompt:
    """One prompt: `context` is read first, then `question`; together they are exactly `length` tokens.

    position: index of the first token of the sentence with the key. depth: 0 right after the instruction, 1 right
    before the question.
    """

    length: int
    depth: float
    seed: int
    key: str
    context: tuple[int, ...]
    question: tuple[int, ...]
    position: int


@dataclass(frozen=True)
class PasskeyTrial:
    """What came back for one prompt. hit: the first number in `answer` is `key`."""

    length: int
    depth: float
    seed: int
    key: str
    answer: str

    @property
    def hit(self) -> bool:
        found = re.search(r"\d+", self.answer)
        return found is not None and found[0] == self.key


@dataclass(frozen=True)
class Passkey:
    """All trials of one plan. Prints as a table: hits by length and depth."""

    plan: Plan
    trials: tuple[PasskeyTrial, ...]

    def hits(self, length: int | None = None, depth: float | None = None) -> int:
        """Keys retrieved, of all trials or of those with this length or depth."""
        return sum(trial.hit for trial in self._of(length, depth))

    def total(self, length: int | None = None, depth: float | None = None) -> int:
        """Trials, all or those with this length or depth."""
        return len(self._of(length, depth))

    def _of(self, length: int | None, depth: float | None) -> list[PasskeyTrial]:
        return [t for t in self.trials if length in (None, t.length) and depth in (None, t.depth)]

    def __rich__(self) -> Table:
        depths = sorted({trial.depth for trial in self.trials})
        table = Table(title="passkeys retrieved, by tokens of context and depth")
        table.add_column("tokens", justify="right")
        for depth in depths:
            table.add_column(f"depth {depth:g}", justify="right")
        table.add_column("all", justify="right")
        for length in sorted({trial.length for trial in self.trials}):
            cells = [
                f"{self.hits(length, depth)} of {self.total(length, depth)}" for depth in (*depths, None)
            ]
            table.add_row(f"{length:,}", *cells)
        return table


def passkey(
    model: Any,
    plan: Plan | None = None,
    *,
    lengths: Sequence[int] = (256, 1024),
    depths: Sequence[float] = (0.1, 0.5, 0.9),
    seeds: Sequence[int] = (0, 1),
    chunk: int = 256,
    max_new_tokens: int = 12,
    tokenizer: Any = None,
) -> Passkey:
    """Ask for a hidden number at every length, depth and seed, with a cache that follows `plan`.

    lengths: tokens of each whole prompt, chat template included. depths: 0 (start) to 1 (end). seeds: each draws
    another key and other filler; the prompts do not depend on the plan.
    The context is read in calls of `chunk` tokens and the question in a call of its own, so that a plan which
    evicts or quantises has done so before it can know what will be asked. The answer is decoded greedily.

    Errors: InputError without a tokenizer, for a depth outside 0 to 1, or a length that is too short for the
    question or, with the answer, longer than the model's positions.
    """
    plan = plan_or_default(plan)
    if chunk < 1 or max_new_tokens < 1:
        raise InputError(f"chunk={chunk}, max_new_tokens={max_new_tokens}: both must be at least 1")
    tokenizer = find_tokenizer(model, tokenizer)
    limit = model.config.max_position_embeddings
    for length in lengths:
        if length + max_new_tokens > limit:
            raise InputError(
                f"length {length} and {max_new_tokens} tokens of answer exceed the model's {limit} positions; "
                f"ask for at most {limit - max_new_tokens}"
            )
    prompts = [build_prompt(tokenizer, n, depth, seed) for n in lengths for depth in depths for seed in seeds]
    bar = tqdm(prompts, desc="passkeys", unit="prompt", delay=2, leave=False, file=sys.stderr, disable=None)
    return Passkey(plan, tuple(_ask(model, plan, tokenizer, p, chunk, max_new_tokens) for p in bar))


def build_prompt(tokenizer: Any, length: int, depth: float, seed: int) -> PasskeyPrompt:
    """A prompt of exactly `length` tokens with the key at `depth` of the filler.

    The pieces are joined as tokens, not as text, because text joined and tokenised again changes its length.
    With a chat template, the whole is one user message. Errors: InputError as for `passkey`.
    """
    if not 0 <= depth <= 1:
        raise InputError(f"depth {depth}: expected 0 (start of the text) to 1 (end)")
    draw = random.Random(seed)
    key = str(draw.randrange(10_000, 100_000))
    opening, closing = _frame(tokenizer)
    head = _encode(tokenizer, opening + _INSTRUCTION)
    needle = _encode(tokenizer, _NEEDLE.format(key=key))
    question = _encode(tokenizer, _QUESTION + closing)
    room = length - len(head) - len(needle) - len(question)
    if room < 0:
        raise InputError(
            f"length {length}: the instruction, key and question alone are {length - room} tokens"
        )
    filler = _filler(tokenizer, room, key, draw)
    before = round(depth * room)
    context = (*head, *filler[:before], *needle, *filler[before:])
    return PasskeyPrompt(length, depth, seed, key, context, tuple(question), len(head) + before)


def _filler(tokenizer: Any, tokens: int, key: str, draw: random.Random) -> list[int]:
    """Prose of exactly `tokens` tokens in which the key does not occur."""
    while True:
        ids = _encode(tokenizer, sample_text(max(1, tokens), seed=draw.randrange(1 << 30)))[:tokens]
        if key not in tokenizer.decode(ids):
            return ids


def _frame(tokenizer: Any) -> tuple[str, str]:
    """What the chat template puts before and after a user message; for a base model, the start of an answer."""
    if getattr(tokenizer, "chat_template", None) is None:
        return "", f"\n{_ANSWER}"
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": _CONTENT}], tokenize=False, add_generation_prompt=True
    )
    opening, _, closing = text.partition(_CONTENT)
    return opening, closing


def _encode(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False))


@torch.inference_mode()
def _ask(
    model: Any, plan: Plan, tokenizer: Any, prompt: PasskeyPrompt, chunk: int, max_new_tokens: int
) -> PasskeyTrial:
    device = next(model.parameters()).device
    cache = KVCache(model.config, plan, batch_size=1)
    context = torch.tensor([prompt.context], device=device)
    for part in context.split(chunk, dim=1):
        model(part, cache=cache, last_only=True)
    question = torch.tensor([prompt.question], device=device)
    new = generate(model, question, max_new_tokens=max_new_tokens, cache=cache)
    answer = tokenizer.decode(new[0].tolist(), skip_special_tokens=True).strip()
    return PasskeyTrial(prompt.length, prompt.depth, prompt.seed, prompt.key, answer)
