"""Writing new tokens into pages on the GPU: one program a (token, kv head)."""

import contextlib

import torch
import triton
import triton.language as tl


@triton.jit
def store_token(
    x_ptr, pages_ptr, slots_ptr, num_slots, block_size,
    x_token, x_head, x_dim, pages_block, pages_head, pages_slot, pages_dim,
    DIM: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One head of one token, converted to the type of the pages. Strides are in elements.

    A slot outside the pages writes nothing, like −1: slots on the GPU are not read back to be checked.
    """
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    slot = tl.load(slots_ptr + token).to(tl.int64)
    if (slot < 0) | (slot >= num_slots):
        return
    dims = tl.arange(0, BLOCK_D).to(tl.int64)
    x = tl.load(x_ptr + token * x_token + head * x_head + dims * x_dim, mask=dims < DIM)
    place = pages_ptr + slot // block_size * pages_block + head * pages_head + slot % block_size * pages_slot
    tl.store(place + dims * pages_dim, x.to(pages_ptr.dtype.element_ty), mask=dims < DIM)


def store_triton(x, pages, slots):
    """The operation of `store_reference` (same arguments) on a GPU.

    Slots on the GPU are not read back, so they are not checked: one outside the pages writes nothing, and of two
    tokens with one slot either is written.
    """
    num_tokens, num_heads, dim = x.shape
    if num_tokens == 0:
        return
    block_d = triton.next_power_of_2(dim)
    with torch.cuda.device(x.device) if x.is_cuda else contextlib.nullcontext():
        store_token[(num_tokens, num_heads)](
            x, pages, slots.to(x.device).contiguous(), pages.shape[0] * pages.shape[2], pages.shape[2],
            *x.stride(), *pages.stride(),
            DIM=dim, BLOCK_D=block_d, num_warps=min(4, max(1, block_d // 128)),
        )  # fmt: skip


def bytes_moved(num_written, num_kv_heads, dim, itemsize):
    """The fewest bytes that the operation can load: each number of a token that is written, once."""
    return num_written * num_kv_heads * dim * itemsize
