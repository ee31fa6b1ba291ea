"""Decode attention over pages on the GPU: one program a (row, kv head, split of the tokens), then a merge.

The query heads of a kv head are the rows of one matrix, so each key and value is loaded once ("Flash-Decoding",
PyTorch blog 2023; "GQA", arXiv 2305.13245). Every token looks up its own block, so a tile may span any number of
them. There are no atomics: equal input gives equal bits.
"""

import contextlib

import torch
import triton
import triton.language as tl

from ..triton import (
    MOST_TOKENS,
    add_tile,
    cap_scores,
    choose_precision,
    choose_splits,
    close_state,
    merge_splits,
)

MAX_HEADS = (
    64  # query heads of a program, half as many in float32; a larger group reads its kv head once for each
)


@triton.jit
def attend_split(
    q_ptr, k_ptr, v_ptr, table_ptr, lengths_ptr, out_ptr, lse_ptr,
    scale, soft_cap, capacity, window, chunk, block_size,
    q_row, q_head, q_dim, k_block, k_head, k_slot, k_dim, v_block, v_head, v_slot, v_dim, table_row, table_column,
    num_kv_heads, num_splits,
    GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, V_HEAD_DIM: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_N: tl.constexpr,
    CAPPED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One split: out (batch, num_heads, num_splits, V_HEAD_DIM) and natural-log lse (batch, num_heads, num_splits).

    Strides are in elements. Splits past the tokens that a row sees write nothing, except the first of an empty row.
    """
    row = tl.program_id(0).to(tl.int64)
    kv_head = (tl.program_id(1) % num_kv_heads).to(tl.int64)
    first_head = (tl.program_id(1) // num_kv_heads) * BLOCK_H
    split = tl.program_id(2)
    length = tl.minimum(tl.load(lengths_ptr + row).to(tl.int64), capacity).to(tl.int32)
    begin = tl.maximum(length - window, 0) + split * chunk
    end = tl.minimum(begin + chunk, length)
    if (begin >= end) & (split > 0):
        return

    heads = first_head + tl.arange(0, BLOCK_H)
    dims = tl.arange(0, BLOCK_D).to(tl.int64)
    v_dims = tl.arange(0, BLOCK_V).to(tl.int64)
    q_heads = (kv_head * GROUP + heads)[:, None]
    q = tl.load(
        q_ptr + row * q_row + q_heads * q_head + dims[None, :] * q_dim,
        mask=(heads < GROUP)[:, None] & (dims < HEAD_DIM)[None, :],
        other=0.0,
    )
    k_base = k_ptr + kv_head * k_head
    v_base = v_ptr + kv_head * v_head

    top = tl.full((BLOCK_H,), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK_H,), tl.float32)
    sums = tl.zeros((BLOCK_H, BLOCK_V), tl.float32)
    for at in range(begin, end, BLOCK_N):
        tokens = at + tl.arange(0, BLOCK_N)
        valid = tokens < end
        columns = table_ptr + row * table_row + (tokens // block_size) * table_column
        blocks = tl.load(columns, mask=valid, other=0).to(tl.int64)
        slots = (tokens % block_size).to(tl.int64)  # offsets have 64 bits: a pool may be larger
        k = tl.load(
            k_base + (blocks * k_block + slots * k_slot)[None, :] + dims[:, None] * k_dim,
            mask=valid[None, :] & (dims < HEAD_DIM)[:, None],
            other=0.0,
        )
        v = tl.load(
            v_base + (blocks * v_block + slots * v_slot)[:, None] + v_dims[None, :] * v_dim,
            mask=valid[:, None] & (v_dims < V_HEAD_DIM)[None, :],
            other=0.0,
        )
        if BLOCK_H == 1:  # no group: a matrix product would be padded to 16 rows
            scores = tl.sum(tl.trans(q).to(tl.float32) * k.to(tl.float32), axis=0)[None, :] * scale
        else:
            scores = tl.dot(q, k, input_precision=PRECISION) * scale
        if CAPPED:
            scores = cap_scores(scores, soft_cap)
        scores = tl.where(valid[None, :], scores * 1.4426950408889634, -float("inf"))
        top, total, sums = add_tile(scores, v, top, total, sums, BLOCK_H == 1, PRECISION)

    out, lse = close_state(top, total, sums)
    place = (row * num_kv_heads * GROUP + kv_head * GROUP + heads) * num_splits + split
    tl.store(lse_ptr + place, lse, mask=heads < GROUP)
    tl.store(
        out_ptr + place[:, None] * V_HEAD_DIM + v_dims[None, :],
        out.to(out_ptr.dtype.element_ty),
        mask=(heads < GROUP)[:, None] & (v_dims < V_HEAD_DIM)[None, :],
    )


def attend_triton(
    q, k_pages, v_pages, block_table, seq_lens, scale, window=None, soft_cap=None, input_precision=None,
    num_splits=None,
):  # fmt: skip
    """The operation of `attend_reference` (same arguments) for float32, float16 and bfloat16 on a GPU.

    Sums are float32. Lengths and tables on the GPU are not read back, so they are not checked: a length above the
    capacity of the table counts as the capacity.

    input_precision: of float32 products, "ieee" or "tf32"; None follows torch.backends.cuda.matmul.
    num_splits: programs that share the tokens of a (row, kv head); None fills the GPU.

    Returns out (batch, num_heads, v_head_dim) in q.dtype and lse (batch, num_heads), float32.
    """
    batch, num_heads, head_dim = q.shape
    _, num_kv_heads, block_size, v_head_dim = v_pages.shape
    group, device = num_heads // num_kv_heads, q.device
    capacity = min(block_table.shape[1] * block_size, MOST_TOKENS)
    window = capacity if window is None else min(window, capacity)
    out = torch.empty(batch, num_heads, v_head_dim, dtype=q.dtype, device=device)
    lse = torch.empty(batch, num_heads, dtype=torch.float32, device=device)
    if out.numel() == 0:
        return out, lse
    aligned = all(
        t.stride(3) == 1 and not any(stride % 16 for stride in t.stride()[:3]) for t in (k_pages, v_pages)
    )
    blocks, options = choose_blocks(group, head_dim, v_head_dim, q.element_size(), aligned)
    head_blocks = triton.cdiv(group, blocks["BLOCK_H"])
    chunk, num_splits = choose_splits(
        batch * num_kv_heads * head_blocks, window, blocks["BLOCK_N"], num_splits
    )
    seq_lens, block_table = seq_lens.to(device), block_table.to(device)
    if input_precision is None:
        input_precision = choose_precision()
    parts, lses = out, lse
    if num_splits > 1:
        parts = torch.empty(batch, num_heads, num_splits, v_head_dim, dtype=torch.float32, device=device)
        lses = torch.empty(batch, num_heads, num_splits, dtype=torch.float32, device=device)
    with torch.cuda.device(device) if q.is_cuda else contextlib.nullcontext():
        attend_split[(batch, num_kv_heads * head_blocks, num_splits)](
            q, k_pages, v_pages, block_table, seq_lens, parts, lses,
            scale, soft_cap or 1.0, capacity, window, chunk, block_size,
            *q.stride(), *k_pages.stride(), *v_pages.stride(), *block_table.stride(), num_kv_heads, num_splits,
            GROUP=group, HEAD_DIM=head_dim, V_HEAD_DIM=v_head_dim, **blocks,
            CAPPED=soft_cap is not None, PRECISION=input_precision, **options,
        )  # fmt: skip
        if num_splits > 1:
            merge_splits[(batch, num_heads)](
                parts, lses, seq_lens, out, lse, window, chunk, num_heads, num_splits,
                V_HEAD_DIM=v_head_dim, BLOCK_V=blocks["BLOCK_V"], BLOCK_S=triton.next_power_of_2(num_splits),
            )  # fmt: skip
    return out, lse


def choose_blocks(group, head_dim, v_head_dim, itemsize, aligned=True):
    """Block sizes (powers of two) and launch options whose tiles stay in registers and shared memory.

    aligned: the last dimension of the pages is contiguous and their other strides are multiples of 16 elements.
    If not, each number has an address of its own, which costs registers.
    """
    single = (
        itemsize == 4
    )  # products of float32 numbers keep both factors in registers: smaller tiles, more threads
    most = MAX_HEADS // 2 if single else MAX_HEADS
    block_h = 1 if group == 1 else min(most, max(16, triton.next_power_of_2(group)))
    block_d = max(16, triton.next_power_of_2(head_dim))
    block_v = max(16, triton.next_power_of_2(v_head_dim))
    widest = max(block_d, block_v)
    block_n = max(16, min(64, 2048 // block_h, (2048 if single else 8192) // widest))
    block_n = block_n if aligned else max(16, block_n // 4)
    blocks = {"BLOCK_H": block_h, "BLOCK_D": block_d, "BLOCK_V": block_v, "BLOCK_N": block_n}
    wide = block_h * widest > (1024 if single else 8192)
    return blocks, {"num_warps": 8 if wide else 4, "num_stages": 2}


def bytes_moved(lengths, num_heads, num_kv_heads, head_dim, v_head_dim, itemsize):
    """The fewest bytes that the operation can load: each key and value that is seen once, each query once.

    lengths: tokens that each row sees, integers. itemsize: bytes of a number. The table adds one entry a token and kv
    head.
    """
    tokens = sum(lengths) * num_kv_heads * (head_dim + v_head_dim)
    return (tokens + len(lengths) * num_heads * head_dim) * itemsize
