"""The memories of the simulated server: blocks of a pool, and holes between arrays, against lists of slots."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcourse.bench.allocators import BlockMemory, Running
from kvcourse.bench.holes import Holes
from kvcourse.bench.traces import Request


@pytest.mark.parametrize("block_size", [1, 2, 5, 16])
def test_a_block_is_taken_exactly_when_all_are_full(block_size):
    """The block boundary: how many blocks there are before and after the next token, for every number stored."""
    for stored in {0, 1, block_size - 1, block_size, block_size + 1, 2 * block_size}:
        memory = BlockMemory(8 * block_size, block_size)
        run = Running(Request(0, stored + 1, 4))
        assert memory.admit(run)
        assert len(run.held) == stored // block_size + 1
        before = len(run.held)
        run.done += 1  # stored + 1 tokens are written, one more is to come
        assert memory.grow([run])
        assert len(run.held) - before == ((stored + 1) % block_size == 0)


def test_a_memory_that_refuses_has_not_changed():
    memory = BlockMemory(32, 4)
    first, second = Running(Request(0, 20, 30)), Running(Request(0, 13, 5))
    assert memory.admit(first)
    assert not memory.admit(second)
    assert second.held is None
    assert memory.pool.num_free == 3
    held = list(first.held)
    assert not memory.grow([first], ahead=13)
    assert first.held == held
    assert memory.steps([first], 100) == 13
    assert memory.grow([first], ahead=12)
    assert memory.pool.num_free == 0
    memory.release(first)
    memory.pool.check()


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 12)), max_size=40), st.integers(1, 4))
def test_holes_against_a_list_of_slots(operations, multiple):
    holes, slots, taken = Holes(40), [None] * 40, []
    for number, (take, size) in enumerate(operations):
        if take:
            places = range(0, 41 - size, multiple)
            fits = [i for i in places if slots[i : i + size] == [None] * size]
            first = holes.take(size, multiple)
            assert first == (fits[0] if fits else None)
            if fits:
                slots[first : first + size] = [number] * size
                taken.append((first, size))
        elif taken:
            first, size = taken.pop(size % len(taken))
            holes.give_back(first, size)
            slots[first : first + size] = [None] * size
        free = []
        for i, owner in enumerate(slots):
            if owner is None and (i == 0 or slots[i - 1] is not None):
                free.append([i, 0])
            if owner is None:
                free[-1][1] += 1
        assert holes.holes == tuple(map(tuple, free))
