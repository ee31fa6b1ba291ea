"""Drawings of kinds of attention: which heads share what, and which kv head a query head reads."""

from kvcourse.errors import InputError
from kvcourse.figures import style
from kvcourse.figures.shapes import box, label
from kvcourse.figures.style import COLORS, styled

HEAD_COLORS = (style.BLUE, style.ORANGE, style.GREEN, style.PURPLE, style.SKY, style.VERMILION)
MOST_HEADS = 12


@styled
def kv_head_groups(heads=8, groups=2):
    """MHA, GQA, MQA and MLA: the query heads of a layer above what one token stores for them.

    heads: query heads, 2 to 12. groups: kv heads of the GQA panel, a divisor of `heads` between 1 and it.
    """
    if not 2 <= heads <= MOST_HEADS or not 1 < groups < heads or heads % groups:
        raise InputError(
            f"heads={heads}, groups={groups}: expected 2 to {MOST_HEADS} heads and a number of groups that divides "
            "them, more than one and fewer than the heads"
        )
    height, left = 1.12, 0.1
    fig, ax = style.canvas(height=4 * height + 0.3)
    rows = (
        ("MHA", heads, f"{2 * heads} D"),
        ("GQA", groups, f"{2 * groups} D"),
        ("MQA", 1, "2 D"),
        ("MLA", 0, "R + D_r"),
    )
    for row, (name, kv_heads, stored) in enumerate(rows):
        top = 4 * height + 0.26 - row * height
        label(ax, left, top - 0.2, name, bold=True, size=style.FONT_PT)
        label(ax, left, top - 0.44, f"{stored}\nvalues", style.MUTED, va="top")
        _heads_over_store(ax, top - 0.32, heads, kv_heads)
    label(ax, left, 0.16, "D: head dim. R: latent width. D_r: width of the rotary key.", style.MUTED)
    return fig


def _heads_over_store(ax, y, heads, kv_heads):
    """One panel of `kv_head_groups`: query heads, lines, and the kv heads or the latent; 0 kv heads is MLA."""
    left, cell, low = 0.92, 0.24, y - 0.6
    pitch = (style.WIDTH - 0.1 - left) / heads
    spots = [left + pitch * (head + 0.5) for head in range(heads)]
    for x in spots:
        box(ax, x - cell / 2, y, cell, cell, COLORS["q"], "q")
    if kv_heads == 0:
        middle = sum(spots) / heads
        for x in spots:
            ax.plot([x, middle], [y, low + cell + 0.05], color=style.MUTED, linewidth=1)
        box(ax, middle - 1.11, low - 0.05, 2.22, cell + 0.1, style.PALE)
        box(ax, middle - 1.06, low, 1.4, cell, COLORS["latent"], "latent c")
        box(ax, middle + 0.38, low, 0.68, cell, COLORS["rope"], "rope k")
        return
    size = heads // kv_heads
    wide = min(0.24, pitch / 2 - 0.04)
    for kv_head in range(kv_heads):
        served = spots[kv_head * size : (kv_head + 1) * size]
        middle = sum(served) / size
        for x in served:
            ax.plot([x, middle], [y, low + cell], color=style.MUTED, linewidth=1)
        box(ax, middle - wide - 0.01, low, wide, cell, COLORS["k"], "k" if wide > 0.14 else "")
        box(ax, middle + 0.01, low, wide, cell, COLORS["v"], "v" if wide > 0.14 else "")


@styled
def head_map(heads=4, kv_heads=2):
    """Which kv head each query head reads: each repeated for its group (right) next to the list tiled (wrong).

    heads: query heads, at most 12. kv_heads: a divisor of them, more than one and fewer than the heads.
    """
    if heads > MOST_HEADS or not 1 < kv_heads < heads or heads % kv_heads:
        raise InputError(
            f"heads={heads}, kv_heads={kv_heads}: expected at most {MOST_HEADS} heads and a divisor of them, "
            "more than one and fewer than the heads"
        )
    size = heads // kv_heads
    right = [head // size for head in range(heads)]
    wrong = [head % kv_heads for head in range(heads)]
    fig, ax = style.canvas(height=3.62)
    _map_panel(ax, 3.42, "✓ Right: repeat each kv head", right, right, "h // group size")
    _map_panel(ax, 1.58, "✗ Wrong: tile the kv heads", wrong, right, "h % kv heads")
    return fig


def _map_panel(ax, top, title, read, right, rule):
    """One panel of `head_map`: query heads over kv heads; `read` is drawn, dashed where it is not `right`."""
    cell, left, kv_heads = 0.28, 1.0, max(right) + 1
    pitch = (style.WIDTH - 0.1 - left) / len(read)
    label(ax, 0.1, top - 0.06, title, bold=True, size=style.FONT_PT)
    spots = [left + pitch * (head + 0.5) for head in range(len(read))]
    stored = [left + pitch * len(read) * (kv_head + 0.5) / kv_heads for kv_head in range(kv_heads)]
    upper, lower = top - 0.56, top - 1.24
    label(ax, 0.1, upper + cell / 2, "query head")
    label(ax, 0.1, lower + cell / 2, "kv head")
    for head, (x, kv_head) in enumerate(zip(spots, read, strict=True)):
        good = kv_head == right[head]
        ax.plot(
            [x, stored[kv_head]], [upper, lower + cell], color=style.INK if good else style.ALERT,
            linestyle="-" if good else "--", linewidth=1.6, zorder=0.5,
        )  # fmt: skip
        box(ax, x - cell / 2, upper, cell, cell, HEAD_COLORS[right[head] % len(HEAD_COLORS)], str(head))
    for kv_head, x in enumerate(stored):
        box(ax, x - cell / 2, lower, cell, cell, HEAD_COLORS[kv_head % len(HEAD_COLORS)], str(kv_head))
    wrong = read != right
    text = f"reads {read}: {rule}"
    label(ax, 0.1, lower - 0.2, text, style.ALERT if wrong else style.INK, bold=wrong)
