"""What the charts of kinds of attention say: the right bytes, kinds, arrows and roofs."""

import pytest
from matplotlib.colors import to_hex

from kvcourse import memory
from kvcourse.attention.known_models import KNOWN
from kvcourse.errors import InputError
from kvcourse.figures import axes, comparisons, style

ROOF = (989e12, 4.8e12)


def texts_of(fig):
    return [t.get_text() for t in fig.axes[0].texts]


def legend_of(fig):
    return [t.get_text() for legend in fig.legends for t in legend.get_texts()]


# ---- bytes of real models --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("gpt2", "MHA"), ("llama-2-7b", "MHA"), ("llama-2-70b", "GQA"), ("falcon-7b", "MQA"), ("falcon-40b", "GQA"),
        ("smollm2-135m", "GQA"), ("mistral-7b-v0.1", "sliding"), ("mistral-7b-v0.3", "GQA"),
        ("gemma-3-4b", "sliding"),
        ("llama-4-scout", "sliding"), ("gpt-oss-120b", "sliding"), ("qwen3.5-0.8b", "linear"), ("deepseek-v2", "MLA"),
        ("deepseek-v3.2", "MLA"), ("glm-5", "MLA"), ("deepseek-v4-pro", "compressed"),
    ],
)  # fmt: skip
def test_kind_of_a_model(name, kind):
    assert comparisons.kind_of(name) == kind


def test_every_built_in_model_can_be_drawn():
    rows = comparisons.model_rows(list(KNOWN))
    assert len(rows) == len(KNOWN)
    assert {row.kind for row in rows} == set(comparisons.KIND_TITLES)


def test_rows_hold_published_sizes():
    """2 · layers · kv heads · head dim · 2 bytes; MLA: layers · 576 · 2."""
    names = ("llama-2-7b", "llama-3-70b", "falcon-7b", "gemma-3-27b", "deepseek-v3")
    rows = {row.title: (row.bytes_per_token, row.growing) for row in comparisons.model_rows(names)}
    assert rows == {
        "Llama-2-7B": (2 * 32 * 32 * 128 * 2,) * 2,
        "Llama-3-70B": (2 * 80 * 8 * 128 * 2,) * 2,
        "Falcon-7B": (2 * 32 * 1 * 64 * 2,) * 2,
        "Gemma-3-27B": (2 * 62 * 16 * 128 * 2, 2 * 10 * 16 * 128 * 2),
        "DeepSeek-V3": (61 * 576 * 2,) * 2,
    }


def test_about_25_models_are_shown_each_once():
    rows = comparisons.model_rows()
    assert len({row.title for row in rows}) == len(rows) == 25
    assert {row.kind for row in rows} == set(comparisons.KIND_TITLES)


def test_bars_are_as_long_as_the_bytes():
    fig = comparisons.cache_bytes_by_model()
    ends = sorted(bar.get_x() + bar.get_width() for bar in fig.axes[0].patches)
    names = comparisons.SHOWN
    sizes = [memory.bytes_per_token(name) for name in names]
    later = [memory.bytes_per_token_beyond_windows(name) for name in names]
    extra = [b for a, b in zip(sizes, later, strict=True) if 0 < b < a]
    assert ends == pytest.approx(sorted(size / 1024 for size in [*sizes, *extra]))


def test_models_stand_in_groups_and_rise_within():
    fig = comparisons.cache_bytes_by_model()
    order = [label.get_text() for label in fig.axes[0].get_yticklabels()]
    rows = {row.title: row for row in comparisons.model_rows()}
    drawn = [(list(comparisons.KIND_TITLES).index(rows[t].kind), rows[t].bytes_per_token) for t in order]
    assert drawn == sorted(drawn)
    assert [t for t in texts_of(fig) if t in comparisons.KIND_TITLES.values()] == [
        *comparisons.KIND_TITLES.values()
    ]


def test_a_windowed_model_says_what_it_grows_by_later():
    texts = texts_of(comparisons.cache_bytes_by_model(comparisons.model_rows(["gemma-3-27b", "llama-3-8b"])))
    assert [t.strip() for t in texts if t.strip()[0].isdigit()] == ["128", "496, later 80"]


# ---- quality ---------------------------------------------------------------------------------------

ARMS = [("one", "MQA", 100, 50.0, 20.0), ("two", "MLA", 400, 30.0, None), ("three", "GQA", 400, None, 12.0)]


def test_the_label_says_the_quality_that_the_marker_shows():
    fig = comparisons.quality_against_bytes(ARMS, ("whole", 800, 10.0))
    assert sorted(texts_of(fig)) == ["", "one: 20", "three: 12", "two: 30"]  # the arrow is an empty text
    assert "whole: 10" in legend_of(fig)


def test_an_arrow_goes_from_before_to_after():
    fig = comparisons.quality_against_bytes(ARMS[:1])
    (arrow,) = [text for text in fig.axes[0].texts if not text.get_text()]
    assert (arrow.xyann, arrow.xy) == ((100, 50.0), (100, 20.0))


