"""Writing new keys and values, or latents, into the slots of paged storage."""

import torch

from ..backends import found, refuse_gradients, require_triton, unknown
from .arguments import check_field, check_slots
from .indexed import store_indexed
from .mapping import slot_mapping
from .reference import store_reference

__all__ = ["slot_mapping", "store_kv", "store_pages", "store_reference"]


def store_kv(k, v, k_pages, v_pages, slots, backend=None):
    """Writes the keys and values of new tokens into their pages, in place.

    k: (num_tokens, num_kv_heads, head_dim). v: (num_tokens, num_kv_heads, v_head_dim).
    k_pages: (num_blocks, num_kv_heads, block_size, head_dim). v_pages: (num_blocks, num_kv_heads, block_size,
        v_head_dim). Pages may be of another floating type: numbers are converted on the way. Strides are free.
    slots: (num_tokens,) int32 or int64 on the CPU or the device of k. Token i goes to slot `slots[i] % block_size`
        of block `slots[i] // block_size`; −1 writes nothing. `slot_mapping` makes them from a block table.
    backend: as for `store_pages`, which writes one field alone.

    Errors: ValueError, and nothing is written, when shapes, types or devices do not fit, a slot on the CPU is out
    of range or named twice (on a GPU they are not read back to be checked), or the backend is unknown or not usable.
    """
    check_field(k, k_pages, "k", "k_pages")
    check_field(v, v_pages, "v", "v_pages")
    if k.dim() != 3 or v.shape[:2] != k.shape[:2] or v_pages.shape[:3] != k_pages.shape[:3]:
        raise ValueError(
            f"k {tuple(k.shape)}, v {tuple(v.shape)}, k_pages {tuple(k_pages.shape)}, v_pages {tuple(v_pages.shape)} "
            "do not fit: pass one num_tokens and num_kv_heads for all, one num_blocks and block_size for both pages; "
            "fields that differ in more than their width go one by one through store_pages"
        )
    if v.device != k.device:
        raise ValueError(f"k is on {k.device} and v on {v.device}: move them to one device with .to(device)")
    check_slots(slots, k, k_pages)
    stores = [_choose_store(backend, x, pages) for x, pages in ((k, k_pages), (v, v_pages))]
    for store, x, pages in zip(stores, (k, v), (k_pages, v_pages), strict=True):
        store(x, pages, slots)


def store_pages(x, pages, slots, backend=None):
    """Writes one field of new tokens into its pages, in place: keys, or values, or a latent that has no heads.

    x: (num_tokens, num_kv_heads, dim), or (num_tokens, dim) for a field without heads.
    pages: (num_blocks, num_kv_heads, block_size, dim), or (num_blocks, block_size, dim).
    slots: as for `store_kv`.
    backend: "reference", "torch", "cpu" or "triton"; None chooses, see `choose_backend`.

    Errors: as for `store_kv`.
    """
    check_field(x, pages, "x", "pages")
    check_slots(slots, x, pages)
    store = _choose_store(backend, x, pages)
    if x.dim() == 2:
        x, pages = x[:, None], pages[:, None]
    store(x, pages, slots)


def choose_backend(x, pages):
    """The name of the fastest backend for these arguments of `store_pages`.

    "triton" on a GPU; "cpu" on the CPU where the last dimension of the pages is contiguous; "torch" for other
    strides, where numba or Triton is missing, and where gradients are wanted, which the kernels do not compute.
    """
    # On the CPU numba took 2 µs for a token and 15 for 512 (3 heads of 64 floats), torch 15 and 60; from some
    # megabytes on both are as fast as the memory.
    if torch.is_grad_enabled() and (x.requires_grad or pages.requires_grad):
        return "torch"
    if x.is_cuda:
        return "triton" if found("triton") and torch.float64 not in (x.dtype, pages.dtype) else "torch"
    return "cpu" if x.device.type == "cpu" and pages.stride(-1) == 1 and found("numba") else "torch"


def _choose_store(backend, x, pages):
    """The function of a backend. Errors: ValueError unless it can work on these tensors."""
    name = choose_backend(x, pages) if backend is None else backend
    if name == "torch":
        return store_indexed
    if name == "reference":
        return store_reference
    if name == "cpu":
        _require_cpu(x, pages)
        from .cpu import store_cpu  # when it is first used: numba takes a moment

        return store_cpu
    if name == "triton":
        require_triton(x, pages)
        from .triton import store_triton

        return store_triton
    raise unknown(name)


def _require_cpu(x, pages):
    """Errors: ValueError, saying what to do, unless numba can copy these tensors: bytes of any type on the CPU."""
    refuse_gradients("cpu", (x, pages))
    if x.device.type != "cpu":
        raise ValueError(
            f"backend 'cpu' got tensors on {x.device}: pass tensors on the CPU, or backend='torch'"
        )
    if not found("numba"):
        raise ValueError("backend 'cpu' needs numba: pip install numba, or pass backend='torch'")
