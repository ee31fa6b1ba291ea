"""Charts that set kinds of attention side by side: what they store, what that costs, what it is worth."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from kvcourse import memory
from kvcourse.attention.families import layout_of
from kvcourse.attention.known_models import KNOWN
from kvcourse.errors import InputError
from kvcourse.figures import style
from kvcourse.figures.axes import KIB, label_points, legend_above, log_values, plain, range_axis, spread
from kvcourse.figures.style import KINDS, styled

KIND_TITLES = {
    "MHA": "MHA: a kv head for each query head",
    "GQA": "GQA: a kv head for a group of them",
    "MQA": "MQA: one kv head for all",
    "sliding": "Windows in some or all layers",
    "linear": "Linear attention in most layers",
    "MLA": "MLA: a latent and a rotary key",
    "compressed": "Compressed: one entry for many tokens",
}
SHOWN = (
    "gpt2", "llama-2-7b", "llama-2-13b", "smollm2-135m", "qwen2.5-0.5b", "llama-3.2-3b", "falcon-40b", "llama-3-8b",
    "qwen3-32b", "llama-3-70b", "llama-3.1-405b", "falcon-7b", "mistral-7b-v0.1", "gpt-oss-120b", "llama-4-scout",
    "gemma-2-27b", "gemma-3-27b", "qwen3.5-0.8b", "deepseek-v2-lite", "deepseek-v2", "deepseek-v3", "deepseek-v3.2",
    "glm-5", "deepseek-v4-flash", "deepseek-v4-pro",
)  # fmt: skip
SHORTEST = 0.5  # KiB, where the bars begin


@dataclass(frozen=True)
class ModelBytes:
    """Bytes that a model's cache grows by with each token, in bf16.

    kind: a key of KIND_TITLES. bytes_per_token: before any window is full. growing: after all of them are; the
    same for a model without windows.
    """

    title: str
    kind: str
    bytes_per_token: int
    growing: int


def model_rows(names: Sequence[str] = SHOWN) -> list[ModelBytes]:
    """What `cache_bytes_by_model` draws of built-in models.

    names: keys of `known_models.KNOWN`. Errors: InputError for another name.
    """
    unknown = [name for name in names if name not in KNOWN]
    if unknown:
        raise InputError(
            f"no built-in model {unknown[0]!r}: expected names of known_models.KNOWN (kvcourse memory --list)"
        )
    return [
        ModelBytes(
            KNOWN[name].title.split(" (")[0].split(" /")[0],
            kind_of(name),
            memory.bytes_per_token(name),
            memory.bytes_per_token_beyond_windows(name),
        )
        for name in names
    ]


def kind_of(name: str) -> str:
    """The kind of attention of a built-in model, a key of KIND_TITLES: what its layers store decides."""
    layout = layout_of(name)
    fields = {field.name: field for layer in layout for field in layer.fields}
    if "compressed" in fields:
        return "compressed"
    if "latent" in fields:
        return "MLA"
    if any(layer.state_bytes for layer in layout):
        return "linear"
    if any(field.window for layer in layout for field in layer.fields):
        return "sliding"
    config = KNOWN[name].config
    heads, kv_heads = config.get("num_attention_heads") or config["n_head"], fields["k"].shape[0]
    return "MQA" if kv_heads == 1 else "MHA" if kv_heads == heads else "GQA"


@styled
def cache_bytes_by_model(rows: Sequence[ModelBytes] | None = None):
    """Bars of bytes per token on a logarithmic axis, grouped by kind of attention, sorted within.

    rows: by default `model_rows()`. The pale part of a bar is what stops growing once the windows are full.
    """
    rows = model_rows() if rows is None else list(rows)
    order = list(KIND_TITLES)
    unknown = [row.kind for row in rows if row.kind not in order]
    if not rows or unknown:
        found = f"kind {unknown[0]!r}" if unknown else "no rows"
        raise InputError(f"{found}: expected rows of model_rows(), each with a kind among {', '.join(order)}")
    rows = sorted(rows, key=lambda row: (order.index(row.kind), row.bytes_per_token))
    kinds = len({row.kind for row in rows})
    fig, ax = style.figure(height=0.2 * (len(rows) + 1.25 * kinds) + 0.75)
    y, ticks = 0.0, []
    for kind, group in groupby(rows, key=lambda row: row.kind):
        ax.text(0, y, KIND_TITLES[kind], transform=ax.get_yaxis_transform(), va="center", fontweight="bold",
                fontsize=style.SMALL_PT, bbox={"facecolor": style.PAPER, "linewidth": 0, "pad": 1})  # fmt: skip
        y += 1
        for row in group:
            _model_bar(ax, y, row)
            ticks.append((y, row.title))
            y += 1
        y += 0.25
    ax.set_yticks(*zip(*ticks, strict=True))
    ax.tick_params(axis="y", length=0)
    largest = max(row.bytes_per_token for row in rows) / KIB
    log_values(ax, [1, largest], "x")
    ax.set(
        xlim=(SHORTEST, 8 * largest),
        ylim=(y - 0.4, -0.7),
        xlabel="KiB per token, bf16 (later: all windows full)",
    )
    ax.grid(False, axis="y")
    ax.spines["left"].set_visible(False)
    return fig


def _model_bar(ax, y, row):
    """The bar of one model and its numbers; the part that windows bound is pale and dashed."""
    color, first, later = KINDS[row.kind][0], row.bytes_per_token / KIB, row.growing / KIB
    if later < first:
        ax.barh(
            y, first - SHORTEST, left=SHORTEST, height=0.62, color=style.PALE, edgecolor=color, linestyle="--"
        )
    if later:
        ax.barh(y, later - SHORTEST, left=SHORTEST, height=0.62, color=color)
    text = f" {plain(first)}" if later == first else f" {plain(first)}, later {plain(later)}"
    ax.text(first, y, text, va="center", fontsize=style.SMALL_PT)


@styled
def quality_against_bytes(points, baseline=None, curve=None, ylabel="perplexity"):
    """Quality of models over the bytes that they keep per token; lower is better. Long ranges are logarithmic.

    points: (name, kind, bytes per token, before, after), kind one of MHA, GQA, MQA, MLA; before and after training,
    one of them may be None. Where both are known, an arrow joins the open marker to the filled one. Points with
    equal bytes stand side by side.
    baseline: (name, bytes per token, quality) of the model that the others come from.
    curve: (bytes per token, quality) of more points to join, for example of ranks; or (name, these).
    Errors: InputError without points, for an unknown kind, or for a value that is not positive.
    """
    points, (name, curve) = list(points), _named(curve)
    _check_points(points, baseline, curve)
    fig, ax = style.figure(height=3.9)
    values = [v for *_, before, after in points for v in (before, after) if v] + [q for _, q in curve]
    sizes = [size for _, _, size, *_ in points] + [size for size, _ in curve]
    if baseline is not None:
        sizes, values = [*sizes, baseline[1]], [*values, baseline[2]]
    sides, _ = range_axis(ax, sizes, "x", 0.2), range_axis(ax, values, "y", 0.18)
    places = spread([size for _, _, size, *_ in points], sides, ax.get_xscale() == "log")
    if baseline is not None:
        ax.axhline(baseline[2], **style.line("floor") | {"linewidth": 1.2})
        ax.plot(
            *baseline[1:], "*:", color=style.INK, markersize=11, label=f"{baseline[0]}: {plain(baseline[2])}"
        )
    if curve:
        ax.plot(*zip(*curve, strict=True), ".--", color=style.MUTED, linewidth=1.2, label=name)
    for kind in dict.fromkeys(kind for _, kind, *_ in points):
        color, marker = KINDS[kind]
        if not all(name.startswith(kind) for name, of, *_ in points if of == kind):
            ax.plot([], [], marker, color=color, label=kind)
    for x, (_, kind, _, before, after) in zip(places, points, strict=True):
        _arm(ax, kind, x, before, after)
    ax.set(xlabel="bytes per token", ylabel=f"{ylabel} (lower is better)")
    if ax.get_legend_handles_labels()[0]:
        legend_above(fig, columns=3)
    labels = [
        (x, after or before, f"{arm}: {plain(after or before)}")
        for x, (arm, *_, before, after) in zip(places, points, strict=True)
    ]
    clear = [
        [(x, before), (x, after)]
        for x, (*_, before, after) in zip(places, points, strict=True)
        if before and after
    ]
    if baseline is not None:
        clear += [[baseline[1:]], [(x, baseline[2]) for x in sides]]
    label_points(fig, ax, labels, [*clear, curve] if curve else clear)
    return fig


def _arm(ax, kind, size, before, after):
    """One model of `quality_against_bytes`: open before training, filled after, an arrow between."""
    color, marker = KINDS[kind]
    if before:
        ax.plot(size, before, marker, color=color, fillstyle="none", markersize=7, markeredgewidth=1.6)
    if after:
        ax.plot(size, after, marker, color=color, markersize=7)
    if before and after:
        ends = {"xy": (size, after), "xytext": (size, before)}
        ax.annotate("", **ends, arrowprops={"arrowstyle": "-|>", "color": color, "shrinkA": 5, "shrinkB": 5})


def _named(curve):
    """(name, points) of a curve that may come with a name, or be None."""
    curve = () if curve is None else curve
    if len(curve) == 2 and isinstance(curve[0], str):
        return curve[0], list(curve[1])
    return "by rank", list(curve)


def _check_points(points, baseline, curve):
    if not points:
        raise InputError("no points to draw; give at least one (name, kind, bytes per token, before, after)")
    known = [kind for kind, (_, marker) in KINDS.items() if marker]
    for name, kind, size, before, after in points:
        if kind not in known:
            raise InputError(f"{name}: kind {kind!r}: expected one of {', '.join(known)}")
        if before is None and after is None:
            raise InputError(f"{name}: no quality, before or after; give at least one of them")
        _check_positive(name, size, *(value for value in (before, after) if value is not None))
    for name, *values in ([baseline] if baseline is not None else []) + [("curve", *pair) for pair in curve]:
        _check_positive(name, *values)


def _check_positive(name, *values):
    if not all(0 < value < math.inf for value in values):
        raise InputError(f"{name}: {values}: expected finite numbers above 0, since the axes are logarithmic")


def ridge(peak: float, bandwidth: float) -> float:
    """FLOPs per byte from which on a card computes as fast as it can (Williams et al. 2009, the ridge point).

    peak: FLOP/s. bandwidth: bytes/s.
    """
    _check_positive("a card's peak and bandwidth", peak, bandwidth)
    return peak / bandwidth


@styled
def roofline(points, peak, bandwidth, card="", measured=None):
    """FLOP/s that a card can reach over the FLOPs per byte of the work, with kinds of attention marked.

    points: (name, FLOPs per byte). peak: FLOP/s. bandwidth: bytes/s. card: its name, for the title.
    measured: {name: FLOP/s} of points that were timed.
    Errors: InputError without points, for a number that is not positive, or a measured name without a point.
    """
    from matplotlib.ticker import EngFormatter

    points, measured, knee = list(points), dict(measured or {}), ridge(peak, bandwidth)
    extra = sorted(set(measured) - {name for name, _ in points})
    if not points or extra:
        found = f"measured {extra[0]!r} is none of the points" if extra else "no points"
        raise InputError(f"{found}: expected (name, FLOPs per byte) of each kind of attention")
    for name, *values in [*points, *measured.items()]:
        _check_positive(name, *values)
    fig, ax = style.figure(height=3.5)
    low = min(1.0, *(x for _, x in points)) / 2
    high = 4 * max(knee, *(x for _, x in points))
    bottom, top = min(low * bandwidth, *measured.values(), peak) / 2, 3 * peak
    roof = [(low, low * bandwidth), (knee, peak), (high, peak)]
    ax.plot(*zip(*roof, strict=True), color=style.INK, label="the most that the machine can do")
    ax.axvline(knee, **style.line("floor") | {"linewidth": 1.2}, label=f"ridge: {plain(knee)} FLOPs per byte")
    marks = [(x, min(peak, x * bandwidth)) for _, x in points]
    for (name, x), at in zip(points, marks, strict=True):
        color, marker = _look(name)
        ax.plot(*at, marker, color=color, markersize=8)
        if name in measured:
            ax.plot(
                x, measured[name], marker, color=color, markersize=8, fillstyle="none", markeredgewidth=1.6
            )
    if measured:
        ax.plot([], [], "o", color=style.MUTED, fillstyle="none", markeredgewidth=1.6, label="open: measured")
    log_values(ax, [low, high], "x")
    log_values(ax, [bottom, top])
    ax.yaxis.set_major_formatter(EngFormatter(sep=""))
    ax.set(xlim=(low, high), ylim=(bottom, top), xlabel="FLOPs per byte read", ylabel="FLOP/s")
    if card:
        ax.set_title(card, size=style.FONT_PT)
    legend_above(fig)
    texts = [(*at, f"{name}: {plain(x)}") for (name, x), at in zip(points, marks, strict=True)]
    timed = [[(x, measured[name])] for name, x in points if name in measured]
    label_points(fig, ax, texts, [roof, [(knee, bottom), (knee, top)], *timed])
    return fig


def _look(name):
    """Colour and marker of a point whose name begins with a kind of attention; a black dot for others."""
    kind = next((kind for kind in KINDS if name.startswith(kind)), None)
    return KINDS[kind] if kind else (style.INK, "o")
