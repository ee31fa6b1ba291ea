"""Drawings of multi-head latent attention: the absorbed product, and what is stored next to what is rebuilt."""

from kvcourse.errors import InputError
from kvcourse.figures import style
from kvcourse.figures.shapes import box, label
from kvcourse.figures.style import COLORS, styled

LONG, SHORT, THIN = 1.0, 0.3, 0.13  # inches that stand for the rank, for the nope width and for 1


@styled
def absorption(nope=128, rank=512, heads=128):
    """One score computed twice, as matrices: q · (W_UK c) over every cached token, and (q W_UK) · c with q W_UK once.

    nope: width of a head's query and key without its rotary part. rank: width of the latent c. heads: query heads.
    DeepSeek-V2 (2024) §2.1.2. The default is DeepSeek-V3.
    """
    _check(nope=nope, rank=rank, heads=heads)
    fig, ax = style.canvas(height=5.06)
    _expanded(ax, 4.9, nope, rank)
    _absorbed(ax, 2.76, nope, rank)
    lines = (
        f"Cached: c alone, the same for all {heads} heads.",
        "Values likewise: Σ p (W_UV c) = W_UV (Σ p c).",
        "The rotary key has its own product, added to the score.",
    )
    for row, text in enumerate(lines):
        label(ax, 0.1, 0.62 - 0.22 * row, text)
    return fig


def _matrix(ax, x, middle, width, height, color, name, shape):
    """A matrix with its name inside (or above, when it is thin) and its shape under it. Its right edge."""
    box(ax, x, middle - height / 2, width, height, color, name if min(width, height) > THIN + 0.1 else "")
    if min(width, height) <= THIN + 0.1:
        label(ax, x + width / 2, middle + height / 2 + 0.12, name, ha="center", bold=True)
    label(ax, x + width / 2, middle - height / 2 - 0.13, shape, style.MUTED, ha="center")
    return x + width


def _sign(ax, x, middle, text):
    """An operator between two matrices. The x after it."""
    label(ax, x + 0.15, middle, text, size=style.FONT_PT + 2, ha="center")
    return x + 0.3


def _bracket(ax, left, right, y, text, color=style.INK):
    """A brace under a part of a product, with what it costs."""
    ax.plot([left, left, right, right], [y + 0.07, y, y, y + 0.07], color=color, linewidth=1)
    label(ax, (left + right) / 2, y - 0.05, text, color, ha="center", va="top")


def _expanded(ax, top, nope, rank):
    label(ax, 0.1, top, "Expanded: rebuild the key of every cached token", bold=True, size=style.FONT_PT)
    middle, x = top - 0.78, 0.3
    x = _matrix(ax, x, middle, SHORT + 0.2, THIN, COLORS["q"], "q", f"1 × {nope}")
    x = start = _sign(ax, x, middle, "·")
    label(ax, x, middle, "(", size=22)
    x = _matrix(ax, x + 0.16, middle, LONG, SHORT + 0.2, COLORS["weights"], "W_UK", f"{nope} × {rank}")
    x = _sign(ax, x, middle, "·")
    x = _matrix(ax, x + 0.06, middle, THIN, LONG, COLORS["latent"], "c", f"{rank} × 1")
    label(ax, x + 0.05, middle, ")", size=22)
    end = x + 0.2
    x = _sign(ax, end + 0.02, middle, "=")
    x = _matrix(ax, x, middle, SHORT + 0.2, THIN, COLORS["q"], "q", f"1 × {nope}")
    x = _sign(ax, x, middle, "·")
    _matrix(ax, x + 0.1, middle, THIN, SHORT + 0.2, COLORS["k"], "k", f"{nope} × 1")
    text = f"for every cached token and head:\n2 · {nope} · {rank} = {2 * nope * rank:,} FLOPs"
    _bracket(ax, start, end, top - 1.55, text, style.ALERT)


