"""What the figures of paging show: counts of blocks and tokens, shares, places, hashes."""

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import to_hex
from matplotlib.patches import FancyArrowPatch, Rectangle

from kvcourse.bench.utilisation import Arm, Utilisation
from kvcourse.errors import InputError
from kvcourse.figures import block_sharing, paging, paging_drawings, style
from kvcourse.figures.pool_state import Counts, PoolState, counts, state_of
from kvcourse.storage.block_pool import BlockPool
from kvcourse.storage.block_table import BlockTable
from kvcourse.storage.prefix_index import PrefixIndex

TABLES = {"A": (3, 7, 9), "B": (3, 7, 10, 11), "C": (1, 2), "D": (3,)}
STATE = PoolState(16, 4, TABLES, {"A": 10, "B": 16, "C": 5, "D": 4}, frozenset({12, 13}))


def texts_of(fig):
    return [t.get_text() for t in fig.axes[0].texts]


def legend_of(fig):
    return [t.get_text() for legend in fig.legends for t in legend.get_texts()]


def patches_of(fig, color, kind=Rectangle, **look):
    """Patches of one colour, with attributes as given."""
    return [
        p
        for p in fig.axes[0].patches
        if type(p) is kind and to_hex(p.get_facecolor()).upper() == color.upper()
        and all(getattr(p, f"get_{name}")() == value for name, value in look.items())
    ]  # fmt: skip


def arm(name, kind="paged", size=16, used=0.9, later=0.06, never=0.04, hole=0.0):
    shares = {"reserved for later": later, "reserved, never used": never, "no hole fits": hole}
    return Arm(name, kind, None if kind == "static" else size, used, 8.0, shares)


ARMS = (
    arm("max length", "static", None, 0.2, 0.15, 0.6, 0.05),
    arm("oracle", "static", None, 0.42, 0.40, 0.0, 0.18),
    arm("paged, 16", size=16),
    arm("paged, 1", size=1, used=1.0, later=0.0, never=0.0),
    arm("paged, 128", size=128, used=0.7, later=0.1, never=0.2),
)
RESULT = Utilisation(ARMS, 10_000, 2_048, 500)


# ---- a pool at one moment --------------------------------------------------------------------------


def test_who_holds_what():
    assert STATE.owners == {
        3: ("A", "B", "D"), 7: ("A", "B"), 9: ("A",), 10: ("B",), 11: ("B",), 1: ("C",), 2: ("C",),
    }  # fmt: skip
    assert STATE.counts == Counts(used=7, cached=2, clean=6)
    assert [STATE.filled[b] for b in (0, 1, 2, 3, 7, 9, 10, 11, 12, 14)] == [0, 4, 1, 4, 4, 2, 4, 4, 4, 0]
    assert (STATE.stored, STATE.utilisation) == (23, 23 / 28)
    assert PoolState(4, 4, {}, {}).utilisation == 0
    for lengths in ({"A": 4, "B": 2}, {"A": 2, "B": 4}):  # the longer of two that share a block fills it
        assert PoolState(4, 4, {"A": (1,), "B": (1,)}, lengths).filled == [0, 4, 0, 0]


