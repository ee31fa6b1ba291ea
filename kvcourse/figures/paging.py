"""Charts of paging: a pool over time, a pool as a map, and what a memory is filled with."""

import math

from kvcourse.errors import InputError
from kvcourse.figures import style
from kvcourse.figures.axes import label_points, legend_above, plain
from kvcourse.figures.pool_state import Counts, PoolState
from kvcourse.figures.shapes import label, rectangle
from kvcourse.figures.style import styled

# Sequences are told apart by their letter; the colour helps, and begins again after the last one. Vermilion is kept
# for what has just changed.
SEQUENCES = (
    style.BLUE,
    style.ORANGE,
    style.GREEN,
    style.PURPLE,
    style.SKY,
    style.YELLOW,
    style.COLORS["weights"],
)
STORED = "holds tokens"
NOBODY_FITS = (
    "free, nobody fits"  # pages have no holes; what is free there is too little for the next request
)
WASTE = {  # colour and hatch; the reasons are those of `kvcourse.bench.utilisation`
    "reserved for later": (style.SKY, ".."),
    "reserved, never used": (style.ORANGE, "//"),
    "no hole fits": (style.VERMILION, "xx"),
}
_DASHES = ("--", ":", "-.", (0, (1, 3)), (0, (9, 2)))


def sequence_colors(names) -> dict[str, str]:
    """{sequence: colour}, in order of the names."""
    return {name: SEQUENCES[i % len(SEQUENCES)] for i, name in enumerate(dict.fromkeys(names))}


@styled
def filling(history, marks=None):
    """Blocks in use, cached and clean after each operation: a pool that fills and drains.

    history: `pool_state.Counts` or (used, cached, clean) after each operation, all with the same sum. marks: {number
    of the operation, from 0: a word or two}.
    Errors: InputError for fewer than two moments, counts below 0, sums that differ, or a mark outside.
    """
    history, marks = [Counts(*counted) for counted in history], dict(marks or {})
    totals = {sum(counted) for counted in history}
    if len(history) < 2 or len(totals) > 1 or min(map(min, history)) < 0:
        raise InputError(
            f"{len(history)} moments with {sorted(totals)} blocks: expected (used, cached, clean) of one pool after "
            "each of two or more operations"
        )
    outside = [at for at in marks if not 0 <= at < len(history)]
    if outside:
        raise InputError(f"a mark at {outside[0]}: expected operations 0 to {len(history) - 1}")
    fig, ax = style.figure(height=3.3 if marks else 3.0)
    total, steps = totals.pop(), [*range(len(history)), len(history)]
    layers = (
        ("in use", style.BLUE, None),
        ("free, still in the prefix index", style.SKY, "//"),
        ("free", style.PALE, None),
    )
    below = [0.0] * len(steps)
    for (name, color, hatch), values in zip(layers, zip(*history, strict=True), strict=True):
        above = [low + value for low, value in zip(below, [*values, values[-1]], strict=True)]
        ax.fill_between(
            steps, below, above, step="post", label=name, facecolor=color, hatch=hatch, edgecolor=style.PAPER,
            linewidth=0,
        )  # fmt: skip
        ax.step(steps, above, where="post", color=style.INK, linewidth=0.8)
        below = above
    ax.set(
        xlim=(0, len(history)),
        ylim=(0, total),
        xlabel="steps",
        ylabel="blocks",
        title="Blocks of the pool",
    )
    ax.grid(False)
    if marks:
        _mark(ax, total, marks, len(history))
    legend_above(fig, columns=3)
    return fig


def _mark(ax, total, marks, steps):
    """A line and a text for each marked operation, above the plot.

    A text that would meet a later one goes one row up, so that no line crosses a text.
    """
    wide, letter, starts = (
        4.1,
        0.082,
        [],
    )  # inches of the plot and of a letter; where each row of texts starts
    for at, text in sorted(marks.items(), reverse=True):
        x, length = (at + 0.5) / steps * wide, letter * len(text)
        left = max(0.0, min(x, wide - length))
        row = next((i for i, start in enumerate(starts) if left + length < start), len(starts))
        starts[row : row + 1] = [left]
        y = total * (1.03 + 0.085 * row)
        ax.plot([at + 0.5] * 2, [0, y], color=style.INK, linewidth=0.8, linestyle=":", clip_on=False)
        ground = {
            "facecolor": style.PAPER,
            "linewidth": 0,
            "pad": 0.6,
        }  # over a line beneath a text that was moved left
        ax.text(left / wide * steps, y, text, fontsize=style.SMALL_PT, va="bottom", bbox=ground)
    ax.set_ylim(0, total)
    ax.set_title(ax.get_title(loc="left"), pad=8 + 17 * len(starts))


