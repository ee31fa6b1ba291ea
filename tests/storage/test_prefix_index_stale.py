"""The prefix index: what it must not find, and that nothing stale is left behind."""

import pytest
from indexes import evict_everything, finished, make, stored

from kvcourse.errors import InputError, PoolExhausted
from kvcourse.storage.prefix_hash import ExtraKey, pack_tokens
from kvcourse.storage.prefix_index import Hit

# ---- no wrong hits ---------------------------------------------------------------------------------


def test_a_collision_is_no_hit():
    """P2: under a function that gives every block one name, other prompts share nothing."""
    index = make(hash_fn=lambda *_: 0)
    stored(index, [1] * 12)
    assert index.match([2] * 12) == Hit()
    assert index.collisions == 1
    assert index.match([1] * 12).num_tokens == 4
    assert index.collisions == 2  # of the second block, whose name the first one has


def test_the_same_tokens_behind_another_prefix_are_a_collision():
    index = make(hash_fn=lambda parent, tokens, extras: tokens)
    first = stored(index, [1, 1, 1, 1, 5, 5, 5, 5])
    chain = index.chain([2, 2, 2, 2, 5, 5, 5, 5])
    assert [index.find(chain, i) for i in range(2)] == [None, None]
    assert index.collisions == 1
    assert [index.find(index.chain([1, 1, 1, 1, 5, 5, 5, 5]), i) for i in range(2)] == first
    assert index.collisions == 1


def test_extra_keys_left_out_of_the_name_are_a_collision():
    index = make(hash_fn=lambda parent, tokens, extras: tokens)
    stored(index, range(8), [("salt", b"X")])
    assert index.match(range(8), [("salt", b"Y")]) == index.match(range(8)) == Hit()
    assert index.collisions == 2


@pytest.mark.parametrize("token_granular", [False, True])
def test_a_kind_of_key_is_not_another(token_granular):
    """P4: an adapter called X is not the salt X."""
    index = make(token_granular=token_granular)
    stored(index, range(9), [("adapter", b"X")])
    assert index.match(range(9), [("salt", b"X")]) == Hit()
    assert index.match(range(9), [("adapter", b"X")]).num_tokens == 8


@pytest.mark.parametrize("token_granular", [False, True])
def test_adapters_and_none_have_chains_of_their_own(token_granular):
    """P5, P8: three requests of the same tokens, no block in common."""
    index = make(token_granular=token_granular)
    keys = [(), [("adapter", b"A")], [("adapter", b"B")]]
    tables = []
    for extra_keys in keys:
        assert index.match(range(9), extra_keys) == Hit()
        tables.append(stored(index, range(9), extra_keys))
    for extra_keys, table in zip(keys, tables, strict=True):
        assert index.match(range(9), extra_keys).blocks == tuple(table[:2])
    assert len({block for table in tables for block in table}) == 9


def test_prompts_with_another_image_share_what_comes_before_it():
    index = make(token_granular=True)
    tokens = [1, 2, 3, 4, 5, *[7] * 5, 6, 6, 6]  # five placeholders from token 5 on
    cat, dog = ([ExtraKey("image", content, 5, 10)] for content in (b"cat", b"dog"))
    table = finished(index, tokens, cat)
    assert index.match(tokens, cat) == Hit(tuple(table[:3]), 12)
    assert index.match(tokens, dog) == Hit((table[0],), 5, table[1], 1)
    assert index.match(tokens) == Hit((table[0],), 5, table[1], 1)
    assert index.match(tokens, [ExtraKey("image", b"cat", 6, 10)]).num_tokens == 5


def test_a_reloaded_adapter_finds_nothing_of_the_old_one():
    """P7: the old blocks cannot be reached, and the pool gets them back."""
    index = make(num_blocks=8)
    adapter = [("adapter", b"A")]
    chain = index.chain(range(9), adapter)
    finished(index, range(9), adapter)
    finished(index, range(9))
    index.bump_version("adapter", b"A")
    assert index.match(range(9), adapter) == index.match(chain) == Hit()
    assert index.find(chain, 0) is None
    assert index.match(range(9)).num_tokens == 8
    assert index.collisions == 0
    index.check()
    fresh = finished(index, range(9), adapter)
    assert index.match(range(9), adapter).blocks == tuple(fresh[:2])
    assert index.pool.num_free == 7
    evict_everything(index)
    assert index.num_indexed == 0


def test_what_an_old_adapter_computed_is_not_entered_for_the_new_one():
    index = make()
    chain = index.chain(range(8), [("adapter", b"A")])
    table = index.pool.allocate(2)
    index.bump_version("adapter", b"A")
    assert index.insert(chain, table) == 0
    assert index.num_indexed == 0
    other = index.chain(range(8), [("adapter", b"B")])
    index.bump_version("adapter", b"C")
    assert index.insert(other, table) == 2


@pytest.mark.parametrize(("kind", "value"), [("", b"A"), ("adapter", "A"), (None, b"A"), ("adapter", None)])
def test_versions_are_of_extra_keys(kind, value):
    with pytest.raises(InputError, match="extra key"):
        make().bump_version(kind, value)


