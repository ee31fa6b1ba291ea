"""The explorer of a pool: its frames are true of a real pool, and its JavaScript draws what they say."""

import json
import shutil
import subprocess
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_attention_explorers import evaluate, needs_browser
from test_explorers import needs_node

from kvcourse.errors import InputError
from kvcourse.figures import explorers, paging, pool_replay
from kvcourse.figures.alt_text import WIDGET_VIEW
from kvcourse.figures.paging_explorers import PoolExplorer, frame_data
from kvcourse.figures.pool_replay import STORY, Arrive, Decode, Finish, Fork, replay

SHARED = [block for frame in replay(STORY, 24, 4) for block in frame.state.owners.values() if len(block) > 1]


def said(script, num_blocks=24, block_size=4):
    return [frame.said for frame in replay(script, num_blocks, block_size)]


# ---- the replay ------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(seed=st.integers(0, 10_000), num_blocks=st.integers(2, 30), block_size=st.integers(1, 6))
def test_pool_and_index_stay_whole_in_every_script(seed, num_blocks, block_size):
    """Two sequences name one block only when all tokens up to its last one are equal; state_of counts references."""
    run = pool_replay._Run(num_blocks, block_size, seed)
    for operation in pool_replay.random_script(seed, 25):
        for step in run.steps(operation):
            step()
            run.index.check()
            state = run.state()
            for name, table in run.tables.items():
                table.check()
                assert state.lengths[name] == len(run.tokens[name])
                for place, block in enumerate(table.blocks):
                    end = min((place + 1) * block_size, len(run.tokens[name]))
                    for other in state.owners[block]:
                        assert run.tables[other].blocks[place] == block
                        assert run.tokens[other][:end] == run.tokens[name][:end]


@given(seed=st.integers(0, 10_000))
def test_a_script_is_the_same_for_the_same_seed(seed):
    script = pool_replay.random_script(seed)
    assert script == pool_replay.random_script(seed)
    assert replay(script, 24, 4, seed) == replay(script, 24, 4, seed)


def test_touched_is_what_changed():
    frames = replay(STORY, 24, 4)
    for before, after in pairwise(frames):
        for block in range(1, 24):
            same = (
                before.state.owners.get(block) == after.state.owners.get(block)
                and before.state.filled[block] == after.state.filled[block]
                and (block in before.state.cached) == (block in after.state.cached)
            )
            assert (block in after.touched) != same


def test_the_story_shows_all_that_can_happen():
    text = " ".join(said(STORY))
    for part in (
        "lie in blocks",
        "is forked from",
        "wrote into a copy",
        "it waits",
        "the index forgot",
        "gives back",
    ):
        assert part in text
    states = [frame.state for frame in replay(STORY, 24, 4)]
    assert max(state.counts.used for state in states) == 23  # the pool is full once
    assert any(state.counts.used == 0 and state.counts.cached > 0 for state in states[1:])  # and drains
    assert SHARED


def test_a_block_is_taken_at_a_boundary():
    """Case P14: 4 tokens are stored, 4 % 4 = 0."""
    frames = replay((Arrive("A", 0, 3), Decode(times=2)), 8, 4)
    assert [len(frame.state.tables.get("A", ())) for frame in frames] == [0, 1, 1, 2]
    assert [frame.said for frame in frames[1:]] == [
        "A arrives with 3 tokens and takes 1 block.",
        "A writes a token.",
        "A writes a token. A had 4 stored and 4 % 4 = 0, so it took block 2.",
    ]


def test_the_first_to_write_into_a_shared_block_gets_the_copy():
    frames = replay((Arrive("A", 0, 6), Fork("A", "B"), Decode("B"), Decode("A")), 8, 4)
    tables = [frame.state.tables for frame in frames]
    assert tables[2]["A"] == tables[2]["B"] == (1, 2)
    assert tables[3] == {"A": (1, 2), "B": (1, 3)}
    assert tables[4] == tables[3]
    assert frames[3].said == "B writes a token. B shared block 2, so it wrote into a copy, block 3."
    assert frames[4].said == "A writes a token."


