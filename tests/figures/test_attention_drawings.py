"""What the drawings of heads and latents show: counts, maps and areas."""

import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle

from kvcourse.errors import InputError
from kvcourse.figures import attention_kinds, latent
from kvcourse.figures.style import COLORS


def texts_of(fig):
    return [t.get_text() for t in fig.axes[0].texts]


@pytest.mark.parametrize(("heads", "groups"), [(8, 2), (9, 3), (4, 2)])
def test_as_many_heads_as_the_kinds_have(heads, groups):
    texts = texts_of(attention_kinds.kv_head_groups(heads, groups))
    assert texts.count("q") == 4 * heads
    assert texts.count("k") == texts.count("v") == heads + groups + 1
    assert [f"{n} D\nvalues" in texts for n in (2 * heads, 2 * groups, 2)] == [True] * 3
    assert "R + D_r\nvalues" in texts


def test_heads_are_mapped_by_repeating_and_not_by_tiling():
    """Case M10: 4 query heads, 2 kv heads."""
    texts = texts_of(attention_kinds.head_map())
    assert "reads [0, 0, 1, 1]: h // group size" in texts
    assert "reads [0, 1, 0, 1]: h % kv heads" in texts


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 2), (6, 2), (12, 4)])
def test_lines_join_what_the_maps_say(heads, kv_heads):
    """Read from the drawing: the numbers in the two boxes at the ends of each line; dashed where they are wrong."""
    ax = attention_kinds.head_map(heads, kv_heads).axes[0]
    spots = {
        (round(t.get_position()[0], 3), t.get_position()[1]): int(t.get_text())
        for t in ax.texts
        if t.get_text().isdigit()
    }
    joined, wrong = [], []
    for line in ax.lines:
        (x0, x1), (y0, y1) = line.get_data()
        head = next(n for (x, y), n in spots.items() if x == round(x0, 3) and 0 < y - y0 < 0.3)
        kv_head = next(n for (x, y), n in spots.items() if x == round(x1, 3) and 0 < y1 - y < 0.3)
        joined.append((head, kv_head))
        wrong.append(line.get_linestyle() == "--")
    right = [(h, h // (heads // kv_heads)) for h in range(heads)]
    tiled = [(h, h % kv_heads) for h in range(heads)]
    assert joined == right + tiled
    assert wrong == [False] * heads + [pair not in right for pair in tiled]


def test_the_absorbed_product_has_the_shapes_of_deepseek_v3():
    texts = texts_of(latent.absorption())
    assert texts.count("128 × 512") == 2
    assert texts.count("512 × 1") == 2
    assert (texts.count("1 × 512"), texts.count("128 × 1")) == (1, 1)
    joined = "\n".join(texts)
    assert "2 · 128 · 512 = 131,072 FLOPs" in joined
    assert "2 · 512 = 1,024 FLOPs" in joined


@pytest.mark.parametrize("dims", [(128, 512, 64, 128, 128), (9, 64, 32, 64, 64), (16, 512, 64, 128, 128)])
def test_areas_are_to_scale(dims):
    heads, rank, rope, nope, value = dims
    fig = latent.cached_parts(heads, rank, rope, nope, value)
    drawn = [p for p in fig.axes[0].patches if type(p) is Rectangle]
    key = [p for p in drawn if p.get_width() == p.get_height() == 0.12]
    areas = [p.get_width() * p.get_height() for p in drawn if p not in key]
    unit = areas[0] / rank
    assert areas == pytest.approx(
        [rank * unit, rope * unit, heads * nope * unit, heads * rope * unit, heads * value * unit]
    )
    shown = [to_hex(p.get_facecolor()).upper() for p in key]
    assert shown == [COLORS["latent"].upper(), COLORS["rope"].upper()]


def test_what_deepseek_v3_stores_and_rebuilds():
    texts = texts_of(latent.cached_parts())
    assert "Stored: 576 numbers" in texts
    assert "Rebuilt for 128 heads: 40,960 numbers, 71.1 × as many" in texts


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: attention_kinds.kv_head_groups(8, 3), "heads=8, groups=3"),
        (lambda: attention_kinds.kv_head_groups(16, 4), "heads=16"),
        (lambda: attention_kinds.kv_head_groups(8, 8), "groups=8"),
        (lambda: attention_kinds.head_map(4, 4), "kv_heads=4"),
        (lambda: attention_kinds.head_map(4, 0), "kv_heads=0"),
        (lambda: latent.absorption(rank=0), "rank=0"),
        (lambda: latent.cached_parts(heads=1.5), r"heads=1\.5"),
    ],
)
def test_bad_input_says_what_was_expected(draw, message):
    with pytest.raises(InputError, match=message):
        draw()
