"""Weights sum to 1 however large the scores: next to a score of 1e10 a float32 lse is off by hundreds.

So no output may come from exp(score - lse).
"""

import math

import pytest
import torch

from kvcourse.attention.gqa import attention_with_lse
from kvcourse.kernels import contiguous_decode, mla_decode, paged_decode, paged_prefill

LENGTH, HEADS = 1000, 2
BACKENDS = ("reference", "torch", "cpu")
TABLE, LENGTHS = torch.arange(1, 64)[None], torch.tensor([LENGTH])  # blocks of 16 tokens
PAGES = torch.ones(64, 1, 16, 4)


def contiguous(q, backend):
    keys = torch.ones(1, 1, LENGTH, 4)
    return contiguous_decode(q, keys, keys, LENGTHS, scale=1.0, backend=backend), None


def paged(q, backend):
    return paged_decode(q, PAGES, PAGES, TABLE, LENGTHS, scale=1.0, backend=backend, return_lse=True)


def prefill(q, backend):
    starts = torch.tensor([0, 1])
    return paged_prefill(q, PAGES, PAGES, TABLE, LENGTHS, starts, scale=1.0, backend=backend, return_lse=True)


def latent(q, backend):
    q_rope, rope_pages = torch.zeros(1, HEADS, 2), torch.ones(64, 16, 2)
    return mla_decode(q, q_rope, PAGES[:, 0], rope_pages, TABLE, LENGTHS, 1.0, backend, return_lse=True)


@pytest.mark.parametrize("score", [1e4, 1e5, 1e10])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("operation", [contiguous, paged, prefill, latent])
def test_equal_values_average_to_themselves(operation, backend, score):
    out, lse = operation(torch.full((1, HEADS, 4), score / 4), backend)
    torch.testing.assert_close(out, torch.ones(1, HEADS, 4), rtol=0, atol=2e-5)
    if lse is not None:
        expected = torch.full((1, HEADS), score + math.log(LENGTH))
        torch.testing.assert_close(lse, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("score", [1e4, 1e5, 1e10])
def test_the_part_that_a_layer_merges(score):
    """Also of a query that sees nothing: (0, -inf)."""
    keys = torch.ones(1, 1, LENGTH, 4)
    mask = torch.tensor([True, False])[:, None].expand(2, LENGTH)[None, None]
    out, lse = attention_with_lse(torch.full((1, HEADS, 2, 4), score / 4), keys, keys, mask, scale=1.0)
    torch.testing.assert_close(out[:, :, 0], torch.ones(1, HEADS, 4), rtol=0, atol=2e-5)
    assert torch.equal(out[:, :, 1], torch.zeros(1, HEADS, 4))
    torch.testing.assert_close(
        lse[:, :, 0], torch.full((1, HEADS), score + math.log(LENGTH)), rtol=1e-6, atol=0
    )
    assert torch.equal(lse[:, :, 1], torch.full((1, HEADS), -math.inf))
