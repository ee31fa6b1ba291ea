"""The block pool: what it gives out and in which order, and what it refuses without a change."""

import random
import subprocess
import sys
from array import array

import numpy as np
import pytest
import torch
from pool_models import state_of

from kvcourse.errors import InputError, PoolExhausted
from kvcourse.storage.block_pool import BlockPool, blocks_for


def make(num_blocks=8, held=(), labelled=()):
    """A pool of which some blocks are held, and some are held and labelled."""
    pool = BlockPool(num_blocks, block_size=4)
    pool.free([block for block in pool.allocate(num_blocks - 1) if block not in {*held, *labelled}][::-1])
    for block in labelled:
        pool.label(block)
    pool.check()
    return pool


@pytest.mark.parametrize(
    ("num_tokens", "block_size", "blocks"),
    [
        (0, 4, 0),
        (1, 4, 1),
        (3, 4, 1),
        (4, 4, 1),
        (5, 4, 2),
        (8, 4, 2),
        (9, 4, 3),
        (0, 1, 0),
        (1, 1, 1),
        (2, 1, 2),
    ],
)
def test_blocks_are_counted_up(num_tokens, block_size, blocks):
    assert blocks_for(num_tokens, block_size) == blocks


@pytest.mark.parametrize("block_size", [1, 2, 5, 16])
def test_a_token_needs_a_new_block_exactly_when_those_stored_fill_theirs(block_size):
    for num_stored in range(4 * block_size):
        more = blocks_for(num_stored + 1, block_size) - blocks_for(num_stored, block_size)
        assert more == (num_stored % block_size == 0)


def test_a_fresh_pool_counts_up_and_never_gives_the_null_block():
    pool = BlockPool(6, 16)
    assert (pool.num_blocks, pool.block_size, pool.num_free, pool.num_cached) == (6, 16, 5, 0)
    assert pool.allocate(2) == [1, 2]
    assert pool.allocate(0) == []
    assert pool.allocate(3) == [3, 4, 5]
    assert pool.num_free == 0
    pool.check()


def test_a_pool_of_the_null_block_alone_is_exhausted():
    pool = BlockPool(1, 16)
    assert pool.num_free == 0
    with pytest.raises(PoolExhausted):
        pool.allocate(1)
    pool.grow(3)
    assert pool.allocate(2) == [1, 2]


def test_clean_blocks_come_back_tail_first_and_last_freed_first():
    pool = BlockPool(8, 4)
    first, second = pool.allocate(3), pool.allocate(2)
    pool.free(first)
    assert pool.free_order() == [3, 2, 1, 6, 7]
    pool.free(second)
    assert pool.free_order() == [5, 4, 3, 2, 1, 6, 7]


def test_labelled_blocks_come_last_and_the_longest_unused_of_them_first():
    pool = make(8, labelled=(2, 3, 5), held=(4,))
    pool.free([2, 3, 4])
    pool.free([5])
    assert pool.free_order() == [4, 1, 6, 7, 3, 2, 5]
    assert (pool.num_free, pool.num_cached) == (7, 3)


def test_a_labelled_block_that_is_used_again_goes_to_the_end():
    pool = make(8, labelled=(2, 3, 5))
    for block in (2, 3, 5):
        pool.free([block])
    pool.touch([2])
    assert pool.free_order() == [1, 4, 6, 7, 3, 5]
    pool.free([2])
    assert pool.free_order() == [1, 4, 6, 7, 3, 5, 2]


def test_a_labelled_block_loses_its_label_when_it_is_given_out_and_the_index_hears_of_it():
    pool = make(5, labelled=(1, 2))
    heard = []
    pool.on_reuse = lambda block: heard.append((block, pool.is_labelled(block), pool.references(block)))
    pool.free([1, 2])
    assert pool.allocate(3) == [3, 4, 2]
    assert heard == [(2, False, 1)]
    pool.check()
    assert (pool.num_labelled, pool.num_cached) == (1, 1)


def test_without_an_index_labelled_blocks_are_given_out_all_the_same():
    pool = make(3, labelled=(1, 2))
    pool.free([1, 2])
    assert pool.allocate(2) == [2, 1]
    assert pool.num_labelled == 0


