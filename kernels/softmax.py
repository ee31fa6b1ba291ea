"""The running softmax of decode kernels on the CPU: the state of some query heads that saw some of the tokens.

A state, called a partial, is a list of floats: weighted values (heads, v_pad), largest scores (heads), summed weights
(heads), with scores in base 2. It is brought up to date block by block (online softmax, "FlashAttention", arXiv
2205.14135), and partials of disjoint tokens are merged in order ("Flash-Decoding", PyTorch blog 2023).
"""

import math

import numpy as np
from numba import carray, njit

from .vectors import exp2_of, floats_at, max_of

BLOCK = 64  # tokens whose scores are kept before their values are added; whole tiles


@njit(nogil=True)
def clear_partial(partial_at, heads, v_pad):
    """The partial of no tokens: weighted values and totals 0, largest scores -inf."""
    partial = carray(floats_at(partial_at), heads * (v_pad + 2))
    for i in range(heads * v_pad):
        partial[i] = 0
    for h in range(heads):
        partial[heads * v_pad + h] = -np.inf
        partial[heads * (v_pad + 1) + h] = 0


@njit(nogil=True)
def weigh(scores_at, partial_at, heads, v_pad):
    """Turns scores (heads, BLOCK) into weights, relative to the largest score so far; rescales what was summed."""
    partial = carray(floats_at(partial_at), heads * (v_pad + 2))
    tops, totals = heads * v_pad, heads * (v_pad + 1)
    for h in range(heads):
        at = scores_at + 4 * h * BLOCK
        top = max_of(at, BLOCK)
        if top > partial[tops + h]:
            if partial[totals + h] != 0:
                factor = math.exp2(partial[tops + h] - top)
                partial[totals + h] *= factor
                for d in range(h * v_pad, (h + 1) * v_pad):
                    partial[d] *= factor
            partial[tops + h] = top
        partial[totals + h] += exp2_of(at, finite(partial[tops + h]), BLOCK)


@njit(nogil=True)
def finite(top):
    """0 for the -inf of no tokens: -inf minus -inf would be NaN."""
    return np.float32(0) if top == -np.inf else top


@njit(nogil=True)
def merge_partials(first_at, num_partials, out_at, heads, v_head_dim, v_pad):
    """Merges partials that lie next to each other, in order, into out (heads, v_head_dim)."""
    size = heads * (v_pad + 2)
    partials = carray(floats_at(first_at), num_partials * size)
    out = carray(floats_at(out_at), heads * v_head_dim)
    for h in range(heads):
        top = largest(partials, num_partials, size, heads * v_pad + h)
        total = np.float32(0)
        for d in range(v_head_dim):
            out[h * v_head_dim + d] = 0
        for i in range(num_partials):
            weight = math.exp2(partials[i * size + heads * v_pad + h] - top)
            total += weight * partials[i * size + heads * (v_pad + 1) + h]
            for d in range(v_head_dim):
                out[h * v_head_dim + d] += weight * partials[i * size + h * v_pad + d]
        if total != 0:
            for d in range(v_head_dim):
                out[h * v_head_dim + d] /= total


@njit(nogil=True)
def merge_lse(first_at, num_partials, lse_at, heads, v_pad):
    """The natural logarithm of all summed exponentials of some partials, into lse (heads,); -inf for no token."""
    size = heads * (v_pad + 2)
    partials = carray(floats_at(first_at), num_partials * size)
    lse = carray(floats_at(lse_at), heads)
    for h in range(heads):
        top = largest(partials, num_partials, size, heads * v_pad + h)
        total = np.float32(0)
        for i in range(num_partials):
            weight = math.exp2(partials[i * size + heads * v_pad + h] - top)
            total += weight * partials[i * size + heads * (v_pad + 1) + h]
        lse[h] = (math.log2(total) + top) * math.log(2) if total != 0 else -np.inf


@njit(nogil=True)
def largest(partials, num_partials, size, place):
    """The largest of the scores that partials, `size` floats apart, keep at `place`; 0 where there are none."""
    top = partials[place]
    for i in range(1, num_partials):
        top = max(top, partials[i * size + place])
    return finite(top)
