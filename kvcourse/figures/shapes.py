"""The few shapes that the drawings are made of; lengths are inches on a `style.canvas`."""

from kvcourse.figures import style


def box(
    ax, x, y, width, height, color, text="", *, hatch=None, dashed=False, size=style.SMALL_PT, bold=False
):
    """A rounded box with its lower left corner at (x, y) and a centred text that reads on its colour."""
    from matplotlib.patches import FancyBboxPatch

    edge = style.MUTED if dashed or color in (style.PAPER, style.PALE) else color
    ax.add_patch(
        FancyBboxPatch(
            (x, y),
            width,
            height,
            boxstyle="round,pad=0,rounding_size=0.05",
            facecolor=color,
            edgecolor=edge,
            linewidth=1.0,
            linestyle="--" if dashed else "-",
            hatch=hatch,
        )
    )
    if text:
        label(
            ax, x + width / 2, y + height / 2, text, style.text_on(color), size=size, bold=bold, ha="center"
        )


def label(ax, x, y, text, color=style.INK, *, size=style.SMALL_PT, bold=False, ha="left", va="center"):
    """Text at (x, y)."""
    weight = "bold" if bold else "normal"
    ax.text(x, y, text, color=color, fontsize=size, fontweight=weight, ha=ha, va=va, linespacing=1.15)


def arrow(ax, start, end, color, *, width=1.5, head=8.0, curve=0.0):
    """A straight or curved arrow from start to end, both (x, y)."""
    from matplotlib.patches import FancyArrowPatch

    ax.add_patch(
        FancyArrowPatch(
            start,
            end,
            arrowstyle="-|>",
            mutation_scale=head,
            color=color,
            linewidth=width,
            connectionstyle=f"arc3,rad={curve}",
            shrinkA=0,
            shrinkB=0,
        )
    )


def rectangle(ax, x, y, width, height, color, *, edge=style.MUTED, **look):
    """A plain rectangle with its lower left corner at (x, y): its edges are exact, for what is counted or measured.

    look: more of matplotlib's Rectangle, for example hatch.
    """
    from matplotlib.patches import Rectangle

    ax.add_patch(
        Rectangle((x, y), width, height, facecolor=color, edgecolor=edge, **{"linewidth": 0.8} | look)
    )