def test_a_hot_prefix_outlives_prompts_that_were_used_once():
    """P26: blocks that nobody can find again must not push findable ones out."""
    pool = BlockPool(12, 4)
    prefix = pool.allocate(4)
    for block in prefix:
        pool.label(block)
    pool.free(prefix)
    for size in [3, 7, 1, 5] * 25:
        pool.free(pool.allocate(size))
        pool.check()
    assert pool.num_cached == 4
    pool.touch(prefix)
    assert [pool.references(block) for block in prefix] == [1] * 4


def test_a_block_is_free_when_the_last_table_gives_it_back():
    pool = BlockPool(6, 4)
    table = pool.allocate(2)
    copies = [pool.fork(table), pool.fork(table)]
    assert [pool.references(block) for block in table] == [3, 3]
    assert not pool.is_writable(1)
    for left, copy in zip((2, 1), copies, strict=True):
        pool.free(copy)
        assert [pool.references(block) for block in table] == [left, left]
        assert pool.num_free == 3
    assert pool.is_writable(1)
    pool.free(table)
    assert pool.num_free == 5
    assert not pool.is_writable(1)


def test_a_labelled_block_is_not_written():
    pool = BlockPool(4, 4)
    (block,) = pool.allocate(1)
    pool.label(block)
    pool.label(block)
    assert not pool.is_writable(block)
    pool.unlabel(block)
    pool.unlabel(block)
    assert pool.is_writable(block)
    pool.check()


def test_a_cached_block_that_loses_its_label_is_the_next_to_be_given_out():
    pool = make(6, labelled=(2, 4))
    pool.free([2, 4])
    pool.unlabel(2)
    assert pool.free_order() == [2, 1, 3, 5, 4]
    pool.check()


def test_a_held_block_that_loses_its_label_is_clean_once_freed():
    pool = make(4, labelled=(2,))
    pool.unlabel(2)
    pool.free([2])
    assert (pool.num_cached, pool.free_order()) == (0, [2, 1, 3])


def test_null_entries_are_skipped_and_stay_null():
    """P22: placeholders of a table never enter the free list."""
    pool = BlockPool(6, 4)
    table = [0, 0, *pool.allocate(2), 0]
    assert pool.fork(table) == table
    pool.touch(table)
    pool.free(table)
    pool.free(table)
    assert (pool.num_free, pool.references(0)) == (3, 0)
    pool.free(table)
    pool.free([0, 0])
    pool.free([])
    assert (pool.num_free, pool.references(0), pool.is_writable(0)) == (5, 0, False)
    assert pool.fork([]) == pool.fork(()) == []
    pool.check()


def test_growing_keeps_everything_and_comes_after_clean_blocks():
    pool = make(6, held=(1,), labelled=(2,))
    pool.free([2])
    pool.grow(9)
    assert pool.free_order() == [3, 4, 5, 6, 7, 8, 2]
    pool.grow(9)
    assert pool.num_blocks == 9
    assert (pool.references(1), pool.references(8)) == (1, 0)
    pool.check()


@pytest.mark.parametrize(
    "as_table",
    [
        tuple,
        np.array,
        torch.tensor,
        iter,
        lambda blocks: array("i", blocks),
        lambda blocks: torch.tensor(blocks, dtype=torch.int32),
        lambda blocks: [np.int64(block) for block in blocks],
        lambda blocks: dict.fromkeys(blocks).keys(),
    ],
)
def test_tables_may_be_anything_that_lists_whole_numbers(as_table):
    pool = BlockPool(6, 4)
    table = pool.allocate(3)
    forked = pool.fork(as_table(table))
    assert forked == table
    assert {type(block) for block in forked} == {int}
    pool.touch(as_table(table))
    for _ in range(3):
        pool.free(as_table(table))
    assert pool.free_order() == [3, 2, 1, 4, 5]
    assert {type(block) for block in pool.free_order()} == {int}
    pool.check()


