"""Inputs of decode attention and its answer by plain loops, shared by the tests of every backend."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from hypothesis import strategies as st
from strided import copied

# num_heads, num_kv_heads, head_dim, v_head_dim: groups of 1 to 71, dimensions that fill no vector or end inside one.
SHAPES = [
    (3, 3, 16, 16),
    (9, 3, 64, 64),
    (10, 2, 20, 12),
    (7, 1, 33, 80),
    (12, 12, 1, 5),
    (71, 1, 8, 24),
    (64, 2, 40, 16),
]
LAYOUTS = ("contiguous", "tokens_first", "fused", "dims_first", "gaps")


@dataclass
class Case:
    """Arguments of contiguous_decode; slots outside the valid ranges hold NaN."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    lengths: torch.Tensor
    starts: torch.Tensor | None
    scale: float | None

    @property
    def arguments(self):
        return self.q, self.k, self.v, self.lengths, self.starts, self.scale

    def to(self, device, dtype):
        """The same case elsewhere, strides kept."""
        move = [copied(t, device, dtype) for t in (self.q, self.k, self.v)]
        return Case(*move, self.lengths, self.starts, self.scale)


def valid_slots(case, row):
    start = 0 if case.starts is None else int(case.starts[row])
    return [(start + i) % case.k.shape[2] for i in range(int(case.lengths[row]))]


def make_tensor(layout, batch, heads, capacity, dim, generator):
    """Random (batch, heads, capacity, dim) float64 with the strides of a layout that caches use."""
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    if layout == "contiguous":
        return draw(batch, heads, capacity, dim)
    if layout == "tokens_first":
        return draw(batch, capacity, heads, dim).transpose(1, 2)
    if layout == "fused":  # one buffer for keys and values, or a slice of a fused projection
        return draw(batch, heads, 2, capacity, dim)[:, :, 1]
    if layout == "dims_first":
        return draw(batch, heads, dim, capacity).mT
    return draw(batch, heads + 1, capacity, dim + 3)[:, 1:, :, 2:-1]


def make_case(shape, lengths, starts, capacity, scale=None, layouts=("contiguous", "contiguous"), seed=0):
    num_heads, num_kv_heads, head_dim, v_head_dim = shape
    generator = torch.Generator().manual_seed(seed)
    batch = len(lengths)
    q = torch.randn(batch, num_heads, head_dim, generator=generator, dtype=torch.float64)
    k = make_tensor(layouts[0], batch, num_kv_heads, capacity, head_dim, generator)
    v = make_tensor(layouts[1], batch, num_kv_heads, capacity, v_head_dim, generator)
    starts = None if starts is None else torch.tensor(starts)
    case = Case(q, k, v, torch.tensor(lengths, dtype=torch.int32), starts, scale)
    for row in range(batch):
        unused = sorted(set(range(capacity)) - set(valid_slots(case, row)))
        k[row, :, unused] = math.nan
        v[row, :, unused] = math.nan
    return case


def brute_force(case):
    """(out, natural-log lse) in float64, by loops over rows, heads and tokens."""
    batch, num_heads, head_dim = case.q.shape
    group = num_heads // case.k.shape[1]
    scale = case.scale if case.scale is not None else 1 / math.sqrt(head_dim)
    q, k, v = (t.double().cpu().numpy() for t in (case.q, case.k, case.v))
    out, lse = np.zeros((batch, num_heads, v.shape[3])), np.full((batch, num_heads), -math.inf)
    for row in range(batch):
        slots = valid_slots(case, row)
        for head in range(num_heads if slots else 0):
            scores = [scale * float(q[row, head] @ k[row, head // group, slot]) for slot in slots]
            top = max(scores)
            weights = [math.exp(score - top) for score in scores]
            lse[row, head] = top + math.log(sum(weights))
            for weight, slot in zip(weights, slots, strict=True):
                out[row, head] += weight / sum(weights) * v[row, head // group, slot]
    return torch.from_numpy(out), torch.from_numpy(lse)


@st.composite
def decode_cases(draw, max_capacity=40, shapes=tuple(SHAPES)):
    """Cases of one to three rows: any lengths from 0 to the capacity, with or without a ring, any layout."""
    capacity = draw(st.integers(1, max_capacity))
    batch = draw(st.integers(1, 3))
    lengths = draw(st.lists(st.integers(0, capacity), min_size=batch, max_size=batch))
    ring = st.lists(st.integers(-capacity, 2 * capacity), min_size=batch, max_size=batch)
    return make_case(
        draw(st.sampled_from(shapes)),
        lengths,
        draw(st.one_of(st.none(), ring)),
        capacity,
        draw(st.sampled_from((None, 0.3))),
        draw(st.tuples(st.sampled_from(LAYOUTS), st.sampled_from(LAYOUTS))),
        draw(st.integers(0, 999)),
    )


def far_apart(axis, device, dtype=torch.float16):
    """A case whose third row, kv head or token lies more than 2**31 elements after the first; the gap is not touched.

    The stride itself fits 32 bits, so a product of it in 32 bits wraps.
    """
    shape = (3, 3, 3, 16)  # batch, num_kv_heads, capacity, head_dim
    strides = [144, 48, 16, 1]
    strides[axis] = 2**30 + 64
    near = make_case((6, 3, 16, 16), [3, 3, 3], None, 3)
    buffer = torch.empty(2**31 + 1024, dtype=dtype, device=device)
    k = torch.as_strided(buffer, shape, strides)
    k.copy_(near.k)
    return Case(near.q.to(device, dtype), k, near.v.to(device, dtype), near.lengths, None, None)