def test_a_block_that_is_given_out_again_is_forgotten():
    """P13: a reused block never keeps its old name."""
    index = make(num_blocks=4)
    old = finished(index, range(9))
    assert index.match(range(9)).num_tokens == 8
    new = stored(index, range(50, 59))
    assert set(new) == set(old)
    assert index.match(range(9)) == Hit()
    assert index.match(range(50, 59)).num_tokens == 8


def test_the_tail_of_a_prompt_is_evicted_before_its_head():
    index = make(num_blocks=6)
    table = finished(index, range(20))
    for left in (4, 3, 2, 1, 0):
        index.pool.allocate(1)
        index.check()
        assert index.match(range(21)).blocks == tuple(table[:left])


def test_a_hot_prefix_outlives_one_shot_prompts():
    """P26: 100 short prompts that nobody asks for again, in a pool that they would fill many times over."""
    index = make(num_blocks=12)
    hot = finished(index, range(16))
    for i in range(100):
        table = index.pool.allocate(2 + i % 5)
        index.pool.free(table)
        index.check()
    assert index.match(range(17)).blocks == tuple(hot)


def test_the_least_recently_used_prefix_goes_first():
    index = make(num_blocks=9)
    tokens = {name: list(range(start, start + 8)) for name, start in (("a", 0), ("b", 20), ("c", 40))}
    tables = {name: finished(index, tokens[name]) for name in tokens}
    index.pool.free(index.acquire([*tokens["a"], 1]).blocks)
    index.pool.allocate(4)
    assert [index.match([*tokens[name], 1]).blocks for name in "abc"] == [
        tuple(tables["a"]),
        (),
        tuple(tables["c"]),
    ]


@pytest.mark.parametrize("token_granular", [False, True])
def test_nothing_is_found_once_everything_is_evicted(token_granular):
    """P29."""
    index = make(num_blocks=20, token_granular=token_granular)
    prompts = [list(range(start, start + 14)) for start in (0, 100, 200)]
    for prompt in prompts:
        finished(index, prompt)
    assert index.num_indexed == 9
    evict_everything(index)
    assert index.num_indexed == index.pool.num_cached == index.pool.num_labelled == 0
    assert not index._blocks
    assert not index._children
    assert [index.match(prompt) for prompt in prompts] == [Hit()] * 3


def test_a_block_that_loses_its_label_is_forgotten():
    """Its holder may write into it from then on, so the index must not promise what it held."""
    index = make()
    table = stored(index, range(9))
    index.pool.unlabel(table[0])
    assert index.pool.is_writable(table[0])
    assert index.match(range(9)) == Hit()
    index.check()


def test_a_label_that_is_not_the_indexs_does_no_harm():
    index = make(num_blocks=4)
    table = index.pool.allocate(3)
    index.pool.label(table[2])
    assert index.insert(range(4), table) == 1
    index.pool.free(table)
    assert sorted(index.pool.allocate(3)) == [1, 2, 3]
    index.check()


@pytest.mark.parametrize("token_granular", [False, True])
def test_clearing_forgets_everything_and_takes_nothing_away(token_granular):
    index = make(num_blocks=20, token_granular=token_granular)
    held = stored(index, range(9))
    finished(index, range(50, 59))
    index.clear()
    index.check()
    assert index.match(range(9)) == index.match(range(50, 59)) == Hit()
    assert (index.num_indexed, index.pool.num_cached, index.pool.num_labelled) == (0, 0, 0)
    assert all(index.pool.is_writable(block) for block in held)
    assert index.insert(range(9), held) == 2
    assert index.match(range(9)).num_tokens == 8


def test_a_full_pool_gives_its_cached_blocks_but_not_those_of_a_hit():
    index = make(num_blocks=6)
    table = finished(index, range(20))
    hit = index.acquire(range(20))
    assert hit.blocks == tuple(table[:4])
    with pytest.raises(PoolExhausted, match="only 1 of 5"):
        index.pool.allocate(2)
    assert index.pool.allocate(1) == [table[4]]
    assert index.match(range(20)).blocks == hit.blocks


# ---- check -----------------------------------------------------------------------------------------


def other_tokens(index, block):
    return index._entries[block].__class__(
        **{**vars(index._entries[block]), "tokens": pack_tokens([8, 8, 8, 8])}
    )


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda index: index._blocks.clear(), "one name for each block"),
        (lambda index: index._entries.pop(1), "exactly if it has a label"),
        (lambda index: index.pool.label(3), "exactly if it has a label"),
        (
            lambda index: index.pool._labelled.remove(1) or index.pool.label(3),
            "block 1 is known and has a label",
        ),
        (lambda index: index._blocks.update(dict.fromkeys(index._blocks, 2)), "block 1 is found by its name"),
        (lambda index: index._entries.update({1: other_tokens(index, 1)}), "digest of block 1"),
        (lambda index: index._children.clear(), "children of every parent"),
        (lambda index: index._children.update({b"": []}), "children in order"),
        (lambda index: index.pool._clean.pop(), "free"),
    ],
)
def test_check_finds_what_is_broken(damage, message):
    index = make(token_granular=True)
    stored(index, range(9))
    damage(index)
    with pytest.raises(AssertionError, match=message):
        index.check()