def _absorbed(ax, top, nope, rank):
    label(ax, 0.1, top, "Absorbed: take the query to the latents, once", bold=True, size=style.FONT_PT)
    middle, x = top - 0.78, 0.1
    label(ax, x, middle, "(", size=22)
    start = x
    x = _matrix(ax, x + 0.2, middle, SHORT + 0.2, THIN, COLORS["q"], "q", f"1 × {nope}")
    x = _sign(ax, x, middle, "·")
    x = _matrix(ax, x, middle, LONG, SHORT + 0.2, COLORS["weights"], "W_UK", f"{nope} × {rank}")
    label(ax, x + 0.05, middle, ")", size=22)
    end = x + 0.2
    x = _sign(ax, end, middle, "=")
    x = after = _matrix(ax, x, middle, LONG, THIN, COLORS["q"], "q'", f"1 × {rank}")
    x = _sign(ax, x, middle, "·")
    right = _matrix(ax, x + 0.06, middle, THIN, LONG, COLORS["latent"], "c", f"{rank} × 1")
    _bracket(
        ax, start, end, top - 1.55, f"once a step and head:\n2 · {nope} · {rank} = {2 * nope * rank:,} FLOPs"
    )
    text = f"every cached token and head:\n2 · {rank} = {2 * rank:,} FLOPs"
    _bracket(ax, after - LONG, right + 0.3, top - 1.55, text)


@styled
def cached_parts(heads=128, rank=512, rope=64, nope=128, value=128):
    """What MLA stores for a token in one layer, beside the keys and values that it could rebuild; areas to scale.

    heads: query heads. rank: latent. rope: rotary key, shared by all heads. nope: key of a head without its rotary
    part. value: value of a head. The default is DeepSeek-V3.
    """
    _check(heads=heads, rank=rank, rope=rope, nope=nope, value=value)
    stored, rebuilt = rank + rope, heads * (nope + rope + value)
    width, height = style.WIDTH - 0.2, 2.3  # of what is rebuilt
    area = width * height / rebuilt  # square inches a number
    side = (stored * area) ** 0.5
    base = height + 0.84
    fig, ax = style.canvas(height=base + max(side, 0.62) + 0.5)
    top = base + max(side, 0.62) + 0.3
    label(ax, 0.1, top, f"Stored: {stored:,} numbers", bold=True, size=style.FONT_PT)
    split = side * rank / stored
    y = top - 0.2 - side
    _area(ax, 0.1, y, split, side, COLORS["latent"])
    _area(ax, 0.1 + split, y, side - split, side, COLORS["rope"])
    for row, (text, color) in enumerate(
        ((f"latent: {rank}", COLORS["latent"]), (f"rotary key: {rope}", COLORS["rope"]))
    ):
        at = top - 0.32 - 0.24 * row
        _area(ax, 0.3 + side, at - 0.06, 0.12, 0.12, color)
        label(ax, 0.5 + side, at, text)
    times = rebuilt / stored
    label(ax, 0.1, base - 0.2, f"Rebuilt for {heads} heads: {rebuilt:,} numbers, {times:.3g} × as many", bold=True,
          size=style.FONT_PT)  # fmt: skip
    x = 0.1
    for name, part, color in (
        ("keys", nope, COLORS["k"]),
        ("rotary\nkeys", rope, COLORS["rope"]),
        ("values", value, COLORS["v"]),
    ):
        wide = width * part / (nope + rope + value)
        _area(ax, x, base - 0.4 - height, wide, height, color)
        middle = base - 0.4 - height / 2
        label(ax, x + wide / 2, middle, f"{name}\n{heads} × {part}", style.text_on(color), ha="center")
        x += wide
    label(ax, 0.1, 0.2, "The rotary key is one for all heads: it is repeated, not rebuilt.", style.MUTED)
    return fig


def _area(ax, x, y, width, height, color):
    """A plain rectangle, whose area is exact: boxes have rounded corners."""
    from matplotlib.patches import Rectangle

    ax.add_patch(Rectangle((x, y), width, height, facecolor=color, edgecolor=style.PAPER, linewidth=0.6))


def _check(**counts):
    for name, count in counts.items():
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise InputError(f"{name}={count!r}: expected a whole number of at least 1")
