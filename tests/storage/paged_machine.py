"""Random operations on the rows of caches that share a small paged memory, each with what it must do."""

from pathlib import Path

from hypothesis import strategies as st
from hypothesis.stateful import rule
from paged_model import Row, longest_hit, snapshot
from paged_steps import PICK, SIZES, StepMachine

import kvcourse as kv
from kvcourse.errors import InputError, PoolExhausted
from kvcourse.storage import Offloaded

KEYS = ((), (), (), (("adapter", b"A"),), (("salt", b"A"),))


class PagedMachine(StepMachine):
    """All operations. For what a subclass sets, see StepMachine."""

    # Rows

    @rule(rows=st.integers(1, 3))
    def new(self, rows):
        self.add(self.make(rows), [Row() for _ in range(rows)])

    @rule(which=PICK)
    def drop(self, which):
        if len(self.caches) > 1:
            self.remove(self.pick(which))

    @rule(which=PICK)
    def reset(self, which):
        which = self.pick(which)
        self.caches[which].reset()
        self.rows[which], self.open[which] = [Row() for _ in self.rows[which]], False

    @rule(which=PICK)
    def fork(self, which):
        which = self.pick(which)
        self.add(self.caches[which].fork(), [row.copy() for row in self.rows[which]])

    @rule(which=PICK, order=st.lists(st.integers(0, 3), min_size=1, max_size=4))
    def select(self, which, order):
        which = self.pick(which)
        order = [row % len(self.rows[which]) for row in order]
        self.add(self.caches[which].select(order), [self.rows[which][row].copy() for row in order])

    @rule(first=PICK, second=PICK)
    def cat(self, first, second):
        first, second = self.pick(first), self.pick(second)
        pair = self.caches[first], self.caches[second]
        if first == second:
            self.refused(InputError, lambda: kv.KVCache.cat(pair))
        elif len(self.rows[first]) + len(self.rows[second]) <= 4:
            for cache in pair:
                cache.rollback()
            rows = self.rows[first] + self.rows[second]
            joined = kv.KVCache.cat(pair)
            assert all(set(cache.seen) == {0} for cache in pair)
            for which in sorted((first, second), reverse=True):
                self.remove(which)
            self.add(joined, rows)

    @rule(which=PICK, n=st.integers(-8, 12))
    def crop(self, which, n):
        which = self.pick(which)
        rows = self.rows[which]
        kept = [min(len(row.tokens), n) if n >= 0 else max(0, len(row.tokens) + n) for row in rows]
        if n > min(len(row.tokens) for row in rows):
            return
        self.caches[which].rollback()
        self.open[which] = False
        before = snapshot(self.memory, self.caches)
        try:
            self.caches[which].crop(n)
        except InputError:
            assert self.config.sliding_window
            assert any(row.peak - left > self.block_size for row, left in zip(rows, kept, strict=True))
            assert snapshot(self.memory, self.caches) == before
        else:
            for row, left in zip(rows, kept, strict=True):
                del row.tokens[left:]

    # Prefixes

    def publish_row(self, which):
        keys = {row.keys for row in self.rows[which]}
        if len(keys) > 1:  # one call has one set of extra keys
            return
        for findable in self.findable:
            findable.forget()
        self.caches[which].publish([self.text(row, 2) for row in self.rows[which]], *keys)
        for rows, findable in zip(self.caches[which]._storage.rows, self.findable, strict=True):
            for table, row in zip(rows.tables, self.rows[which], strict=True):
                findable.enter(table.blocks, row)
            labelled = {
                b for b in range(findable.group.pool.num_blocks) if findable.group.pool.is_labelled(b)
            }
            assert labelled == set(findable.known)

    @rule(which=PICK)
    def publish(self, which):
        self.publish_row(self.pick(which))

    @rule(which=PICK, rows=st.integers(1, 2), keys=st.sampled_from(KEYS), more=SIZES, finish=st.booleans())
    def reuse(self, which, rows, keys, more, finish):
        """Prompts that begin like rows that there are, or with tokens of their own; half of them run to the end."""
        like = self.rows[self.pick(which)]
        prompts = [self.text(like[row % len(like)], more[row]) for row in range(rows)]
        cut = [prompt[: 3 * size] for prompt, size in zip(prompts, more[2:], strict=False)]
        prompts = cut if which % 3 == 0 else prompts
        expected = tuple(longest_hit(self.findable, p, keys, self.token_granular) for p in prompts)
        cache = self.make(rows)
        assert cache.reuse(prompts, keys) == expected == cache.seen
        self.add(cache, [Row(p[:n], keys, n) for p, n in zip(prompts, expected, strict=True)])
        which = len(self.caches) - 1
        if finish and self.step(which, [len(p) - n for p, n in zip(prompts, expected, strict=True)]):
            self.publish_row(which)

    @rule(which=PICK)
    def refused_calls(self, which):
        which = self.pick(which)
        cache, rows = self.caches[which], self.rows[which]
        self.refused(InputError, lambda: cache.select([0, len(rows)]))
        self.refused(InputError, lambda: cache.select([]))
        self.refused(InputError, lambda: cache.crop(1 + min(len(row.tokens) for row in rows)))
        if any(row.tokens for row in rows):
            self.refused(InputError, lambda: cache.publish([row.tokens[:-1] for row in rows]))
            self.refused(InputError, lambda: cache.reuse([[0, 1]] * len(rows)))
        else:
            self.refused(InputError, lambda: cache.offload())
            self.refused(InputError, lambda: cache.reuse([[0, 1]] * (len(rows) + 1)))

    # Offload

    @rule(which=PICK, to_file=st.booleans())
    def offload(self, which, to_file):
        which = self.pick(which)
        path = Path(self.folder.name) / f"{len(self.saved)}.safetensors" if to_file else None
        if not any(row.tokens for row in self.rows[which]):
            return
        saved = self.caches[which].offload(path)
        assert saved.seen == tuple(len(row.tokens) for row in self.rows[which])
        self.saved.append((Offloaded.open(path) if to_file else saved, self.rows[which]))
        self.rows[which], self.open[which] = [Row() for _ in saved.seen], False

    @rule(which=PICK, what=PICK, into_new=st.booleans())
    def restore(self, which, what, into_new):
        if not self.saved:
            return
        saved, rows = self.saved[what % len(self.saved)]
        if into_new:
            self.add(self.make(len(rows)), [Row() for _ in rows])
            which = len(self.caches) - 1
        which = self.pick(which)
        cache = self.caches[which]
        if any(row.tokens for row in self.rows[which]) or len(self.rows[which]) != len(rows):
            self.refused(InputError, lambda: cache.restore(saved))
            return
        cache.rollback()
        self.open[which] = False
        needed = [len({b for table in tables for b in table} - {0}) for tables in saved.tables]
        if not self.grows and any(n > p.num_free for n, p in zip(needed, self.memory.pools, strict=True)):
            self.refused(PoolExhausted, lambda: cache.restore(saved))
            return
        cache.restore(saved)
        self.rows[which] = [row.copy() for row in rows]
