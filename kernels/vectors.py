"""What CPU kernels are built from: explicit vector instructions, which numba does not find by itself.

A vector has LANES floats; LLVM splits vectors where a machine has narrower ones. The functions that take a `builder`
emit LLVM code and are for the inner loops of an operation, its `tiles.py`. The rest are numba intrinsics: they take
addresses as integers, and sizes that are known when they are compiled.
"""

import math

from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .polynomials import EXP2, TANH, TANH_EDGE

LINE = 16  # floats of a cache line
LANES = 16 if binding.get_host_cpu_features().get("avx512f") else 8
FLOAT, INT32, INT64 = ir.FloatType(), ir.IntType(32), ir.IntType(64)
VECTOR = ir.VectorType(FLOAT, LANES)
INTEGERS = ir.VectorType(INT32, LANES)
UNDEFINED = ir.Constant(VECTOR, ir.Undefined)
ZEROS = ir.Constant(INTEGERS, [0] * LANES)

ROUND = 1.5 * 2.0**23  # added to a small float, it leaves the nearest integer in the low bits


def pad(size):
    """The floats of the vectors that cover `size` floats."""
    return -(-size // LANES) * LANES


def chunks(size):
    """(first, lanes) of each vector that covers `size` floats."""
    return [(first, min(LANES, size - first)) for first in range(0, size, LANES)]


def splat(builder, value):
    """The vector of one value: a Python number or a float of the program."""
    if not isinstance(value, ir.Value):
        return ir.Constant(VECTOR, [float(value)] * LANES)
    return builder.shuffle_vector(builder.insert_element(UNDEFINED, value, INT32(0)), UNDEFINED, ZEROS)


def _call(builder, name, result, *args):
    kind = ir.FunctionType(result, [arg.type for arg in args])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), args)


def fma(builder, a, b, c):
    """a * b + c, rounded once."""
    return _call(builder, f"llvm.fma.v{LANES}f32", VECTOR, a, b, c)


def maximum(builder, a, b):
    """The larger of each pair of lanes; of a number and NaN, the number."""
    return _call(builder, f"llvm.maxnum.v{LANES}f32", VECTOR, a, b)


def pointer_at(builder, address, floats, kind):
    """A pointer to the LLVM type `kind`, `floats` after the address."""
    return builder.inttoptr(builder.add(address, INT64(4 * floats)), kind.as_pointer())


def load(builder, address, floats=0, lanes=LANES):
    """The vector `floats` after the address; lanes that are not asked for are zero and not read."""
    pointer = pointer_at(builder, address, floats, VECTOR)
    if lanes == LANES:
        return builder.load(pointer, align=4)
    mask = ir.Constant(ir.VectorType(ir.IntType(1), LANES), [int(lane < lanes) for lane in range(LANES)])
    return _call(
        builder, f"llvm.masked.load.v{LANES}f32.p0", VECTOR, pointer, INT32(4), mask, splat(builder, 0)
    )


def prefetch(builder, address, floats):
    """Asks for the cache lines that `floats` floats from an address on begin in, and does not wait for them."""
    for first in range(0, floats, LINE):
        pointer = pointer_at(builder, address, first, VECTOR)
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, INT32, INT32, INT32])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        # To read, into the second-level cache (the first holds what is computed with meanwhile), of data.
        builder.call(function, [pointer, INT32(0), INT32(2), INT32(1)])


def store(builder, value, address, floats=0):
    """Writes a vector `floats` after the address."""
    builder.store(value, pointer_at(builder, address, floats, VECTOR), align=4)


def halve(builder, a, b, tokens):
    """Adds neighbouring halves: a and b hold partial sums of `tokens` tokens each, the result of twice as many."""
    width = LANES // tokens
    low = [token * width + lane for token in range(tokens) for lane in range(width // 2)]
    high = [lane + width // 2 for lane in low]
    low, high = ([*side, *(LANES + lane for lane in side)] for side in (low, high))
    pick = [builder.shuffle_vector(a, b, ir.Constant(INTEGERS, side)) for side in (low, high)]
    return builder.fadd(*pick)


def sum_lanes(builder, vector):
    """The sum of the lanes of one vector, pairwise."""
    width = LANES
    while width > 1:
        width //= 2
        order = [(lane + width) % LANES for lane in range(LANES)]
        vector = builder.fadd(vector, builder.shuffle_vector(vector, UNDEFINED, ir.Constant(INTEGERS, order)))
    return builder.extract_element(vector, INT32(0))


def exp2(builder, power):
    """2**power for each lane; 0 below 2**-126, NaN of NaN."""
    shifted = builder.fadd(power, splat(builder, ROUND))
    rest = builder.fsub(power, builder.fsub(shifted, splat(builder, ROUND)))
    value = splat(builder, EXP2[0])
    for coefficient in EXP2[1:]:
        value = fma(builder, value, rest, splat(builder, coefficient))
    exponent = builder.shl(builder.bitcast(shifted, INTEGERS), ir.Constant(INTEGERS, [23] * LANES))
    value = builder.bitcast(builder.add(builder.bitcast(value, INTEGERS), exponent), VECTOR)
    tiny = builder.fcmp_ordered("<", power, splat(builder, -126))
    return builder.select(tiny, splat(builder, 0), value)


def tanh(builder, x):
    """The hyperbolic tangent of each lane; NaN of NaN."""
    size = _call(builder, f"llvm.fabs.v{LANES}f32", VECTOR, x)
    square = builder.fmul(x, x)
    small = splat(builder, TANH[0])
    for coefficient in TANH[1:]:
        small = fma(builder, small, square, splat(builder, coefficient))
    small = fma(builder, builder.fmul(size, square), small, size)  # near 0, where 1 - 2 / (…) cancels
    most = splat(builder, 10)  # from there on it is 1 in float32
    power = builder.select(builder.fcmp_ordered(">", size, most), most, size)
    power = exp2(builder, builder.fmul(power, splat(builder, 2 / math.log(2))))
    share = builder.fdiv(splat(builder, 2), builder.fadd(power, splat(builder, 1)))
    large = builder.fsub(splat(builder, 1), share)
    value = builder.select(builder.fcmp_ordered("<", size, splat(builder, TANH_EDGE)), small, large)
    return _call(builder, f"llvm.copysign.v{LANES}f32", VECTOR, value, x)


@intrinsic(prefer_literal=True)
def max_of(typingctx, x, size):
    """The largest of `size` floats (whole vectors) at address x."""
    vectors = size.literal_value // LANES

    def generate(context, builder, signature, args):
        top = load(builder, args[0])
        for i in range(1, vectors):
            top = maximum(builder, top, load(builder, args[0], i * LANES))
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
        top = splat(builder, top)
        total = splat(builder, 0)
        for i in range(vectors):
            value = exp2(builder, builder.fsub(load(builder, x, i * LANES), top))
            store(builder, value, x, i * LANES)
            total = builder.fadd(total, value)
        return sum_lanes(builder, total)

    return types.float32(x, top, size), generate


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
