"""Inputs of attention over pages by many new tokens and its answer by plain loops, shared by all backends' tests."""

import math
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from hypothesis import strategies as st
from paged_cases import LAYOUTS, make_pages
from strided import copied

# num_heads, num_kv_heads, head_dim, v_head_dim: groups of 1 to 71, dimensions that fill no vector or end inside one.
SMOLLM2 = (9, 3, 64, 64)
SHAPES = [(3, 3, 16, 16), SMOLLM2, (10, 2, 20, 12), (28, 4, 33, 80), (71, 1, 20, 12), (32, 1, 16, 16)]


@dataclass
class Case:
    """Arguments of paged_prefill. Slots that no query sees hold NaN, unused entries of the table no block."""

    q: torch.Tensor
    k_pages: torch.Tensor
    v_pages: torch.Tensor
    block_table: torch.Tensor
    seq_lens: torch.Tensor
    query_starts: torch.Tensor
    scale: float | None = None
    window: int | None = None
    soft_cap: float | None = None

    @property
    def arguments(self):
        return tuple(getattr(self, field.name) for field in fields(self))

    @property
    def counts(self):
        return self.query_starts.diff().tolist()

    def to(self, device, dtype):
        """The same case elsewhere, strides kept."""
        names = ("q", "k_pages", "v_pages")
        return replace(self, **{name: copied(getattr(self, name), device, dtype) for name in names})

    def rows(self, *indices):
        """The case of some rows, in this order."""
        starts = self.query_starts.tolist()
        q = torch.cat([self.q[starts[row] : starts[row + 1]] for row in indices])
        index = torch.tensor(indices)
        query_starts = starts_of([self.counts[row] for row in indices])
        table, lengths = self.block_table[index], self.seq_lens[index]
        return replace(self, q=q, block_table=table, seq_lens=lengths, query_starts=query_starts)


def starts_of(counts):
    """(rows + 1,) int32: where the new tokens of each row begin."""
    return torch.tensor([sum(counts[:row]) for row in range(len(counts) + 1)], dtype=torch.int32)


