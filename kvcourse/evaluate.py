"""What a plan costs in quality: perplexity, KL divergence, top-1 agreement and passkey retrieval.

All arms of a comparison read the same tokens in the same chunks: `prefill` tokens in one call, the rest
teacher-forced in calls of `chunk` tokens (chunk=1 is token by token, as in decoding). The plans under test and the
full cache advance side by side, so the reference runs once for any number of plans and no logits are kept.
"""

import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from kvcourse.cache import KVCache
from kvcourse.counts import read_count
from kvcourse.errors import InputError
from kvcourse.passkey import Passkey, PasskeyTrial, passkey
from kvcourse.plan import Plan, plan_or_default
from kvcourse.text import Text, sample_text, text_source, token_ids

__all__ = [
    "Agreement",
    "Divergence",
    "Passkey",
    "PasskeyTrial",
    "Perplexity",
    "Quality",
    "compare_plans",
    "kl",
    "passkey",
    "perplexity",
    "sample_text",
    "text_source",
    "top1_agreement",
]

PREFILL, CHUNK, MAX_TOKENS = 256, 64, 2048


@dataclass(frozen=True)
class Quality:
    """How one plan predicts a text, next to the full cache.

    nats: mean cross entropy per token. kl: mean KL(full cache ‖ plan) in nats per token. top1: share of positions
    where both have the same most likely token. tokens: positions that were scored, all but the first `prefill`.
    """

    plan: Plan
    tokens: int
    nats: float
    kl: float
    top1: float

    @property
    def ppl(self) -> float:
        return math.exp(self.nats)


@dataclass(frozen=True)
class Perplexity:
    """nats: mean cross entropy per token, over the `tokens` positions after the prefill. ppl: its exponential."""

    plan: Plan
    tokens: int
    nats: float

    @property
    def ppl(self) -> float:
        return math.exp(self.nats)


@dataclass(frozen=True)
class Divergence:
    """nats: mean KL(full cache ‖ plan) per token, over `tokens` positions; 0 means the same predictions."""

    plan: Plan
    tokens: int
    nats: float


@dataclass(frozen=True)
class Agreement:
    """share: positions, of `tokens`, where the plan and the full cache have the same most likely token."""

    plan: Plan
    tokens: int
    share: float


def perplexity(
    model: Any,
    text: Text,
    plan: Plan | None = None,
    *,
    prefill: int = PREFILL,
    chunk: int = CHUNK,
    tokenizer: Any = None,
    max_tokens: int | None = MAX_TOKENS,
) -> Perplexity:
    """Perplexity of `model` on `text` when its cache follows `plan` (default: the full cache).

    text: a string (needs model.tokenizer or `tokenizer`) or token ids; its first max_tokens tokens count.
    prefill: tokens read in the first call and not scored. chunk: tokens per call after that.

    Errors: InputError for a text of fewer than prefill + 1 tokens, more tokens than the model's positions, token
    ids outside the vocabulary, a string without a tokenizer, or a plan that is not a Plan.
    """
    plan = plan_or_default(plan)
    ids = token_ids(model, text, tokenizer, max_tokens)
    total = 0.0
    for targets, logp in _walk(model, ids, {"plan": plan}, prefill, chunk):
        total += _cross_entropy(logp["plan"], targets)
    count = len(ids) - prefill
    return Perplexity(plan, count, total / count)


def kl(model: Any, text: Text, plan: Plan, **options: Any) -> Divergence:
    """Mean KL(full cache ‖ plan), teacher-forced. `options` and errors as for `perplexity`."""
    quality = compare_plans(model, text, {"plan": plan}, **options)["plan"]
    return Divergence(quality.plan, quality.tokens, quality.kl)


def top1_agreement(model: Any, text: Text, plan: Plan, **options: Any) -> Agreement:
    """How often the most likely token is that of the full cache. `options` and errors as for `perplexity`."""
    quality = compare_plans(model, text, {"plan": plan}, **options)["plan"]
    return Agreement(quality.plan, quality.tokens, quality.top1)


def compare_plans(
    model: Any,
    text: Text,
    plans: Mapping[str, Plan],
    *,
    prefill: int = PREFILL,
    chunk: int = CHUNK,
    tokenizer: Any = None,
    max_tokens: int | None = MAX_TOKENS,
) -> dict[str, Quality]:
    """Perplexity, KL and top-1 agreement of several plans in one pass, the full cache run once.

    plans: name to Plan. Returns the same names in the same order. Other arguments and errors as for `perplexity`.
    """
    plans = {name: plan_or_default(plan) for name, plan in plans.items()}
    ids = token_ids(model, text, tokenizer, max_tokens)
    nats, divergence, same = (dict.fromkeys(plans, 0.0) for _ in range(3))
    full = object()  # a key that no name of the caller can equal
    for targets, logp in _walk(model, ids, {full: Plan(), **plans}, prefill, chunk):
        reference = logp.pop(full)
        for name, arm in logp.items():
            nats[name] += _cross_entropy(arm, targets)
            divergence[name] += _kl_sum(reference, arm)
            same[name] += float((reference.argmax(-1) == arm.argmax(-1)).sum())
    count = len(ids) - prefill
    return {
        name: Quality(plan, count, nats[name] / count, divergence[name] / count, same[name] / count)
        for name, plan in plans.items()
    }


@torch.inference_mode()
def _walk(
    model: Any, ids: list[int], plans: Mapping[Any, Plan], prefill: int, chunk: int
) -> Iterator[tuple[Tensor, dict[Any, Tensor]]]:
    """Yield (targets, log-probabilities by arm) call by call.

    targets: (n,) token ids; log-probabilities: (n, vocab), float64. The last token of a call predicts the first of
    the next one, so the last token of the text is only ever a target.
    """
    prefill, chunk = read_count("prefill", prefill), read_count("chunk", chunk)
    if len(ids) <= prefill:
        raise InputError(
            f"the text has {len(ids)} tokens and prefill={prefill}: nothing is left to score; "
            f"give at least {prefill + 1} tokens or a smaller prefill"
        )
    caches = {name: KVCache(model.config, plan, batch_size=1) for name, plan in plans.items()}
    tokens = torch.tensor([ids], device=next(model.parameters()).device)
    starts = [0, *range(prefill, len(ids) - 1, chunk)]
    for start, stop in zip(
        tqdm(starts, desc="scoring", unit="call", delay=2, leave=False, file=sys.stderr, disable=None),
        [*starts[1:], len(ids) - 1],
        strict=True,
    ):
        logp = {}
        for name, cache in caches.items():
            logits = model(tokens[:, start:stop], cache=cache, last_only=start == 0)[0]
            logp[name] = logits.double().log_softmax(-1)
        first = stop if start == 0 else start + 1
        yield tokens[0, first : stop + 1], logp


def _cross_entropy(logp: Tensor, targets: Tensor) -> float:
    """Sum over positions of −log p(target), in nats."""
    return -float(logp.gather(-1, targets[:, None]).sum())


def _kl_sum(reference: Tensor, logp: Tensor) -> float:
    """Sum over positions of KL(reference ‖ other) = Σ p (log p − log q); both are log-probabilities."""
    # Where p is 0, p (log p − log q) is 0 by continuity, while the product would be 0 × −inf.
    p = reference.exp()
    terms = torch.where(p > 0, p * (reference - logp), 0.0)
    # A sum of rounding errors may fall below the 0 that bounds every KL divergence.
    return float(terms.sum(-1).clamp_min(0.0).sum())
