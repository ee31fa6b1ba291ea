"""Every drawing and chart: no overlapping text, nothing cut off, nothing too small, the same bytes twice."""

import itertools

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text

from kvcourse.errors import InputError
from kvcourse.figures import charts, concepts, recomputation, style

STEPS = np.arange(1, 129)
SIZES = 2.0 ** np.arange(6, 13)
CONTEXTS = 2 ** np.arange(12, 21)
MODELS = [
    ("Llama-2-7B (MHA)", 524_288, 68_719_476_736),
    ("Llama-3-8B", 131_072, 17_179_869_184),
    ("SmolLM2-135M", 23_040, 3_019_898_880),
    ("Falcon-7B (MQA)", 8_192, 1_073_741_824),
]

DRAWINGS = {
    "what_is_a_cache": concepts.what_is_a_cache,
    "what_is_a_cache, short": lambda: concepts.what_is_a_cache(("Hello",), ("there",)),
    "four_axes": concepts.four_axes,
    "four_axes, no plan": lambda: concepts.four_axes({}),
    "left_padding": concepts.left_padding,
    "left_padding, long": lambda: concepts.left_padding(("Hi", "you"), ("How", "are", "you", "now", "?")),
    "recomputed_rows": recomputation.recomputed_rows,
    "recomputed_rows, many": lambda: recomputation.recomputed_rows(7, 3),
    "work_per_token": lambda: charts.work_per_token(STEPS, 1e6 * STEPS**2, 1e6 * STEPS),
    "bytes_per_token": lambda: charts.bytes_per_token(MODELS),
    "bytes_per_token, one": lambda: charts.bytes_per_token(MODELS[:1]),
    "time_vs_context": lambda: charts.time_vs_context(
        SIZES, {"without cache": SIZES**2, "with cache": SIZES}
    ),
    "time_vs_context, short range": lambda: charts.time_vs_context(
        SIZES, {"without cache": 0.2 + SIZES / 4096, "with cache": 0.2 + SIZES / 8192}
    ),
    "capacity_staircase": lambda: charts.capacity_staircase(
        STEPS, 16 * 2 ** np.ceil(np.log2(1 + STEPS / 16))
    ),
    "weights_and_cache": lambda: charts.weights_and_cache(CONTEXTS, CONTEXTS * 327_680, 141e9, 80e9),
    "weights_and_cache, apart": lambda: charts.weights_and_cache(CONTEXTS, CONTEXTS * 8_192, 141e9),
}


@pytest.fixture(params=sorted(DRAWINGS))
def fig(request):
    """A drawn figure of DRAWINGS."""
    fig = DRAWINGS[request.param]()
    FigureCanvasAgg(fig).draw()
    return fig


def visible_texts(fig):
    """(text, its box in pixels) of all texts that are drawn; hidden tick labels are not."""
    texts = [t for t in fig.findobj(Text) if t.get_visible() and t.get_text().strip()]
    for axes in fig.axes:
        if not axes.axison:
            hidden = set(axes.xaxis.findobj(Text)) | set(axes.yaxis.findobj(Text))
        else:
            hidden = set()
            for axis in (axes.xaxis, axes.yaxis):
                low, high = sorted(axis.get_view_interval())
                for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks()):
                    if not low <= tick.get_loc() <= high:
                        hidden |= set(tick.findobj(Text))
        texts = [t for t in texts if t not in hidden]
    return [(t.get_text(), t.get_window_extent()) for t in texts]


def test_no_text_overlaps_another(fig):
    boxes = visible_texts(fig)
    assert boxes
    for (first, a), (second, b) in itertools.combinations(boxes, 2):
        width = min(a.x1, b.x1) - max(a.x0, b.x0)
        height = min(a.y1, b.y1) - max(a.y0, b.y0)
        assert width <= 1 or height <= 1, f"{first!r} overlaps {second!r} by {width:.0f} x {height:.0f} px"


