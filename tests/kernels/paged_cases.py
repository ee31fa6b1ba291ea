"""Inputs of decode attention over pages and its answer by plain loops, shared by the tests of every backend."""

import math
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from hypothesis import strategies as st
from strided import copied

# num_heads, num_kv_heads, head_dim, v_head_dim: groups of 1 to 71, dimensions that fill no vector or end inside one.
SMOLLM2 = (9, 3, 64, 64)
SHAPES = [(1, 1, 1, 5), SMOLLM2, (10, 2, 20, 12), (12, 12, 16, 16), (28, 4, 33, 80), (71, 1, 8, 24)]
CAPPED = SHAPES[1:3]  # a compiled worker has a soft cap or not: two shapes are enough
BLOCK_SIZES = (1, 3, 8, 16, 24, 64)
LAYOUTS = ("separate", "block_of_both", "fused_qkv", "dims_fused", "gaps", "blocks_inside", "dims_first")


@dataclass
class Case:
    """Arguments of paged_decode. Slots that no row sees hold NaN, entries of the table that none needs no block."""

    q: torch.Tensor
    k_pages: torch.Tensor
    v_pages: torch.Tensor
    block_table: torch.Tensor
    seq_lens: torch.Tensor
    scale: float | None = None
    window: int | None = None
    soft_cap: float | None = None

    @property
    def arguments(self):
        return tuple(getattr(self, field.name) for field in fields(self))

    def to(self, device, dtype):
        """The same case elsewhere, strides kept."""
        names = ("q", "k_pages", "v_pages")
        return replace(self, **{name: copied(getattr(self, name), device, dtype) for name in names})

    def row(self, index):
        """The case of one row alone."""
        one = slice(index, index + 1)
        names = ("q", "block_table", "seq_lens")
        return replace(self, **{name: getattr(self, name)[one] for name in names})


def make_pages(layout, num_blocks, num_kv_heads, block_size, head_dim, v_head_dim):
    """(key, value) pages in float64, all NaN, with the strides of a layout that engines use."""
    empty = lambda *shape: torch.full(shape, math.nan, dtype=torch.float64)  # noqa: E731
    widest = max(head_dim, v_head_dim)
    if layout == "block_of_both":  # [N, 2, B, H, D]
        both = empty(num_blocks, 2, block_size, num_kv_heads, widest).transpose(2, 3)
        return both[:, 0, ..., :head_dim], both[:, 1, ..., :v_head_dim]
    if layout == "fused_qkv":  # a token's queries, keys and values side by side
        heads = empty(num_blocks, block_size, 5 + 2 * num_kv_heads, widest).transpose(1, 2)
        return heads[:, 5 : 5 + num_kv_heads, :, :head_dim], heads[:, 5 + num_kv_heads :, :, :v_head_dim]
    if layout == "dims_fused":
        return empty(num_blocks, num_kv_heads, block_size, head_dim + v_head_dim).split(
            [head_dim, v_head_dim], dim=-1
        )
    if layout == "gaps":
        wide = empty(num_blocks + 1, num_kv_heads + 1, block_size, head_dim + v_head_dim + 5)[1:, 1:]
        return wide[..., 1 : 1 + head_dim], wide[..., head_dim + 3 : head_dim + 3 + v_head_dim]
    sizes = (head_dim, v_head_dim)
    if layout == "blocks_inside":
        return tuple(empty(num_kv_heads, block_size, num_blocks, dim).permute(2, 0, 1, 3) for dim in sizes)
    if layout == "dims_first":
        return tuple(empty(num_blocks, num_kv_heads, dim, block_size).mT for dim in sizes)
    return tuple(empty(num_blocks, num_kv_heads, block_size, dim) for dim in sizes)


