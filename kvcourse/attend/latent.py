"""Attention of one step over latents and shared rotary keys (MLA)."""

import torch
from torch import Tensor

from kvcourse.attention.gqa import attention_with_lse
from kvcourse.attention.mla import UpProjection, expanded_attention, expanded_key_value
from kvcourse.kernels import merge_states, mla_decode
from kvcourse.step import Step
from kvcourse.storage.base import Store
from kvcourse.storage.contiguous import ContiguousStore
from kvcourse.storage.paged import PagedStore

PART = 512  # cached tokens that are expanded at once: 160 KB each for DeepSeek-V3's heads in float32


def attend_latent(
    store: Store,
    q_nope: Tensor,
    q_rope: Tensor,
    new: dict[str, Tensor],
    step: Step,
    up: UpProjection,
    scale: float,
) -> Tensor:
    """What the new queries make of everything that `store` holds, the step's own tokens included.

    q_nope: (batch, num_heads, tokens, qk_nope_head_dim). q_rope: (batch, num_heads, tokens, qk_rope_head_dim).
    new: the step's latent and rope as they are stored, (batch, 1, tokens, dim).
    Returns (batch, num_heads, tokens, v_head_dim).
    """
    if step.width == 1:
        return _decode(store, q_nope, q_rope, step, up, scale)
    if max(step.past) == 0:
        return _attend_fresh(q_nope, q_rope, new, step, up, scale)
    return _attend_filled(store, q_nope, q_rope, step, up, scale)


def _decode(
    store: Store, q_nope: Tensor, q_rope: Tensor, step: Step, up: UpProjection, scale: float
) -> Tensor:
    """One query per row: the absorbed form, by the fused kernel."""
    paged = isinstance(store, PagedStore)
    pages = _pages_of(store, step, q_nope.dtype) if paged else _row_pages(store, step)
    latent, rope = (values.to(q_nope.dtype) for values in pages[:2])
    q_latent = up.absorb(q_nope)[:, :, 0]  # (B, H, R)
    out = mla_decode(q_latent, q_rope[:, :, 0], latent, rope, *pages[2:], scale)
    return up.project(out[:, :, None])


def _row_pages(store: ContiguousStore, step: Step) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Latents, rotary keys, block table and lengths of contiguous rows: the array of each row is one page."""
    lengths, _ = step.lengths(None, store.slots)
    if "pages" not in step.shared:
        rows = torch.arange(store.batch_size, dtype=torch.int32, device=lengths.device)
        step.shared["pages"] = rows[:, None]  # (batch, 1)
    return store.arrays["latent"][:, 0], store.arrays["rope"][:, 0], step.shared["pages"], lengths


def _pages_of(store: PagedStore, step: Step, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The same of pages; where they hold no numbers of this dtype, decoded into a page a row, not the whole pool."""
    lengths = store.rows.lengths(step)
    if store.reads_as(dtype):
        latent, rope = (store.pages[name].values[:, 0] for name in ("latent", "rope"))
        return latent, rope, store.rows.table(step), lengths
    latent, rope = (store.span(name, step, 0, max(step.total))[:, 0] for name in ("latent", "rope"))
    return latent, rope, torch.arange(len(latent), device=lengths.device)[:, None], lengths


def _attend_fresh(
    q_nope: Tensor, q_rope: Tensor, new: dict[str, Tensor], step: Step, up: UpProjection, scale: float
) -> Tensor:
    """Nothing was stored before: the new tokens see only each other, as they were stored. The expanded form."""
    latent, rope = (new[name][:, 0].to(q_nope.dtype) for name in ("latent", "rope"))
    if step.uniform:
        return expanded_attention(q_nope, q_rope, latent, rope, up, scale, causal=True)
    return expanded_attention(q_nope, q_rope, latent, rope, up, scale, step.mask(step.positions, None))


def _attend_filled(
    store: Store, q_nope: Tensor, q_rope: Tensor, step: Step, up: UpProjection, scale: float
) -> Tensor:
    """A chunk of queries over positions 0 … max(total) - 1: the expanded form, part by part.

    Expanding everything would take many times the cache's own memory; states of attention over disjoint tokens
    merge exactly (FlashInfer, arXiv 2501.01005, §2.2), so only one part is expanded at a time.
    """
    q, state = torch.cat((q_nope, q_rope), dim=-1), None
    for first in range(0, max(step.total), PART):
        last = min(first + PART, max(step.total))
        latent, rope = (store.span(name, step, first, last)[:, 0].to(q.dtype) for name in ("latent", "rope"))
        k, v = expanded_key_value(latent, rope, up)
        mask = step.mask(torch.arange(first, last, device=q.device)[None], None, first)
        part = attention_with_lse(q, k, v, mask, scale)
        state = part if state is None else merge_states(*state, *part)
    return state[0].to(q.dtype)