def test_a_prompt_that_was_seen_is_found_but_for_its_last_token():
    """Case P11: of 8 tokens in two full blocks only the first block is taken; one token is always computed."""
    script = (Arrive("A", 8, 0), Finish("A"), Arrive("B", 8, 0))
    frames = replay(script, 8, 4)
    assert frames[2].said == "A is done and gives back 2 blocks. 2 can still be found by their prefix."
    assert frames[2].state.cached == {1, 2}
    assert (
        frames[3].said
        == "B arrives with 8 tokens. Its first 4 lie in block 1 already; it takes 1 block more."
    )
    assert frames[3].state.tables["B"] == (1, 3)


def test_a_block_is_found_as_soon_as_decoding_has_filled_it():
    frames = replay((Arrive("A", 0, 2), Decode(times=2), Finish("A")), 8, 4)
    assert frames[-1].state.cached == {1}


def test_a_cached_block_is_given_out_last_and_forgotten():
    script = (Arrive("A", 4, 1), Finish("A"), Arrive("B", 0, 12), Finish("B"), Arrive("C", 4, 1))
    frames = replay(script, 4, 4)  # three blocks
    assert (
        frames[3].said
        == "B arrives with 12 tokens and takes 3 blocks. One of these was cached: the index forgot what it held."
    )
    assert "lie in" not in frames[5].said


def test_what_does_not_fit_waits_and_takes_nothing():
    script = (
        Arrive("A", 4, 4),
        Arrive("B", 4, 9),
        Decode("B"),
        Fork("B", "C"),
        Finish("C"),
        Decode(times=2),
        Finish("B"),
    )
    frames = replay(script, 4, 4)
    assert frames[2].said == "B arrives with 13 tokens and needs 3 blocks. Only 1 is free: it waits."
    assert frames[2].state == frames[1].state
    assert [frame.said for frame in frames[3:6]] == ["B waits.", "B waits, and so does C.", "C gives up."]
    assert frames[-1].said == "B gives up."
    alone = replay((Arrive("A", 0, 4), Decode()), 2, 4)
    assert alone[-1].said == "A needs a block, and none is free."
    assert alone[-1].state == alone[-2].state
    assert said((Arrive("A", 0, 4), Finish("A"), Decode()))[-1] == "No sequence runs."


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ((Decode("A"),), "A is not there"),
        ((Fork("A", "B"),), "A is not there"),
        ((Finish("A"),), "A is not there"),
        ((Arrive("A", 0, 4), Arrive("A", 0, 4)), "A arrives while it runs"),
        ((Arrive("A", 0, 4), Fork("A", "A")), "A is there already"),
        ((Arrive("A", 0, 0),), "expected counts from 0 on, and a token"),
        ((Arrive("A", -1, 4),), "expected counts from 0 on"),
        ((Decode(times=0),), "expected 1 to 999 times"),
        (("A",), "expected Arrive, Decode, Fork or Finish"),
    ],
)
def test_a_script_that_cannot_be_run(script, message):
    with pytest.raises(InputError, match=message):
        replay(script, 8, 4)


# ---- the panel -------------------------------------------------------------------------------------


def test_the_saved_state_is_small_and_carries_its_code():
    state = PoolExplorer().get_state()
    assert len(json.dumps(state, default=str)) < 100_000
    assert "export default { render }" in state["_esm"]
    assert "import " not in state["_esm"].replace("important", "")


@needs_node
def test_the_bundle_is_valid_javascript(tmp_path):
    path = tmp_path / "bundle.mjs"
    path.write_text(explorers.bundle("pool_explorer.mjs"), encoding="utf-8")
    subprocess.run([shutil.which("node"), "--check", path], check=True, timeout=60)


