"""What the operation accepts, checked before anything is written."""

import numpy as np

from ..backends import require_tensors
from ..paging import INTEGERS


def check_field(x, pages, name, pages_name):
    """Errors: ValueError, saying what to do, unless the tokens `x` of one field can be written to its pages."""
    require_tensors(**{name: x, pages_name: pages})
    if (x.dim(), pages.dim()) not in ((2, 3), (3, 4)):
        raise ValueError(
            f"{name} is {tuple(x.shape)} and {pages_name} {tuple(pages.shape)}: pass (num_tokens, num_kv_heads, dim) "
            "with pages (num_blocks, num_kv_heads, block_size, dim), or both without heads"
        )
    if x.shape[1:-1] != pages.shape[1:-2] or x.shape[-1] != pages.shape[-1]:
        raise ValueError(
            f"{name} is {tuple(x.shape)} and {pages_name} {tuple(pages.shape)}: pass one num_kv_heads and one width"
        )
    if 0 in pages.shape[1:]:
        raise ValueError(
            f"{pages_name} is {tuple(pages.shape)}: pass heads, a block_size and a width of at least 1"
        )
    if not x.is_floating_point() or not pages.is_floating_point():
        raise ValueError(f"{name} is {x.dtype} and {pages_name} {pages.dtype}: pass floating types")
    if pages.device != x.device:
        raise ValueError(
            f"{name} is on {x.device} and {pages_name} on {pages.device}: move them to one device with .to(device)"
        )


def check_slots(slots, x, pages):
    """Errors: ValueError unless there is one slot a token; and, on the CPU, each in range and none named twice."""
    require_tensors(slots=slots)
    if slots.shape != x.shape[:1] or slots.dtype not in INTEGERS:
        raise ValueError(
            f"slots is {slots.dtype} {tuple(slots.shape)}: pass int32 or int64 of shape ({x.shape[0]},), a slot for "
            "each new token, −1 for a token that is not written"
        )
    if slots.device.type != "cpu":
        if slots.device != x.device:
            raise ValueError(f"slots is on {slots.device}: move it to the CPU or to {x.device}")
        return
    if not len(slots):
        return
    values = slots.numpy()
    ordered = np.sort(values)
    num_slots = pages.shape[0] * pages.shape[-2]
    if ordered[0] < -1 or ordered[-1] >= num_slots:
        place = int(((values < -1) | (values >= num_slots)).argmax())
        raise ValueError(
            f"slots[{place}] is {values[place]}: pass −1, or one of the {num_slots} slots of {pages.shape[0]} blocks "
            f"of {pages.shape[-2]} tokens, 0 to {num_slots - 1}"
        )
    twice = ordered[1:][ordered[1:] == ordered[:-1]]
    if len(twice) and twice[-1] >= 0:
        tokens = ", ".join(str(token) for token in np.flatnonzero(values == twice[-1])[:4])
        raise ValueError(
            f"slot {twice[-1]} is named by the tokens {tokens}: give each token a slot of its own"
        )