def make_case(shape, lengths, counts, block_size, layout="separate", seed=0, spare=2, **options):
    """Rows of the given lengths, their last `counts` tokens new, in blocks drawn at random from a pool."""
    num_heads, num_kv_heads, head_dim, v_head_dim = shape
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *size: torch.randn(*size, generator=generator, dtype=torch.float64)  # noqa: E731
    window = options.get("window")
    firsts = [
        length if count == 0 else 0 if window is None else max(0, length - count - window + 1)
        for length, count in zip(lengths, counts, strict=True)
    ]
    used = [range(a // block_size, -(-b // block_size)) for a, b in zip(firsts, lengths, strict=True)]
    used = [columns if count else range(0) for columns, count in zip(used, counts, strict=True)]
    order = torch.randperm(sum(map(len, used)) + spare, generator=generator).tolist()
    k_pages, v_pages = make_pages(layout, len(order), num_kv_heads, block_size, head_dim, v_head_dim)
    width = max((-(-length // block_size) for length in lengths), default=0) + 1
    table = torch.full((len(lengths), width), 2**31 - 1, dtype=torch.int32)
    table[:, 1::2] = -1
    for row, (first, length) in enumerate(zip(firsts, lengths, strict=True)):
        for column in used[row]:
            table[row, column] = order.pop()
        tokens = torch.arange(first, length)
        place = table[row, tokens // block_size].long(), slice(None), tokens % block_size
        k_pages[place] = draw(length - first, num_kv_heads, head_dim)
        v_pages[place] = draw(length - first, num_kv_heads, v_head_dim)
    q = draw(sum(counts), num_heads, head_dim)
    lengths = torch.tensor(lengths, dtype=torch.int64)
    return Case(q, k_pages, v_pages, table, lengths, starts_of(counts), **options)


def brute_force(case):
    """(out, natural-log lse) in float64, by loops over rows, queries, heads and tokens."""
    num_tokens, num_heads, head_dim = case.q.shape
    group, size = num_heads // case.k_pages.shape[1], case.k_pages.shape[2]
    scale = 1 / math.sqrt(head_dim) if case.scale is None else case.scale
    q, k_pages, v_pages = (t.double().cpu().numpy() for t in (case.q, case.k_pages, case.v_pages))
    table, starts = case.block_table.tolist(), case.query_starts.tolist()
    out, lse = np.zeros((num_tokens, num_heads, v_pages.shape[3])), np.zeros((num_tokens, num_heads))
    for row, length in enumerate(case.seq_lens.tolist()):
        for token in range(starts[row], starts[row + 1]):
            position = length - starts[row + 1] + token
            first = 0 if case.window is None else max(0, position - case.window + 1)
            places = [(table[row][seen // size], seen % size) for seen in range(first, position + 1)]
            for head in range(num_heads):
                keys = np.stack([k_pages[block, head // group, slot] for block, slot in places])
                values = np.stack([v_pages[block, head // group, slot] for block, slot in places])
                scores = scale * (keys @ q[token, head])
                scores = scores if case.soft_cap is None else case.soft_cap * np.tanh(scores / case.soft_cap)
                weights = np.exp(scores - scores.max())
                lse[token, head] = scores.max() + math.log(weights.sum())
                out[token, head] = weights @ values / weights.sum()
    return torch.from_numpy(out), torch.from_numpy(lse)


def needed(case):
    """(batch, max_blocks) bool: the entries of the table that hold tokens that some query of the row sees."""
    size, columns = case.k_pages.shape[2], torch.arange(case.block_table.shape[1])
    counts, lengths = case.query_starts.diff()[:, None], case.seq_lens[:, None].cpu()
    firsts = torch.zeros_like(lengths)
    if case.window is not None:
        firsts = (lengths - counts - case.window + 1).clamp(min=0)
    return (columns * size < lengths) & (columns >= firsts // size) & (counts > 0)


def moved(case, seed=1):
    """The same rows with the physical blocks in another order."""
    order = torch.randperm(len(case.k_pages), generator=torch.Generator().manual_seed(seed))
    where = torch.empty_like(order)
    where[order] = torch.arange(len(order))
    table, used = case.block_table.clone(), needed(case)
    table[used] = where[table[used].long()].to(table.dtype)
    order = order.to(case.k_pages.device)
    return replace(case, block_table=table, k_pages=case.k_pages[order], v_pages=case.v_pages[order])


def zero_filled(case):
    """The same case with zeros in place of NaN."""
    return replace(case, k_pages=case.k_pages.nan_to_num(0.0), v_pages=case.v_pages.nan_to_num(0.0))


def in_chunks(case, sizes):
    """The calls that bring the new tokens of the only row in chunks of these sizes."""
    (length,), end = case.seq_lens.tolist(), 0
    for size in sizes:
        begin, end = end, end + size
        seen = torch.tensor([length - len(case.q) + end])
        yield replace(case, q=case.q[begin:end], seq_lens=seen, query_starts=starts_of([size]))


@st.composite
def prefill_cases(draw, max_tokens=24, shapes=tuple(SHAPES), layouts=LAYOUTS):
    """One to three rows of any lengths, of which any number of tokens is new; any block size, window, cap, layout."""
    lengths = draw(st.lists(st.integers(0, max_tokens), min_size=1, max_size=3))
    return make_case(
        draw(st.sampled_from(shapes)),
        lengths,
        [draw(st.integers(0, min(length, 9))) for length in lengths],
        draw(st.integers(1, 20)),
        draw(st.sampled_from(layouts)),
        draw(st.integers(0, 999)),
        scale=draw(st.sampled_from((None, 0.3))),
        window=draw(st.one_of(st.none(), st.integers(1, max_tokens + 5))),
        soft_cap=draw(st.sampled_from((None, 0.7, 30.0))),
    )


def far_apart(axis, device, dtype=torch.float16):
    """A case whose third block, kv head or slot lies more than 2**31 elements after the first; the gap is untouched.

    The stride itself fits 32 bits, so a product of it in 32 bits wraps.
    """
    near = make_case((6, 3, 16, 16), [9], [4], 3, spare=0)
    buffer = torch.empty(2**31 + 2048, dtype=dtype, device=device)
    strides = [144, 48, 16, 1]
    strides[axis] = 2**30 + 64
    k_pages, v_pages = (torch.as_strided(buffer, (3, 3, 3, 16), strides, start) for start in (0, 1024))
    k_pages.copy_(near.k_pages)
    v_pages.copy_(near.v_pages)
    return replace(near, q=near.q.to(device, dtype), k_pages=k_pages, v_pages=v_pages)
