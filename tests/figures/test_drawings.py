"""Every drawing and chart: no overlapping text, nothing cut off, nothing too small, the same bytes twice."""

import itertools

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text

from kvcourse.bench.utilisation import Arm, Utilisation
from kvcourse.errors import InputError
from kvcourse.figures import (
    attention_kinds,
    block_sharing,
    charts,
    comparisons,
    concepts,
    latent,
    paging,
    paging_drawings,
    recomputation,
    style,
)
from kvcourse.figures.pool_state import PoolState

STEPS = np.arange(1, 129)
SIZES = 2.0 ** np.arange(6, 13)
CONTEXTS = 2 ** np.arange(12, 21)
MODELS = [
    ("Llama-2-7B (MHA)", 524_288, 68_719_476_736),
    ("Llama-3-8B", 131_072, 17_179_869_184),
    ("SmolLM2-135M", 23_040, 3_019_898_880),
    ("Falcon-7B (MQA)", 8_192, 1_073_741_824),
]
ARMS = [
    ("MQA, mean", "MQA", 15_360, 8_000, 30.0),
    ("MQA, first", "MQA", 15_360, 6_000, 34.0),
    ("MQA, random", "MQA", 15_360, 90_000, 45.0),
    ("MLA 64+32", "MLA", 11_520, 70, 22.0),
    ("MLA 32+32", "MLA", 7_680, 300, 28.0),
    ("MLA 128+64", "MLA", 23_040, 15, None),
]
RANKS = [(46_080, 12.1), (34_000, 12.3), (23_040, 15), (16_000, 30), (11_520, 70), (7_680, 300)]
KINDS = [("MHA", 1), ("GQA, 8 to a group", 8), ("MQA, 71 heads", 71), ("MLA, 128 heads", 241.8)]
FILLING = [(n, n // 3, 23 - n - n // 3) for n in (0, 4, 7, 12, 17, 14, 9, 9, 3, 0)]
POOL = PoolState(
    24, 4, {"A": (3, 7, 9), "B": (3, 7, 10), "C": (3, 1), "D": (3, 4)}, {"A": 10, "B": 12, "C": 5, "D": 8},
    frozenset({20, 21}),
)  # fmt: skip
FEW = Utilisation(
    tuple(
        Arm(f"paged, {size}", "paged", size, used, 9, {"reserved for later": 1 - used})
        for size, used in ((8, 0.97), (16, 0.8))
    ),
    1,
    1,
    1,
)
SHARES = Utilisation(
    (
        *(
            Arm(name, "static", None, used, 3, {"reserved for later": 0.2, "no hole fits": 0.8 - used})
            for name, used in (("max length", 0.2), ("power of two, buddy", 0.24), ("oracle", 0.75))
        ),
        *(
            Arm(f"paged, {2**i}", "paged", 2**i, 1 - 2**i / 1024, 9, {"reserved, never used": 2**i / 1024})
            for i in range(9)
        ),
    ),
    1,
    1,
    1,
)

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
    "cache_bytes_by_model": comparisons.cache_bytes_by_model,
    "cache_bytes_by_model, two": lambda: comparisons.cache_bytes_by_model(
        comparisons.model_rows(["llama-2-7b", "mistral-7b-v0.1"])
    ),
    "quality_against_bytes": lambda: comparisons.quality_against_bytes(
        ARMS, ("SmolLM2-135M", 46_080, 12.1), RANKS
    ),
    "quality_against_bytes, equal bytes": lambda: comparisons.quality_against_bytes(
        [(kind, kind, 256, None, 1.6 + i / 50) for i, kind in enumerate(("MHA", "GQA", "MQA", "MLA"))],
        ylabel="nats per byte",
    ),
    "quality_against_bytes, one": lambda: comparisons.quality_against_bytes(ARMS[:1], curve=("ranks", RANKS)),
    "roofline": lambda: comparisons.roofline(KINDS, 989e12, 4.8e12, "H200, bf16"),
    "roofline, measured": lambda: comparisons.roofline(
        [("MHA", 0.5), ("GQA", 1.5), ("MQA", 4.5), ("MLA", 8.9)], 1e11, 2e10, "", {"MHA": 5e9, "MLA": 8e10}
    ),
    "roofline, crowded": lambda: comparisons.roofline([(f"GQA {i}", i) for i in range(1, 8)], 989e12, 4.8e12),
    "kv_head_groups": attention_kinds.kv_head_groups,
    "kv_head_groups, most": lambda: attention_kinds.kv_head_groups(12, 4),
    "kv_head_groups, few": lambda: attention_kinds.kv_head_groups(4, 2),
    "head_map": attention_kinds.head_map,
    "head_map, most": lambda: attention_kinds.head_map(12, 6),
    "absorption": latent.absorption,
    "absorption, small": lambda: latent.absorption(32, 64, 9),
    "cached_parts": latent.cached_parts,
    "cached_parts, small": lambda: latent.cached_parts(9, 64, 32, 64, 64),
    "filling": lambda: paging.filling(FILLING),
    "filling, marked": lambda: paging.filling(
        FILLING, {0: "A arrives", 1: "B arrives", 4: "the pool is full", 8: "C is done", 9: "all done"}
    ),
    "block_map": lambda: paging.block_map(POOL, title="Four sequences"),
    "block_map, wide": lambda: paging.block_map(POOL, columns=10),
    "block_map, narrow": lambda: paging.block_map(POOL, columns=4),
    "utilisation": lambda: paging.utilisation(SHARES),
    "utilisation, paged only": lambda: paging.utilisation(FEW),
    "waste": lambda: paging.waste(SHARES),
    "waste, one": lambda: paging.waste(Utilisation(SHARES.arms[:1], 1, 1, 1)),
    "fragmentation": paging_drawings.fragmentation,
    "fragmentation, it fits": lambda: paging_drawings.fragmentation(
        [("A", 0, 9, 13, 20)], ("B", 0, 30, 30, 40), block_size=8
    ),
    "boundary": paging_drawings.boundary,
    "boundary, one": lambda: paging_drawings.boundary(1),
    "boundary, most": lambda: paging_drawings.boundary(8, [0, 3, 7, 8, 9, 15, 23]),
    "block_table": block_sharing.block_table,
    "block_table, no copy": lambda: block_sharing.block_table(("a", "b"), ("c",), ("mmmm",) * 6, 2),
    "hash_chain": block_sharing.hash_chain,
    "hash_chain, no keys": lambda: block_sharing.hash_chain([("One block", (99, 98, 97, 96), ())]),
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
