"""Drawings of paging: reserved arrays against blocks, and where the next token goes."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from kvcourse.errors import InputError
from kvcourse.figures import style
from kvcourse.figures.paging import WASTE
from kvcourse.figures.shapes import arrow, label, rectangle
from kvcourse.figures.style import styled


class Reservation(NamedTuple):
    """One request in a memory of slots: where its array starts, and how many slots in it are used and will be.

    start: first slot. stored: tokens now. final: tokens at its end. reserved: slots of its array.
    """

    name: str
    start: int
    stored: int
    final: int
    reserved: int


REQUESTS = (
    Reservation("A", 0, 9, 13, 20),
    Reservation("B", 26, 5, 7, 16),
    Reservation("C", 46, 3, 5, 12),
)
ARRIVING = Reservation("D", 0, 7, 10, 12)
LATER, NEVER = WASTE["reserved for later"], WASTE["reserved, never used"]


@styled
def fragmentation(
    requests: Sequence[Reservation] = REQUESTS, arriving: Reservation = ARRIVING, capacity=64, block_size=4
):
    """The same requests in one memory, each in an array that was reserved for it, and in blocks.

    arriving: one request more, whose array has no place yet, so its start does not count. capacity: slots of the
    memory.
    Errors: InputError for arrays that overlap or leave the memory, and for blocks that do not fill it or do not do.
    """
    requests, arriving = [Reservation(*request) for request in requests], Reservation(*arriving)
    holes = _holes(requests, arriving, capacity)
    if block_size < 1 or capacity % block_size:
        raise InputError(
            f"capacity={capacity}, block_size={block_size}: expected blocks that fill the memory"
        )
    blocks = _blocks([*requests, arriving], capacity // block_size, block_size)
    fig, ax = style.canvas(height=3.6)
    slot = (style.WIDTH - 0.2) / capacity
    label(ax, 0.1, 3.44, "One reserved array a request", bold=True, size=style.FONT_PT)
    for request in requests:
        x = 0.1 + request.start * slot
        _parts(ax, x, 2.86, slot, request, 0, request.reserved)
        rectangle(ax, x, 2.86, request.reserved * slot, 0.36, "none", edge=style.INK)
        label(ax, x + request.stored * slot / 2, 3.04, request.name, style.PAPER, bold=True, ha="center")
    for start, size in holes:
        rectangle(ax, 0.1 + start * slot, 2.86, size * slot, 0.36, style.PAPER, linestyle="--")
        label(ax, 0.1 + (start + size / 2) * slot, 3.04, f"{size}", style.MUTED, ha="center")
    largest, free = max((size for _, size in holes), default=0), sum(size for _, size in holes)
    fits = largest >= arriving.reserved
    text = f"{arriving.name} needs {arriving.reserved} in a row: {'it fits' if fits else 'no hole fits'}. "
    text += f"Free: {free}, largest hole: {largest}."
    label(ax, 0.1, 2.66, text, style.INK if fits else style.ALERT)
    used, reserved = sum(request.stored for request in requests), capacity - free
    label(ax, 0.1, 2.42, f"{used} tokens in {reserved} reserved slots: {used / reserved:.0%}")

    label(ax, 0.1, 2.0, f"Blocks of {block_size}, taken one by one", bold=True, size=style.FONT_PT)
    wide = block_size * slot
    for i in range(capacity // block_size):
        x = 0.1 + i * wide
        if i < len(blocks):
            request, first = blocks[i]
            _parts(ax, x, 1.42, slot, request, first, first + block_size)
            label(ax, x + wide / 2, 1.3, request.name, bold=True, ha="center")
        taken = i < len(blocks)
        rectangle(ax, x, 1.42, wide, 0.36, "none", edge=style.INK if taken else style.MUTED,
                  linestyle="-" if taken else "--")  # fmt: skip
    used, reserved = used + arriving.stored, len(blocks) * block_size
    label(ax, 0.1, 1.06, f"{arriving.name} fits: any free block will do, wherever it lies.")
    label(ax, 0.1, 0.82, f"{used} tokens in {reserved} slots of {len(blocks)} blocks: {used / reserved:.0%}")
    entries = (
        (0.1, 0.42, "a token", style.BLUE, None),
        (2.1, 0.42, "free", style.PAPER, None),
        (0.1, 0.16, "reserved for later", *LATER),
        (2.1, 0.16, "reserved, never used", *NEVER),
    )
    for x, y, text, color, hatch in entries:
        free = color == style.PAPER
        edge, dashes = (style.MUTED, "--") if free else (style.PAPER, "-")
        rectangle(ax, x, y - 0.07, 0.26, 0.14, color, hatch=hatch, edge=edge, linestyle=dashes)
        label(ax, x + 0.34, y, text)
    return fig


def _holes(requests, arriving, capacity):
    """(first slot, slots) of each free stretch between the arrays."""
    ends = [(0, 0), *((r.start, r.start + r.reserved) for r in requests), (capacity, capacity)]
    for request in [*requests, arriving]:
        if not 1 <= request.stored <= request.final <= request.reserved:
            raise InputError(f"{request}: expected 1 ≤ stored ≤ final ≤ reserved")
    if not requests or any(start < end for (_, end), (start, _) in pairwise(ends)):
        raise InputError(
            f"arrays at {ends[1:-1]} in {capacity} slots: expected some, in order, none over another"
        )
    return [(end, start - end) for (_, end), (start, _) in pairwise(ends) if start > end]


def _parts(ax, x, y, slot, request, first, last):
    """Slots first … last - 1 of a request: those that hold a token, those that will, those that never will."""
    bounds = (0, request.stored, request.final, max(last, request.final))
    looks = ((style.BLUE, None), LATER, NEVER)
    for (start, end), (color, hatch) in zip(pairwise(bounds), looks, strict=True):
        start, end = max(start, first), min(end, last)
        if start < end:
            left = x + (start - first) * slot
            rectangle(
                ax, left, y, (end - start) * slot, 0.36, color, hatch=hatch, edge=style.PAPER, linewidth=0
            )


def _blocks(requests, num_blocks, block_size):
    """(request, its first position) of each block taken; requests take blocks in turn, as when they grow together."""
    longest = max(request.stored for request in requests)
    taken = [(r, first) for first in range(0, longest, block_size) for r in requests if first < r.stored]
    if len(taken) > num_blocks:
        raise InputError(f"{len(taken)} blocks needed, {num_blocks} there: expected requests that fit")
    return taken


@styled
def boundary(block_size=4, stored=None):
    """Where the next token goes, for several counts of tokens that are stored already.

    The next token has position num_stored: block num_stored // block_size, slot num_stored % block_size. A block is
    taken first exactly when num_stored % block_size == 0. block_size: 1 to 8. stored: at most seven counts, by
    default 0, 1, B - 1, B, B + 1 and 2 B.
    Errors: InputError for another block size, or counts that need more than 24 slots or six blocks.
    """
    if block_size not in range(1, 9):
        raise InputError(f"block_size={block_size!r}: expected 1 to 8, so that the slots can be seen")
    default = sorted({0, 1, block_size - 1, block_size, block_size + 1, 2 * block_size})
    stored = default if stored is None else list(stored)
    if not 1 <= len(stored) <= 7 or min(stored) < 0 or max(stored) >= min(24, 6 * block_size):
        most = min(24, 6 * block_size) - 1
        raise InputError(f"stored={stored}: expected one to seven counts of 0 to {most} tokens")
    blocks = max(stored) // block_size + 1
    gap, left, pitch = 0.08, 0.62, 0.5
    slot = min(0.24, (2.1 - gap * blocks) / (blocks * block_size))
    fig, ax = style.canvas(height=len(stored) * pitch + 1.06)
    top = len(stored) * pitch + 0.9
    right = left + blocks * (block_size * slot + gap) + 0.1
    label(
        ax, 0.1, top, f"Where does the next token go? (blocks of {block_size})", bold=True, size=style.FONT_PT
    )
    for x, text in ((0.1, "stored"), (left, "slots"), (right, "next token"), (right + 1.14, "new block?")):
        label(ax, x, top - 0.24, text, style.MUTED)
    for row, count in enumerate(stored):
        y, new = top - 0.72 - row * pitch, count % block_size == 0
        label(ax, 0.3, y + 0.1, str(count), ha="center", bold=True, size=style.FONT_PT)
        for position in range((count // block_size + 1) * block_size):
            x = left + position * slot + position // block_size * gap
            look = (
                {"edge": style.ALERT, "linestyle": "--"} if new and position >= count else {"edge": style.INK}
            )
            rectangle(ax, x, y, slot, 0.22, style.BLUE if position < count else style.PAPER, **look)
            if position == count:
                arrow(ax, (x + slot / 2, y + 0.36), (x + slot / 2, y + 0.14), style.ALERT)
        label(ax, right, y + 0.1, f"block {count // block_size}, slot {count % block_size}")
        text, color = ("yes", style.ALERT) if new else ("no", style.INK)
        label(ax, right + 1.14, y + 0.1, text, color, bold=new)
    label(ax, 0.1, 0.32, "A new block exactly when stored % block size = 0.", bold=True)
    label(ax, 0.1, 0.11, "“Stored” counts tokens already written, without the next one.", style.MUTED)
    return fig