def make_case(shape, lengths, block_size, layout="separate", seed=0, spare=2, **options):
    """Rows of the given lengths in blocks drawn at random from a pool with `spare` more than they need."""
    num_heads, num_kv_heads, head_dim, v_head_dim = shape
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *size: torch.randn(*size, generator=generator, dtype=torch.float64)  # noqa: E731
    window = options.get("window")
    firsts = [0 if window is None else max(0, length - window) for length in lengths]
    used = [range(a // block_size, -(-b // block_size)) for a, b in zip(firsts, lengths, strict=True)]
    order = torch.randperm(sum(map(len, used)) + spare, generator=generator).tolist()
    k_pages, v_pages = make_pages(layout, len(order), num_kv_heads, block_size, head_dim, v_head_dim)
    table = torch.full(
        (len(lengths), max((u.stop for u in used), default=0) + 1), 2**31 - 1, dtype=torch.int32
    )
    table[:, 1::2] = -1
    for row, (first, length) in enumerate(zip(firsts, lengths, strict=True)):
        for column in used[row]:
            table[row, column] = order.pop()
        tokens = torch.arange(first, length)
        place = table[row, tokens // block_size].long(), slice(None), tokens % block_size
        k_pages[place] = draw(length - first, num_kv_heads, head_dim)
        v_pages[place] = draw(length - first, num_kv_heads, v_head_dim)
    q = draw(len(lengths), num_heads, head_dim)
    return Case(q, k_pages, v_pages, table, torch.tensor(lengths, dtype=torch.int64), **options)


def tokens_of(case, row):
    """(keys, values) that a row's query sees, each (tokens, num_kv_heads, dims) in float64, gathered one by one."""
    size, keys, values = case.k_pages.shape[2], [], []
    length = int(case.seq_lens[row])
    for token in range(0 if case.window is None else max(0, length - case.window), length):
        place = int(case.block_table[row, token // size]), slice(None), token % size
        keys.append(case.k_pages[place].double().cpu())
        values.append(case.v_pages[place].double().cpu())
    if not keys:
        return tuple(pages[0, :, :0].double().cpu().transpose(0, 1) for pages in (case.k_pages, case.v_pages))
    return torch.stack(keys), torch.stack(values)


def brute_force(case):
    """(out, natural-log lse) in float64, by loops over rows and heads."""
    batch, num_heads, head_dim = case.q.shape
    group = num_heads // case.k_pages.shape[1]
    scale = 1 / math.sqrt(head_dim) if case.scale is None else case.scale
    out, lse = np.zeros((batch, num_heads, case.v_pages.shape[3])), np.full((batch, num_heads), -math.inf)
    for row in range(batch):
        keys, values = (t.numpy() for t in tokens_of(case, row))
        for head in range(num_heads if len(keys) else 0):
            scores = scale * (keys[:, head // group] @ case.q[row, head].double().cpu().numpy())
            scores = scores if case.soft_cap is None else case.soft_cap * np.tanh(scores / case.soft_cap)
            weights = np.exp(scores - scores.max())
            lse[row, head] = scores.max() + math.log(weights.sum())
            out[row, head] = weights @ values[:, head // group] / weights.sum()
    return torch.from_numpy(out), torch.from_numpy(lse)


def needed(case):
    """(batch, max_blocks) bool: the entries of the table that hold tokens that the query of the row sees."""
    size, columns = case.k_pages.shape[2], torch.arange(case.block_table.shape[1])
    lengths = case.seq_lens[:, None].cpu()
    firsts = torch.zeros_like(lengths) if case.window is None else (lengths - case.window).clamp(min=0)
    return (columns * size < lengths) & (columns >= firsts // size)


def moved(case, seed=1):
    """The same rows with the physical blocks in another order."""
    order = torch.randperm(len(case.k_pages), generator=torch.Generator().manual_seed(seed))
    where = torch.empty_like(order)
    where[order] = torch.arange(len(order))
    table, used = case.block_table.clone(), needed(case)
    table[used] = where[table[used].long()].to(table.dtype)
    order = order.to(case.k_pages.device)
    return replace(case, block_table=table, k_pages=case.k_pages[order], v_pages=case.v_pages[order])


def in_blocks_of(case, block_size):
    """The same rows in blocks of another size, in a pool of their own that holds no NaN."""
    rows = [tokens_of(case, row) for row in range(len(case.q))]
    firsts = case.seq_lens - torch.tensor([len(keys) for keys, _ in rows])
    width = int(-(-case.seq_lens.max() // block_size))
    table = torch.arange(len(rows) * width).view(len(rows), width).flip(1)
    pages = []
    for part, old in enumerate((case.k_pages, case.v_pages)):
        new = torch.zeros(table.numel(), old.shape[1], block_size, old.shape[3], dtype=old.dtype)
        for row, tokens in enumerate(rows):
            places = torch.arange(int(firsts[row]), int(case.seq_lens[row]))
            new[table[row, places // block_size], :, places % block_size] = tokens[part].to(old.dtype)
        pages.append(new.to(old.device))
    return replace(case, k_pages=pages[0], v_pages=pages[1], block_table=table)


def zero_filled(case):
    """The same case with zeros in place of NaN."""
    return replace(case, k_pages=case.k_pages.nan_to_num(0.0), v_pages=case.v_pages.nan_to_num(0.0))


@st.composite
def paged_cases(draw, max_tokens=40, shapes=tuple(SHAPES), layouts=LAYOUTS):
    """Cases of one to three rows: any lengths, block sizes, windows and layouts, with and without a soft cap."""
    shape = draw(st.sampled_from(shapes))
    return make_case(
        shape,
        draw(st.lists(st.integers(0, max_tokens), min_size=1, max_size=3)),
        draw(st.one_of(st.sampled_from(BLOCK_SIZES), st.integers(1, 20))),
        draw(st.sampled_from(layouts)),
        draw(st.integers(0, 999)),
        scale=draw(st.sampled_from((None, 0.3))),
        window=draw(st.one_of(st.none(), st.integers(1, max_tokens + 5))),
        soft_cap=draw(st.sampled_from((None, 0.7, 30.0))) if shape in CAPPED else None,
    )


def far_apart(axis, device, dtype=torch.float16):
    """A case whose third block, kv head or slot lies more than 2**31 elements after the first; the gap is untouched.

    The stride itself fits 32 bits, so a product of it in 32 bits wraps.
    """
    near = make_case((6, 3, 16, 16), [9], 3, spare=0)
    buffer = torch.empty(2**31 + 2048, dtype=dtype, device=device)
    strides = [144, 48, 16, 1]
    strides[axis] = 2**30 + 64
    k_pages, v_pages = (torch.as_strided(buffer, (3, 3, 3, 16), strides, start) for start in (0, 1024))
    k_pages.copy_(near.k_pages)
    v_pages.copy_(near.v_pages)
    return replace(near, q=near.q.to(device, dtype), k_pages=k_pages, v_pages=v_pages)
