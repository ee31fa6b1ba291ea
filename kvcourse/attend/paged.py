"""Attention of one step over pages: the fused kernels where they can read them, else the generic path."""

import torch
from torch import Tensor

from kvcourse.attention.gqa import attention
from kvcourse.kernels import paged_decode, paged_prefill
from kvcourse.step import Step
from kvcourse.storage.paged import PagedStore


def attend_pages(store: PagedStore, q: Tensor, step: Step) -> Tensor:
    """What the new queries make of everything that `store` holds, the step's own tokens included.

    q: (batch, num_heads, tokens, head_dim). Returns (batch, num_heads, tokens, head_dim).
    """
    if not store.reads_as(q.dtype):
        return _attend_gathered(store, q, step)
    pages = (store.pages["k"].values, store.pages["v"].values)
    table, lengths = store.rows.table(step), store.rows.lengths(step)
    if step.width == 1:
        return paged_decode(q[:, :, 0], *pages, table, lengths, window=store.window)[:, :, None]
    return _prefill(store, q, pages, table, lengths, step)


def _prefill(
    store: PagedStore, q: Tensor, pages: tuple[Tensor, Tensor], table: Tensor, lengths: Tensor, step: Step
) -> Tensor:
    """Several queries a row, packed without their padding."""
    batch, num_heads, width, head_dim = q.shape
    starts = store.rows.starts(step)
    packed = q.transpose(1, 2).reshape(-1, num_heads, head_dim)  # (batch × width, num_heads, head_dim)
    if min(step.new) == width:
        out = paged_prefill(packed, *pages, table, lengths, starts, window=store.window)
        return out.unflatten(0, (batch, width)).transpose(1, 2)
    real = store.rows.real(step)  # from Python's numbers: a mask would make a GPU wait for them
    out = q.new_zeros(batch * width, num_heads, pages[1].shape[-1])
    out[real] = paged_prefill(packed[real], *pages, table, lengths, starts, window=store.window)
    return out.unflatten(0, (batch, width)).transpose(1, 2)


def _attend_gathered(store: PagedStore, q: Tensor, step: Step) -> Tensor:
    """The generic path, right for every codec: decode what is in the window, then attend with a mask."""
    first = 0 if store.window is None else max(0, min(step.past) + 1 - store.window)
    position = torch.arange(first, max(step.total), device=q.device)[None]  # (1, keys)
    rows = position.expand(len(step.past), -1)
    k, v = (store.gather(name, step, rows).to(q.dtype) for name in ("k", "v"))
    return attention(q, k, v, step.mask(position, store.window, first))
