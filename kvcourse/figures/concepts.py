"""Drawings of ideas: they need no data, and each returns a matplotlib Figure for `style.show`."""

from itertools import pairwise

from kvcourse.errors import InputError
from kvcourse.figures import style
from kvcourse.figures.shapes import arrow, box, label
from kvcourse.figures.style import COLORS, styled

AXES = {
    "attention": ("What does\none token\nstore?", "1–3", ("MHA", "GQA", "MQA", "MLA")),
    "storage": ("Where do\ntokens\nlive?", "1, 4, 5", ("contiguous", "paged", "radix tree")),
    "codecs": (
        "How is each\nnumber\nwritten?",
        "6, 9",
        ("full", "fp8", "int8", "int4", "int2", "rotated"),
    ),
    "eviction": ("Which\ntokens\nstay?", "7", ("all", "Streaming", "H2O", "Scissorhands")),
}
PLANS = {  # three points in the space, one choice an axis
    "where chapter 1 starts": ("GQA", "contiguous", "full", "all"),
    "many users, one system prompt": ("GQA", "radix tree", "int8", "all"),
    "long text, little memory": ("MLA", "paged", "int4", "H2O"),
}
PLAN_LINES = ("ours", "baseline", "other")


@styled
def what_is_a_cache(prompt=("The", "capital", "of", "France"), answer=("is", "Paris", ".")):
    """One row of K and V per token: prefill fills the prompt's rows, each decode step appends one.

    prompt, answer: short strings, one a token. The last token of `answer` is the one being processed.
    """
    tokens = [*prompt, *answer]
    if not prompt or not answer:
        raise InputError(
            "the drawing needs tokens on both sides; give at least one prompt and one answer token"
        )
    pitch, cell = 0.34, 0.26
    fig, ax = style.canvas(height=pitch * len(tokens) + 1.42)
    left, k_left, v_left, right = 0.62, 1.72, 2.52, 3.3
    top = pitch * len(tokens) + 0.92

    def row_y(row):
        return top - (row + 1) * pitch

    for x, name, role in ((k_left, "K", "k"), (v_left, "V", "v")):
        label(ax, x + 0.34, top + 0.14, name, bold=True, size=11, ha="center")
        for row in range(len(tokens)):
            for column in range(3):
                box(ax, x + 0.23 * column, row_y(row), 0.2, cell, COLORS[role])
    label(ax, left, top + 0.14, "token")
    for row, token in enumerate(tokens):
        label(ax, left, row_y(row) + cell / 2, token, bold=row == len(tokens) - 1)

    # The query of the newest token reads every row: a rail beside K with one arrow a row.
    last, rail = len(tokens) - 1, 1.48
    box(ax, 0.12, row_y(last), 0.36, cell, COLORS["q"], "q", bold=True, size=style.FONT_PT)
    rail_bottom = row_y(last) - 0.12
    ax.plot(
        [0.3, 0.3, rail, rail],
        [row_y(last), rail_bottom, rail_bottom, row_y(0) + cell / 2],
        color=COLORS["q"],
        linewidth=1.5,
        solid_joinstyle="round",
    )
    for row in range(len(tokens)):
        arrow(ax, (rail, row_y(row) + cell / 2), (k_left - 0.03, row_y(row) + cell / 2), COLORS["q"])

    def bracket(first, final, text):
        high, low = row_y(first) + cell, row_y(final)
        ax.plot(
            [right, right + 0.08, right + 0.08, right], [high, high, low, low], color=style.MUTED, linewidth=1
        )
        label(ax, right + 0.18, (high + low) / 2, text)

    bracket(0, len(prompt) - 1, "prefill:\nthe whole prompt\nin one pass")
    bracket(len(prompt), last, "decode:\neach step\nappends one row" if len(answer) > 2 else "decode: +1 row")
    box(ax, k_left, 0.42, 1.46, cell, style.PAPER, dashed=True, text="next row")
    label(ax, 0.12, 0.14, "The newest query reads all rows; no row is computed twice.", size=style.SMALL_PT)
    return fig


