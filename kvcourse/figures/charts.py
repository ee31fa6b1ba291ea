"""Charts of the course: they take data and return a matplotlib Figure for `style.show`."""

import numpy as np

from kvcourse.errors import InputError
from kvcourse.figures import style
from kvcourse.figures.axes import KIB, legend_above, log_values, token_axis, tokens_label
from kvcourse.figures.style import COLORS, styled

GB = 1e9


def slope(x, y) -> float:
    """Slope of the straight line through log y over log x (least squares): the power p in y ~ x^p."""
    x, y = np.asarray(x, float), np.asarray(y, float)
    if x.shape != y.shape or x.size < 2 or (x <= 0).any() or (y <= 0).any():
        raise InputError("a slope on log axes needs two or more points with x > 0 and y > 0, as many x as y")
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def crossover(contexts, cache_bytes, weight_bytes) -> float | None:
    """Context at which the cache is as large as the weights, between the points given; None if it never is.

    contexts: increasing tokens. cache_bytes: bytes at each, not decreasing.
    """
    contexts, cache = np.asarray(contexts, float), np.asarray(cache_bytes, float)
    if contexts.shape != cache.shape or contexts.size < 2 or (np.diff(contexts) <= 0).any():
        raise InputError("a crossover needs two or more increasing contexts and as many sizes")
    above = np.flatnonzero(cache >= weight_bytes)
    if above.size == 0:
        return None
    i = above[0]
    if i == 0:
        return float(contexts[0])
    share = (weight_bytes - cache[i - 1]) / (cache[i] - cache[i - 1])
    return float(contexts[i - 1] + share * (contexts[i] - contexts[i - 1]))


@styled
def work_per_token(tokens, without_cache, with_cache, ylabel="FLOPs for this token"):
    """Work to make each next token, with and without a cache, on logarithmic axes.

    tokens: context length at each step. without_cache, with_cache: work for that one token, in `ylabel`.
    """
    from matplotlib.ticker import EngFormatter

    fig, ax = style.figure(height=3.2)
    ax.plot(tokens, without_cache, **style.line("baseline"), label="without a cache: every row again")
    ax.plot(tokens, with_cache, **style.line("ours"), label="with a cache: one new row")
    log_values(ax, [*without_cache, *with_cache])
    ax.yaxis.set_major_formatter(EngFormatter(sep=""))
    token_axis(ax, tokens, "tokens so far")
    ax.set_ylabel(ylabel)
    legend_above(fig)
    return fig


@styled
def bytes_per_token(rows, context=131_072, card_bytes=80e9):
    """Bars of KV bytes a token adds, with the share of a card that one request of `context` tokens takes.

    rows: (name, bytes per token, bytes at `context`) of each model.
    """
    if not rows:
        raise InputError("no rows to draw; give at least one (name, bytes per token, bytes at the context)")
    fig, ax = style.figure(height=0.42 * len(rows) + 0.75)
    largest = max(size for _, size, _ in rows)
    for i, (name, size, total) in enumerate(rows):
        ax.barh(i, size / KIB, height=0.36, color=COLORS["cache"])
        ax.text(0, i - 0.22, name, va="bottom", fontsize=style.SMALL_PT)
        text = f" {size / KIB:,.1f} KiB · {total / card_bytes:.0%}"
        ax.text(size / KIB, i, text, va="center", fontsize=style.SMALL_PT)
    ax.set(xlim=(0, 1.45 * largest / KIB), ylim=(len(rows) - 0.6, -0.75), yticks=[], xlabel="KiB per token")
    card = f"{tokens_label(context)} tokens on {card_bytes / GB:.0f} GB"
    ax.set_title(f"bytes per token · share: {card}", size=style.FONT_PT)
    ax.grid(False, axis="y")
    return fig


@styled
def time_vs_context(tokens, series, roles=None, ylabel="seconds", xlabel="tokens"):
    """Times on logarithmic axes with the fitted power in each label.

    series: {name: times, one per entry of `tokens`}. roles: {name: role of style.LINES}; by default the first
    is the baseline and the second ours.
    """
    if len(series) > len(style.LINES):
        raise InputError(f"{len(series)} lines are too many for one chart; give at most {len(style.LINES)}")
    roles = dict(zip(series, ("baseline", "ours", "other", "floor"), strict=False)) | (roles or {})
    fig, ax = style.figure(height=3.2 + 0.15 * len(series))
    for name, times in series.items():
        ax.plot(tokens, times, **style.line(roles[name]), label=f"{name}: slope {slope(tokens, times):.2f}")
    log_values(ax, np.concatenate([np.asarray(times, float) for times in series.values()]))
    token_axis(ax, tokens, xlabel)
    ax.set_ylabel(ylabel)
    legend_above(fig)
    return fig


@styled
def capacity_staircase(lengths, capacities):
    """Slots allocated by a cache that doubles, over tokens stored: capacity is a staircase, length is not.

    lengths: tokens stored. capacities: slots allocated at each of them.
    """
    fig, ax = style.figure(height=3.1)
    ax.step(lengths, capacities, where="post", color=COLORS["ours"], label="capacity: slots allocated")
    ax.plot(lengths, lengths, color=COLORS["baseline"], linestyle="--", label="length: tokens stored")
    ax.fill_between(
        lengths, lengths, capacities, step="post", color=style.SKY, alpha=0.35, linewidth=0, label="slack"
    )
    ax.set(xlabel="tokens stored", ylabel="slots per row", xlim=(0, None), ylim=(0, None))
    legend_above(fig)
    return fig


@styled
def weights_and_cache(contexts, cache_bytes, weight_bytes, card_bytes=None):
    """Weights (constant) and KV cache (growing) by tokens in the cache, with the crossover marked.

    contexts: tokens of all requests together. cache_bytes: bytes at each. card_bytes: of a card, if any.
    """
    fig, ax = style.figure(height=3.4)
    contexts, cache = np.asarray(contexts, float), np.asarray(cache_bytes, float)
    ax.plot(contexts, cache / GB, **style.line("ours"), label="KV cache")
    ax.plot(contexts, np.full_like(contexts, weight_bytes / GB), **style.line("baseline"), label="weights")
    if card_bytes is not None:
        ax.axhline(card_bytes / GB, **style.line("floor"), label=f"card: {card_bytes / GB:.0f} GB")
    at = crossover(contexts, cache, weight_bytes)
    if at is not None:
        ax.plot(
            at,
            weight_bytes / GB,
            "o",
            markersize=10,
            fillstyle="none",
            color=COLORS["ink"],
            markeredgewidth=2,
        )
        ax.set_title(f"as large as the weights at {at:,.0f} tokens", size=style.FONT_PT)
    log_values(ax, np.append(cache, weight_bytes) / GB)
    token_axis(ax, contexts, "tokens in the cache")
    ax.set_ylabel("GB")
    legend_above(fig, columns=3)
    return fig
