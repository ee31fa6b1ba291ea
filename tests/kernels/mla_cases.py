"""Inputs of absorbed latent decode and its answer by plain loops, shared by the tests of every backend."""

import math
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from hypothesis import strategies as st
from strided import copied

# num_heads, kv_lora_rank, qk_rope_head_dim: DeepSeek's, and some that fill no vector or end inside one.
DEEPSEEK_LITE, DEEPSEEK = (16, 512, 64), (128, 512, 64)
SHAPES = [(3, 24, 7), (1, 8, 2), (4, 64, 16), (9, 33, 8), (17, 70, 12), (128, 16, 4), DEEPSEEK_LITE]
LAYOUTS = ("separate", "fused", "gaps", "blocks_inside", "dims_first")


@dataclass
class Case:
    """Arguments of mla_decode. Slots that no row may read hold NaN, unused entries of the table name no block."""

    q_latent: torch.Tensor
    q_rope: torch.Tensor
    latent_pages: torch.Tensor
    rope_pages: torch.Tensor
    block_table: torch.Tensor
    seq_lens: torch.Tensor
    scale: float

    @property
    def arguments(self):
        return tuple(getattr(self, field.name) for field in fields(self))

    def to(self, device, dtype):
        """The same case elsewhere, strides kept."""
        names = ("q_latent", "q_rope", "latent_pages", "rope_pages")
        return replace(self, **{name: copied(getattr(self, name), device, dtype) for name in names})

    def row(self, index):
        """The case of one row alone."""
        one = slice(index, index + 1)
        names = ("q_latent", "q_rope", "block_table", "seq_lens")
        return replace(self, **{name: getattr(self, name)[one] for name in names})


def make_pages(layout, num_blocks, block_size, rank, rope_dim):
    """(latent, rope) pages in float64, all NaN, with the strides of a layout that caches use."""
    empty = lambda *shape: torch.full(shape, math.nan, dtype=torch.float64)  # noqa: E731
    if layout == "fused":
        return empty(num_blocks, block_size, rank + rope_dim).split([rank, rope_dim], dim=-1)
    if layout == "gaps":
        wide = empty(num_blocks + 1, block_size, rank + rope_dim + 5)[1:]
        return wide[..., 1 : 1 + rank], wide[..., rank + 3 : rank + 3 + rope_dim]
    if layout == "blocks_inside":
        return tuple(empty(block_size, num_blocks, dim).transpose(0, 1) for dim in (rank, rope_dim))
    if layout == "dims_first":
        return tuple(empty(num_blocks, dim, block_size).mT for dim in (rank, rope_dim))
    return tuple(empty(num_blocks, block_size, dim) for dim in (rank, rope_dim))


def make_case(shape, lengths, block_size, layout="separate", scale=None, seed=0, spare=2):
    """Rows of the given lengths in blocks drawn at random from a pool with `spare` more than they need."""
    num_heads, rank, rope_dim = shape
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *size: torch.randn(*size, generator=generator, dtype=torch.float64)  # noqa: E731
    batch, used = len(lengths), [-(-length // block_size) for length in lengths]
    order = torch.randperm(sum(used) + spare, generator=generator).tolist()
    latent_pages, rope_pages = make_pages(layout, len(order), block_size, rank, rope_dim)
    width = max(used, default=0) + 1
    table = torch.full((batch, width), 2**31 - 1, dtype=torch.int32)
    table[:, 1::2] = -1
    for row, length in enumerate(lengths):
        blocks = torch.tensor([order.pop() for _ in range(used[row])], dtype=torch.int32)
        table[row, : used[row]] = blocks
        tokens = torch.arange(length)
        place = blocks[tokens // block_size].long(), tokens % block_size
        latent_pages[place], rope_pages[place] = draw(length, rank), draw(length, rope_dim)
    scale = (rank + rope_dim) ** -0.5 if scale is None else scale
    queries = draw(batch, num_heads, rank), draw(batch, num_heads, rope_dim)
    return Case(*queries, latent_pages, rope_pages, table, torch.tensor(lengths, dtype=torch.int64), scale)


def tokens_of(case, row):
    """(latents, rope keys) of a row, each (length, dims) in float64, gathered one by one."""
    size, latents, rope_keys = case.latent_pages.shape[1], [], []
    for token in range(int(case.seq_lens[row])):
        block = int(case.block_table[row, token // size])
        latents.append(case.latent_pages[block, token % size].double().cpu())
        rope_keys.append(case.rope_pages[block, token % size].double().cpu())
    if not latents:
        return case.latent_pages[0, :0].double().cpu(), case.rope_pages[0, :0].double().cpu()
    return torch.stack(latents), torch.stack(rope_keys)


def brute_force(case):
    """(out, natural-log lse) in float64, by loops over rows and heads."""
    batch, num_heads, rank = case.q_latent.shape
    out, lse = np.zeros((batch, num_heads, rank)), np.full((batch, num_heads), -math.inf)
    for row in range(batch):
        latents, rope_keys = (t.numpy() for t in tokens_of(case, row))
        for head in range(num_heads if len(latents) else 0):
            q_latent, q_rope = (q[row, head].double().cpu().numpy() for q in (case.q_latent, case.q_rope))
            scores = case.scale * (latents @ q_latent + rope_keys @ q_rope)
            weights = np.exp(scores - scores.max())
            lse[row, head] = scores.max() + math.log(weights.sum())
            out[row, head] = weights @ latents / weights.sum()
    return torch.from_numpy(out), torch.from_numpy(lse)


def moved(case, seed=1):
    """The same rows with the physical blocks in another order."""
    order = torch.randperm(len(case.latent_pages), generator=torch.Generator().manual_seed(seed))
    where = torch.empty_like(order)
    where[order] = torch.arange(len(order))
    used = torch.arange(case.block_table.shape[1]) * case.latent_pages.shape[1] < case.seq_lens[:, None]
    table = case.block_table.clone()
    table[used] = where[table[used].long()].int()
    pages = {"latent_pages": case.latent_pages[order], "rope_pages": case.rope_pages[order]}
    return replace(case, block_table=table, **pages)


def zero_filled(case):
    """The same case with zeros in place of NaN."""
    return replace(
        case, latent_pages=case.latent_pages.nan_to_num(0.0), rope_pages=case.rope_pages.nan_to_num(0.0)
    )


@st.composite
def mla_cases(draw, max_tokens=40, shapes=tuple(SHAPES)):
    """Cases of one to three rows: any lengths and block sizes, any layout."""
    lengths = draw(st.lists(st.integers(0, max_tokens), min_size=1, max_size=3))
    return make_case(
        draw(st.sampled_from(shapes)),
        lengths,
        draw(st.integers(1, 20)),
        draw(st.sampled_from(LAYOUTS)),
        draw(st.sampled_from((None, 0.3))),
        draw(st.integers(0, 999)),
    )


def far_apart(device, dtype=torch.float16):
    """A case whose third block lies more than 2**31 elements after the first; the gap is not touched.

    The stride itself fits 32 bits, so a product of it in 32 bits wraps.
    """
    near = make_case((6, 16, 16), [9], 3, spare=0)
    buffer = torch.empty(2**31 + 1024, dtype=dtype, device=device)
    fused = torch.as_strided(buffer, (3, 3, 32), (2**30 + 64, 32, 1))
    fused.copy_(torch.cat([near.latent_pages, near.rope_pages], dim=-1))
    near = near.to(device, dtype)
    return replace(near, latent_pages=fused[..., :16], rope_pages=fused[..., 16:])