def test_numbers_of_numpy_will_do():
    pool = BlockPool(np.int64(6), np.int32(4))
    assert pool.allocate(np.int64(2)) == [1, 2]
    pool.label(np.int64(1))
    assert pool.is_labelled(torch.tensor(1))
    assert pool.references(np.uint8(2)) == 1


# ---- refused ---------------------------------------------------------------------------------------

# In a pool of 8: blocks 1 and 2 are held, 3 is held twice, 4 is held and labelled, 5 is cached, 6 and 7 are clean.
REFUSED = {
    "free: freed already": (lambda pool: pool.free([1, 6]), "block 6: nobody holds it"),
    "free: freed already, first": (lambda pool: pool.free([7, 1]), "block 7: nobody holds it"),
    "free: cached": (lambda pool: pool.free([1, 5]), "block 5: nobody holds it"),
    "free: twice in one table": (lambda pool: pool.free([1, 2, 1]), "block 1: the table names it twice"),
    "free: shared, twice in one table": (
        lambda pool: pool.free([3, 1, 3]),
        "block 3: the table names it twice",
    ),
    "free: foreign": (lambda pool: pool.free([1, 8]), "block 8 is not of this pool, whose blocks are 1 … 7"),
    "free: negative": (lambda pool: pool.free([1, -1]), "block -1 is not of this pool"),
    "free: negative, first": (lambda pool: pool.free([-7]), "block -7 is not of this pool"),
    "free: bool": (lambda pool: pool.free([2, True]), "block=True"),
    "free: float": (lambda pool: pool.free([2, 1.0]), "block=1.0"),
    "free: text": (lambda pool: pool.free("12"), "block='1'"),
    "free: none": (lambda pool: pool.free([1, None]), "block=None"),
    "free: no table": (lambda pool: pool.free(1), "blocks=1: expected a list"),
    "free: tables": (lambda pool: pool.free([[1], [2]]), r"block=\[1\]"),
    "free: a tensor of tables": (lambda pool: pool.free(torch.tensor([[1, 2]])), "block=tensor"),
    "free: a number of numpy": (lambda pool: pool.free(np.array(1)), "expected a list"),
    "free: a tensor of one number": (lambda pool: pool.free(torch.tensor(1)), "expected a list"),
    "free: huge": (lambda pool: pool.free([1, 1 << 70]), "block 1180591620717411303424"),
    "fork: free": (lambda pool: pool.fork([1, 6]), "fork: block 6: nobody holds it"),
    "fork: cached": (lambda pool: pool.fork([1, 5]), "fork: block 5: nobody holds it"),
    "fork: twice": (lambda pool: pool.fork([2, 2]), "fork: block 2: the table names it twice"),
    "fork: foreign": (lambda pool: pool.fork([1, 99]), "block 99"),
    "fork: bool": (lambda pool: pool.fork([True]), "block=True"),
    "touch: clean": (lambda pool: pool.touch([5, 6]), "touch: block 6: it is free"),
    "touch: twice": (lambda pool: pool.touch([5, 5]), "touch: block 5: the table names it twice"),
    "touch: foreign": (lambda pool: pool.touch([5, 8]), "block 8"),
    "touch: float": (lambda pool: pool.touch([5, 1.0]), "block=1.0"),
    "touch: no table": (lambda pool: pool.touch(None), "blocks=None"),
    "label: clean": (lambda pool: pool.label(6), "label: block 6"),
    "label: null": (lambda pool: pool.label(0), "label: block 0"),
    "label: foreign": (lambda pool: pool.label(8), "block 8"),
    "label: bool": (lambda pool: pool.label(True), "block=True"),
    "unlabel: foreign": (lambda pool: pool.unlabel(-1), "block -1 is not of this pool"),
    "unlabel: a table": (lambda pool: pool.unlabel([4]), r"block=\[4\]"),
    "references: foreign": (lambda pool: pool.references(8), "block 8"),
    "is_writable: float": (lambda pool: pool.is_writable(1.0), "block=1.0"),
    "is_labelled: none": (lambda pool: pool.is_labelled(None), "block=None"),
    "allocate: negative": (lambda pool: pool.allocate(-1), "allocate: n=-1"),
    "allocate: bool": (lambda pool: pool.allocate(True), "allocate: n=True"),
    "allocate: float": (lambda pool: pool.allocate(1.0), "allocate: n=1.0"),
    "allocate: too many": (lambda pool: pool.allocate(4), "only 3 of 7 blocks are free"),
    "allocate: huge": (lambda pool: pool.allocate(1 << 80), "allocate"),
    "grow: smaller": (lambda pool: pool.grow(7), "grow: num_blocks=7: expected a whole number of at least 8"),
    "grow: bool": (lambda pool: pool.grow(True), "grow: num_blocks=True"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_changes_nothing(name):
    pool = BlockPool(8, 4)
    pool.allocate(5)
    pool.touch([3])
    pool.label(4)
    pool.label(5)
    pool.free([5])
    heard = []
    pool.on_reuse = heard.append
    before = state_of(pool)
    call, message = REFUSED[name]
    with pytest.raises(InputError, match=message):
        call(pool)
    assert state_of(pool) == before
    assert heard == []
    pool.check()


def test_exhaustion_can_be_told_from_bad_input():
    pool = BlockPool(3, 4)
    with pytest.raises(PoolExhausted, match=r"allocate\(3\): only 2 of 2 blocks are free; .*larger"):
        pool.allocate(3)
    with pytest.raises(InputError) as refused:
        pool.free([1])
    assert not isinstance(refused.value, PoolExhausted)


@pytest.mark.parametrize(
    ("num_blocks", "block_size", "message"),
    [
        (0, 4, "num_blocks=0"),
        (-3, 4, "num_blocks"),
        (4, 0, "block_size=0"),
        (4.0, 4, "num_blocks"),
        (4, True, "block"),
    ],
)
def test_impossible_pools(num_blocks, block_size, message):
    with pytest.raises(InputError, match=message):
        BlockPool(num_blocks, block_size)


@pytest.mark.parametrize(("num_tokens", "block_size"), [(-1, 4), (4, 0), (1.5, 4), (True, 4), (4, None)])
def test_impossible_counts(num_tokens, block_size):
    with pytest.raises(InputError, match=r"num_tokens|block_size"):
        blocks_for(num_tokens, block_size)


# ---- check -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda pool: pool._clean.pop(), r"free \+ held \+ null"),
        (lambda pool: pool._clean.append(1), r"free \+ held \+ null"),
        (lambda pool: pool._clean.__setitem__(0, 1), "free exactly when not referenced"),
        (lambda pool: pool._references.__setitem__(0, 1), "null block has no references"),
        (lambda pool: pool._references.__setitem__(1, -1), "negative"),
        (lambda pool: pool._references.append(0), "one reference count"),
        (lambda pool: pool._labelled.add(0), "null block has no label"),
        (lambda pool: pool._labelled.add(6), "cached = labelled"),
        (lambda pool: pool._labelled.remove(5), "cached = labelled"),
    ],
)
def test_check_finds_what_is_broken(damage, message):
    pool = make(8, held=(1, 2), labelled=(4, 5))
    pool.free([5])
    damage(pool)
    with pytest.raises(AssertionError, match=message):
        pool.check()


def test_no_block_is_given_out_while_someone_holds_it():
    """P23: random allocate, fork, label and free under pressure."""
    rng = random.Random(0)
    pool = BlockPool(40, 4)
    tables = []
    for _ in range(3000):
        size = rng.randint(1, 6)
        if size <= pool.num_free and rng.random() < 0.5:
            held = {block for table in tables for block in table}
            table = pool.allocate(size)
            assert not held & set(table)
            for block in table[: rng.randint(0, size)]:
                pool.label(block)
            tables.append(table)
        elif tables and rng.random() < 0.3:
            tables.append(pool.fork(rng.choice(tables)))
        elif tables:
            pool.free(tables.pop(rng.randrange(len(tables))))
    pool.check()
    for table in tables:
        pool.free(table)
    assert pool.num_free == 39


def test_needs_no_torch():
    code = """
import sys
from kvcourse.storage import block_pool, prefix_hash, prefix_index
print("torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.returncode) == ("False", 0), done.stderr
