"""One style for every figure of the book.

Colours are those of Okabe and Ito (2008, "Color universal design"), which colour-blind readers can tell
apart. Each role also has its own dash pattern and marker, so that a black-and-white print still reads. The
width is fixed: 10 pt text on 4.8 inches is about 10 px on a 390 px phone and body size on a desktop page.
"""

import io
import sys
from base64 import b64encode
from functools import wraps

from kvcourse.errors import InputError

WIDTH = 4.8  # inches
DPI = 160
SHOWN_PX = 600  # width on a desktop page; narrower screens shrink it
FONT_PT = 10
SMALL_PT = 9

BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
YELLOW, BLUE, VERMILION, PURPLE = "#F0E442", "#0072B2", "#D55E00", "#CC79A7"
INK, MUTED, GRID, PAPER, PALE = "#1A1A1A", "#595959", "#DADADA", "#FFFFFF", "#F1F3F5"
ALERT = "#A84300"  # vermilion, dark enough for text on white
TEXT_COLORS = (INK, MUTED, ALERT)

COLORS = {
    "k": BLUE,
    "v": ORANGE,
    "q": GREEN,
    "latent": PURPLE,
    "rope": SKY,
    "weights": "#8C8C8C",
    "cache": BLUE,
    "floor": BLACK,
    "ours": BLUE,
    "baseline": VERMILION,
    "other": PURPLE,
    "attention": BLUE,
    "storage": GREEN,
    "codecs": ORANGE,
    "eviction": PURPLE,
    "ink": INK,
    "muted": MUTED,
    "grid": GRID,
    "paper": PAPER,
    "pale": PALE,
}

# Kinds of attention: colour, and a marker for those that are drawn as points.
KINDS = {
    "MHA": (VERMILION, "s"),
    "GQA": (BLUE, "o"),
    "MQA": (GREEN, "^"),
    "MLA": (PURPLE, "D"),
    "sliding": (SKY, ""),
    "linear": (ORANGE, ""),
    "compressed": (MUTED, ""),
}

LINES = {
    "ours": {"linestyle": "-", "marker": "o"},
    "baseline": {"linestyle": "--", "marker": "s"},
    "floor": {"linestyle": ":", "marker": None},
    "other": {"linestyle": "-.", "marker": "^"},
}

RC = {
    "figure.dpi": DPI,
    "figure.figsize": (WIDTH, 3.0),
    "figure.facecolor": PAPER,
    "figure.constrained_layout.use": True,
    "figure.constrained_layout.w_pad": 0.08,
    "savefig.dpi": DPI,
    "savefig.facecolor": PAPER,
    "svg.hashsalt": "kvcourse",
    "font.family": "DejaVu Sans",  # comes with matplotlib, so the bytes are the same on every machine
    "font.size": FONT_PT,
    "axes.titlesize": FONT_PT + 1,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": FONT_PT,
    "xtick.labelsize": SMALL_PT,
    "ytick.labelsize": SMALL_PT,
    "legend.fontsize": SMALL_PT,
    "legend.frameon": False,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": MUTED,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "lines.linewidth": 2.0,
    "lines.markersize": 5.0,
}


def use() -> None:
    """Sets the rcParams of the course; call it once, before the first figure of a notebook."""
    import matplotlib as mpl

    mpl.rcParams.update(RC)


def styled(draw):
    """Decorator: runs a drawing function under RC, whatever the notebook has set."""

    @wraps(draw)
    def drawn(*args, **kwargs):
        import matplotlib as mpl

        with mpl.rc_context(RC):
            return draw(*args, **kwargs)

    return drawn


@styled
def figure(height: float = 3.0, **subplots):
    """(Figure, Axes) in the course's style and width.

    height: inches. subplots: passed on to `Figure.subplots`, for example nrows=2.
    """
    from matplotlib.figure import Figure  # not pyplot: nothing is kept open, nothing is drawn twice

    fig = Figure(figsize=(WIDTH, height))
    return fig, fig.subplots(**subplots)


@styled
def canvas(height: float):
    """(Figure, Axes) for a drawing: no axis, one data unit is one inch, the origin is at the bottom left."""
    from matplotlib.figure import Figure

    fig = Figure(figsize=(WIDTH, height), layout="none")
    ax = fig.add_axes((0, 0, 1, 1))
    ax.set(xlim=(0, WIDTH), ylim=(0, height))
    ax.axis("off")
    return fig, ax


def line(role: str) -> dict:
    """Keyword arguments of `Axes.plot` for a role of LINES: colour, dashes and marker."""
    if role not in LINES:
        raise InputError(f"no line style for role {role!r}; expected one of {', '.join(LINES)}")
    return {"color": COLORS[role], **LINES[role]}


def luminance(color: str) -> float:
    """Relative luminance of #RRGGBB, 0 (black) to 1 (white) (WCAG 2.2, definition of relative luminance)."""
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(first: str, second: str) -> float:
    """Contrast ratio of two colours, 1 to 21 (WCAG 2.2, definition of contrast ratio)."""
    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


def text_on(color: str) -> str:
    """Black or white, whichever reads better on `color`; the ratio is always at least 4.5."""
    return max((INK, PAPER), key=lambda text: contrast(text, color))


@styled  # ticks are made when drawn
def png(fig) -> bytes:
    """The figure as PNG, the same bytes every time for the same drawing."""
    buffer = io.BytesIO()
    fig.savefig(buffer, format="png", dpi=DPI, metadata={"Software": None})
    return buffer.getvalue()


def show(fig, alt: str) -> None:
    """Displays a figure in a notebook with its alternative text, and closes it.

    alt: what the figure says, for those who cannot see it. It is stored in the output, where the book finds
    it (kvcourse.figures.alt_text), and as the plain text of the output; so leave measured numbers out of it.
    Errors: InputError when it is empty.
    """
    from IPython.display import display

    if not isinstance(alt, str) or not alt.strip():
        raise InputError("the figure has no alternative text; expected a sentence; give show(fig, alt='…')")
    data = {"image/png": b64encode(png(fig)).decode("ascii"), "text/plain": alt}
    display(data, raw=True, metadata={"image/png": {"alt": alt, "width": SHOWN_PX}})
    close(fig)


def close(fig) -> None:
    """Closes a figure that pyplot keeps, so that Jupyter does not draw it a second time."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is not None:
        pyplot.close(fig)
