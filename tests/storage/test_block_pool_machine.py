"""Random operations on a block pool, each compared with one plain list of free blocks."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from pool_models import NULL, ListPool, state_of

from kvcourse.errors import InputError, PoolExhausted
from kvcourse.storage.block_pool import BlockPool

PICK = st.integers(0, 1 << 20)  # reduced to the number of choices there are
MACHINE = settings(max_examples=60, stateful_step_count=60, deadline=None, derandomize=True, database=None)


class PoolMachine(RuleBasedStateMachine):
    """Tables come and go; blocks are labelled, found again, evicted; bad calls come in between."""

    @initialize(num_blocks=st.integers(1, 24))
    def start(self, num_blocks):
        self.pool = BlockPool(num_blocks, 4)
        self.model = ListPool(num_blocks)
        self.reused = []
        self.pool.on_reuse = self.reused.append
        self.tables = []

    def pick(self, things, which):
        return things[which % len(things)]

    @rule(n=st.integers(0, 8), nulls=st.integers(0, 2), num_labels=st.integers(0, 8))
    def allocate(self, n, nulls, num_labels):
        if n > len(self.model.queue):
            self.refused(lambda: self.pool.allocate(n), PoolExhausted)
            return
        table = self.pool.allocate(n)
        assert table == self.model.allocate(n)
        for block in table[:num_labels]:
            self.pool.label(block)
            self.model.labels.add(block)
        self.tables.append([NULL] * nulls + table)

    @rule(left=st.integers(0, 3))
    def press(self, left):
        """A large request takes all but a few blocks, and is over at once."""
        n = max(0, len(self.model.queue) - left)
        table = self.pool.allocate(n)
        assert table == self.model.allocate(n)
        self.pool.free(table)
        self.model.free(table)

    @precondition(lambda self: self.tables)
    @rule(which=PICK)
    def free(self, which):
        table = self.tables.pop(which % len(self.tables))
        self.pool.free(table)
        self.model.free(table)

    @precondition(lambda self: self.tables)
    @rule(which=PICK, first=st.integers(0, 3), end=st.integers(0, 9))
    def free_a_part(self, which, first, end):
        """A window moved on, or a sequence was cut."""
        table = self.pick(self.tables, which)
        part = table[first:end]
        table[first:end] = [NULL] * len(part)
        self.pool.free(part)
        self.model.free(part)

    @precondition(lambda self: self.tables)
    @rule(which=PICK)
    def fork(self, which):
        table = self.pick(self.tables, which)
        self.tables.append(self.pool.fork(table))
        assert self.tables[-1] == table
        self.model.share(table)

    @rule(which=PICK, more=PICK, held_too=st.booleans())
    def touch(self, which, more, held_too):
        """A prefix is found: some cached blocks, behind some that are held."""
        cached = [block for block in self.model.queue if block in self.model.labels]
        found = cached[: which % (len(cached) + 1)]
        if held_too and self.tables:
            found = [*self.pick(self.tables, more), *found]
        self.pool.touch(found)
        self.model.share(found)
        self.tables.append(found)

    @precondition(lambda self: any(map(any, self.tables)))
    @rule(which=PICK, end=st.integers(1, 9))
    def label(self, which, end):
        table = self.pick([table for table in self.tables if any(table)], which)
        for block in [block for block in table if block != NULL][:end]:
            self.pool.label(block)
            self.model.labels.add(block)

    @rule(which=PICK)
    def unlabel(self, which):
        block = which % self.pool.num_blocks
        self.pool.unlabel(block)
        self.model.unlabel(block)

    @precondition(lambda self: self.pool.num_blocks < 40)
    @rule(more=st.integers(0, 5))
    def grow(self, more):
        self.pool.grow(self.pool.num_blocks + more)
        self.model.grow(self.model.num_blocks + more)

    @rule(which=PICK, bad=st.sampled_from(["free", "foreign", "twice", "negative", True, 1.0, None]))
    def refuse(self, which, bad):
        """One impossible entry somewhere in a table that would do without it."""
        table = [block for block in self.pick(self.tables, which) if block] if self.tables else []
        if bad == "free":
            bad = self.model.queue[which % len(self.model.queue)] if self.model.queue else "x"
        elif bad == "twice":
            bad = self.pick(table, which) if table else "x"
        elif bad in ("foreign", "negative"):
            bad = self.pool.num_blocks if bad == "foreign" else -1
        table.insert(which % (len(table) + 1), bad)
        self.refused(lambda: self.pool.free(table))
        self.refused(lambda: self.pool.fork(table))
        if bad not in self.model.labels:  # touching a cached block is no mistake
            self.refused(lambda: self.pool.touch(table))

    def refused(self, call, error=InputError):
        before = state_of(self.pool)
        with pytest.raises(error):
            call()
        assert state_of(self.pool) == before

    @invariant()
    def same_as_the_list(self):
        if not hasattr(self, "pool"):
            return
        self.pool.check()
        pool, model = self.pool, self.model
        blocks = range(model.num_blocks)
        assert pool.free_order() == model.queue
        assert pool.num_free == len(model.queue)
        assert pool.num_cached == len(model.labels.intersection(model.queue))
        assert [pool.references(block) for block in blocks] == list(model.references.values())
        assert {block for block in blocks if pool.is_labelled(block)} == model.labels
        assert all(
            pool.is_writable(block) == (model.references[block] == 1 and block not in model.labels)
            for block in blocks
        )
        assert self.reused == model.reused
        held = [block for table in self.tables for block in table if block != NULL]
        assert [held.count(block) for block in blocks] == list(model.references.values())


def test_pool_is_one_list_of_free_blocks():
    run_state_machine_as_test(PoolMachine, settings=MACHINE)
