"""Block tables against a list of what each position must hold: reserve, commit, crop, fork, windows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import MANY

from kvcourse.errors import InputError, PoolExhausted
from kvcourse.storage import BlockPool, BlockTable
from kvcourse.storage.block_table import blocks_behind, held_blocks


def table_of(num_stored, block_size=4, num_blocks=40, window=None):
    table = BlockTable(BlockPool(num_blocks, block_size), window)
    table.reserve(num_stored)
    table.commit(num_stored)
    return table


@pytest.mark.parametrize("block_size", [1, 3, 4])
def test_a_new_block_is_needed_exactly_when_all_stored_tokens_fill_theirs(block_size):
    for num_stored in range(3 * block_size + 1):
        assert table_of(num_stored, block_size).missing(1) == (num_stored % block_size == 0)


def test_slots_are_block_times_size_plus_offset():
    table = table_of(10)
    table.blocks[:] = type(table.blocks)("i", [7, 2, 9])
    assert table.slots(2, 8).tolist() == [30, 31, 8, 9, 10, 11, 36, 37]
    assert table.slots(0, 0).tolist() == []


def test_reserve_takes_nothing_when_it_cannot_take_all():
    table = table_of(6, num_blocks=4)  # 2 of 3 blocks
    before = list(table.blocks), table.pool.num_free
    with pytest.raises(PoolExhausted):
        table.reserve(11)
    assert (list(table.blocks), table.pool.num_free) == before
    table.reserve(6)
    table.commit(6)
    table.check()


def test_commit_needs_a_reservation():
    table = table_of(4)
    with pytest.raises(InputError, match="reserve"):
        table.commit(1)
    assert table.num_stored == 4


def test_what_was_reserved_and_not_used_goes_back():
    table = table_of(4)
    free = table.pool.num_free
    table.reserve(9)
    table.commit(1)
    assert table.pool.num_free == free - 1
    table.reserve(9)
    table.commit(0)
    assert table.pool.num_free == free - 1


class TestCopyOnWrite:
    def test_a_full_block_is_shared_for_ever(self):
        parent = table_of(8)
        child = parent.fork()
        assert child.reserve(1) == []
        assert list(child.blocks[:2]) == list(parent.blocks)
        assert [parent.pool.references(block) for block in parent.blocks] == [2, 2]

    def test_the_first_writer_copies_and_the_last_owner_does_not(self):
        parent = table_of(6)
        child = parent.fork()
        tail = parent.blocks[1]
        assert parent.tail == child.tail == tail
        ((source, copy),) = child.reserve(1)
        assert source == tail == parent.blocks[1]
        assert copy == child.blocks[1] != tail
        assert parent.reserve(1) == []  # nobody else reads it any more

    def test_a_labelled_block_is_copied_even_by_its_only_owner(self):
        table = table_of(8)
        table.pool.label(table.blocks[1])
        table.crop(6)
        ((source, copy),) = table.reserve(1)
        assert source != copy == table.blocks[1]
        table.pool.check()
        table.check()

    def test_a_fork_takes_no_part_in_what_is_reserved(self):
        parent = table_of(3)
        parent.reserve(9)
        assert len(parent.fork().blocks) == 1


class TestWindow:
    @MANY
    @given(
        sizes=st.lists(st.integers(1, 9), max_size=12),
        window=st.integers(1, 12),
        block_size=st.integers(1, 5),
    )
    def test_what_the_next_query_sees_is_there_and_one_block_more(self, sizes, window, block_size):
        table = BlockTable(BlockPool(200, block_size), window)
        for size in sizes:
            table.reserve(size)
            table.commit(size)
            table.check()
            n = table.num_stored
            held = [i for i, block in enumerate(table.blocks) if block]
            seen = {position // block_size for position in range(max(0, n + 1 - window - block_size), n)}
            assert held == sorted(seen)
            assert len(held) == held_blocks(n, window, block_size)
            assert table.pool.num_free == 199 - len(held)
            assert table.can_crop(max(0, n - block_size))

    def test_nothing_behind_a_window_that_is_not_full(self):
        assert [blocks_behind(n, 8, 4) for n in (0, 8, 14, 15, 18, 19)] == [0, 0, 0, 1, 1, 2]
        assert blocks_behind(10**6, None, 4) == 0

    def test_null_entries_are_not_freed_twice(self):
        table = table_of(30, window=3)
        assert list(table.blocks[:5]) == [0] * 5
        table.crop(27)
        child = table.fork()
        table.release()
        child.release()
        assert table.pool.num_free == 39
        table.pool.check()


def test_a_table_with_tokens_adopts_nothing():
    table = table_of(1)
    with pytest.raises(InputError, match="1 tokens already"):
        table.adopt([3], 4)


@MANY
@given(st.data())
def test_forks_never_see_each_others_writes(data):
    """Contents by block and slot in a dictionary, written as a store would, copies included."""
    pool, content = BlockPool(60, 3), {}
    tables, texts = [BlockTable(pool)], [[]]
    for step in range(data.draw(st.integers(1, 25))):
        which = data.draw(st.integers(0, len(tables) - 1))
        table, text = tables[which], texts[which]
        action = data.draw(st.sampled_from(["write", "write", "fork", "crop", "release"]))
        if action == "write":
            count = data.draw(st.integers(1, 5))
            try:
                copies = table.reserve(count)
            except PoolExhausted:
                continue
            for source, copy in copies:
                content |= {(copy, slot): content.get((source, slot)) for slot in range(3)}
            new = [(step, i) for i in range(count)]
            for slot, token in zip(table.slots(table.num_stored, count).tolist(), new, strict=True):
                content[slot // 3, slot % 3] = token
            table.commit(count)
            text += new
        elif action == "fork" and len(tables) < 6:
            tables.append(table.fork())
            texts.append(list(text))
        elif action == "crop":
            keep = data.draw(st.integers(0, len(text)))
            table.crop(keep)
            del text[keep:]
        elif action == "release":
            table.release()
            text.clear()
        pool.check()
        for one, expected in zip(tables, texts, strict=True):
            one.check()
            slots = one.slots(0, one.num_stored).tolist()
            assert [content[slot // 3, slot % 3] for slot in slots] == expected