@st.composite
def forked(draw):
    """Sequences that were forked and went on, as lists of (block, slot) of their tokens, and their tables."""
    size, fresh = draw(st.integers(1, 5)), iter(range(1, 200))
    tables, lengths = {}, {}
    for i in range(draw(st.integers(0, 4))):
        shared = ()
        if tables and draw(st.booleans()):
            of = draw(st.sampled_from(sorted(tables)))
            shared = tables[of][: draw(st.integers(0, lengths[of] // size))]
        length = len(shared) * size + draw(st.integers(0, 9))
        table = shared + tuple(next(fresh) for _ in range(-(-length // size) - len(shared)))
        tables[f"s{i}"], lengths[f"s{i}"] = table, length
    return size, tables, lengths


@given(forked())
def test_a_state_counts_what_lies_in_it(case):
    """Oracle: the set of (block, slot) pairs that some token has."""
    size, tables, lengths = case
    state = PoolState(200, size, tables, lengths)
    stored = {(table[p // size], p % size) for n, table in tables.items() for p in range(lengths[n])}
    held = {block for table in tables.values() for block in table}
    assert state.stored == len(stored)
    assert state.counts == (len(held), 0, 199 - len(held))
    assert state.filled == [sum((block, slot) in stored for slot in range(size)) for block in range(200)]


def test_a_state_is_read_from_a_pool():
    pool = BlockPool(12, 4)
    index = PrefixIndex(pool, seed=b"x")
    first, tokens = BlockTable(pool), list(range(10))
    first.reserve(10)
    first.commit(10)
    index.insert(tokens, first.blocks)
    other = first.fork()
    tables, lengths = {"A": first.blocks, "B": other.blocks}, {"A": 10, "B": 10}
    state = state_of(pool, tables, lengths)
    assert state.counts == counts(pool) == (3, 0, 8)
    assert all(owners == ("A", "B") for owners in state.owners.values())
    with pytest.raises(InputError, match="block 1 has 2 references and 1 of these tables hold it"):
        state_of(pool, {"A": first.blocks}, {"A": 10})
    first.release()
    other.release()
    assert state_of(pool, {}, {}).counts == counts(pool) == (0, 2, 9)
    assert state_of(pool, {}, {}).cached == {1, 2}


def test_a_block_behind_the_window_is_null():
    state = PoolState(8, 4, {"A": (0, 0, 5, 6)}, {"A": 15})
    assert (state.counts, state.stored, state.filled[0]) == (Counts(2, 0, 5), 7, 0)


# ---- charts ----------------------------------------------------------------------------------------


def test_layers_of_filling_are_the_counts():
    history = [(0, 0, 9), (4, 0, 5), (2, 2, 5), (1, 3, 5), (9, 0, 0)]
    fig = paging.filling(history)
    used, known, total = (list(line.get_ydata())[:-1] for line in fig.axes[0].lines)
    assert used == [u for u, _, _ in history]
    assert known == [u + c for u, c, _ in history]
    assert total == [9] * 5
    assert legend_of(fig) == ["in use", "free, still in the prefix index", "free"]
    assert (fig.axes[0].get_xlabel(), fig.axes[0].get_ylabel()) == ("steps", "blocks")


def test_marks_stand_over_their_operation():
    ax = paging.filling([(0, 0, 3), (3, 0, 0), (0, 1, 2)], {1: "full", 2: "empty"}).axes[0]
    marked = {float(line.get_xdata()[0]) for line in ax.lines if line.get_linestyle() == ":"}
    assert marked == {1.5, 2.5}
    assert sorted(t.get_text() for t in ax.texts) == ["empty", "full"]


def test_a_map_shows_every_block_and_token():
    fig = paging.block_map(STATE)
    texts = texts_of(fig)
    assert [t for t in texts if t.isdigit()] == [str(block) for block in range(16)]
    letters = [t for t in texts if t in TABLES]
    assert sorted(letters) == sorted(name for owners in STATE.owners.values() for name in owners)
    assert texts.count("cache") == 2
    assert texts.count("null") == 1
    dark = patches_of(fig, style.MUTED, hatch=None)
    assert len(dark) == STATE.stored + 2 * 4  # cached blocks are full
    shared = [p for p in fig.axes[0].patches if p.get_hatch()]
    assert len(shared) == 2 + 1  # one is of the key
    assert {"in use 7", "shared 2", "cached 2", "free 6"} <= set(texts)
    assert "23 tokens in the 28 slots of blocks in use, 82%" in texts


def test_a_sequence_keeps_its_colour():
    colors = paging.sequence_colors("ABCDEFGH")
    assert list(colors.values())[:3] == [style.BLUE, style.ORANGE, style.GREEN]
    assert colors["H"] == colors["A"]
    fig = paging.block_map(PoolState(8, 4, {"C": (5,)}, {"C": 1}), colors=colors)
    assert len(patches_of(fig, style.GREEN)) == 1


def test_many_owners_are_counted():
    names = {f"s{i}": (1,) for i in range(9)}
    texts = texts_of(paging.block_map(PoolState(8, 4, names, dict.fromkeys(names, 4))))
    assert "×9" in texts


def test_large_blocks_show_a_bar_in_proportion():
    fig = paging.block_map(PoolState(4, 64, {"A": (1,)}, {"A": 16}), columns=4)
    (dark,) = patches_of(fig, style.MUTED, hatch=None)
    (block,) = [p for p in patches_of(fig, style.BLUE) if p.get_linewidth() == 0]
    assert dark.get_width() / block.get_width() == pytest.approx(16 / 64)


def test_utilisation_is_drawn_over_the_block_size():
    fig = paging.utilisation(RESULT)
    line, *levels = fig.axes[0].lines[:3]
    assert list(line.get_xdata()) == [1, 16, 128]
    assert list(line.get_ydata()) == pytest.approx([100, 90, 70])
    assert sorted(level.get_ydata()[0] for level in levels) == pytest.approx([20, 42])
    assert len({level.get_linestyle() for level in levels}) == 2
    assert legend_of(fig) == ["paged, by block size", "reserved, oracle: 42", "reserved, max length: 20"]
    assert sorted(t for t in texts_of(fig) if t) == ["100", "70", "90"]


def test_waste_is_stacked_to_the_whole():
    fig = paging.waste(RESULT)
    bars = [p for p in fig.axes[0].patches if p.get_height() == pytest.approx(0.7)]
    assert len(bars) == 4 * len(ARMS)
    for row, one in enumerate(ARMS):
        mine = sorted((p for p in bars if p.get_y() == pytest.approx(row - 0.35)), key=lambda p: p.get_x())
        ends = [0.0, *accumulate(p.get_width() for p in mine)]
        assert [p.get_x() for p in mine] == pytest.approx(ends[:-1])
        assert ends[-1] == pytest.approx(100)
        by_hatch = {p.get_hatch(): p.get_width() / 100 for p in mine}
        expected = {
            None: one.utilisation,
            **{paging.WASTE[name][1]: part for name, part in one.waste.items()},
        }
        assert by_hatch == pytest.approx(expected)
    assert [label.get_text() for label in fig.axes[0].get_yticklabels()] == [one.name for one in ARMS]
    assert legend_of(fig) == [paging.STORED, *[*paging.WASTE][:2], paging.NOBODY_FITS]


# ---- drawings --------------------------------------------------------------------------------------


def test_the_reserved_arrays_are_to_scale():
    fig = paging_drawings.fragmentation()
    slot = (style.WIDTH - 0.2) / 64
    widths = {
        color: sorted(round(p.get_width() / slot) for p in patches_of(fig, color) if p.get_y() > 2)
        for color in (style.BLUE, style.SKY, style.ORANGE)
    }
    assert widths == {style.BLUE: [3, 5, 9], style.SKY: [2, 2, 4], style.ORANGE: [7, 7, 9]}
    texts = texts_of(fig)
    assert [t for t in texts if t.isdigit()] == ["6", "4", "6"]
    assert "D needs 12 in a row: no hole fits. Free: 16, largest hole: 6." in texts
    assert "17 tokens in 48 reserved slots: 35%" in texts


def test_blocks_hold_the_same_tokens():
    fig = paging_drawings.fragmentation()
    slot = (style.WIDTH - 0.2) / 64
    blue = [p for p in patches_of(fig, style.BLUE) if p.get_y() == pytest.approx(1.42)]
    assert round(sum(p.get_width() for p in blue) / slot) == 9 + 5 + 3 + 7
    texts = texts_of(fig)
    assert [t for t in texts if t in ("A", "B", "C", "D")][3:] == ["A", "B", "C", "D", "A", "B", "D", "A"]
    assert "24 tokens in 32 slots of 8 blocks: 75%" in texts


def test_a_hole_may_fit():
    requests = [("A", 0, 2, 3, 8), ("B", 20, 1, 1, 4)]
    texts = texts_of(paging_drawings.fragmentation(requests, ("C", 0, 3, 5, 12), capacity=24))
    assert "C needs 12 in a row: it fits. Free: 12, largest hole: 12." in texts


@pytest.mark.parametrize("size", range(1, 9))
def test_a_new_block_exactly_at_a_boundary(size):
    """Case P14, with num_stored 0, 1, B - 1, B, B + 1 and 2 B, also for B = 1."""
    fig = paging_drawings.boundary(size)
    stored = sorted({0, 1, size - 1, size, size + 1, 2 * size})
    texts = texts_of(fig)
    assert [t for t in texts if t.isdigit()] == [str(n) for n in stored]
    assert [t for t in texts if t in ("yes", "no")] == ["yes" if n % size == 0 else "no" for n in stored]
    assert [t for t in texts if t.startswith("block ")] == [
        f"block {n // size}, slot {n % size}" for n in stored
    ]
    rows = sorted({round(p.get_y(), 3) for p in fig.axes[0].patches if type(p) is Rectangle}, reverse=True)
    arrows = [p for p in fig.axes[0].patches if type(p) is FancyArrowPatch]
    for n, y, pointer in zip(stored, rows, arrows, strict=True):
        slots = sorted(
            (
                p
                for p in fig.axes[0].patches
                if type(p) is Rectangle and p.get_y() == pytest.approx(y, abs=0.01)
            ),
            key=lambda p: p.get_x(),
        )
        blue = [to_hex(p.get_facecolor()).upper() == style.BLUE for p in slots]
        assert blue == [True] * n + [False] * (len(slots) - n)
        assert len(slots) == (n // size + 1) * size
        dashed = [p.get_linestyle() == "--" for p in slots]
        assert dashed == [n % size == 0 and i >= n for i in range(len(slots))]
        (x, _), _ = pointer._posA_posB
        assert slots[n].get_x() < x < slots[n].get_x() + slots[n].get_width()


def test_the_copy_is_drawn_where_the_tables_part():
    fig = block_sharing.block_table()
    texts = texts_of(fig)
    words = [t for t in texts if t.isalpha() and len(t) <= 4 and t not in ("free",)]
    assert words.count("The") == 3  # each sequence in order, and one block of the pool
    assert words.count("mat") == 4  # it was copied
    assert (words.count("ran"), words.count("fell")) == (2, 2)
    assert "×2" in texts
    lines = [line for line in fig.axes[0].lines if len(line.get_xdata()) == 2]
    assert len(lines) == 3 + 2
    ends = [round(float(line.get_ydata()[1]), 3) for line in lines]
    assert len(set(ends)) == len(ends) - 1  # two tables name one block
    assert any("what is shared in it (2 tokens) was copied" in t for t in texts)


def test_a_prompt_that_fills_its_blocks_is_not_copied():
    texts = texts_of(block_sharing.block_table(("a", "b", "c"), ("d",), ("e",), 3))
    assert "The prompt ends with a block: nothing had to be copied." in texts


def test_every_table_leads_to_its_words():
    fig = block_sharing.block_table()
    ax = fig.axes[0]

    def words_at(y, left):
        found = [(t.get_position()[0], t.get_text()) for t in ax.texts
                 if abs(t.get_position()[1] - y) < 0.01 and 0 < t.get_position()[0] - left < 1.32]  # fmt: skip
        return [text for _, text in sorted(found)]

    for line in ax.lines:
        if len(line.get_xdata()) == 2:
            start, end = line.get_ydata()
            logical, physical = words_at(start, 0.26), words_at(end, 3.0)
            assert logical
            assert physical[: len(logical)] == logical


def test_a_hash_tells_what_differs_before_it():
    """Equal exactly when all tokens up to the end of the block and the extra keys are equal."""
    fig = block_sharing.hash_chain()
    chips = [t for t in fig.axes[0].texts if t.get_text().endswith("…")]
    first, same, at = block_sharing.CHAINS[0], [], iter(chips)
    digests = []
    for _, tokens, keys in block_sharing.CHAINS:
        for i in range(3):
            chip = next(at)
            digests.append(chip.get_text())
            same.append(to_hex(chip.get_bbox_patch().get_facecolor()).upper() == style.BLUE)
            assert same[-1] == (tokens[: 4 * i + 4] == first[1][: 4 * i + 4] and keys == first[2])
    assert same == [True] * 3 + [True, False, False] + [False] * 3
    assert len(set(digests)) == 8


def test_hashes_are_those_of_the_index():
    index = PrefixIndex(BlockPool(2, 4), seed=b"kvcourse")
    texts = texts_of(block_sharing.hash_chain())
    for _, tokens, keys in block_sharing.CHAINS:
        chain = index.chain(tokens, keys)
        assert all(f"{chain[i].hex()[:8]}…" in texts for i in range(3))


# ---- bad input -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PoolState(1, 4, {}, {}), "num_blocks=1"),
        (lambda: PoolState(4, 0, {}, {}), "block_size=0"),
        (lambda: PoolState(4, 4, {"A": (1,)}, {"B": 1}), "expected the same sequences"),
        (lambda: PoolState(4, 4, {"A": (1, 1)}, {"A": 8}), "none twice"),
        (lambda: PoolState(4, 4, {"A": (4,)}, {"A": 1}), "blocks of 0 to 3"),
        (lambda: PoolState(4, 4, {"A": (1,)}, {"A": 5}), "at most 4"),
        (lambda: PoolState(4, 4, {"A": (1,)}, {"A": -1}), "stores -1 tokens"),
        (lambda: PoolState(4, 4, {"A": (1,)}, {"A": 1}, frozenset({1})), "cached block 1"),
        (lambda: PoolState(4, 4, {}, {}, frozenset({0})), "cached block 0"),
        (lambda: paging.filling([(1, 2, 3)]), "1 moments"),
        (lambda: paging.filling([(1, 2, 3), (1, 2, 4)]), r"\[6, 7\]"),
        (lambda: paging.filling([(1, 2, 3), (-1, 4, 3)]), "two or more operations"),
        (lambda: paging.filling([(1, 2, 3), (2, 1, 3)], {2: "x"}), "a mark at 2"),
        (lambda: paging.block_map({"A": (1,)}), "dict in 8 columns"),
        (lambda: paging.block_map(STATE, columns=3), "3 columns"),
        (lambda: paging.block_map(STATE, colors={"A": style.BLUE}), "no colour for sequence 'B'"),
        (lambda: paging.utilisation(Utilisation(ARMS[:3], 1, 1, 1)), r"block sizes \[16\]"),
        (lambda: paging.waste(Utilisation((), 1, 1, 1)), "no arms"),
        (lambda: paging.waste(Utilisation((arm("x", used=0.5),), 1, 1, 1)), "x: shares"),
        (lambda: paging.waste(Utilisation((arm("x", used=-0.1, later=1.06),), 1, 1, 1)), "expected 0 to 1"),
        (lambda: paging.waste(Utilisation((arm("x", "radix"),), 1, 1, 1)), "kind 'radix'"),
        (lambda: paging.waste(Utilisation((Arm("x", "paged", 1, 0.5, 1, {"lost": 0.5}),), 1, 1, 1)), "waste 'lost'"),
        (lambda: paging_drawings.fragmentation([("A", 0, 2, 3, 8), ("B", 6, 1, 1, 4)]), "none over another"),
        (lambda: paging_drawings.fragmentation([("A", 60, 2, 3, 8)]), "none over another"),
        (lambda: paging_drawings.fragmentation([]), "expected some"),
        (lambda: paging_drawings.fragmentation([("A", 0, 4, 3, 8)]), "stored ≤ final"),
        (lambda: paging_drawings.fragmentation(block_size=5), "blocks that fill the memory"),
        (lambda: paging_drawings.fragmentation(block_size=32), "4 blocks needed, 2 there"),
        (lambda: paging_drawings.boundary(9), "block_size=9"),
        (lambda: paging_drawings.boundary(0), "block_size=0"),
        (lambda: paging_drawings.boundary(4, []), "one to seven"),
        (lambda: paging_drawings.boundary(4, [24]), "0 to 23"),
        (lambda: paging_drawings.boundary(1, [6]), "0 to 5"),
        (lambda: block_sharing.block_table(("seven",)), "at most four letters"),
        (lambda: block_sharing.block_table(()), "at most four letters"),
        (lambda: block_sharing.block_table(block_size=5), "blocks of 5"),
        (lambda: block_sharing.block_table(("a",) * 14), "one to four blocks"),
        (lambda: block_sharing.hash_chain([]), "0 chains"),
        (lambda: block_sharing.hash_chain([("x", (1, 2, 3), ())]), r"1 chains of \[0\] blocks"),
        (lambda: block_sharing.hash_chain(block_size=6), "at most 4 tokens"),
    ],
)  # fmt: skip
def test_bad_input_says_what_was_expected(make, message):
    with pytest.raises(InputError, match=message):
        make()
