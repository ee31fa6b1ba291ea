"""Attention of one step over keys and values per head (MHA, GQA, MQA)."""

import torch
from torch import Tensor

from kvcourse.attend.paged import attend_pages
from kvcourse.attention.gqa import attention
from kvcourse.kernels import contiguous_decode
from kvcourse.step import Step
from kvcourse.storage.base import Store
from kvcourse.storage.contiguous import ContiguousStore
from kvcourse.storage.paged import PagedStore


def attend_heads(store: Store, q: Tensor, new: dict[str, Tensor], step: Step) -> Tensor:
    """What the new queries make of everything that `store` holds, the step's own tokens included.

    q: (batch, num_heads, tokens, head_dim). new: the step's k and v as they are stored, (batch, num_kv_heads, tokens,
    head_dim). A ring has them only after the commit. Returns (batch, num_heads, tokens, head_dim).
    """
    if step.width > 1 and max(step.past) == 0:
        return _attend_fresh(store, q, new, step)
    if isinstance(store, PagedStore):
        return attend_pages(store, q, step)
    if step.width == 1:
        return _decode(store, q, step)
    if store.window is None:
        return _attend_filled(store, q, step)
    return _attend_ring(store, q, new, step)


def _decode(store: ContiguousStore, q: Tensor, step: Step) -> Tensor:
    """One query per row over everything in the window: the fused kernel."""
    lengths, starts = step.lengths(store.window, store.slots)
    k, v = (store.arrays[name].to(q.dtype) for name in ("k", "v"))
    return contiguous_decode(q[:, :, 0], k, v, lengths, starts)[:, :, None]


def _attend_fresh(store: Store, q: Tensor, new: dict[str, Tensor], step: Step) -> Tensor:
    """Nothing was stored before: the new tokens see only each other, as they were stored."""
    k, v = (new[name].to(q.dtype) for name in ("k", "v"))
    if step.uniform and (store.window is None or step.width <= store.window):
        return attention(q, k, v, causal=True)
    return attention(q, k, v, step.mask(step.positions, store.window))


def _attend_filled(store: ContiguousStore, q: Tensor, step: Step) -> Tensor:
    """A chunk of queries over positions 0 … max(total) - 1, its own keys included."""
    keys = max(step.total)
    k, v = (store.span(name, step, 0, keys).to(q.dtype) for name in ("k", "v"))
    return attention(q, k, v, step.mask(torch.arange(keys, device=q.device)[None], None))


def _attend_ring(store: ContiguousStore, q: Tensor, new: dict[str, Tensor], step: Step) -> Tensor:
    """A chunk of queries over what the window still holds and the chunk itself, which is not in the ring yet."""
    old = min(store.window - 1, max(step.past))
    past = torch.tensor(step.past, device=q.device)
    # (batch, old); negative where a row has no such token
    before = past[:, None] - old + torch.arange(old, device=q.device)
    k, v = (torch.cat((store.gather(name, before), new[name]), dim=2).to(q.dtype) for name in ("k", "v"))
    return attention(q, k, v, step.mask(torch.cat((before, step.positions), dim=1), store.window))
