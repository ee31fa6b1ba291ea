"""Keys and values of a few rows in the blocks of a pool, and attention over them by loops in float64."""

import math
import os

import pytest
import torch

from kvcourse.kernels import paged_decode, paged_prefill

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
each_backend = pytest.mark.parametrize(
    "backend", ["triton"] if INTERPRETED else ["reference", "torch", "cpu"]
)
WINDOWS = (
    [6] if INTERPRETED else [None, 6]
)  # the interpreter takes a second where a kernel takes a millisecond
here_only = pytest.mark.skipif(INTERPRETED, reason="no case of a kernel")


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).float()


class World:
    """Rows of `lengths` tokens, the last `news` of which are new, in blocks of a random order.

    heads: (num_heads, num_kv_heads, head_dim). k, v: the tokens of each row, (tokens, num_kv_heads, head_dim). q: the
    new queries, packed. pages: (k_pages, v_pages) to fill; fresh ones full of NaN by default. first: the lowest block
    that the rows use.
    """

    def __init__(self, lengths, news, heads=(6, 2, 8), block_size=4, pages=None, first=1, seed=0):
        num_heads, num_kv_heads, dim = heads
        self.lengths, self.news, self.size, self.heads = list(lengths), list(news), block_size, heads
        used = [-(-length // block_size) for length in lengths]
        order = torch.randperm(sum(used), generator=torch.Generator().manual_seed(seed)) + first
        self.table = torch.zeros(len(used), max(used), dtype=torch.int64)
        for row, blocks in enumerate(order.split(used)):
            self.table[row, : len(blocks)] = blocks
        if pages is None:
            pages = torch.full((2, 1 + first + sum(used), num_kv_heads, block_size, dim), math.nan)
        self.pages = tuple(pages)
        self.k = [draw(n, num_kv_heads, dim, seed=100 * seed + row) for row, n in enumerate(lengths)]
        self.v = [draw(n, num_kv_heads, dim, seed=100 * seed + 50 + row) for row, n in enumerate(lengths)]
        self.q = draw(sum(news), num_heads, dim, seed=seed + 7)
        self.starts = torch.tensor([0, *news]).cumsum(0)

    @property
    def slots(self):
        """Flat slots of all tokens of all rows."""
        positions = [torch.arange(n) for n in self.lengths]
        return torch.cat(
            [self.table[row, p // self.size] * self.size + p % self.size for row, p in enumerate(positions)]
        )

    def fill(self):
        """Write the tokens one by one, without any kernel."""
        for slot, k, v in zip(self.slots.tolist(), torch.cat(self.k), torch.cat(self.v), strict=True):
            for page, entry in zip(self.pages, (k, v), strict=True):
                page[slot // self.size, :, slot % self.size] = entry
        return self

    @property
    def last_queries(self):
        """The query of the last token of each row."""
        return self.q[self.starts[1:] - 1]

    def decode(self, backend, **options):
        lengths = torch.tensor(self.lengths)
        return paged_decode(self.last_queries, *self.pages, self.table, lengths, backend=backend, **options)

    def prefill(self, backend, **options):
        lengths = torch.tensor(self.lengths)
        return paged_prefill(
            self.q, *self.pages, self.table, lengths, self.starts, backend=backend, **options
        )

    def expected(self, window=None):
        """(out, lse) in float64: of each new token, as prefill gives them."""
        num_heads, num_kv_heads, dim = self.heads
        outs, lses = [], []
        for row, (length, new) in enumerate(zip(self.lengths, self.news, strict=True)):
            for i in range(new):
                end = length - new + i + 1
                begin = 0 if window is None else max(0, end - window)
                q = self.q[int(self.starts[row]) + i].double()
                out, lse = [], []
                for head in range(num_heads):
                    kv_head = head // (num_heads // num_kv_heads)
                    scores = self.k[row][begin:end, kv_head].double() @ q[head] / math.sqrt(dim)
                    lse.append(torch.logsumexp(scores, 0))
                    out.append(torch.softmax(scores, 0) @ self.v[row][begin:end, kv_head].double())
                outs.append(torch.stack(out))
                lses.append(torch.stack(lse))
        return torch.stack(outs), torch.stack(lses)

    def expected_decode(self, **options):
        """The same for the last token of each row, as decode gives them."""
        return tuple(x[self.starts[1:] - 1] for x in self.expected(**options))


def close(found, expected):
    """Equal but for the rounding of float32 (sums of a few dozen numbers of size 1)."""
    return torch.allclose(found.double(), expected.double(), rtol=2e-6, atol=2e-6)
