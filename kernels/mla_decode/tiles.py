"""The loops of the CPU kernel that touch latents, as tiles that stay in registers.

A tile of scores is one vector: 2 tokens, and in each of them up to HEADS query heads. Per token the heads lie next to
each other, so the softmax of HEADS heads is plain arithmetic on vectors and needs no sum across lanes.
"""

import math

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from ..vectors import (
    FLOAT,
    INT64,
    INTEGERS,
    LANES,
    UNDEFINED,
    chunks,
    exp2,
    fma,
    halve,
    load,
    maximum,
    pad,
    pointer_at,
    splat,
    store,
)

HEADS = LANES // 2
SWAPPED = ir.Constant(
    INTEGERS, [(lane + HEADS) % LANES for lane in range(LANES)]
)  # the tokens of a tile, exchanged


@intrinsic(prefer_literal=True)
def score_pair(typingctx, tokens, count, q, out, heads, rank, rope_dim):
    """One tile: the scores of 2 tokens for `heads` query heads. With `count` 1, those of the second are -inf.

    Addresses tokens (of each token an int64 pair: where its latent and its rope key lie), q (heads, pad(rank) +
    pad(rope_dim)) and out (2, HEADS). Products stay spread over vectors until a tree of shuffles sums all of them.
    """
    num_heads, parts = heads.literal_value, (rank.literal_value, rope_dim.literal_value)
    q_stride = sum(map(pad, parts))

    def generate(context, builder, signature, args):
        tokens, count, q, out = args[:4]
        sums = [cgutils.alloca_once_value(builder, splat(builder, 0)) for _ in range(2 * num_heads)]
        for part, dim in enumerate(parts):
            rows = [builder.load(pointer_at(builder, tokens, 4 * t + 2 * part, INT64)) for t in range(2)]
            query = builder.add(q, INT64(4 * pad(parts[0]) * part))
            with cgutils.for_range(builder, INT64(dim // LANES)) as loop:
                _multiply(
                    builder, rows, query, builder.mul(loop.index, INT64(4 * LANES)), LANES, sums, q_stride
                )
            if dim % LANES:
                _multiply(
                    builder, rows, query, INT64(4 * (dim // LANES * LANES)), dim % LANES, sums, q_stride
                )
        tree = []
        for token in range(2):
            products = [builder.load(total) for total in sums[token * num_heads :][:num_heads]]
            tree += products + [splat(builder, 0)] * (HEADS - num_heads)
        tokens_done = 1
        while len(tree) > 1:
            tree = [halve(builder, a, b, tokens_done) for a, b in zip(tree[::2], tree[1::2], strict=True)]
            tokens_done *= 2
        half = ir.Constant(ir.VectorType(ir.IntType(1), LANES), [1] * HEADS + [0] * HEADS)
        alone = builder.select(half, tree[0], splat(builder, -math.inf))
        store(builder, builder.select(builder.icmp_signed("<", count, INT64(2)), alone, tree[0]), out)
        return context.get_dummy_value()

    return types.void(tokens, count, q, out, heads, rank, rope_dim), generate


def _multiply(builder, rows, query, offset, lanes, sums, q_stride):
    """Adds the products of one vector of each row, `offset` bytes in, with the same vector of every query head."""
    keys = [load(builder, builder.add(row, offset), 0, lanes) for row in rows]
    query = builder.add(query, offset)
    for h in range(len(sums) // 2):
        part = load(builder, query, h * q_stride)
        for total, key in zip(sums[h :: len(sums) // 2], keys, strict=True):
            builder.store(fma(builder, key, part, builder.load(total)), total)


@intrinsic
def weigh(typingctx, p, pairs, state, factors):
    """Turns `pairs` tiles of scores into weights, relative to the largest score so far of each head.

    Addresses p (pairs, 2, HEADS), state (the largest scores, then the sums of weights, a vector each; a head's sum is
    spread over its two lanes) and factors (a vector: what earlier sums have to be multiplied by).
    """

    def generate(context, builder, signature, args):
        p, pairs, state, factors = args
        before = load(builder, state)
        highest = cgutils.alloca_once_value(builder, before)
        with cgutils.for_range(builder, pairs) as loop:
            scores = load(builder, builder.add(p, builder.mul(loop.index, INT64(4 * LANES))))
            builder.store(maximum(builder, builder.load(highest), scores), highest)
        top = builder.load(highest)
        top = maximum(builder, top, builder.shuffle_vector(top, UNDEFINED, SWAPPED))
        store(builder, top, state)
        # 0 for the -inf of no tokens: -inf minus -inf would be NaN.
        nothing = builder.fcmp_ordered("==", top, splat(builder, -math.inf))
        shift = builder.select(nothing, splat(builder, 0), top)
        factor = exp2(builder, builder.fsub(before, shift))
        store(builder, factor, factors)
        total = cgutils.alloca_once_value(builder, builder.fmul(load(builder, state, LANES), factor))
        with cgutils.for_range(builder, pairs) as loop:
            at = builder.add(p, builder.mul(loop.index, INT64(4 * LANES)))
            weights = exp2(builder, builder.fsub(load(builder, at), shift))
            store(builder, weights, at)
            builder.store(builder.fadd(builder.load(total), weights), total)
        store(builder, builder.load(total), state, LANES)
        return context.get_dummy_value()

    return types.void(p, pairs, state, factors), generate


@intrinsic(prefer_literal=True)
def add_latents(typingctx, tokens, offset, count, p, factors, out, out_stride, heads, dim):
    """out = out * factors + p @ latents over `count` tokens, for `dim` numbers of each latent, `offset` bytes in.

    Addresses tokens and p as in score_pair, factors (HEADS) and out (heads, dim; heads `out_stride` floats apart).
    The sums stay in registers: keep heads * pad(dim) / LANES small.
    """
    num_heads, size, gap = heads.literal_value, dim.literal_value, out_stride.literal_value

    def generate(context, builder, signature, args):
        tokens, offset, count, p, factors, out = args[:6]
        places = [(h, first) for h in range(num_heads) for first, _ in chunks(size)]
        sums = []
        for h, first in places:
            factor = splat(builder, builder.load(pointer_at(builder, factors, h, FLOAT)))
            sums.append(
                cgutils.alloca_once_value(builder, builder.fmul(load(builder, out, h * gap + first), factor))
            )
        with cgutils.for_range(builder, count) as loop:
            at = builder.add(tokens, builder.mul(loop.index, INT64(16)))
            row = builder.add(builder.load(pointer_at(builder, at, 0, INT64)), offset)
            values = {first: load(builder, row, first, lanes) for first, lanes in chunks(size)}
            weight_at = builder.add(p, builder.mul(loop.index, INT64(4 * HEADS)))
            weights = [
                splat(builder, builder.load(pointer_at(builder, weight_at, h, FLOAT)))
                for h in range(num_heads)
            ]
            for total, (h, first) in zip(sums, places, strict=True):
                builder.store(fma(builder, weights[h], values[first], builder.load(total)), total)
        for total, (h, first) in zip(sums, places, strict=True):
            store(builder, builder.load(total), out, h * gap + first)
        return context.get_dummy_value()

    return types.void(tokens, offset, count, p, factors, out, out_stride, heads, dim), generate
