"""Random operations on a tree of forked caches, against lists of everything that each row has seen."""

import numpy as np
import pytest
import torch
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
from oracles import DenseRows, left_padded
from strategies import FEW
from tiny_models import TIGHT, VOCAB, check_integrity, check_next, current_plan, model_named, new_cache

import kvcourse as kv
from kvcourse.errors import InputError

pytestmark = pytest.mark.usefixtures("every_storage")

FULL, SLIDING = "full_attention", "sliding_attention"


class CacheMachine(RuleBasedStateMachine):
    """The operations of both machines. A subclass says how to make a cache, and how to run and check a step."""

    window = None

    @initialize(rows=st.integers(1, 3))
    def start(self, rows):
        self.rng = np.random.default_rng(0)
        self.caches = [self.make(rows)]
        self.oracles = [self.make_oracle(rows)]
        self.lengths = [[0] * rows]
        self.peaks = [
            [0] * rows
        ]  # a ring has overwritten what lies far enough behind the most that it ever held

    def step(self, which, sizes):
        which %= len(self.caches)
        lengths, peaks = self.lengths[which], self.peaks[which]
        sizes = sizes[: len(lengths)]
        self.check_step(self.caches[which], self.oracles[which], sizes)
        for row, size in enumerate(sizes):
            lengths[row] += size
            peaks[row] = max(peaks[row], lengths[row])

    @rule(which=st.integers(0, 3), size=st.integers(1, 6))
    def append(self, which, size):
        self.step(which, [size] * 3)

    @rule(which=st.integers(0, 3), sizes=st.lists(st.integers(1, 6), min_size=3, max_size=3))
    def append_ragged(self, which, sizes):
        self.step(which, sizes)

    @rule(which=st.integers(0, 3))
    def append_many(self, which):
        self.step(which, [20, 37, 1])

    @rule(which=st.integers(0, 3), drop=st.integers(1, 9))
    def drop_the_last(self, which, drop):
        self.crop(which, -drop, lambda length: max(0, length - drop))

    @rule(which=st.integers(0, 3), keep=st.integers(0, 40))
    def keep_the_first(self, which, keep):
        which %= len(self.caches)
        if keep > min(self.lengths[which]):
            with pytest.raises(InputError):
                self.caches[which].crop(keep)
        else:
            self.crop(which, keep, lambda _: keep)

    def crop(self, which, n, left):
        which %= len(self.caches)
        lengths = [left(length) for length in self.lengths[which]]
        try:
            self.caches[which].crop(n)
        except InputError:
            rolled_back = max(peak - length for peak, length in zip(self.peaks[which], lengths, strict=True))
            assert self.window is not None, "only a window forgets"
            assert rolled_back > self.caches[which].plan.block_size, (
                "a window can always go back by one block"
            )
        else:
            self.crop_oracle(which, lengths)
            self.lengths[which] = lengths

    @precondition(lambda self: len(self.caches) < 4)
    @rule(which=st.integers(0, 3))
    def fork(self, which):
        which %= len(self.caches)
        self.caches.append(self.caches[which].fork())
        self.oracles.append(self.copy_oracle(which))
        self.lengths.append(list(self.lengths[which]))
        self.peaks.append(list(self.peaks[which]))

    @rule(which=st.integers(0, 3))
    def reset(self, which):
        which %= len(self.caches)
        rows = len(self.lengths[which])
        self.caches[which].reset()
        self.oracles[which] = self.make_oracle(rows)
        self.lengths[which], self.peaks[which] = [0] * rows, [0] * rows

    @invariant()
    def counters_agree(self):
        for cache, lengths in zip(getattr(self, "caches", []), getattr(self, "lengths", []), strict=True):
            assert cache.seen == tuple(lengths)
            check_integrity(cache)

    def teardown(self):
        for which in range(len(getattr(self, "caches", []))):
            self.step(which, [2] * 3)


class ModelMachine(CacheMachine):
    """A model on the cache; the oracle runs the tokens of each row without a cache."""

    def make(self, rows):
        self.model = model_named(self.variant)
        return new_cache(self.model, rows)

    def make_oracle(self, rows):
        return [[] for _ in range(rows)]

    def copy_oracle(self, which):
        return [list(row) for row in self.oracles[which]]

    def crop_oracle(self, which, lengths):
        for row, length in zip(self.oracles[which], lengths, strict=True):
            del row[length:]

    def draw(self, size):
        return self.rng.integers(VOCAB, size=size).tolist()

    def check_step(self, cache, rows, sizes):
        check_next(self.model, cache, rows, *left_padded([self.draw(size) for size in sizes]))

    @rule(which=st.integers(0, 3))
    def refused(self, which):
        which %= len(self.caches)
        with pytest.raises(InputError):
            self.model(torch.full((len(self.lengths[which]), 2), VOCAB), cache=self.caches[which])


class AttendMachine(CacheMachine):
    """Random queries, keys and values straight into `attend`; the oracle keeps them in lists and uses numpy."""

    num_heads, num_kv_heads, head_dim, layers = 4, 2, 2, 2

    def make(self, rows):
        self.windows = [self.window, None] if self.mixed else [self.window] * 2
        config = kv.tiny_model(
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            sliding_window=self.window,
            layer_types=tuple(FULL if window is None else SLIDING for window in self.windows),
        ).config
        return kv.KVCache(config, current_plan(), batch_size=rows)

    def make_oracle(self, rows):
        return DenseRows(rows, self.windows)

    def copy_oracle(self, which):
        return self.oracles[which].copy()

    def crop_oracle(self, which, lengths):
        self.oracles[which].crop(lengths)

    def draw(self, rows, size):
        return [
            torch.from_numpy(self.rng.standard_normal((rows, heads, size, self.head_dim)))
            for heads in (self.num_heads, self.num_kv_heads, self.num_kv_heads)
        ]

    def begin(self, cache, sizes):
        _, mask = left_padded([[0] * size for size in sizes])
        cache.begin(max(sizes), mask)
        return max(sizes)

    def check_step(self, cache, oracle, sizes):
        longest = self.begin(cache, sizes)
        for layer in range(self.layers):
            q, k, v = self.draw(len(sizes), longest)
            out = cache.attend(layer, q, k, v)
            for row, size in enumerate(sizes):
                expected = oracle.attend(layer, row, *(x[row, :, -size:] for x in (q, k, v)))
                assert np.abs(out[row, :, -size:].numpy() - expected).max() <= TIGHT
        cache.commit()

    @rule(which=st.integers(0, 3), sizes=st.lists(st.integers(1, 40), min_size=3, max_size=3))
    def interrupted(self, which, sizes):
        """The first layer stores its keys, the second never does."""
        which %= len(self.caches)
        sizes = sizes[: len(self.lengths[which])]
        longest = self.begin(self.caches[which], sizes)
        self.caches[which].attend(0, *self.draw(len(sizes), longest))


RUNS = settings(FEW, max_examples=15, stateful_step_count=20)


@pytest.mark.parametrize("variant", ["gqa", "window_1", "window_4", "window_then_full"])
def test_a_model_on_the_cache(variant):
    window = model_named(variant).config.sliding_window
    machine = type("Machine", (ModelMachine,), {"variant": variant, "window": window})
    run_state_machine_as_test(machine, settings=RUNS)


@pytest.mark.parametrize("window", [None, 1, 5, 16, 17])
@pytest.mark.parametrize("mixed", [True, False])
def test_attention_alone(window, mixed):
    machine = type("Machine", (AttendMachine,), {"window": window, "mixed": mixed})
    run_state_machine_as_test(machine, settings=RUNS)