@styled
def four_axes(plans=None):
    """The four choices of a KV cache as columns, with plans as paths from left to right.

    plans: {name: (attention, storage, codec, eviction)}, at most three; the words are those of AXES.
    """
    plans = PLANS if plans is None else plans
    if len(plans) > len(PLAN_LINES):
        raise InputError(f"{len(plans)} plans are too many for one map; give at most {len(PLAN_LINES)}")
    widths, gap, margin, pill, pitch = (0.8, 0.95, 0.95, 1.08), 0.27, 0.1, 0.28, 0.42
    rows = max(len(choices) for *_, choices in AXES.values())
    key_height = 0.22 * len(plans) + 0.12
    fig, ax = style.canvas(height=rows * pitch + 1.38 + key_height)
    top = rows * pitch + key_height
    lefts = [margin + sum(widths[:i]) + gap * i for i in range(len(AXES))]
    spots = {}
    for (name, (question, chapters, choices)), x, width in zip(AXES.items(), lefts, widths, strict=True):
        box(ax, x, top + 1.06, width, 0.26, COLORS[name], name, bold=True)
        label(ax, x + width / 2, top + 0.98, question, ha="center", va="top")
        label(ax, x + width / 2, top + 0.3, f"ch. {chapters}", style.MUTED, ha="center")
        for row, choice in enumerate(choices):
            y = top - (row + 1) * pitch + (pitch - pill)
            box(ax, x, y, width, pill, style.PALE, choice)
            spots[name, choice] = (x, x + width, y + pill / 2)
    for row, (plan, picks) in enumerate(plans.items()):
        unknown = [p for axis, p in zip(AXES, picks, strict=True) if (axis, p) not in spots]
        if unknown:
            raise InputError(
                f"plan {plan!r}: no choice {unknown[0]!r} on the map; use the words of concepts.AXES"
            )
        _path(ax, [spots[axis, pick] for axis, pick in zip(AXES, picks, strict=True)], row)
        y = key_height - 0.08 - 0.22 * row
        ax.plot([margin, margin + 0.45], [y, y], **_path_line(row))
        label(ax, margin + 0.6, y, plan)
    return fig


def _path_line(row):
    return {**style.line(PLAN_LINES[row]), "linewidth": 1.8, "markersize": 5}


def _path(ax, spots, row):
    """One plan: a link across each gap, shifted a little so that plans sharing a choice stay apart."""
    shift = 0.075 * (row - 1)
    for (_, start, y0), (end, _, y1) in pairwise(spots):
        ax.plot([start, end], [y0 - shift, y1 - shift], zorder=3, **_path_line(row))


@styled
def left_padding(short=("Hi",), long=("How", "are", "you")):
    """A left-padded batch of two prompts and the token that each gets next: its position shared, or the row's own.

    short, long: the prompts, one string a token, `short` the shorter one.
    """
    if not 0 < len(short) < len(long):
        raise InputError(f"got {len(short)} and {len(long)} tokens; expected a short and a longer prompt")
    pads = len(long) - len(short)
    rows = (["pad"] * pads + [*short, "new"], [*long, "new"])
    per_row = [[None] * pads + list(range(len(short) + 1)), list(range(len(long) + 1))]
    shared = [[*per_row[0][:-1], len(long)], per_row[1]]
    fig, ax = style.canvas(height=4.06)
    _batch(ax, 3.9, "Wrong: one position for both new tokens", rows, shared, pads, "✗")
    _batch(ax, 1.8, "Right: each row counts its own tokens", rows, per_row, pads, "✓")
    return fig


def _batch(ax, top, title, rows, positions, pads, mark):
    """One panel of `left_padding`: two rows of token boxes, a line of positions under each."""
    left, width, cell = 0.86, 3.84 / len(rows[0]), 0.3
    label(ax, 0.1, top, f"{mark} {title}", bold=True, size=style.FONT_PT)
    for row, (tokens, numbers) in enumerate(zip(rows, positions, strict=True)):
        y = top - 0.56 - 0.84 * row
        label(ax, 0.1, y + cell / 2, f"row {row}")
        label(ax, 0.1, y - 0.2, "position")
        for column, (token, number) in enumerate(zip(tokens, numbers, strict=True)):
            x = left + column * width
            pad = row == 0 and column < pads
            new = column == len(tokens) - 1
            wrong = mark == "✗" and row == 0 and new
            color = style.PALE if pad else COLORS["q"] if new else style.SKY
            box(ax, x, y, width - 0.06, cell, color, token, dashed=pad)
            color = style.ALERT if wrong else style.INK
            text = "–" if number is None else f"{number}, not {column - pads}" if wrong else f"{number}"
            label(ax, x + (width - 0.06) / 2, y - 0.2, text, color, bold=wrong, ha="center")
