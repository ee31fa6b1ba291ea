"""What operations on pages accept: the checks that they share, made before any kernel runs.

Token i of row b lies in slot `i % block_size` of block `block_table[b, i // block_size]`. On a GPU tables and lengths
are not read back, so their numbers are checked on the CPU only.
"""

import sys

import numpy as np
import torch

LARGEST = sys.float_info.max
INTEGERS = (torch.int32, torch.int64)


def check_pages(k_pages, v_pages):
    """Errors: ValueError unless both are pages of the same blocks, (num_blocks, num_kv_heads, block_size, dims)."""
    if k_pages.dim() != 4 or v_pages.dim() != 4:
        raise ValueError(
            f"k_pages, v_pages have {k_pages.dim()}, {v_pages.dim()} dimensions: pass "
            "(num_blocks, num_kv_heads, block_size, head_dim)"
        )
    if k_pages.shape[:3] != v_pages.shape[:3] or 0 in (*k_pages.shape[1:], *v_pages.shape[1:]):
        raise ValueError(
            f"k_pages, v_pages are {tuple(k_pages.shape)}, {tuple(v_pages.shape)}: pass one num_blocks, "
            "num_kv_heads and block_size for both, each but num_blocks and each head_dim at least 1"
        )


def check_queries(q, k_pages, v_pages, rows):
    """Errors: ValueError unless q is (rows, num_heads, head_dim) and fits the pages. rows: their name."""
    if q.dim() != 3 or q.shape[2] != k_pages.shape[3]:
        raise ValueError(
            f"q is {tuple(q.shape)} and k_pages {tuple(k_pages.shape)}: pass q as ({rows}, num_heads, head_dim) "
            "with the head_dim of the keys"
        )
    if q.shape[1] == 0 or q.shape[1] % k_pages.shape[1]:
        raise ValueError(
            f"{q.shape[1]} query heads on {k_pages.shape[1]} kv heads: pass a whole number of query heads per kv head"
        )
    tensors = (q, k_pages, v_pages)
    if not q.is_floating_point() or any(tensor.dtype != q.dtype for tensor in tensors):
        raise ValueError(
            f"q, k_pages, v_pages are {', '.join(str(t.dtype) for t in tensors)}: pass one floating type, converting "
            "with .to(dtype)"
        )
    if any(tensor.device != q.device for tensor in tensors):
        raise ValueError(
            f"q, k_pages, v_pages are on {', '.join(str(t.device) for t in tensors)}: move them to one device with "
            ".to(device)"
        )


def check_options(scale, window, soft_cap):
    """Errors: ValueError unless each is None or a number that attention can use."""
    if scale is not None and not is_finite(scale):
        raise ValueError(f"scale is {shown(scale)}: pass a finite number, or None for head_dim ** -0.5")
    if window is not None and (isinstance(window, bool) or not isinstance(window, int) or window < 1):
        raise ValueError(
            f"window is {shown(window)}: pass how many tokens a query sees, itself included, as a whole number of at "
            "least 1, or None for all"
        )
    if soft_cap is not None and not (is_finite(soft_cap) and soft_cap > 0):
        raise ValueError(
            f"soft_cap is {shown(soft_cap)}: pass the largest score, a finite number above 0, or None for no limit"
        )


def check_integers(name, values, shape, batch, device, more=0):
    """Errors: ValueError unless `values` are integers with batch + more rows, on the CPU or the device.

    shape: what to pass, as text: "(batch,)" or "(batch, max_blocks)"; its commas say how many dimensions.
    """
    dims = len(shape.strip("(,)").split(","))
    if values.dim() != dims or values.shape[0] != batch + more or values.dtype not in INTEGERS:
        raise ValueError(
            f"{name} is {values.dtype} {tuple(values.shape)}: pass int32 or int64 of shape {shape} for a batch of "
            f"{batch}"
        )
    if values.device.type != "cpu" and values.device != device:
        raise ValueError(f"{name} is on {values.device}: move it to the CPU or to {device}")


def check_blocks(num_blocks, block_size, block_table, seq_lens, firsts=0):
    """Errors: ValueError unless each row's tokens fit its table and the entries they need name blocks that exist.

    firsts: the first token of each row that is needed, an array or one number for all: entries of blocks that lie
    wholly before it may hold anything.
    """
    if seq_lens.device.type != "cpu" or not len(seq_lens):
        return
    lengths = seq_lens.numpy()
    capacity = block_table.shape[1] * block_size
    if lengths.min() < 0 or lengths.max() > capacity:
        raise ValueError(
            f"seq_lens span {lengths.min()} to {lengths.max()}: each must be 0 to {capacity}, the "
            f"{block_table.shape[1]} blocks of a row of the table times the block size {block_size}"
        )
    if block_table.device.type != "cpu":
        return
    used = -(-lengths // block_size)
    table = block_table.numpy()
    if used.max() == 0:
        return
    needed = table[:, : used.max()]
    bad = (needed < 0) | (needed >= num_blocks)
    if not bad.any():
        return
    columns = np.arange(needed.shape[1])
    unused = np.broadcast_to(np.asarray(firsts) // block_size, lengths.shape)
    bad &= (columns < used[:, None]) & (columns >= unused[:, None])
    if bad.any():
        row, block = (int(index[0]) for index in bad.nonzero())
        raise ValueError(
            f"block_table[{row}, {block}] is {table[row, block]}: the {lengths[row]} tokens of row {row} need it, so "
            f"it must name one of the {num_blocks} blocks, 0 to {num_blocks - 1}"
        )


def check_starts(query_starts):
    """Errors: ValueError unless the starts of the new tokens of rows, on the CPU, begin at 0 and never fall."""
    starts = query_starts.numpy()
    if starts[0] != 0 or (np.diff(starts) < 0).any():
        raise ValueError(
            f"query_starts is {_listed(starts)}: pass 0, then how many new tokens the rows so far have"
        )


def _listed(values):
    return ", ".join(str(value) for value in values[:8]) + (", …" if len(values) > 8 else "")


def is_finite(value):
    """Whether a value is a number, and neither infinite nor NaN."""
    return not isinstance(value, bool) and isinstance(value, int | float) and abs(value) <= LARGEST


def shown(value):
    """A value in a few characters of one line."""
    return repr(value).splitlines()[0][:40]
