"""What Triton kernels share: the running softmax, how tokens are split among programs, and the merge of the parts.

Each program attends to one split of the tokens ("Flash-Decoding", PyTorch blog 2023).
"""

import torch
import triton
import triton.language as tl

from .polynomials import TANH, TANH_EDGE

T4, T3, T2, T1, T0 = (tl.constexpr(coefficient) for coefficient in TANH)
EDGE = tl.constexpr(TANH_EDGE)
MOST_TOKENS = 2**31 - 2**16  # of a row whose tokens have 32 bits: a last split ends below 2**31
PROGRAMS = 264  # two for each of the 132 multiprocessors of an H100 or H200


@triton.jit
def merge_splits(
    parts_ptr, lses_ptr, lengths_ptr, out_ptr, lse_ptr, capacity, chunk, num_heads, num_splits,
    V_HEAD_DIM: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_S: tl.constexpr,
):  # fmt: skip
    """The splits of one query head, merged into out (batch, num_heads, V_HEAD_DIM) and lse (batch, num_heads).

    Reads only the splits in use: parts and lses have num_splits of them next to each other.
    """
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    used = tl.cdiv(tl.minimum(tl.load(lengths_ptr + row).to(tl.int64), capacity), chunk)
    used = tl.maximum(used, 1)
    first = (row * num_heads + head) * num_splits
    v_dims = tl.arange(0, BLOCK_V)
    splits = tl.arange(0, BLOCK_S)
    lses = tl.load(lses_ptr + first + splits, mask=splits < used, other=-float("inf"))
    top = tl.max(lses, axis=0)
    top = tl.where(top == -float("inf"), 0.0, top)
    total = tl.sum(tl.exp(lses - top), axis=0)
    sums = tl.zeros((BLOCK_V,), tl.float32)
    for split in range(used):
        weight = tl.exp(tl.load(lses_ptr + first + split) - top)
        part = parts_ptr + (first + split) * V_HEAD_DIM + v_dims
        sums += weight * tl.load(part, mask=v_dims < V_HEAD_DIM, other=0.0)
    some = total != 0
    out = tl.where(some, sums / tl.where(some, total, 1.0), 0.0)
    place = out_ptr + (row * num_heads + head) * V_HEAD_DIM + v_dims
    tl.store(place, out.to(out_ptr.dtype.element_ty), mask=v_dims < V_HEAD_DIM)
    lse = tl.where(some, tl.log(tl.where(some, total, 1.0)) + top, -float("inf"))
    tl.store(lse_ptr + row * num_heads + head, lse)


@triton.jit
def cap_scores(scores, cap):
    """cap · tanh(scores / cap), float32; NaN of NaN."""
    x = scores / cap
    size = tl.abs(x)
    square = x * x
    small = ((((T4 * square + T3) * square + T2) * square + T1) * square + T0) * square * size + size
    rest = tl.exp2(size * -2.8853900817779268)  # e**(-2 |x|)
    large = (1.0 - rest) / (1.0 + rest)
    value = tl.where(size < EDGE, small, large)
    return tl.where(x < 0, -value, value) * cap


@triton.jit
def add_tile(scores, v, top, total, sums, ALONE: tl.constexpr, PRECISION: tl.constexpr):
    """The state of each query (largest score, total of weights, weighted values) with one tile of tokens more.

    Online softmax ("FlashAttention", arXiv 2205.14135). scores: (queries, tokens), times log2(e), -inf where a query
    does not see a token. v: (tokens, dims). ALONE: one query; a matrix product would be padded to 16.
    """
    new_top = tl.maximum(top, tl.max(scores, axis=1))
    shift = tl.where(new_top == -float("inf"), 0.0, new_top)
    weights = tl.exp2(scores - shift[:, None])
    factor = tl.exp2(top - shift)
    total = total * factor + tl.sum(weights, axis=1)
    sums = sums * factor[:, None]
    if ALONE:
        sums += tl.sum(tl.trans(weights) * v.to(tl.float32), axis=0)[None, :]
    else:
        sums = tl.dot(weights.to(v.dtype), v, sums, input_precision=PRECISION)
    return new_top, total, sums


@triton.jit
def close_state(top, total, sums):
    """The output and the natural-log lse of each query; zeros and -inf for one that saw nothing."""
    some = total != 0
    total = tl.where(some, total, 1.0)
    out = sums * (1 / total)[:, None]  # a division for each number would need more registers
    return out, tl.where(some, (top + tl.log2(total)) * 0.6931471805599453, -float("inf"))


INTERPRETED = not isinstance(merge_splits, triton.JITFunction)


def runs_on(device):
    """Whether the kernels run on tensors of a device: a GPU, or any with TRITON_INTERPRET=1."""
    return INTERPRETED or device.type == "cuda"


def choose_splits(rows, capacity, block_n, num_splits=None):
    """(tokens of a split, number of splits) that fill a GPU from `rows` programs a split, in whole blocks."""
    most = max(1, -(-capacity // (2 * block_n)))
    wanted = num_splits or min(most, max(1, PROGRAMS // rows))
    chunk = max(1, -(-capacity // (wanted * block_n))) * block_n
    return chunk, max(1, -(-capacity // chunk))


def choose_precision():
    """How float32 matrices are multiplied, "ieee" or "tf32": what torch.backends.cuda.matmul says."""
    # The setting of this backend: the getter for all of them raises once it was set through the newer interface.
    wants_tf32 = torch.backends.cuda.matmul.fp32_precision == "tf32" and not torch.version.hip
    return "tf32" if wants_tf32 else "ieee"
