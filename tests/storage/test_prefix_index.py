"""The prefix index: what it finds, in whole blocks and in parts, and what is entered."""

import numpy as np
import pytest
import torch
from indexes import B, finished, make, stored

from kvcourse.errors import InputError
from kvcourse.storage.block_pool import BlockPool
from kvcourse.storage.prefix_index import Hit, PrefixIndex

# ---- hits ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("length", "hit"), [(0, 0), (1, 0), (4, 0), (5, 4), (8, 4), (9, 8), (11, 8)])
def test_full_blocks_are_found_and_one_token_is_left(length, hit):
    """P11: however much is known, something is left to compute."""
    index = make()
    tokens = list(range(11))
    table = finished(index, tokens)
    assert index.match(tokens[:length]) == Hit(tuple(table[: hit // B]), hit)


@pytest.mark.parametrize("num_blocks", [1, 2, 5])
@pytest.mark.parametrize("token_granular", [False, True])
def test_a_prompt_of_whole_blocks_keeps_one_token(num_blocks, token_granular):
    """P11: kB cached tokens are a hit of (k − 1)·B, or of kB − 1 with parts; names go on as when cold."""
    index = make(token_granular=token_granular, seed=b"s")
    tokens = list(range(num_blocks * B))
    table = finished(index, tokens)
    hit = index.match(tokens)
    assert hit.num_tokens == (num_blocks * B - 1 if token_granular else (num_blocks - 1) * B)
    assert hit.blocks == tuple(table[:-1])
    assert (hit.source, hit.source_tokens) == ((table[-1], B - 1) if token_granular else (None, 0))
    longer = [*tokens, *range(50, 60)]
    assert index.chain(longer) == make(seed=b"s").chain(longer)


def test_a_hit_goes_on_with_the_prompt_and_beyond_it():
    index = make()
    table = stored(index, range(12))
    assert index.match([*range(12), 90, 91]).blocks == tuple(table)
    assert index.match([*range(8), 90, 91, 92, 93, 94]).blocks == tuple(table[:2])
    assert index.match([90, *range(1, 12)]) == Hit()
    assert index.match([*range(4, 12), 3]) == Hit()  # the same blocks, without what preceded them


def test_held_and_cached_blocks_are_found_alike():
    index = make()
    held = stored(index, range(9))
    hit = index.match(range(9))
    index.pool.free(held)
    assert index.match(range(9)) == hit == Hit(tuple(held[:2]), 8)


def test_match_takes_no_reference_and_acquire_does():
    index = make()
    table = finished(index, range(10))
    free = index.pool.num_free
    assert index.match(range(10)).blocks == tuple(table[:2])
    assert index.pool.num_free == free
    hit = index.acquire(range(10))
    assert [index.pool.references(block) for block in table] == [1, 1, 0]
    assert index.pool.num_free == free - 2
    index.acquire(range(10))
    assert [index.pool.references(block) for block in table] == [2, 2, 0]
    for _ in range(2):
        index.pool.free(hit.blocks)
    assert index.pool.num_free == free
    index.check()


def test_queries_and_hits_are_counted():
    index = make()
    finished(index, range(10))
    index.match(range(10))
    index.acquire(range(5))
    index.match([7, 7])
    assert (index.queries, index.query_tokens, index.hit_tokens, index.collisions) == (3, 17, 12, 0)


def test_tokens_come_as_lists_arrays_and_tensors():
    index = make()
    table = finished(index, np.arange(10))
    for tokens in (list(range(10)), torch.arange(10), np.arange(10, dtype=np.int32), range(10)):
        assert index.match(tokens).blocks == tuple(table[:2])


def test_a_chain_stands_for_its_tokens():
    index = make(token_granular=True)
    chain = index.chain(range(11), [("adapter", b"A")])
    table = index.pool.allocate(3)
    assert index.insert(chain, table) == 2
    assert index.match(chain) == index.match(range(11), [("adapter", b"A")]) == Hit(tuple(table[:2]), 8)
    assert index.acquire(chain).blocks == tuple(table[:2])
    with pytest.raises(InputError, match="this chain has its own"):
        index.match(chain, [("adapter", b"A")])
    with pytest.raises(InputError, match="a chain of blocks of 4 tokens: this pool has blocks of 8"):
        PrefixIndex(BlockPool(4, 8)).find(chain, 0)


def test_find_needs_no_blocks_before_it():
    """A layer with a window has given the first blocks back; the last ones are what counts."""
    index = make()
    tokens = list(range(16))
    table = index.pool.allocate(4)
    index.pool.free(table[:2])
    assert index.insert(tokens, [0, 0, *table[2:]]) == 2
    chain = index.chain(tokens)
    assert [index.find(chain, i) for i in range(4)] == [None, None, table[2], table[3]]
    assert index.match([*tokens, 1]) == Hit()
    index.check()
    for i in (-1, 4, 1.0, True, None):
        with pytest.raises(InputError, match="find: i="):
            index.find(chain, i)
    with pytest.raises(InputError, match="find: i=0"):
        index.find(index.chain(range(3)), 0)


def test_indexes_of_one_seed_find_each_others_chains():
    """One pool and index for each kind of layer, one chain for all of them."""
    full, window = make(seed=b"s"), make(seed=b"s")
    table = stored(full, range(8))
    chain = window.chain(range(8))
    assert [full.find(chain, i) for i in range(2)] == table
    assert [window.find(chain, i) for i in range(2)] == [None, None]
    assert [full.find(make().chain(range(8)), i) for i in range(2)] == [None, None]


# ---- entering --------------------------------------------------------------------------------------


def test_the_first_block_keeps_the_name():
    index = make()
    first, second = stored(index, range(9)), index.pool.allocate(3)
    assert index.insert(range(9), first) == 0
    assert index.insert(range(9), second) == 0
    assert index.match(range(9)).blocks == tuple(first[:2])
    index.pool.free(second)
    assert index.pool.num_cached == 0
    index.check()


def test_a_block_keeps_its_first_name():
    index = make()
    table = stored(index, range(9), [("adapter", b"A")])
    assert index.insert(range(9), table, [("adapter", b"B")]) == 0
    index.bump_version("adapter", b"A")
    assert index.insert(range(9), table, [("adapter", b"A")]) == 0
    for extra_keys in ((), [("adapter", b"A")], [("adapter", b"B")]):
        assert index.match(range(9), extra_keys) == Hit()
    index.check()


def test_blocks_are_entered_as_they_fill():
    index = make()
    tokens = list(range(14))
    table = index.pool.allocate(4)
    assert [index.insert(tokens[:n], table) for n in range(15)] == [int(n in (4, 8, 12)) for n in range(15)]
    assert index.num_indexed == 3
    assert not index.pool.is_writable(table[0])
    assert index.pool.is_writable(table[3])


def test_a_table_may_be_longer_and_null_entries_are_skipped():
    """P22."""
    index = make()
    table = index.pool.allocate(5)
    assert index.insert(range(9), table) == 2
    other = index.pool.allocate(3)
    assert index.insert(range(50, 62), [0, *other[1:]]) == 2
    assert index.num_indexed == 4
    assert not index.pool.is_labelled(0)
    index.check()


@pytest.mark.parametrize(
    ("tokens", "table", "message"),
    [
        (range(9), [1], "a table of 1 blocks for 9 tokens, which fill 2 blocks of 4"),
        (range(9), [1, 4], "insert: block 4: nobody holds it"),
        (range(9), [1, 99], "block 99 is not of this pool"),
        (range(9), [1, True], "block=True"),
        (range(9), [2, 2], "names a block twice"),
        (range(1, 10), [3, 2], "block 3 is known with other tokens"),
        (range(9), 5, "insert: blocks=5"),
        (range(9), None, "insert: blocks=None"),
        ([1, -1], [1], "token 1=-1"),
    ],
)
def test_what_cannot_be_entered_changes_nothing(tokens, table, message):
    index = make(num_blocks=8)
    index.pool.allocate(3)
    index.insert(range(20, 24), [3])
    with pytest.raises(InputError, match=message):
        index.insert(tokens, table)
    assert (index.num_indexed, index.pool.num_labelled) == (1, 1)
    index.check()


def test_a_pool_has_one_index():
    index = make()
    with pytest.raises(InputError, match="this pool has an index already"):
        PrefixIndex(index.pool)
    with pytest.raises(InputError, match="pool=8: expected a BlockPool"):
        PrefixIndex(8)
    with pytest.raises(InputError, match="hash_fn=7"):
        make(hash_fn=7)


# ---- parts of blocks -------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [1, 2, 3])
def test_a_part_of_a_block_is_found_and_not_called_a_whole_one(more):
    """P28: a hit of k tokens inside a block is k tokens, and its source stays as it is."""
    index = make(token_granular=True)
    table = finished(index, range(12))
    hit = index.acquire([*range(4 + more), 90, 91, 92, 93])
    assert hit == Hit((table[0],), 4 + more, table[1], more)
    assert [index.pool.references(block) for block in table] == [1, 1, 0]
    assert not index.pool.is_writable(hit.source)
    (copy,) = index.pool.allocate(1)
    assert copy != hit.source
    index.pool.free([hit.source])
    assert index.pool.is_labelled(hit.source)
    index.check()


def test_the_child_with_the_longest_common_part_is_taken():
    index = make(token_granular=True)
    head = [9, 9, 9, 9]
    tails = [[1, 0, 0, 0], [1, 2, 0, 0], [1, 2, 3, 0], [1, 2, 5, 0], [2, 2, 3, 4], [256 + 1, 2, 3, 4]]
    tables = [stored(index, head + tail) for tail in tails]
    tail_of = {table[1]: tail for table, tail in zip(tables, tails, strict=True)}
    for wanted, common in (
        ([1, 2, 3, 4], 3),
        ([1, 2, 4, 0], 2),
        ([1, 3, 0, 0], 1),
        ([2, 2, 3], 3),
        ([256 + 1, 2, 3, 3], 3),
        ([256, 2, 3, 3], 0),
        ([1, 2, 5], 3),
    ):
        hit = index.match([*head, *wanted, 7])
        assert (hit.blocks, hit.num_tokens, hit.source_tokens) == ((tables[0][0],), 4 + common, common)
        assert common == 0 or tail_of[hit.source][:common] == wanted[:common]
    assert index.match([*head, 3, 3, 3]) == Hit((tables[0][0],), 4)


def test_a_first_block_may_be_found_in_part():
    index = make(token_granular=True)
    table = finished(index, [1, 2, 3, 4])
    assert index.match([1, 2, 3]) == Hit((), 2, table[0], 2)
    assert index.match([1]) == Hit()
    assert index.match([]) == Hit()
    assert index.match([5, 2, 3]) == Hit()


def test_without_token_granularity_parts_are_not_found():
    index = make()
    table = finished(index, range(8))
    assert index.match([0, 1, 2, 3, 4, 5, 6]) == Hit((table[0],), 4)
