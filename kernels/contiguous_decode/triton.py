"""Decode attention on the GPU: one program a (row, kv head, split of the tokens), then a merge of the splits.

The query heads of a kv head are the rows of one matrix, so each key and value is loaded once ("Flash-Decoding",
PyTorch blog 2023; "GQA", arXiv 2305.13245). There are no atomics: equal input gives equal bits.
"""

import contextlib

import torch
import triton
import triton.language as tl

from ..triton import add_tile, choose_precision, choose_splits, close_state, merge_splits

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
        top, total, sums = add_tile(scores, v, top, total, sums, BLOCK_H == 1, PRECISION)

    out, lse = close_state(top, total, sums)
    place = (row * num_kv_heads * GROUP + kv_head * GROUP + heads) * num_splits + split
    tl.store(lse_ptr + place, lse, mask=heads < GROUP)
    tl.store(
        out_ptr + place[:, None] * V_HEAD_DIM + v_dims[None, :],
        out.to(out_ptr.dtype.element_ty),
        mask=(heads < GROUP)[:, None] & (v_dims < V_HEAD_DIM)[None, :],
    )


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
    head_blocks = triton.cdiv(group, blocks["BLOCK_H"])
    chunk, num_splits = choose_splits(
        batch * num_kv_heads * head_blocks, capacity, blocks["BLOCK_N"], num_splits
    )
    lengths = lengths.to(q.device)
    starts = None if starts is None else starts.to(q.device)
    if input_precision is None:
        input_precision = choose_precision()
    parts = out
    if num_splits > 1:
        parts = torch.empty(batch, num_heads, num_splits, v_head_dim, dtype=torch.float32, device=q.device)
    lses = torch.empty(batch, num_heads, num_splits, dtype=torch.float32, device=q.device)
    with torch.cuda.device(q.device) if q.is_cuda else contextlib.nullcontext():
        attend_split[(batch, num_kv_heads * head_blocks, num_splits)](
            q, k, v, lengths, lengths if starts is None else starts, parts, lses, scale, capacity, chunk,
            *q.stride(), *k.stride(), *v.stride(), num_kv_heads, num_splits,
            GROUP=group, HEAD_DIM=head_dim, V_HEAD_DIM=v_head_dim, **blocks,
            RING=starts is not None, PRECISION=input_precision, **options,
        )  # fmt: skip
        if num_splits > 1:
            merge_splits[(batch, num_heads)](
                parts, lses, lengths, out, torch.empty_like(lses[..., 0]), capacity, chunk, num_heads, num_splits,
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


def bytes_moved(lengths, num_heads, num_kv_heads, head_dim, v_head_dim, itemsize):
    """The fewest bytes that the operation can load: each valid key and value once, each query once.

    lengths: valid tokens of each row, integers. itemsize: bytes of a number.
    """
    tokens = sum(lengths) * num_kv_heads * (head_dim + v_head_dim)
    return (tokens + len(lengths) * num_heads * head_dim) * itemsize