def test_no_text_is_cut_off(fig):
    page = fig.bbox
    for text, box in visible_texts(fig):
        assert page.x0 <= box.x0, text
        assert box.x1 <= page.x1, text
        assert page.y0 <= box.y0, text
        assert box.y1 <= page.y1, text


def test_no_text_is_too_small_for_a_phone(fig):
    assert fig.get_figwidth() <= 6.5
    sizes = [t.get_fontsize() for t in fig.findobj(Text) if t.get_text().strip()]
    assert min(sizes) >= 8
    assert min(sizes) / 72 * 358 / fig.get_figwidth() >= 9  # pixels on a 390 px screen with 16 px margins


@pytest.mark.parametrize("name", sorted(DRAWINGS))
def test_the_same_drawing_gives_the_same_bytes(name):
    first = style.png(DRAWINGS[name]())
    with mpl.rc_context({"font.size": 22, "axes.grid": False, "lines.linewidth": 7}):
        assert style.png(DRAWINGS[name]()) == first  # and whatever else the notebook has set
    assert b"Software" not in first


def test_slope_finds_the_power():
    assert charts.slope(SIZES, 3 * SIZES**1.7) == pytest.approx(1.7)


@pytest.mark.parametrize(("x", "y"), [([1], [1]), ([1, 2], [0, 1]), ([1, 2], [1, 2, 3])])
def test_slope_refuses_what_has_no_logarithm(x, y):
    with pytest.raises(InputError, match="slope"):
        charts.slope(x, y)


def test_crossover_of_llama_3_70b():
    """Row 1 of the ledger: 70.55e9 parameters in bf16 over 327,680 bytes a token, about 430k tokens."""
    assert charts.crossover(CONTEXTS, CONTEXTS * 327_680, 141.1e9) == pytest.approx(141.1e9 / 327_680)
    assert charts.crossover(CONTEXTS, CONTEXTS, 1e12) is None
    assert charts.crossover(CONTEXTS, CONTEXTS * 1e9, 5) == CONTEXTS[0]


def test_the_fitted_slope_stands_in_the_legend():
    fig = charts.time_vs_context(SIZES, {"a": SIZES**2, "b": SIZES})
    labels = [t.get_text() for t in fig.legends[0].get_texts()]
    assert labels == ["a: slope 2.00", "b: slope 1.00"]


@pytest.mark.parametrize(("tokens", "label"), [(512, "512"), (4096, "4k"), (131_072, "128k"), (2**20, "1M")])
def test_tokens_label(tokens, label):
    assert charts.tokens_label(tokens) == label


def test_right_positions_are_those_of_the_mask():
    """Case C8: position = cumsum(mask) - 1 in each row, also for the new token, which the fault gives the width."""
    fig = concepts.left_padding(("x",), ("a", "b", "c"))
    drawn = [t.get_text() for t in fig.axes[0].texts if t.get_text()[0] in "0123456789–"]
    long = ["0", "1", "2", "3"]
    assert drawn == ["–", "–", "0", "3, not 1", *long, "–", "–", "0", "1", *long]


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: concepts.left_padding(("a", "b"), ("c",)), "got 2 and 1 tokens"),
        (lambda: concepts.what_is_a_cache((), ("a",)), "tokens on both sides"),
        (lambda: concepts.four_axes({"x": ("GQA", "paged", "int3", "all")}), "no choice 'int3'"),
        (
            lambda: concepts.four_axes(dict.fromkeys("abcd", ("GQA", "paged", "int4", "all"))),
            "4 plans are too many",
        ),
        (lambda: charts.bytes_per_token([]), "no rows"),
        (lambda: charts.time_vs_context([1, 2], {c: [1, 2] for c in "abcde"}), "5 lines are too many"),
    ],
)
def test_bad_input_says_what_was_expected(draw, message):
    with pytest.raises(InputError, match=message):
        draw()
