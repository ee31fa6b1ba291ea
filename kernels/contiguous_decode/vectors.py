"""The inner loops of the CPU kernel as explicit vector instructions, which numba does not find by itself.

Each is a numba intrinsic: it takes addresses as integers and emits LLVM vector code for sizes known when it is
compiled. A vector has LANES floats; a tile is LANES tokens; LLVM splits vectors where a machine has narrower ones.
"""

import math

import numpy as np
from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 16 if binding.get_host_cpu_features().get("avx512f") else 8
FLOAT, INT32, INT64 = ir.FloatType(), ir.IntType(32), ir.IntType(64)
VECTOR = ir.VectorType(FLOAT, LANES)
INTEGERS = ir.VectorType(INT32, LANES)
UNDEFINED = ir.Constant(VECTOR, ir.Undefined)
ZEROS = ir.Constant(INTEGERS, [0] * LANES)

# 2**x on [-0.5, 0.5], highest power first, through Chebyshev nodes: the error is below float32 rounding.
NODES = 0.5 * np.cos(np.pi * (np.arange(64) + 0.5) / 64)
EXP2 = [float(np.float32(c)) for c in np.polyfit(NODES, 2.0**NODES, 6)]
ROUND = 1.5 * 2.0**23  # added to a small float, it leaves the nearest integer in the low bits


def pad(size):
    """The floats of the vectors that cover `size` floats."""
    return -(-size // LANES) * LANES


def chunks(size):
    """(first, lanes) of each vector that covers `size` floats."""
    return [(first, min(LANES, size - first)) for first in range(0, size, LANES)]


def _splat(builder, value):
    if not isinstance(value, ir.Value):
        return ir.Constant(VECTOR, [float(value)] * LANES)
    return builder.shuffle_vector(builder.insert_element(UNDEFINED, value, INT32(0)), UNDEFINED, ZEROS)


def _call(builder, name, result, *args):
    kind = ir.FunctionType(result, [arg.type for arg in args])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), args)


def _fma(builder, a, b, c):
    return _call(builder, f"llvm.fma.v{LANES}f32", VECTOR, a, b, c)


def _maximum(builder, a, b):
    return _call(builder, f"llvm.maxnum.v{LANES}f32", VECTOR, a, b)


def _pointer(builder, address, floats, kind):
    return builder.inttoptr(builder.add(address, INT64(4 * floats)), kind.as_pointer())


def _load(builder, address, floats=0, lanes=LANES):
    """The vector `floats` after the address; lanes that are not asked for are zero and not read."""
    pointer = _pointer(builder, address, floats, VECTOR)
    if lanes == LANES:
        return builder.load(pointer, align=4)
    mask = ir.Constant(ir.VectorType(ir.IntType(1), LANES), [int(lane < lanes) for lane in range(LANES)])
    return _call(
        builder, f"llvm.masked.load.v{LANES}f32.p0", VECTOR, pointer, INT32(4), mask, _splat(builder, 0)
    )


def _store(builder, value, address, floats=0):
    builder.store(value, _pointer(builder, address, floats, VECTOR), align=4)


