"""The loops of the CPU kernel that touch queries, keys and values, as tiles that stay in registers.

The lanes of a vector are query rows, so a number of a key or value meets all of them in one instruction, wherever it
lies in memory: keys and values are neither copied nor transposed, and the softmax needs no sum across lanes. What a
lane holds depends on no other lane. A tile of queries is `width` lanes, a whole number of vectors.
"""

import math

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from ..vectors import (
    FLOAT,
    INT32,
    INT64,
    INTEGERS,
    LANES,
    ZEROS,
    exp2,
    fma,
    load,
    maximum,
    pointer_at,
    splat,
    store,
    tanh,
)

TOKENS = 8  # tokens of a tile of scores, and numbers of a tile of sums
MAX_WIDTH = (
    3 if LANES == 16 else 1
) * LANES  # TOKENS * MAX_WIDTH / LANES sums leave registers for the operands


def _addresses(builder, tokens, count):
    """The first `count` addresses of a list."""
    return [builder.load(pointer_at(builder, tokens, 2 * i, INT64)) for i in range(count)]


def _multiply(builder, addresses, vectors, sums):
    """Adds the products of the number at each address with each vector to sums[address][vector]."""
    for address, row in zip(addresses, sums, strict=True):
        number = splat(builder, builder.load(builder.inttoptr(address, FLOAT.as_pointer())))
        for vector, total in zip(vectors, row, strict=True):
            builder.store(fma(builder, number, vector, builder.load(total)), total)


@intrinsic(prefer_literal=True)
def score_tokens(typingctx, tokens, tiles, stride, query, out, width, head_dim):
    """Scores of `tiles` times TOKENS tokens: out (tokens, width).

    Addresses tokens (int64 each: where the keys lie; all may be read), query (head_dim, width) and out. stride: bytes
    from a number of a key to the next.
    """
    lanes, dim = width.literal_value, head_dim.literal_value

    def generate(context, builder, signature, args):
        tokens, tiles, stride, query, out = args[:5]
        columns = range(0, lanes, LANES)
        with cgutils.for_range(builder, tiles) as tile:
            keys = _addresses(
                builder, builder.add(tokens, builder.mul(tile.index, INT64(8 * TOKENS))), TOKENS
            )
            sums = [[cgutils.alloca_once(builder, splat(builder, 0).type) for _ in columns] for _ in keys]
            for total in (total for row in sums for total in row):
                builder.store(splat(builder, 0), total)
            with cgutils.for_range(builder, INT64(dim)) as loop:
                offset = builder.mul(loop.index, stride)
                at = builder.add(query, builder.mul(loop.index, INT64(4 * lanes)))
                parts = [load(builder, at, column) for column in columns]
                _multiply(builder, [builder.add(key, offset) for key in keys], parts, sums)
            place = builder.add(out, builder.mul(tile.index, INT64(4 * TOKENS * lanes)))
            for i, row in enumerate(sums):
                for column, total in zip(columns, row, strict=True):
                    store(builder, builder.load(total), place, i * lanes + column)
        return context.get_dummy_value()

    return types.void(tokens, tiles, stride, query, out, width, head_dim), generate


@intrinsic
def prefetch(typingctx, address, lines):
    """Asks for `lines` times 64 bytes at an address before they are needed."""

    def generate(context, builder, signature, args):
        address, lines = args
        pointer = ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [pointer, INT32, INT32, INT32])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        with cgutils.for_range(builder, lines) as loop:
            at = builder.inttoptr(builder.add(address, builder.mul(loop.index, INT64(64))), pointer)
            # To read, into the first-level cache, as data.
            builder.call(function, [at, INT32(0), INT32(3), INT32(1)])
        return context.get_dummy_value()

    return types.void(address, lines), generate


