"""The loops of decode kernels on the CPU that touch keys and values, as tiles that stay in registers.

They emit LLVM code and are called from the intrinsics of an operation, its `tiles.py`, which says where a token lies.
"""

import math

from llvmlite import ir
from numba.core import cgutils

from .vectors import (
    FLOAT,
    INT32,
    INT64,
    LANES,
    ZEROS,
    chunks,
    fma,
    halve,
    load,
    pad,
    pointer_at,
    splat,
    store,
)


def score_tokens(builder, address_of, count, q, out, out_stride, heads, head_dim, cap=None, ahead=None):
    """Scores of one tile of tokens for `heads` query heads, -inf from the token `count` on.

    address_of: from a number below LANES to the address of that token's key. Called for all of them: from `count` on
    it has to name a token that may be read. Addresses q (heads, pad(head_dim)) and out (heads, LANES; heads are
    `out_stride` floats apart). cap: what to apply to a vector of scores, or None. ahead: called with each number too,
    to ask for what is needed later, or None. Each token's products stay spread
    over a vector until a tree of shuffles sums all of them at once: a few instructions a token, where a sum on its
    own costs ten.
    """
    queries = [
        [load(builder, q, h * pad(head_dim) + first) for first, _ in chunks(head_dim)] for h in range(heads)
    ]

    def multiply(token):
        if ahead is not None:
            ahead(token)
        address = address_of(token)
        keys = [load(builder, address, first, lanes) for first, lanes in chunks(head_dim)]
        sums = []
        for query in queries:
            total = builder.fmul(keys[0], query[0])
            for key, part in zip(keys[1:], query[1:], strict=True):
                total = fma(builder, key, part, total)
            sums.append(total)
        return sums

    def reduce(first, tokens):
        if tokens == 1:
            return multiply(first)
        left, right = reduce(first, tokens // 2), reduce(first + tokens // 2, tokens // 2)
        return [halve(builder, a, b, tokens // 2) for a, b in zip(left, right, strict=True)]

    lanes = ir.VectorType(INT64, LANES)
    limit = builder.insert_element(ir.Constant(lanes, ir.Undefined), count, INT32(0))
    limit = builder.shuffle_vector(limit, ir.Constant(lanes, ir.Undefined), ZEROS)
    valid = builder.icmp_signed("<", ir.Constant(lanes, list(range(LANES))), limit)
    for h, scores in enumerate(reduce(0, LANES)):
        scores = scores if cap is None else cap(scores)
        store(builder, builder.select(valid, scores, splat(builder, -math.inf)), out, h * out_stride)


def add_tokens(builder, address_of, count, p, p_stride, out, out_stride, heads, v_head_dim, ahead=None):
    """out += p @ values over `count` tokens, with the sums in registers: keep heads * pad(v_head_dim) / LANES small.

    address_of: from a number below `count`, a value of the program, to the address of that token's value. Addresses p
    (heads, count; heads `p_stride` floats apart) and out (heads, v_head_dim; heads `out_stride` floats apart). ahead:
    as in `score_tokens`.
    """
    places = [(h, first, lanes) for h in range(heads) for first, lanes in chunks(v_head_dim)]
    sums = [cgutils.alloca_once_value(builder, load(builder, out, h * out_stride + f)) for h, f, _ in places]
    with cgutils.for_range(builder, count) as loop:
        if ahead is not None:
            ahead(loop.index)
        row = address_of(loop.index)
        values = {first: load(builder, row, first, lanes) for first, lanes in chunks(v_head_dim)}
        weight_at = builder.add(p, builder.mul(loop.index, INT64(4)))
        weights = [
            splat(builder, builder.load(pointer_at(builder, weight_at, h * p_stride, FLOAT)))
            for h in range(heads)
        ]
        for total, (h, first, _) in zip(sums, places, strict=True):
            builder.store(fma(builder, weights[h], values[first], builder.load(total)), total)
    for total, (h, first, _) in zip(sums, places, strict=True):
        store(builder, builder.load(total), out, h * out_stride + first)