def test_there_is_a_text_where_no_script_runs():
    explorer = PoolExplorer(step=9)
    shown, metadata = explorer._repr_mimebundle_()
    assert shown["text/plain"] == explorer.text == metadata[WIDGET_VIEW]["fallback"]
    assert "23 blocks of 4 tokens, 30 steps. Step 9: A, B and C write a token each." in explorer.text
    most = max(explorer.frames, key=lambda frame: frame.state.counts.used).state
    assert f"At most {most.counts.used} blocks are in use at once" in explorer.text
    assert f"{explorer.frames[-1].state.counts.cached} free blocks can still be found" in explorer.text


def test_the_panel_gets_what_the_frames_say():
    explorer = PoolExplorer(pool_replay.random_script(3), seed=3)
    assert len(explorer.data["frames"]) == len(explorer.frames)
    for frame, data in zip(explorer.frames, json.loads(json.dumps(explorer.data))["frames"], strict=True):
        assert data == json.loads(json.dumps(frame_data(frame)))
        assert data["used"] + data["cached"] + data["clean"] == 23
        assert sum(filled for owners, filled, _ in data["blocks"] if owners) == data["stored"]
        for name, table, length in data["tables"]:
            assert all(name in data["blocks"][block][0] for block in table)
            assert length == frame.state.lengths[name]
        assert set(frame.state.tables) <= set(explorer.data["colors"])


def test_frames_are_figures_too():
    explorer = PoolExplorer()
    assert paging.block_map(explorer.frames[9].state)
    assert paging.filling([frame.state.counts for frame in explorer.frames])


LOOK = """[
  document.querySelector(".kv-said").textContent,
  document.querySelectorAll(".kv-panel > div > svg > g").length,
  [...document.querySelectorAll(".kv-panel g text")].map((t) => t.textContent),
  [...document.querySelectorAll(".kv-tables tr")].slice(1).map((tr) => [...tr.cells].map((cell) => cell.textContent)),
  [...document.querySelectorAll("button")].map((b) => b.disabled),
]"""


@needs_browser
def test_the_panel_follows_its_slider_and_buttons(tmp_path):
    explorer = PoolExplorer()
    press = "document.querySelectorAll('button')[{}].click()".format
    label = "document.querySelectorAll('button')[2].textContent"
    first, _, moved, _, stepped, _, playing, _, paused, _, last = evaluate(
        explorer, tmp_path, LOOK, "move('Step', '8 of 30')", LOOK, press(1), LOOK, press(2), label, press(2), label,
        "move('Step', '30 of 30')", LOOK,
    )  # fmt: skip
    assert (playing, paused) == ("❚❚ Pause", "▶ Play")
    for look, at in ((first, 0), (moved, 8), (stepped, 9), (last, 30)):
        frame = explorer.frames[at]
        words, blocks, texts, tables, disabled = look
        assert words == frame.said
        assert blocks == 24
        assert [t for t in texts if t.isdigit()] == [str(block) for block in range(24)]
        names = [name for _, owners in sorted(frame.state.owners.items()) for name in owners]
        assert [t for t in texts if t.isalpha() and t != "null"] == names
        assert tables == [
            [name, " ".join(map(str, table)), str(frame.state.lengths[name])]
            for name, table in frame.state.tables.items()
        ]
        assert disabled == [at == 0, at == 30, False]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PoolExplorer(num_blocks=1), "num_blocks=1"),
        (lambda: PoolExplorer(num_blocks=49), "num_blocks=49"),
        (lambda: PoolExplorer(block_size=0), "block_size=0"),
        (lambda: PoolExplorer(block_size=17), "block_size=17"),
        (lambda: PoolExplorer(script=()), "a script of 0 steps"),
        (lambda: PoolExplorer(script=(Arrive("A", 0, 1), Decode(times=120))), "a script of 121 steps"),
        (lambda: PoolExplorer(step=31), "shown from step 31"),
        (lambda: PoolExplorer(step=-1), "shown from step -1"),
        (lambda: PoolExplorer(script=(Decode("A"),)), "A is not there"),
    ],
)
def test_bad_input_says_what_was_expected(make, message):
    with pytest.raises(InputError, match=message):
        make()