@intrinsic(prefer_literal=True)
def cap_scores(typingctx, scores, count, cap, width):
    """Replaces the scores (count, width) at an address by cap · tanh(score / cap)."""
    lanes = width.literal_value

    def generate(context, builder, signature, args):
        scores, count, cap = args[:3]
        cap = splat(builder, cap)
        with cgutils.for_range(builder, builder.mul(count, INT64(lanes // LANES))) as loop:
            at = builder.add(scores, builder.mul(loop.index, INT64(4 * LANES)))
            store(builder, builder.fmul(cap, tanh(builder, builder.fdiv(load(builder, at), cap))), at)
        return context.get_dummy_value()

    return types.void(scores, count, cap, width), generate


@intrinsic(prefer_literal=True)
def mask_scores(typingctx, scores, count, first, ends, window, width):
    """Sets to -inf the scores (count, width) of tokens that a lane does not see. The first has position `first`.

    Addresses scores and ends (width int64: lane l sees the positions below ends[l], and of them the last `window`).
    """
    lanes = width.literal_value

    def generate(context, builder, signature, args):
        scores, count, first, ends, window = args[:5]
        window = _splat_integer(builder, builder.trunc(window, INT32))
        columns = range(0, lanes, LANES)
        wide = ir.VectorType(INT64, LANES)
        limits = [builder.load(pointer_at(builder, ends, 2 * column, wide), align=8) for column in columns]
        limits = [builder.trunc(limit, INTEGERS) for limit in limits]
        begins = [builder.sub(limit, window) for limit in limits]
        with cgutils.for_range(builder, count) as loop:
            token = _splat_integer(builder, builder.trunc(builder.add(first, loop.index), INT32))
            at = builder.add(scores, builder.mul(loop.index, INT64(4 * lanes)))
            for column, limit, begin in zip(columns, limits, begins, strict=True):
                seen = builder.and_(
                    builder.icmp_signed("<", token, limit), builder.icmp_signed(">=", token, begin)
                )
                value = builder.select(seen, load(builder, at, column), splat(builder, -math.inf))
                store(builder, value, at, column)
        return context.get_dummy_value()

    return types.void(scores, count, first, ends, window, width), generate


def _splat_integer(builder, value):
    undefined = ir.Constant(INTEGERS, ir.Undefined)
    return builder.shuffle_vector(builder.insert_element(undefined, value, INT32(0)), undefined, ZEROS)


@intrinsic(prefer_literal=True)
def weigh(typingctx, scores, count, tops, factors, width):
    """Turns scores (count, width) into weights, relative to the largest score so far of each lane.

    Addresses scores, tops (the largest scores, then the sums of weights, `width` each, brought up to date) and
    factors (width: what earlier sums have to be multiplied by).
    """
    lanes = width.literal_value

    def generate(context, builder, signature, args):
        scores, count, tops, factors = args[:4]
        columns = range(0, lanes, LANES)
        before = [load(builder, tops, column) for column in columns]
        highest = [cgutils.alloca_once_value(builder, top) for top in before]
        with cgutils.for_range(builder, count) as loop:
            at = builder.add(scores, builder.mul(loop.index, INT64(4 * lanes)))
            for column, top in zip(columns, highest, strict=True):
                builder.store(maximum(builder, builder.load(top), load(builder, at, column)), top)
        shifts, totals = [], []
        for column, old, top in zip(columns, before, highest, strict=True):
            top = builder.load(top)
            store(builder, top, tops, column)
            shifts.append(_finite(builder, top))
            factor = exp2(builder, builder.fsub(old, shifts[-1]))
            store(builder, factor, factors, column)
            total = builder.fmul(load(builder, tops, lanes + column), factor)
            totals.append(cgutils.alloca_once_value(builder, total))
        with cgutils.for_range(builder, count) as loop:
            at = builder.add(scores, builder.mul(loop.index, INT64(4 * lanes)))
            for column, shift, total in zip(columns, shifts, totals, strict=True):
                weight = exp2(builder, builder.fsub(load(builder, at, column), shift))
                store(builder, weight, at, column)
                builder.store(builder.fadd(builder.load(total), weight), total)
        for column, total in zip(columns, totals, strict=True):
            store(builder, builder.load(total), tops, lanes + column)
        return context.get_dummy_value()

    return types.void(scores, count, tops, factors, width), generate


def _finite(builder, top):
    """0 for the -inf of no tokens: -inf minus -inf would be NaN."""
    nothing = builder.fcmp_ordered("==", top, splat(builder, -math.inf))
    return builder.select(nothing, splat(builder, 0), top)


@intrinsic(prefer_literal=True)
def add_values(typingctx, tokens, count, stride, weights, factors, sums, width, v_head_dim):
    """sums = sums * factors + values.T @ weights, over `count` tokens: sums (v_head_dim, width).

    Addresses tokens (int64 each: where the values lie), weights (count, width), factors (width) and sums. stride:
    bytes from a number of a value to the next.
    """
    lanes, dim = width.literal_value, v_head_dim.literal_value

    def generate(context, builder, signature, args):
        tokens, count, stride, weights, factors, sums = args[:6]
        columns = range(0, lanes, LANES)

        def add(first, numbers):
            """One tile: `numbers` numbers of each value from the number `first` on."""
            place = builder.add(sums, builder.mul(first, INT64(4 * lanes)))
            offsets = [builder.mul(stride, builder.add(first, INT64(i))) for i in range(numbers)]
            totals = []
            for i in range(numbers):
                row = []
                for column in columns:
                    total = cgutils.alloca_once(builder, splat(builder, 0).type)
                    builder.store(
                        builder.fmul(
                            load(builder, place, i * lanes + column), load(builder, factors, column)
                        ),
                        total,
                    )
                    row.append(total)
                totals.append(row)
            with cgutils.for_range(builder, count) as loop:
                address = builder.add(tokens, builder.mul(loop.index, INT64(8)))
                value = builder.load(pointer_at(builder, address, 0, INT64))
                at = builder.add(weights, builder.mul(loop.index, INT64(4 * lanes)))
                parts = [load(builder, at, column) for column in columns]
                _multiply(builder, [builder.add(value, offset) for offset in offsets], parts, totals)
            for i, row in enumerate(totals):
                for column, total in zip(columns, row, strict=True):
                    store(builder, builder.load(total), place, i * lanes + column)

        with cgutils.for_range(builder, INT64(dim // TOKENS)) as tile:
            add(builder.mul(tile.index, INT64(TOKENS)), TOKENS)
        if dim % TOKENS:
            add(INT64(dim // TOKENS * TOKENS), dim % TOKENS)
        return context.get_dummy_value()

    return types.void(tokens, count, stride, weights, factors, sums, width, v_head_dim), generate


@intrinsic(prefer_literal=True)
def merge_state(typingctx, state, part, width, v_head_dim):
    """Merges the state of later tokens, at address `part`, into the one at `state`.

    Each is sums (v_head_dim, width), largest scores and sums of weights (width). The state of no tokens changes no
    bit of the other.
    """
    lanes, dim = width.literal_value, v_head_dim.literal_value

    def generate(context, builder, signature, args):
        state, part = args[:2]
        for column in range(0, lanes, LANES):
            tops = [load(builder, at, dim * lanes + column) for at in (state, part)]
            top = maximum(builder, *tops)
            factors = [exp2(builder, builder.fsub(old, _finite(builder, top))) for old in tops]
            store(builder, top, state, dim * lanes + column)

            def merge(offset, factors=factors):
                old, new = (load(builder, builder.add(at, offset)) for at in (state, part))
                value = fma(builder, new, factors[1], builder.fmul(old, factors[0]))
                store(builder, value, builder.add(state, offset))

            with cgutils.for_range(builder, INT64(dim)) as loop:
                merge(builder.add(builder.mul(loop.index, INT64(4 * lanes)), INT64(4 * column)))
            merge(INT64(4 * ((dim + 1) * lanes + column)))
        return context.get_dummy_value()

    return types.void(state, part, width, v_head_dim), generate