def _halve(builder, a, b, tokens):
    """Adds neighbouring halves: a and b hold partial sums of `tokens` tokens each, the result of twice as many."""
    width = LANES // tokens
    low = [token * width + lane for token in range(tokens) for lane in range(width // 2)]
    high = [lane + width // 2 for lane in low]
    low, high = ([*side, *(LANES + lane for lane in side)] for side in (low, high))
    pick = [builder.shuffle_vector(a, b, ir.Constant(INTEGERS, side)) for side in (low, high)]
    return builder.fadd(*pick)


def _sum(builder, vector):
    """The sum of the lanes of one vector, pairwise."""
    width = LANES
    while width > 1:
        width //= 2
        order = [(lane + width) % LANES for lane in range(LANES)]
        vector = builder.fadd(vector, builder.shuffle_vector(vector, UNDEFINED, ir.Constant(INTEGERS, order)))
    return builder.extract_element(vector, INT32(0))


@intrinsic(prefer_literal=True)
def score_tile(typingctx, k, stride, count, q, out, out_stride, heads, head_dim):
    """Scores of one tile of tokens for `heads` query heads, -inf from the token `count` on (which is not read).

    Addresses k (LANES tokens, `stride` bytes apart), q (heads, pad(head_dim)) and out (heads, LANES; heads are
    `out_stride` floats apart). Each token's products stay spread over a vector until a tree of shuffles sums all of
    them at once, which costs a few instructions a token where a sum on its own costs ten.
    """
    num_heads, dim = heads.literal_value, head_dim.literal_value
    gap = out_stride.literal_value

    def generate(context, builder, signature, args):
        k, stride, count, q, out = args[:5]
        queries = [
            [_load(builder, q, h * pad(dim) + first) for first, _ in chunks(dim)] for h in range(num_heads)
        ]

        def multiply(token):
            inside = builder.icmp_signed("<", INT64(token), count)
            address = builder.add(k, builder.select(inside, builder.mul(stride, INT64(token)), INT64(0)))
            keys = [_load(builder, address, first, lanes) for first, lanes in chunks(dim)]
            sums = []
            for query in queries:
                total = builder.fmul(keys[0], query[0])
                for key, part in zip(keys[1:], query[1:], strict=True):
                    total = _fma(builder, key, part, total)
                sums.append(total)
            return sums

        def reduce(first, tokens):
            if tokens == 1:
                return multiply(first)
            left, right = reduce(first, tokens // 2), reduce(first + tokens // 2, tokens // 2)
            return [_halve(builder, a, b, tokens // 2) for a, b in zip(left, right, strict=True)]

        lanes = ir.VectorType(INT64, LANES)
        limit = builder.insert_element(ir.Constant(lanes, ir.Undefined), count, INT32(0))
        limit = builder.shuffle_vector(limit, ir.Constant(lanes, ir.Undefined), ZEROS)
        valid = builder.icmp_signed("<", ir.Constant(lanes, list(range(LANES))), limit)
        for h, scores in enumerate(reduce(0, LANES)):
            _store(builder, builder.select(valid, scores, _splat(builder, -math.inf)), out, h * gap)
        return context.get_dummy_value()

    return types.void(k, stride, count, q, out, out_stride, heads, head_dim), generate


@intrinsic(prefer_literal=True)
def max_of(typingctx, x, size):
    """The largest of `size` floats (whole vectors) at address x."""
    vectors = size.literal_value // LANES

    def generate(context, builder, signature, args):
        top = _load(builder, args[0])
        for i in range(1, vectors):
            top = _maximum(builder, top, _load(builder, args[0], i * LANES))
        return _call(builder, f"llvm.vector.reduce.fmax.v{LANES}f32", FLOAT, top)

    return types.float32(x, size), generate


@intrinsic(prefer_literal=True)
def exp2_of(typingctx, x, top, size):
    """Replaces `size` floats (whole vectors) at address x by 2**(x - top); returns their sum.

    Below 2**-126 the result is 0. NaN stays NaN.
    """
    vectors = size.literal_value // LANES

    def generate(context, builder, signature, args):
        x, top = args[:2]
        top = _splat(builder, top)
        total = _splat(builder, 0)
        for i in range(vectors):
            power = builder.fsub(_load(builder, x, i * LANES), top)
            shifted = builder.fadd(power, _splat(builder, ROUND))
            rest = builder.fsub(power, builder.fsub(shifted, _splat(builder, ROUND)))
            value = _splat(builder, EXP2[0])
            for coefficient in EXP2[1:]:
                value = _fma(builder, value, rest, _splat(builder, coefficient))
            exponent = builder.shl(builder.bitcast(shifted, INTEGERS), ir.Constant(INTEGERS, [23] * LANES))
            value = builder.bitcast(builder.add(builder.bitcast(value, INTEGERS), exponent), VECTOR)
            tiny = builder.fcmp_ordered("<", power, _splat(builder, -126))
            value = builder.select(tiny, _splat(builder, 0), value)
            _store(builder, value, x, i * LANES)
            total = builder.fadd(total, value)
        return _sum(builder, total)

    return types.float32(x, top, size), generate


@intrinsic(prefer_literal=True)
def add_values(typingctx, v, stride, count, p, p_stride, out, out_stride, heads, v_head_dim):
    """out += p @ v over `count` tokens, with the sums in registers: keep heads * pad(v_head_dim) / LANES small.

    Addresses v (tokens `stride` bytes apart), p (heads, count; heads `p_stride` floats apart) and out (heads,
    v_head_dim; heads `out_stride` floats apart).
    """
    num_heads, dim = heads.literal_value, v_head_dim.literal_value
    p_gap, out_gap = p_stride.literal_value, out_stride.literal_value

    def generate(context, builder, signature, args):
        v, stride, count, p, _, out = args[:6]
        places = [(h, first, lanes) for h in range(num_heads) for first, lanes in chunks(dim)]
        sums = [
            cgutils.alloca_once_value(builder, _load(builder, out, h * out_gap + f)) for h, f, _ in places
        ]
        with cgutils.for_range(builder, count) as loop:
            row = builder.add(v, builder.mul(loop.index, stride))
            values = {first: _load(builder, row, first, lanes) for first, lanes in chunks(dim)}
            weight_at = builder.add(p, builder.mul(loop.index, INT64(4)))
            weights = [
                _splat(builder, builder.load(_pointer(builder, weight_at, h * p_gap, FLOAT)))
                for h in range(num_heads)
            ]
            for total, (h, first, _) in zip(sums, places, strict=True):
                builder.store(_fma(builder, weights[h], values[first], builder.load(total)), total)
        for total, (h, first, _) in zip(sums, places, strict=True):
            _store(builder, builder.load(total), out, h * out_gap + first)
        return context.get_dummy_value()

    return types.void(v, stride, count, p, p_stride, out, out_stride, heads, v_head_dim), generate


@intrinsic
def floats_at(typingctx, address):
    """An address as a pointer to float32, for numba.carray."""

    def generate(context, builder, signature, args):
        return builder.inttoptr(args[0], FLOAT.as_pointer())

    return types.CPointer(types.float32)(address), generate


@intrinsic
def integers_at(typingctx, address):
    """An address as a pointer to int64, for numba.carray."""

    def generate(context, builder, signature, args):
        return builder.inttoptr(args[0], INT64.as_pointer())

    return types.CPointer(types.int64)(address), generate


@intrinsic
def fetch_add(typingctx, address):
    """Adds 1 to the int64 at an address in one step that no other thread can split; returns the old value."""

    def generate(context, builder, signature, args):
        return builder.atomic_rmw("add", builder.inttoptr(args[0], INT64.as_pointer()), INT64(1), "seq_cst")

    return types.int64(address), generate
