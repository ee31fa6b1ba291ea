"""The drawing that chapter 1 opens with: which attention scores a step computes."""

from kvcourse.errors import InputError
from kvcourse.figures import style
from kvcourse.figures.shapes import box, label
from kvcourse.figures.style import COLORS, styled


@styled
def recomputed_rows(tokens=6, steps=3):
    """The last `steps` steps of generating `tokens` tokens: the scores computed, without and with a cache.

    A row is a query, a column a key. Filled: computed in this step. Dashed: computed too, then hidden by the
    causal mask. Pale: not computed again; the keys and values of these
    tokens are kept, and no later row needs their scores.
    """
    if not 1 <= steps <= tokens:
        raise InputError(f"steps={steps}: expected 1 to tokens = {tokens}")
    cell, left, gap = 0.17, 1.02, 0.22
    panel = (style.WIDTH - left - 0.12 - gap * (steps - 1)) / steps
    height = tokens * cell
    fig, ax = style.canvas(height=2 * height + 1.56)
    for row, (name, role) in enumerate((("without\na cache", "baseline"), ("with\na cache", "ours"))):
        bottom = 0.62 + (1 - row) * (height + 0.5)
        label(ax, 0.1, bottom + height / 2, name, bold=True, size=style.FONT_PT)
        for step in range(steps):
            length = tokens - steps + 1 + step
            for query in range(length):
                fresh = role == "baseline" or query == length - 1
                for key in range(length if fresh else query + 1):
                    color = style.PAPER if key > query else COLORS[role] if fresh else style.PALE
                    x = left + step * (panel + gap) + key * cell
                    y = bottom + height - (query + 1) * cell
                    box(ax, x, y, cell * 0.82, cell * 0.82, color, dashed=key > query)
            count = length**2 if role == "baseline" else length
            label(ax, left + step * (panel + gap), bottom - 0.16, f"token {length}: {count}", style.MUTED)
    label(ax, left, 2 * height + 1.34, "attention scores computed in one step", style.MUTED)
    label(ax, left, 0.14, "dashed: hidden by the mask; grey: not computed", style.MUTED)
    return fig
