"""Writing new tokens into pages on the CPU: one compiled loop that copies bytes, of any floating type."""

import functools

import torch
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic


def store_cpu(x, pages, slots):
    """The operation of `store_reference` (same arguments) on the CPU.

    Fastest where the last dimension of the pages is contiguous; other strides are copied number by number.
    """
    x = x.to(pages.dtype)
    runs, numbers = (1, x.shape[2]) if pages.stride(3) == 1 else (x.shape[2], 1)
    x = x if numbers == 1 or x.stride(2) == 1 else x.contiguous()
    slots = slots.to(torch.int64).contiguous()
    size = x.element_size()
    build_copy()(
        slots.numpy(), pages.shape[2], pages.shape[1], runs, numbers * size,
        x.data_ptr(), *(stride * size for stride in x.stride()),
        pages.data_ptr(), *(stride * size for stride in pages.stride()),
    )  # fmt: skip


@intrinsic
def copy_bytes(typingctx, target, source, count):
    """Copies `count` bytes from one address to another."""

    def generate(context, builder, signature, args):
        target, source, count = args
        pointer = ir.IntType(8).as_pointer()
        pointers = [builder.inttoptr(address, pointer) for address in (target, source)]
        cgutils.raw_memcpy(builder, *pointers, count, 1)
        return context.get_dummy_value()

    return types.void(target, source, count), generate


@functools.cache
def build_copy():
    """Compiles the loop, within a second; later processes read it from numba's cache on disk."""
    signature = types.void(types.int64[::1], *[types.int64] * 13)
    try:
        return njit(signature, nogil=True, cache=True)(copy_tokens)
    except RuntimeError:  # no folder that numba may write its cache to
        return njit(signature, nogil=True)(copy_tokens)


def copy_tokens(
    slots, block_size, heads, runs, size,
    x_at, x_token, x_head, x_dim, pages_at, pages_block, pages_head, pages_slot, pages_dim,
):  # fmt: skip
    """Copies each head of each token in `runs` pieces of `size` bytes. Addresses and strides are in bytes."""
    for token in range(len(slots)):
        if slots[token] >= 0:
            block, slot = divmod(slots[token], block_size)
            for head in range(heads):
                target = pages_at + block * pages_block + head * pages_head + slot * pages_slot
                source = x_at + token * x_token + head * x_head
                for run in range(runs):
                    copy_bytes(target + run * pages_dim, source + run * x_dim, size)
