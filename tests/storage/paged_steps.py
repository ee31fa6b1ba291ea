"""Random steps of caches that share a small paged memory, and what holds after every operation.

Pools, indexes and tables are whole, every block is accounted for, every visible number of every row and of each block
that can be found is right bit by bit, and a call that was refused has changed nothing.
"""

import tempfile

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
)
from oracles import left_padded
from paged_model import (
    Findable,
    Numbers,
    Row,
    attend,
    check_conservation,
    check_contents,
    snapshot,
)

import kvcourse as kv
from kvcourse.errors import PoolExhausted

PICK = st.integers(0, 1 << 20)
SIZES = st.lists(st.integers(1, 7), min_size=4, max_size=4)
KEYS = ((), (), (), (("adapter", b"A"),), (("salt", b"A"),))
FULL, SLIDING = "full_attention", "sliding_attention"
HEADS = {"num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "head_dim": 4}


class StepMachine(RuleBasedStateMachine):
    """config: of the model. The rest as in PagedMemory."""

    config = kv.tiny_model(**HEADS).config
    num_blocks, block_size, grows, token_granular = 16, 3, False, False
    numbers = Numbers(config)

    @initialize()
    def start(self):
        self.memory = kv.storage.PagedMemory(
            self.config,
            self.num_blocks,
            self.block_size,
            torch.float64,
            grows=self.grows,
            token_granular=self.token_granular,
        )
        self.plan = kv.Plan(storage="paged", block_size=self.block_size)
        self.rng = np.random.default_rng(0)
        self.caches, self.rows, self.open = [], [], []  # open: whether a step was begun and left
        self.findable = [Findable(group, self.block_size) for group in self.memory.groups]
        self.saved = []  # (what offload gave, its rows)
        self.folder = tempfile.TemporaryDirectory()
        self.add(self.make(2), [Row(), Row()])

    def teardown(self):
        if hasattr(self, "folder"):
            self.folder.cleanup()

    def make(self, rows):
        return kv.KVCache(self.config, self.plan, rows, memory=self.memory)

    def add(self, cache, rows):
        """A cache more; the oldest gives way when there are too many."""
        if len(self.caches) == 4:
            self.remove(0)
        self.caches.append(cache)
        self.rows.append(rows)
        self.open.append(False)

    def remove(self, which):
        for one in (self.caches, self.rows, self.open):
            del one[which]

    def pick(self, which):
        return which % len(self.caches)

    def refused(self, error, call):
        before = snapshot(self.memory, self.caches)
        with pytest.raises(error):
            call()
        assert snapshot(self.memory, self.caches) == before

    # Steps

    def text(self, row, size):
        return row.tokens + self.rng.integers(2, size=size).tolist()

    def most_needed(self, which, sizes):
        """For each group the blocks that a step takes at most: new ones, and a copy of each shared tail."""
        needed = []
        for tables in (rows.tables for rows in self.caches[which]._storage.rows):
            total = 0
            for table, row, size in zip(tables, self.rows[which], sizes, strict=False):
                stored = len(row.tokens)
                total += -(-(stored + size) // self.block_size) - -(-stored // self.block_size)
                tail = stored % self.block_size and table.blocks[stored // self.block_size]
                total += bool(tail) and not table.pool.is_writable(tail)
            needed.append(total)
        return needed

    def run(self, which, sizes, layers=None, attending=True):
        """Begin a step, and run all layers or the first few."""
        cache, longest = self.caches[which], max(sizes)
        _, mask = left_padded([[0] * size for size in sizes])
        texts = [
            Row(self.text(row, size), row.keys) for row, size in zip(self.rows[which], sizes, strict=True)
        ]
        cache.begin(longest, mask)
        for layer, own in enumerate(kv.attention.families.layout_of(self.config)):
            if layers is not None and layer >= layers:
                return None
            new = []
            for one in own.fields:
                x = torch.full(
                    (len(sizes), *self.numbers.shape(layer, one.name, longest)), 99.0, dtype=torch.float64
                )
                for place, text, size in zip(x, texts, sizes, strict=True):
                    place[:, -size:] = self.numbers.of(text, layer, one.name)[:, -size:]
                new.append(x if one.name in "kv" else x[:, 0])
            if not attending or own.fields[0].name != "k":
                cache.append(layer, *new)
                continue
            q = torch.from_numpy(self.rng.standard_normal((len(sizes), 4, longest, 4)))
            out = cache.attend(layer, q, *new)
            window = self.config.sliding_window if self.config.layer_types[layer] == SLIDING else None
            for row, text, size in zip(range(len(sizes)), texts, sizes, strict=True):
                k, v = (self.numbers.of(text, layer, name) for name in "kv")
                expected = attend(q[row, :, -size:], k, v, window)
                assert torch.allclose(out[row, :, -size:], expected, rtol=0, atol=1e-10)
        cache.commit()
        return [text.tokens for text in texts]

    def step(self, which, sizes, attending=True):
        sizes = sizes[: len(self.rows[which])]
        self.caches[which].rollback()
        self.open[which] = False
        needed = self.most_needed(which, sizes)
        before = snapshot(self.memory, self.caches)
        try:
            texts = self.run(which, sizes, attending=attending)
        except PoolExhausted:
            assert not self.grows
            assert any(n > pool.num_free for n, pool in zip(needed, self.memory.pools, strict=True))
            assert snapshot(self.memory, self.caches) == before
            self.open[which] = True
            return False
        for row, text in zip(self.rows[which], texts, strict=True):
            row.tokens, row.peak = text, max(row.peak, len(text))
        return True

    @rule(which=PICK, size=st.integers(1, 7), attending=st.booleans())
    def append(self, which, size, attending):
        self.step(self.pick(which), [size] * 4, attending)

    @rule(which=PICK, sizes=SIZES)
    def append_ragged(self, which, sizes):
        self.step(self.pick(which), sizes)

    @rule(which=PICK, sizes=SIZES, layers=st.integers(0, 1), rollback=st.booleans())
    def interrupted(self, which, sizes, layers, rollback):
        which = self.pick(which)
        self.open[which] = True
        try:
            self.run(which, sizes[: len(self.rows[which])], layers)
        except PoolExhausted:
            assert not self.grows
        if rollback:
            self.caches[which].rollback()
            self.open[which] = False

    @invariant()
    def all_is_whole(self):
        if not hasattr(self, "memory"):
            return
        self.memory.check()
        for findable in self.findable:
            findable.forget()
        for cache, rows, is_open in zip(self.caches, self.rows, self.open, strict=True):
            assert cache.seen == tuple(len(row.tokens) for row in rows)
            if not is_open:
                cache._storage.check()
        check_conservation(self.memory, self.caches)
        check_contents(self.memory, self.numbers, self.caches, self.rows, self.findable)
