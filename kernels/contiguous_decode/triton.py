"""Decode attention on the GPU: one program a (row, kv head, split of the tokens), then a merge of the splits.

The query heads of a kv head are the rows of one matrix, so each key and value is loaded once ("Flash-Decoding",
PyTorch blog 2023; "GQA", arXiv 2305.13245). There are no atomics: equal input gives equal bits.
"""

import contextlib

import torch
import triton
import triton.language as tl

PROGRAMS = 264  # programs that keep the largest GPU of today busy: two a multiprocessor
MAX_HEADS = 64  # query heads of a program; a larger group reads its kv head once more for each further 64


@triton.jit
def attend_split(
    q_ptr, k_ptr, v_ptr, lengths_ptr, starts_ptr, out_ptr, lse_ptr, scale, capacity, chunk,
    q_row, q_head, q_dim, k_row, k_head, k_token, k_dim, v_row, v_head, v_token, v_dim,
    num_kv_heads, num_splits,
    GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, V_HEAD_DIM: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_N: tl.constexpr,
    RING: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One split: out (batch, num_heads, num_splits, V_HEAD_DIM) and natural-log lse (batch, num_heads, num_splits).

    Strides are in elements. Splits past the row's length write nothing, except the first of an empty row.
    """
    row = tl.program_id(0).to(tl.int64)
    kv_head = (tl.program_id(1) % num_kv_heads).to(tl.int64)
    first_head = (tl.program_id(1) // num_kv_heads) * BLOCK_H
    split = tl.program_id(2)
    length = tl.minimum(tl.load(lengths_ptr + row).to(tl.int64), capacity)
    begin = split.to(tl.int64) * chunk
    end = tl.minimum(begin + chunk, length)
    if (begin >= end) & (split > 0):
        return
    start = tl.zeros((), tl.int64)
    if RING:
        start = tl.load(starts_ptr + row).to(tl.int64) % capacity
        start = tl.where(start < 0, start + capacity, start)

    heads = first_head + tl.arange(0, BLOCK_H)
    dims = tl.arange(0, BLOCK_D).to(tl.int64)
    v_dims = tl.arange(0, BLOCK_V).to(tl.int64)
    q_heads = (kv_head * GROUP + heads)[:, None]
    q = tl.load(
        q_ptr + row * q_row + q_heads * q_head + dims[None, :] * q_dim,
        mask=(heads < GROUP)[:, None] & (dims < HEAD_DIM)[None, :],
        other=0.0,
    )
    k_base = k_ptr + row * k_row + kv_head * k_head
    v_base = v_ptr + row * v_row + kv_head * v_head

    top = tl.full((BLOCK_H,), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK_H,), tl.float32)
    sums = tl.zeros((BLOCK_H, BLOCK_V), tl.float32)
    for at in range(begin, end, BLOCK_N):
        tokens = at + tl.arange(0, BLOCK_N)
        valid = tokens < end
        slots = start + tokens
        if RING:
            slots = tl.where(slots >= capacity, slots - capacity, slots)
        k = tl.load(
            k_base + slots[None, :] * k_token + dims[:, None] * k_dim,
            mask=valid[None, :] & (dims < HEAD_DIM)[:, None],
            other=0.0,
        )
        v = tl.load(
            v_base + slots[:, None] * v_token + v_dims[None, :] * v_dim,
            mask=valid[:, None] & (v_dims < V_HEAD_DIM)[None, :],
            other=0.0,
        )
        if BLOCK_H == 1:  # no group: a matrix product would be padded to 16 rows
            scores = tl.sum(tl.trans(q).to(tl.float32) * k.to(tl.float32), axis=0)[None, :]
        else:
            scores = tl.dot(q, k, input_precision=PRECISION)
        scores = tl.where(valid[None, :], scores * (scale * 1.4426950408889634), -float("inf"))
        new_top = tl.maximum(top, tl.max(scores, axis=1))
        shift = tl.where(new_top == -float("inf"), 0.0, new_top)
        weights = tl.exp2(scores - shift[:, None])
        factor = tl.exp2(top - shift)
        total = total * factor + tl.sum(weights, axis=1)
        if BLOCK_H == 1:
            added = tl.sum(tl.trans(weights) * v.to(tl.float32), axis=0)[None, :]
        else:
            added = tl.dot(weights.to(v.dtype), v, input_precision=PRECISION)
        sums = sums * factor[:, None] + added
        top = new_top

    some = total != 0
    out = tl.where(some[:, None], sums / tl.where(some, total, 1.0)[:, None], 0.0)
    lse = tl.where(some, (top + tl.log2(tl.where(some, total, 1.0))) * 0.6931471805599453, -float("inf"))
    place = (row * num_kv_heads * GROUP + kv_head * GROUP + heads) * num_splits + split
    tl.store(lse_ptr + place, lse, mask=heads < GROUP)
    tl.store(
        out_ptr + place[:, None] * V_HEAD_DIM + v_dims[None, :],
        out.to(out_ptr.dtype.element_ty),
        mask=(heads < GROUP)[:, None] & (v_dims < V_HEAD_DIM)[None, :],
    )


@triton.jit
def merge_splits(
    parts_ptr, lses_ptr, lengths_ptr, out_ptr, capacity, chunk, num_heads, num_splits,
    V_HEAD_DIM: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_S: tl.constexpr,
):  # fmt: skip
    """The splits of one query head, merged into out (batch, num_heads, V_HEAD_DIM); reads only the splits in use."""
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
    out = tl.where(total != 0, sums / tl.where(total != 0, total, 1.0), 0.0)
    place = out_ptr + (row * num_heads + head) * V_HEAD_DIM + v_dims
    tl.store(place, out.to(out_ptr.dtype.element_ty), mask=v_dims < V_HEAD_DIM)


INTERPRETED = not isinstance(attend_split, triton.JITFunction)


def runs_on(device):
    """Whether the kernels run on tensors of a device: a GPU, or any with TRITON_INTERPRET=1."""
    return INTERPRETED or device.type == "cuda"


def attend_triton(q, k, v, lengths, starts, scale, input_precision=None, num_splits=None):
    """The operation of `attend_reference` (same arguments) for float32, float16 and bfloat16 on a GPU.

    Sums are float32. Lengths on the GPU are not read back, so they are not checked: one above the capacity counts as
    the capacity.

    input_precision: of float32 products, "ieee" or "tf32"; None follows torch.backends.cuda.matmul.
    num_splits: programs that share the tokens of a (row, kv head); None fills the GPU.

    Returns (batch, num_heads, v_head_dim) in q.dtype.
    """
    batch, num_heads, head_dim = q.shape
    _, num_kv_heads, capacity, v_head_dim = v.shape
    group = num_heads // num_kv_heads
    out = torch.empty(batch, num_heads, v_head_dim, dtype=q.dtype, device=q.device)
    if out.numel() == 0:
        return out
    aligned = all(t.stride(3) == 1 and not any(stride % 16 for stride in t.stride()[:3]) for t in (k, v))
    blocks, options = choose_blocks(group, head_dim, v_head_dim, q.element_size(), aligned)
    chunk, num_splits = choose_splits(batch * num_kv_heads, capacity, blocks["BLOCK_N"], num_splits)
    lengths = lengths.to(q.device)
    starts = None if starts is None else starts.to(q.device)
    if input_precision is None:
        # The setting of this backend: the getter for all of them raises once it was set through the newer interface.
        wants_tf32 = torch.backends.cuda.matmul.fp32_precision == "tf32" and not torch.version.hip
        input_precision = "tf32" if wants_tf32 else "ieee"
    parts = out
    if num_splits > 1:
        parts = torch.empty(batch, num_heads, num_splits, v_head_dim, dtype=torch.float32, device=q.device)
    lses = torch.empty(batch, num_heads, num_splits, dtype=torch.float32, device=q.device)
    head_blocks = triton.cdiv(group, blocks["BLOCK_H"])
    with torch.cuda.device(q.device) if q.is_cuda else contextlib.nullcontext():
        attend_split[(batch, num_kv_heads * head_blocks, num_splits)](
            q, k, v, lengths, lengths if starts is None else starts, parts, lses, scale, capacity, chunk,
            *q.stride(), *k.stride(), *v.stride(), num_kv_heads, num_splits,
            GROUP=group, HEAD_DIM=head_dim, V_HEAD_DIM=v_head_dim, **blocks,
            RING=starts is not None, PRECISION=input_precision, **options,
        )  # fmt: skip
        if num_splits > 1:
            merge_splits[(batch, num_heads)](
                parts, lses, lengths, out, capacity, chunk, num_heads, num_splits,
                V_HEAD_DIM=v_head_dim, BLOCK_V=blocks["BLOCK_V"], BLOCK_S=triton.next_power_of_2(num_splits),
            )  # fmt: skip
    return out


def choose_blocks(group, head_dim, v_head_dim, itemsize, aligned=True):
    """Block sizes (powers of two) and launch options whose tiles stay in registers and shared memory.

    aligned: the last dimension of k and v is contiguous and their other strides are multiples of 16 elements.
    If not, each number has an address of its own, which costs registers.
    """
    block_h = 1 if group == 1 else min(MAX_HEADS, max(16, triton.next_power_of_2(group)))
    block_d = max(16, triton.next_power_of_2(head_dim))
    block_v = max(16, triton.next_power_of_2(v_head_dim))
    block_n = max(16, min(64, 16384 // (max(block_d, block_v) * itemsize)))
    block_n = block_n if aligned else max(16, block_n // 4)
    blocks = {"BLOCK_H": block_h, "BLOCK_D": block_d, "BLOCK_V": block_v, "BLOCK_N": block_n}
    return blocks, {"num_warps": 4 if block_h * block_v <= 8192 else 8, "num_stages": 2}


def choose_splits(pairs, capacity, block_n, num_splits=None):
    """(tokens of a split, number of splits) that fill a GPU from `pairs` (row, kv head) pairs, in whole blocks."""
    most = max(1, -(-capacity // (2 * block_n)))
    wanted = num_splits or min(most, max(1, PROGRAMS // pairs))
    chunk = max(1, -(-capacity // (wanted * block_n))) * block_n
    return chunk, max(1, -(-capacity // chunk))


def bytes_moved(lengths, num_heads, num_kv_heads, head_dim, v_head_dim, itemsize):
    """The fewest bytes that the operation can load: each valid key and value once, each query once.

    lengths: valid tokens of each row, integers. itemsize: bytes of a number.
    """
    tokens = sum(lengths) * num_kv_heads * (head_dim + v_head_dim)
    return (tokens + len(lengths) * num_heads * head_dim) * itemsize
