"""Parts that charts share: axes with plain numbers, a legend above the plot, labels that keep apart."""

from itertools import pairwise

import numpy as np

from kvcourse.figures import style

KIB = 1024
_PLACES = ((1, 0), (1, 1), (1, -1), (-1, 0), (-1, 1), (-1, -1), (0, 1), (0, -1))


def tokens_label(tokens) -> str:
    """A context length in few letters: 512, 4k, 128k, 1M (k = 1,024)."""
    for size, unit in ((KIB**2, "M"), (KIB, "k")):
        if tokens >= size:
            return f"{tokens / size:.3g}{unit}"
    return f"{tokens:.0f}"


def plain(value) -> str:
    """A number without an exponent, to three digits at least: 0.123, 12.3, 1,916."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def token_axis(ax, tokens, label) -> None:
    """Logarithmic x axis in powers of two, with at most six ticks."""
    low, high = int(np.floor(np.log2(min(tokens)))), int(np.ceil(np.log2(max(tokens))))
    step = max(1, -(-(high - low) // 5))
    ticks = [2**p for p in range(low, high + 1, step)]
    ax.set_xscale("log", base=2)
    ax.set_xticks(ticks, [tokens_label(t) for t in ticks])
    ax.minorticks_off()
    ax.set_xlabel(label)


def log_values(ax, values, which="y") -> None:
    """Logarithmic axis, x or y, with plain numbers: powers of ten, with 2 and 5 between in a short range."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    short = max(values) < 30 * min(values)
    ax.set(**{f"{which}scale": "log"})
    axis = getattr(ax, f"{which}axis")
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if short else (1,)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: plain(value)))
    axis.set_minor_locator(NullLocator())


def range_axis(ax, values, which, margin) -> tuple[float, float]:
    """Sets scale and limits of one axis: logarithmic when the values differ by a factor of three.

    which: x or y. margin: share of the range to leave free at both ends. Returns the limits.
    """
    low, high = min(values), max(values)
    if high >= 3 * low:
        log_values(ax, values, which)
        room = (high / low) ** margin
        limits = (low / room, high * room)
    else:
        room = margin * (high - low) or 0.2 * high
        limits = (low - room, high + room)
        if low == high:
            ax.set(**{f"{which}ticks": [low]})
    ax.set(**{f"{which}lim": limits})
    return limits


def legend_above(fig, columns=1) -> None:
    """The legend over the plot, where it covers no data and the width of a phone is enough."""
    fig.legend(loc="outside upper left", ncols=columns)


def spread(values, axis_range, log=True, share=0.028) -> list[float]:
    """The values, equal ones moved apart by a share of the axis, so that their markers stand side by side.

    axis_range: (low, high) of the axis that they are drawn on.
    """
    there, back = (np.log, np.exp) if log else (np.asarray, np.asarray)
    step = share * float(there(axis_range[1]) - there(axis_range[0]))
    values, seen = list(values), {}
    moved = []
    for value in values:
        place = seen[value] = seen.get(value, -1) + 1
        moved.append(float(back(there(value) + step * (place - (values.count(value) - 1) / 2))))
    return moved


def label_points(fig, ax, labels, keep_clear=()) -> None:
    """Writes a text beside each point, where it covers no other text, and lines and points as little as possible.

    labels: (x, y, text) in data units. keep_clear: polylines, each a list of (x, y), that texts keep off; one
    pair is a point. A text that finds no room beside its point moves further off and gets a thin line to it.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.transforms import Bbox

    FigureCanvasAgg(fig).draw()  # lays out the axes; from here on they must not move
    fig.set_layout_engine("none")
    frame, dot = ax.get_window_extent(), fig.dpi * 0.05
    labels = sorted(labels, key=lambda label: -label[0])  # most texts go to the right, where this leaves room
    points = [ax.transData.transform((x, y)) for x, y, _ in labels]
    steps = [point for line in keep_clear for point in _walk(ax.transData.transform(line), dot)]

    def around(places, reach):
        return [Bbox.from_bounds(x - reach, y - reach, 2 * reach, 2 * reach) for x, y in places]

    markers, lines = around(points, 1.4 * dot), around(steps, dot)
    texts, to_axes = [], ax.transAxes.inverted().transform
    for (x, y), (*_, text) in zip(points, labels, strict=True):
        drawn = ax.text(0.5, 0.5, text, fontsize=style.SMALL_PT, va="center", transform=ax.transAxes)
        size = drawn.get_window_extent()

        def cost(place):
            box, far = place
            outside = box.x0 < frame.x0 or box.x1 > frame.x1 or box.y0 < frame.y0 or box.y1 > frame.y1
            covered = 100 * box.count_overlaps(texts) + 20 * box.count_overlaps(markers)
            return 1000 * outside + covered + 3 * box.count_overlaps(lines) + 4 * far

        box, far = min(_places(x, y, size.width, size.height, fig.dpi), key=cost)
        texts.append(box)
        drawn.set_position(to_axes((box.x0, (box.y0 + box.y1) / 2)))
        if far:
            near = (min(max(x, box.x0), box.x1), min(max(y, box.y0), box.y1))
            ends = to_axes([(x, y), near])
            ax.plot(*ends.T, transform=ax.transAxes, color=style.MUTED, linewidth=0.7, zorder=1)


def _walk(line, step):
    """Points along a polyline in pixels, about `step` apart, its ends included."""
    points = [line[0]]
    for start, end in pairwise(line):
        count = max(1, int(np.hypot(*(end - start)) / step))
        points += [start + (end - start) * i / count for i in range(1, count + 1)]
    return points


def _places(x, y, width, height, dpi):
    """(box, steps away) of the places to try for a text at pixel (x, y), nearest first."""
    from matplotlib.transforms import Bbox

    for away, distance in enumerate((0.09, 0.14, 0.24, 0.4, 0.6, 0.8, 1.0)):
        gap = distance * dpi
        for side, level in _PLACES:
            left = x + gap if side > 0 else x - gap - width if side < 0 else x - width / 2
            bottom = y - height / 2 + level * (gap + (0 if side else height / 2))
            yield Bbox.from_bounds(left, bottom, width, height), max(0, away - 1)