@styled
def block_map(state: PoolState, columns: int = 8, title: str = "", colors=None):
    """The pool as a grid of blocks: number, the sequences that hold it, and one mark a slot, dark where a token lies.

    Shared blocks are hatched and show all their sequences; free ones that the index still finds are pale and
    dashed. columns: blocks in a row, 4 to 10. colors: {sequence: colour} where several maps must agree, for
    example `sequence_colors(all names)`.
    Errors: InputError for another number of columns, or a sequence without a colour.
    """
    if not isinstance(state, PoolState) or not 4 <= columns <= 10:
        raise InputError(
            f"{type(state).__name__} in {columns} columns: expected a PoolState in 4 to 10 columns"
        )
    colors = sequence_colors(state.tables) if colors is None else colors
    missing = [name for name in state.tables if name not in colors]
    if missing:
        raise InputError(
            f"no colour for sequence {missing[0]!r}: expected one for each of {list(state.tables)}"
        )
    rows, pitch, gap, tall = -(-state.num_blocks // columns), 0.66, 0.07, 0.3
    wide = (style.WIDTH - 0.2 + gap) / columns
    fig, ax = style.canvas(height=rows * pitch + (0.98 if title else 0.7))
    top = rows * pitch + 0.62
    if title:
        label(ax, 0.1, top + 0.2, title, bold=True, size=style.FONT_PT + 1)
    for block in range(state.num_blocks):
        x, y = 0.1 + block % columns * wide, top - (block // columns + 1) * pitch
        label(ax, x + (wide - gap) / 2, y + 0.54, str(block), style.MUTED, ha="center")
        _block(ax, x, y + 0.15, wide - gap, tall, state, block, colors)
        if block:
            slots(ax, x, y + 0.05, wide - gap, state.filled[block], state.block_size)
    _map_key(ax, 0.42, state)
    used = len(state.owners)
    share = f", {state.utilisation:.0%}" if used else ""
    label(
        ax, 0.1, 0.14, f"{state.stored} tokens in the {used * state.block_size} slots of blocks in use{share}"
    )
    return fig


def _block(ax, x, y, width, height, state, block, colors):
    """One block of `block_map`: a stripe for each sequence that holds it, with its name."""
    owners = state.owners.get(block, ())
    middle = y + height / 2
    if not owners:
        cached = block in state.cached
        rectangle(
            ax, x, y, width, height, style.PALE if cached else style.PAPER, linestyle="--" if cached else "-"
        )
        text = "null" if block == 0 else "cache" if cached else ""
        label(ax, x + width / 2, middle, text, style.MUTED, ha="center")
        return
    part = width / len(owners)
    for i, name in enumerate(owners):
        rectangle(ax, x + i * part, y, part, height, colors[name], linewidth=0)
    if len(owners) > 1:
        rectangle(ax, x, y, width, height, "none", edge=style.PAPER, hatch="////", linewidth=0)
    rectangle(ax, x, y, width, height, "none", edge=style.INK)
    names = [(x + (i + 0.5) * part, name) for i, name in enumerate(owners)]
    if max(map(len, owners)) * 0.1 + 0.05 > part:
        names = [(x + width / 2, f"×{len(owners)}" if len(owners) > 1 else owners[0][:3])]
    for (at, text), name in zip(names, owners, strict=False):
        ground = {"facecolor": colors[name], "linewidth": 0, "pad": 0.8}
        ax.text(at, middle, text, color=style.text_on(colors[name]), fontsize=style.SMALL_PT, fontweight="bold",
                ha="center", va="center", bbox=ground if len(owners) > 1 else None)  # fmt: skip


def slots(ax, x, y, width, filled, size, height=0.08):
    """A row of `size` slots, dark where a token lies; one bar in that proportion where they are too many to see."""
    count = size if size <= 16 else 1
    for i in range(count):
        share = (1.0 if i < filled else 0.0) if count > 1 else filled / size
        rectangle(ax, x + i * width / count, y, width / count, height, style.PAPER, linewidth=0.6)
        if share:
            rectangle(ax, x + i * width / count, y, share * width / count, height, style.MUTED, linewidth=0.6)


def _map_key(ax, y, state):
    """What the looks of blocks mean, with how many there are of each."""
    used, cached, clean = state.counts
    shared = sum(len(owners) > 1 for owners in state.owners.values())
    entries = (
        (f"in use {used}", style.BLUE, {}),
        (f"shared {shared}", style.MUTED, {"hatch": "////", "edge": style.PAPER}),
        (f"cached {cached}", style.PALE, {"linestyle": "--"}),
        (f"free {clean}", style.PAPER, {}),
    )
    for i, (text, color, look) in enumerate(entries):
        x = 0.1 + i * (style.WIDTH - 0.2) / len(entries)
        rectangle(ax, x, y - 0.07, 0.22, 0.14, color, **look)
        label(ax, x + 0.3, y, text)


def _shown(name):
    return NOBODY_FITS if name == "no hole fits" else name


def _arms(result):
    """The arms of a result of `kvcourse.bench.utilisation`, checked: shares of the memory that add up to 1."""
    arms = list(result.arms)
    if not arms:
        raise InputError("the result has no arms: expected at least one policy; give the simulator some")
    for arm in arms:
        unknown = sorted(set(arm.waste) - set(WASTE))
        if arm.kind not in ("static", "paged") or unknown:
            found = f"waste {unknown[0]!r}" if unknown else f"kind {arm.kind!r}"
            raise InputError(
                f"{arm.name}: {found}: expected 'static' or 'paged', and waste of {', '.join(WASTE)}"
            )
        shares = [arm.utilisation, *arm.waste.values()]
        if not all(0 <= share <= 1 + 1e-9 for share in shares) or not math.isclose(
            sum(shares), 1, abs_tol=1e-6
        ):
            raise InputError(f"{arm.name}: shares {shares}: expected 0 to 1, and 1 in all")
    return arms


@styled
def utilisation(result):
    """Share of the reserved memory that holds tokens, over the block size; static reservations as level lines.

    result: of `kvcourse.bench.utilisation.run`, with two or more paged arms of different block sizes.
    Errors: InputError for shares that do not add up to 1, or fewer than two block sizes.
    """
    arms = _arms(result)
    paged = sorted((arm.block_size, arm.utilisation) for arm in arms if arm.kind == "paged")
    static = [arm for arm in arms if arm.kind == "static"]
    if len({size for size, _ in paged}) < 2:
        raise InputError(f"block sizes {[size for size, _ in paged]}: expected two or more to draw a line")
    fig, ax = style.figure(height=3.2 + 0.2 * len(static))
    sizes, shares = zip(*paged, strict=True)
    ax.plot(sizes, [100 * share for share in shares], **style.line("ours"), label="paged, by block size")
    ends, levels = (sizes[0] / 1.5, sizes[-1] * 1.5), []
    for i, arm in enumerate(sorted(static, key=lambda arm: -arm.utilisation)):
        level = 100 * arm.utilisation
        look = {"color": style.VERMILION, "linestyle": _DASHES[i % len(_DASHES)], "linewidth": 1.6}
        ax.axhline(level, **look, label=f"reserved, {arm.name}: {plain(level)}")
        levels.append([(end, level) for end in ends])
    ax.set_xscale("log", base=2)
    ax.set_xticks(sizes, [str(size) for size in sizes])
    ax.minorticks_off()
    ax.set(xlim=ends, ylim=(0, 108), yticks=range(0, 101, 20))
    ax.set(xlabel="block size (tokens)", ylabel="memory that holds tokens (%)")
    line = [(size, 100 * share) for size, share in paged]
    ax.set_title("Utilisation by block size")
    legend_above(fig)
    label_points(fig, ax, [(size, share, plain(share)) for size, share in line], [line, *levels])
    return fig


@styled
def waste(result):
    """What the reserved memory of each policy is filled with, in stacked bars: tokens, and three kinds of waste.

    result: of `kvcourse.bench.utilisation.run`. Errors: InputError for shares that do not add up to 1.
    """
    arms = _arms(result)
    fig, ax = style.figure(height=0.3 * len(arms) + 1.35)
    for y, arm in enumerate(arms):
        left = 0.0
        for name, (color, hatch) in {STORED: (style.BLUE, None), **WASTE}.items():
            share = 100 * (arm.utilisation if name == STORED else arm.waste.get(name, 0.0))
            ax.barh(y, share, left=left, height=0.7, color=color, hatch=hatch, edgecolor=style.PAPER, linewidth=0,
                    label=_shown(name) if y == 0 else None)  # fmt: skip
            if share >= 7:
                ground = {"facecolor": color, "linewidth": 0, "pad": 1}
                ax.text(left + share / 2, y, f"{share:.0f}", color=style.text_on(color), fontsize=style.SMALL_PT,
                        ha="center", va="center", bbox=ground if hatch else None)  # fmt: skip
            left += share
    ax.set_yticks(range(len(arms)), [arm.name for arm in arms])
    ax.tick_params(axis="y", length=0)
    ax.set(xlim=(0, 100), ylim=(len(arms) - 0.5, -0.5), xlabel="share of the memory (%)")
    ax.set_title("What the memory is filled with")
    ax.grid(False)
    legend_above(fig, columns=2)
    return fig
