"""Absorbed latent attention on the GPU: one program a (row, block of heads, split of the tokens), then a merge.

All heads share one latent a token, so the heads of a program are the rows of one matrix and a tile of latents, loaded
once, serves as keys and then as values ("FlashMLA", github.com/deepseek-ai/FlashMLA). There are no atomics: equal
input gives equal bits.
"""

import contextlib

import torch
import triton
import triton.language as tl

from ..triton import choose_precision, choose_splits, merge_splits

# Heads of a program. Further programs load the same latents, at the same time and so mostly from the second-level
# cache. The float32 sums of 64 heads and 512 numbers spill registers or overflow the tensor memory of Blackwell.
MAX_HEADS = 32


@triton.jit
def attend_split(
    q_latent_ptr, q_rope_ptr, latent_ptr, rope_ptr, table_ptr, lengths_ptr, out_ptr, lse_ptr,
    scale, capacity, chunk, block_size,
    q_latent_row, q_latent_head, q_latent_dim, q_rope_row, q_rope_head, q_rope_dim,
    latent_block, latent_slot, latent_dim, rope_block, rope_slot, rope_dim, table_row, table_column,
    num_heads, num_splits,
    RANK: tl.constexpr, ROPE_DIM: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_N: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """One split: out (batch, num_heads, num_splits, RANK) and natural-log lse (batch, num_heads, num_splits).

    Strides are in elements. Splits past the row's length write nothing, except the first of an empty row.
    """
    row = tl.program_id(1).to(tl.int64)
    split = tl.program_id(2)
    length = tl.minimum(tl.load(lengths_ptr + row).to(tl.int64), capacity)
    begin = split.to(tl.int64) * chunk
    end = tl.minimum(begin + chunk, length)
    if (begin >= end) & (split > 0):
        return

    heads = (tl.program_id(0) * BLOCK_H + tl.arange(0, BLOCK_H)).to(tl.int64)
    some_heads = (heads < num_heads)[:, None]
    # A latent is loaded as two halves: two smaller sums need fewer registers than one when they are rescaled.
    low = tl.arange(0, BLOCK_R).to(tl.int64)
    high = BLOCK_R + low
    rope_dims = tl.arange(0, BLOCK_P).to(tl.int64)
    q_at = q_latent_ptr + row * q_latent_row + heads[:, None] * q_latent_head
    q_low = tl.load(q_at + low[None, :] * q_latent_dim, mask=some_heads & (low < RANK)[None, :], other=0.0)
    q_high = tl.load(q_at + high[None, :] * q_latent_dim, mask=some_heads & (high < RANK)[None, :], other=0.0)
    q_rope = tl.load(
        q_rope_ptr + row * q_rope_row + heads[:, None] * q_rope_head + rope_dims[None, :] * q_rope_dim,
        mask=some_heads & (rope_dims < ROPE_DIM)[None, :],
        other=0.0,
    )

    top = tl.full((BLOCK_H,), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK_H,), tl.float32)
    sums_low = tl.zeros((BLOCK_H, BLOCK_R), tl.float32)
    sums_high = tl.zeros((BLOCK_H, BLOCK_R), tl.float32)
    for at in range(begin, end, BLOCK_N):
        tokens = at + tl.arange(0, BLOCK_N)
        valid = tokens < end
        columns = table_ptr + row * table_row + (tokens // block_size) * table_column
        blocks = tl.load(columns, mask=valid, other=0).to(tl.int64)
        slots = (tokens % block_size).to(tl.int64)  # offsets have 64 bits: a pool may be larger
        latent_at = latent_ptr + (blocks * latent_block + slots * latent_slot)[:, None]
        c_low = tl.load(
            latent_at + low[None, :] * latent_dim, mask=valid[:, None] & (low < RANK)[None, :], other=0.0
        )
        c_high = tl.load(
            latent_at + high[None, :] * latent_dim, mask=valid[:, None] & (high < RANK)[None, :], other=0.0
        )
        rope_keys = tl.load(
            rope_ptr + (blocks * rope_block + slots * rope_slot)[None, :] + rope_dims[:, None] * rope_dim,
            mask=valid[None, :] & (rope_dims < ROPE_DIM)[:, None],
            other=0.0,
        )
        scores = tl.dot(q_low, tl.trans(c_low), input_precision=PRECISION)
        scores = tl.dot(q_high, tl.trans(c_high), scores, input_precision=PRECISION)
        scores = tl.dot(q_rope, rope_keys, scores, input_precision=PRECISION)
        scores = tl.where(valid[None, :], scores * (scale * 1.4426950408889634), -float("inf"))
        new_top = tl.maximum(top, tl.max(scores, axis=1))
        shift = tl.where(new_top == -float("inf"), 0.0, new_top)
        weights = tl.exp2(scores - shift[:, None])
        factor = tl.exp2(top - shift)
        total = total * factor + tl.sum(weights, axis=1)
        weights = weights.to(c_low.dtype)
        sums_low = tl.dot(weights, c_low, sums_low * factor[:, None], input_precision=PRECISION)
        sums_high = tl.dot(weights, c_high, sums_high * factor[:, None], input_precision=PRECISION)
        top = new_top

    some = total != 0
    share = tl.where(some, 1 / tl.where(some, total, 1.0), 0.0)[:, None]
    lse = tl.where(some, (top + tl.log2(tl.where(some, total, 1.0))) * 0.6931471805599453, -float("inf"))
    place = (row * num_heads + heads) * num_splits + split
    tl.store(lse_ptr + place, lse, mask=heads < num_heads)
    out_at = out_ptr + place[:, None] * RANK
    kind = out_ptr.dtype.element_ty
    tl.store(out_at + low[None, :], (sums_low * share).to(kind), mask=some_heads & (low < RANK)[None, :])
    tl.store(out_at + high[None, :], (sums_high * share).to(kind), mask=some_heads & (high < RANK)[None, :])


def attend_triton(
    q_latent,
    q_rope,
    latent_pages,
    rope_pages,
    block_table,
    seq_lens,
    scale,
    input_precision=None,
    num_splits=None,
):
    """The operation of `attend_reference` (same arguments) for float32, float16 and bfloat16 on a GPU.

    Sums are float32. Lengths and tables on the GPU are not read back, so they are not checked: a length above the
    capacity of the table counts as the capacity.

    input_precision: of float32 products, "ieee" or "tf32"; None follows torch.backends.cuda.matmul.
    num_splits: programs that share the tokens of a row; None fills the GPU.

    Returns out (batch, num_heads, kv_lora_rank) in the type of q_latent and lse (batch, num_heads), float32.
    """
    batch, num_heads, rank = q_latent.shape
    rope_dim, block_size, device = q_rope.shape[2], latent_pages.shape[1], q_latent.device
    capacity = block_table.shape[1] * block_size
    out = torch.empty(batch, num_heads, rank, dtype=q_latent.dtype, device=device)
    lse = torch.empty(batch, num_heads, dtype=torch.float32, device=device)
    if out.numel() == 0:
        return out, lse
    pages = (latent_pages, rope_pages)
    blocks, options = choose_blocks(num_heads, rank, rope_dim, q_latent.element_size())
    head_blocks = triton.cdiv(num_heads, blocks["BLOCK_H"])
    chunk, num_splits = choose_splits(batch * head_blocks, capacity, blocks["BLOCK_N"], num_splits)
    seq_lens, block_table = seq_lens.to(device), block_table.to(device)
    if input_precision is None:
        input_precision = choose_precision()
    parts, lses = out, lse
    if num_splits > 1:
        parts = torch.empty(batch, num_heads, num_splits, rank, dtype=torch.float32, device=device)
        lses = torch.empty(batch, num_heads, num_splits, dtype=torch.float32, device=device)
    with torch.cuda.device(device) if q_latent.is_cuda else contextlib.nullcontext():
        attend_split[(head_blocks, batch, num_splits)](
            q_latent, q_rope, *pages, block_table, seq_lens, parts, lses, scale, capacity, chunk, block_size,
            *q_latent.stride(), *q_rope.stride(), *latent_pages.stride(), *rope_pages.stride(),
            *block_table.stride(), num_heads, num_splits,
            RANK=rank, ROPE_DIM=rope_dim, **blocks, PRECISION=input_precision, **options,
        )  # fmt: skip
        if num_splits > 1:
            merge_splits[(batch, num_heads)](
                parts, lses, seq_lens, out, lse, capacity, chunk, num_heads, num_splits,
                V_HEAD_DIM=rank, BLOCK_V=2 * blocks["BLOCK_R"], BLOCK_S=triton.next_power_of_2(num_splits),
            )  # fmt: skip
    return out, lse


def choose_blocks(num_heads, rank, rope_dim, itemsize):
    """Block sizes (powers of two) and launch options whose tiles stay in registers and shared memory.

    BLOCK_R is half of a latent, padded. Wider float32 sums than those of rank 128 need twice the threads.
    """
    heads = 16 if itemsize == 4 else min(MAX_HEADS, max(16, triton.next_power_of_2(num_heads)))
    blocks = {
        "BLOCK_H": heads,
        "BLOCK_R": max(16, triton.next_power_of_2(-(-rank // 2))),
        "BLOCK_P": max(16, triton.next_power_of_2(rope_dim)),
        "BLOCK_N": 16 if itemsize == 4 else 32,
    }
    wide = itemsize == 4 and blocks["BLOCK_R"] > 64
    return blocks, {"num_warps": 8 if wide else 4, "num_stages": 2}


def bytes_moved(lengths, num_heads, rank, rope_dim, itemsize):
    """The fewest bytes that the operation can load: each latent and rope key once, each query once.

    lengths: tokens of each row, integers. itemsize: bytes of a number. The table adds one entry a token.
    """
    return (sum(lengths) + len(lengths) * num_heads) * (rank + rope_dim) * itemsize
