"""Attention of new tokens over pages on the GPU: one program a (tile of queries, kv head, split of the tokens).

The query heads of a kv head, of all new tokens of a row, are the rows of one matrix, cut into tiles of BLOCK_M, and
each tile reads the keys and values that its queries see once ("FlashAttention-2", arXiv 2307.08691; "GQA", arXiv
2305.13245). A program finds its row among the starts of all rows, so that a long prompt beside decode steps leaves no
program idle for long. Every token looks up its own block. There are no atomics: equal input gives equal bits.
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


@triton.jit
def attend_tile(
    q_ptr, k_ptr, v_ptr, table_ptr, lengths_ptr, starts_ptr, out_ptr, lse_ptr,
    scale, soft_cap, batch, capacity, window, chunk, block_size,
    q_token, q_head, q_dim, k_block, k_head, k_slot, k_dim, v_block, v_head, v_slot, v_dim, table_row, table_column,
    num_kv_heads, num_splits,
    GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, V_HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_N: tl.constexpr,
    CAPPED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One tile: out (num_tokens, num_heads, num_splits, V_HEAD_DIM) and natural-log lse (without the last dimension).

    Row b has its tiles from number `starts[b] * GROUP // BLOCK_M + b` on, which leaves room for a last tile that is
    not full. Strides are in elements. A split covers `chunk` positions of a row; those past the tokens that a tile
    sees write nothing, except the first.
    """
    tile = tl.program_id(0)
    kv_head = tl.program_id(1).to(tl.int64)
    split = tl.program_id(2)
    low = tl.zeros((), tl.int32)  # the last row whose tiles begin at or before this one
    high = low + batch
    while high - low > 1:
        middle = (low + high) // 2
        first_tile = (tl.load(starts_ptr + middle).to(tl.int64) * GROUP // BLOCK_M).to(tl.int32) + middle
        low = tl.where(first_tile <= tile, middle, low)
        high = tl.where(first_tile <= tile, high, middle)
    row = low.to(tl.int64)
    start = tl.load(starts_ptr + row).to(tl.int64)
    count = (tl.load(starts_ptr + row + 1).to(tl.int64) - start).to(tl.int32)
    first = (tile - (start * GROUP // BLOCK_M).to(tl.int32) - low) * BLOCK_M
    if first >= count * GROUP:
        return
    length = tl.minimum(tl.load(lengths_ptr + row).to(tl.int64), capacity).to(tl.int32)
    before = length - count  # tokens before the new ones
    tile_end = before + tl.minimum(first + BLOCK_M - 1, count * GROUP - 1) // GROUP + 1
    if (split * chunk >= tile_end) & (split > 0):
        return
    begin = tl.maximum(tl.maximum(before + first // GROUP - window + 1, split * chunk), 0)
    end = tl.minimum(tile_end, (split + 1) * chunk)

    lanes = first + tl.arange(0, BLOCK_M)
    some = lanes < count * GROUP
    ends = before + lanes // GROUP + 1  # tokens that each query sees
    tokens = start + (lanes // GROUP).to(tl.int64)
    heads = kv_head * GROUP + lanes % GROUP
    dims = tl.arange(0, BLOCK_D).to(tl.int64)
    v_dims = tl.arange(0, BLOCK_V).to(tl.int64)
    q = tl.load(
        q_ptr + (tokens * q_token + heads * q_head)[:, None] + dims[None, :] * q_dim,
        mask=some[:, None] & (dims < HEAD_DIM)[None, :],
        other=0.0,
    )
    k_base = k_ptr + kv_head * k_head
    v_base = v_ptr + kv_head * v_head

    top = tl.full((BLOCK_M,), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    sums = tl.zeros((BLOCK_M, BLOCK_V), tl.float32)
    for at in range(begin, end, BLOCK_N):
        seen = at + tl.arange(0, BLOCK_N)
        valid = seen < end
        columns = table_ptr + row * table_row + (seen // block_size) * table_column
        blocks = tl.load(columns, mask=valid, other=0).to(tl.int64)
        slots = (seen % block_size).to(tl.int64)  # offsets have 64 bits: a pool may be larger
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
        scores = tl.dot(q, k, input_precision=PRECISION) * scale
        if CAPPED:
            scores = cap_scores(scores, soft_cap)
        sees = valid[None, :] & (seen[None, :] < ends[:, None]) & (seen[None, :] >= (ends - window)[:, None])
        scores = tl.where(sees, scores * 1.4426950408889634, -float("inf"))
        top, total, sums = add_tile(scores, v, top, total, sums, False, PRECISION)

    out, lse = close_state(top, total, sums)
    place = (tokens * num_kv_heads * GROUP + heads) * num_splits + split
    tl.store(lse_ptr + place, lse, mask=some)
    tl.store(
        out_ptr + place[:, None] * V_HEAD_DIM + v_dims[None, :],
        out.to(out_ptr.dtype.element_ty),
        mask=some[:, None] & (v_dims < V_HEAD_DIM)[None, :],
    )


def attend_triton(
    q, k_pages, v_pages, block_table, seq_lens, query_starts, scale, window=None, soft_cap=None,
    input_precision=None, num_splits=None,
):  # fmt: skip
    """The operation of `attend_reference` (same arguments) for float32, float16 and bfloat16 on a GPU.

    Sums are float32. Tables, lengths and starts on the GPU are not read back, so they are not checked: a length above
    the capacity of the table counts as the capacity.

    input_precision: of float32 products, "ieee" or "tf32"; None follows torch.backends.cuda.matmul.
    num_splits: programs that share the tokens of a tile; None fills the GPU, 1 where there is a window.

    Returns out (num_tokens, num_heads, v_head_dim) in q.dtype and lse (num_tokens, num_heads), float32.
    """
    num_tokens, num_heads, head_dim = q.shape
    _, num_kv_heads, block_size, v_head_dim = v_pages.shape
    group, batch, device = num_heads // num_kv_heads, len(seq_lens), q.device
    capacity = min(block_table.shape[1] * block_size, MOST_TOKENS)
    out = torch.empty(num_tokens, num_heads, v_head_dim, dtype=q.dtype, device=device)
    lse = torch.empty(num_tokens, num_heads, dtype=torch.float32, device=device)
    if out.numel() == 0:
        return out, lse
    pages = (k_pages, v_pages)
    aligned = all(t.stride(3) == 1 and not any(stride % 16 for stride in t.stride()[:3]) for t in pages)
    blocks, options = choose_blocks(head_dim, v_head_dim, q.element_size(), aligned)
    num_tiles = num_tokens * group // blocks["BLOCK_M"] + batch
    if window is not None:
        num_splits = 1
    chunk, num_splits = choose_splits(num_tiles * num_kv_heads, capacity, blocks["BLOCK_N"], num_splits)
    block_table, seq_lens, query_starts = (t.to(device) for t in (block_table, seq_lens, query_starts))
    if input_precision is None:
        input_precision = choose_precision()
    parts, lses = out, lse
    if num_splits > 1:
        parts = torch.empty(num_tokens, num_heads, num_splits, v_head_dim, dtype=torch.float32, device=device)
        lses = torch.empty(num_tokens, num_heads, num_splits, dtype=torch.float32, device=device)
    with torch.cuda.device(device) if q.is_cuda else contextlib.nullcontext():
        attend_tile[(num_tiles, num_kv_heads, num_splits)](
            q, k_pages, v_pages, block_table, seq_lens, query_starts.contiguous(), parts, lses,
            scale, soft_cap or 1.0, batch, capacity, min(window or capacity, capacity), chunk, block_size,
            *q.stride(), *k_pages.stride(), *v_pages.stride(), *block_table.stride(), num_kv_heads, num_splits,
            GROUP=group, HEAD_DIM=head_dim, V_HEAD_DIM=v_head_dim, **blocks,
            CAPPED=soft_cap is not None, PRECISION=input_precision, **options,
        )  # fmt: skip
        if num_splits > 1:
            seen = count_seen(seq_lens.clamp(max=capacity), query_starts, num_tokens)
            merge_splits[(num_tokens, num_heads)](
                parts, lses, seen, out, lse, capacity, chunk, num_heads, num_splits,
                V_HEAD_DIM=v_head_dim, BLOCK_V=blocks["BLOCK_V"], BLOCK_S=triton.next_power_of_2(num_splits),
            )  # fmt: skip
    return out, lse


def count_seen(seq_lens, query_starts, num_tokens):
    """(num_tokens,) int64: the position of each new token, plus one. Nothing is read back from the GPU."""
    counts = query_starts.diff()
    ends = (seq_lens - query_starts[1:]).repeat_interleave(counts, output_size=num_tokens)
    return ends + torch.arange(1, num_tokens + 1, device=ends.device)


def choose_blocks(head_dim, v_head_dim, itemsize, aligned=True):
    """Block sizes (powers of two) and launch options whose tiles stay in registers and shared memory.

    They depend on the tensors' shapes and strides only, so that a row's result does not depend on its batch mates.
    aligned: the last dimension of the pages is contiguous and their other strides are multiples of 16 elements. If
    not, each number has an address of its own, which costs registers.
    """
    block_d = max(16, triton.next_power_of_2(head_dim))
    block_v = max(16, triton.next_power_of_2(v_head_dim))
    widest, num_warps = max(block_d, block_v), 4
    if not aligned:
        block_m, block_n = 16, 16
    elif itemsize == 4:  # products of float32 numbers keep both factors in registers
        block_m, block_n, num_warps = 32, 16, 4 if widest <= 64 else 8
    else:
        block_m = max(16, min(64, 8192 // widest))
        block_n = 64 if widest <= 64 else 32 if widest <= 256 else 16
    blocks = {"BLOCK_M": block_m, "BLOCK_D": block_d, "BLOCK_V": block_v, "BLOCK_N": block_n}
    return blocks, {"num_warps": num_warps, "num_stages": 2}


def bytes_moved(
    seq_lens, query_starts, num_heads, num_kv_heads, head_dim, v_head_dim, itemsize, block_m, window=None
):
    """The fewest bytes that tiles of `block_m` queries can load: each query once, each key and value once a tile.

    seq_lens: tokens of each row; query_starts: where its new tokens begin, and their total; integers. itemsize: bytes
    of a number. The table adds one entry a token.
    """
    group, tokens = num_heads // num_kv_heads, 0
    for length, start, stop in zip(seq_lens, query_starts, query_starts[1:], strict=False):
        lanes, before = (stop - start) * group, length - (stop - start)
        for first in range(0, lanes, block_m):
            end = before + (min(first + block_m, lanes) - 1) // group + 1
            tokens += end - (0 if window is None else max(0, before + first // group - window + 1))
    queries = query_starts[-1] * num_heads * head_dim
    return (tokens * num_kv_heads * (head_dim + v_head_dim) + queries) * itemsize