def test_open_markers_are_untrained():
    fig = comparisons.quality_against_bytes(ARMS)
    filled = {
        (round(float(line.get_ydata()[0]), 6), line.get_fillstyle() == "full")
        for line in fig.axes[0].lines
        if len(line.get_xdata()) == 1 and line.get_marker() not in ("None", "")
    }
    assert {(50.0, False), (20.0, True), (30.0, False), (12.0, True)} <= filled


def test_long_ranges_are_logarithmic_and_short_ones_are_not():
    wide = comparisons.quality_against_bytes(
        [("a", "MHA", 100, None, 1.0), ("b", "MQA", 10_000, None, 9.0)]
    ).axes[0]
    assert (wide.get_xscale(), wide.get_yscale()) == ("log", "log")
    narrow = comparisons.quality_against_bytes(
        [("a", "MHA", 100, None, 1.5), ("b", "MQA", 120, None, 1.6)]
    ).axes[0]
    assert (narrow.get_xscale(), narrow.get_yscale()) == ("linear", "linear")


def test_spread_parts_equal_values_alone():
    moved = axes.spread([100, 200, 100, 100], (10, 1000))
    assert moved[1] == pytest.approx(200)
    assert moved[0] < moved[2] < moved[3]
    assert moved[2] == pytest.approx(100)
    assert axes.spread([3, 3], (0, 10), log=False, share=0.1) == pytest.approx([2.5, 3.5])


# ---- roofline --------------------------------------------------------------------------------------


def test_the_ridge_of_an_h200():
    """989 TFLOP/s over 4.8 TB/s, as its data sheet says: 206 FLOPs for each byte."""
    assert comparisons.ridge(*ROOF) == pytest.approx(206.04, abs=0.01)
    assert "ridge: 206 FLOPs per byte" in legend_of(comparisons.roofline([("MHA", 1)], *ROOF))


def test_points_lie_on_the_roof():
    points = [("MHA", 1), ("GQA 8", 8), ("MLA", 241.8)]
    fig = comparisons.roofline(points, *ROOF, measured={"MLA": 5e14})
    drawn = {
        (float(line.get_xdata()[0]), float(line.get_ydata()[0])): line
        for line in fig.axes[0].lines
        if len(line.get_xdata()) == 1
    }
    assert set(drawn) == {(1, 4.8e12), (8, 8 * 4.8e12), (241.8, 989e12), (241.8, 5e14)}
    assert to_hex(drawn[1, 4.8e12].get_color()).upper() == style.KINDS["MHA"][0]
    assert drawn[241.8, 5e14].get_fillstyle() == "none"
    assert sorted(texts_of(fig)) == ["GQA 8: 8", "MHA: 1", "MLA: 242"]


def test_kinds_differ_without_colour():
    markers = [marker for _, marker in style.KINDS.values() if marker]
    assert len(set(markers)) == len(markers) == 4


# ---- bad input -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: comparisons.model_rows(["gpt-9"]), "no built-in model 'gpt-9'"),
        (lambda: comparisons.cache_bytes_by_model([]), "no rows"),
        (lambda: comparisons.cache_bytes_by_model([comparisons.ModelBytes("x", "GPA", 1, 1)]), "kind 'GPA'"),
        (lambda: comparisons.quality_against_bytes([]), "no points"),
        (lambda: comparisons.quality_against_bytes([("x", "sliding", 1, 1, 1)]), "kind 'sliding'"),
        (lambda: comparisons.quality_against_bytes([("x", "MHA", 1, None, None)]), "no quality"),
        (lambda: comparisons.quality_against_bytes([("x", "MHA", 0, 1, None)]), "above 0"),
        (lambda: comparisons.quality_against_bytes([("x", "MHA", 1, float("nan"), None)]), "above 0"),
        (lambda: comparisons.roofline([("MHA", float("inf"))], *ROOF), "finite"),
        (lambda: comparisons.quality_against_bytes(ARMS, ("base", 5, -1)), "base: .*above 0"),
        (lambda: comparisons.quality_against_bytes(ARMS, curve=[(5, 0)]), "curve: .*above 0"),
        (lambda: comparisons.roofline([], *ROOF), "no points"),
        (lambda: comparisons.roofline([("MHA", 0)], *ROOF), "MHA: .*above 0"),
        (lambda: comparisons.roofline([("MHA", 1)], 1e12, 0), "peak and bandwidth"),
        (
            lambda: comparisons.roofline([("MHA", 1)], *ROOF, measured={"MLA": 1}),
            "'MLA' is none of the points",
        ),
    ],
)
def test_bad_input_says_what_was_expected(draw, message):
    with pytest.raises(InputError, match=message):
        draw()


@pytest.mark.parametrize(
    ("value", "text"),
    [(1_916.4, "1,916"), (1e6, "1,000,000"), (20.85, "20.9"), (0.01234, "0.0123"), (10, "10")],
)
def test_numbers_are_written_out(value, text):
    assert axes.plain(value) == text
