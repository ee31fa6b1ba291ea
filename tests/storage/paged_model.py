"""What a paged memory is measured against: the text of every row, and dictionaries of what findable blocks hold.

The numbers that a token leaves depend on all tokens up to it and on the row's extra keys, as in a real model. So two
rows may share a block exactly if they should, and a block that holds anything else is noticed.
"""

import functools
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import torch

from kvcourse.attention.families import layout_of


@dataclass
class Row:
    """tokens: of the row. keys: its extra keys. peak: the most tokens that it ever had, for windows forget."""

    tokens: list = field(default_factory=list)
    keys: tuple = ()
    peak: int = 0

    def copy(self):
        return Row(list(self.tokens), self.keys, self.peak)


class Numbers:
    """The entries that tokens leave, made of nothing but the text. Quarters from −2 to 2 have no rounding."""

    def __init__(self, config):
        self.fields, self.size = {}, 0  # (layer, name): (first, last, heads, dim)
        for layer, own in enumerate(layout_of(config)):
            for one in own.fields:
                *heads, dim = one.shape
                heads = heads[0] if heads else 1
                self.fields[layer, one.name] = (self.size, self.size + heads * dim, heads, dim)
                self.size += heads * dim

    @functools.lru_cache(maxsize=1 << 16)  # noqa: B019 (the machines of a test share one object)
    def entry(self, prefix, keys):
        """All fields of all layers of the last token of a prefix, one after the other."""
        salt = [b for kind, value in keys for b in (*kind.encode(), 256, *value, 257)]
        return np.random.default_rng([*prefix, 1000, *salt]).integers(-8, 9, self.size) / 4

    @functools.lru_cache(maxsize=1 << 14)  # noqa: B019
    def entries(self, tokens, keys):
        """(tokens, all fields of all layers) of a text."""
        return torch.from_numpy(
            np.array([self.entry(tokens[: p + 1], keys) for p in range(len(tokens))]).reshape(-1, self.size)
        )

    def shape(self, layer, name, length):
        """Of a field of so many tokens."""
        return self.fields[layer, name][2], length, self.fields[layer, name][3]

    def of(self, row, layer, name):
        """A field of all tokens of a row: (heads, tokens, dim)."""
        first, last, heads, dim = self.fields[layer, name]
        entries = self.entries(tuple(row.tokens), row.keys)[:, first:last]
        return entries.unflatten(1, (heads, dim)).transpose(0, 1)


def first_visible(n, window):
    """The first position that a query at position n sees."""
    return 0 if window is None else max(0, n - window + 1)


def first_kept(n, window, block_size):
    """The first block of n stored tokens that is kept: one block's worth of crop needs no more."""
    block = 0
    while window is not None and (block + 1) * block_size <= n - window + 1 - block_size:
        block += 1
    return block


def attend(q, k, v, window):
    """Causal attention of the last queries, in float64. q: (heads, new tokens, dim); k, v: of all tokens."""
    group, out = q.shape[0] // k.shape[0], torch.empty(*q.shape[:2], v.shape[2], dtype=torch.float64)
    for i in range(q.shape[1]):
        last = k.shape[1] - q.shape[1] + i
        seen = slice(first_visible(last, window), last + 1)
        for head in range(q.shape[0]):
            weights = torch.softmax(k[head // group, seen] @ q[head, i] / q.shape[2] ** 0.5, 0)
            out[head, i] = weights @ v[head // group, seen]
    return out


class Findable:
    """What each labelled block of a group holds: the prefix that it ends, and the keys."""

    def __init__(self, group, block_size):
        self.group, self.size, self.known = group, block_size, {}

    def forget(self):
        """Drop what the pool has given out again since."""
        self.known = {b: text for b, text in self.known.items() if self.group.pool.is_labelled(b)}

    def enter(self, table, row):
        """Note the full blocks of a row; the first block of a prefix keeps its name."""
        for i in range(len(row.tokens) // self.size):
            text = tuple(row.tokens[: (i + 1) * self.size]), row.keys
            if table[i] and table[i] not in self.known and text not in self.known.values():
                self.known[table[i]] = text

    def has(self, tokens, keys, first, last):
        """Whether the blocks first … last − 1 of a text are known."""
        texts = set(self.known.values())
        return all((tuple(tokens[: (i + 1) * self.size]), keys) in texts for i in range(first, last))


def longest_hit(groups, tokens, keys, token_granular):
    """Tokens of a prompt that are stored, by trying every number of blocks, and then every block for the next one."""
    size, most = groups[0].size, len(tokens) - 1
    for full in range(most // size, -1, -1):
        end = full * size
        if all(g.has(tokens, keys, first_kept(end, g.group.window, size), full) for g in groups):
            break
    part = 0
    if token_granular:
        for known, own in groups[0].known.values():
            if own == keys and len(known) == end + size and known[:end] == tuple(tokens[:end]):
                same = 0
                while end + same < most and same < size and known[end + same] == tokens[end + same]:
                    same += 1
                part = max(part, same)
    return end + part


def snapshot(memory, caches):
    """All that a refused call must leave as it is, but for the numbers in the pages."""
    return (
        [
            (
                pool.num_blocks,
                pool.free_order(),
                [(pool.references(b), pool.is_labelled(b)) for b in range(pool.num_blocks)],
            )
            for pool in memory.pools
        ],
        [
            (
                cache.seen,
                [(t.num_stored, list(t.blocks)) for rows in cache._storage.rows for t in rows.tables],
            )
            for cache in caches
        ],
    )


def check_conservation(memory, caches):
    """Every block is the null block, free, or held exactly as often as tables name it."""
    for n, group in enumerate(memory.groups):
        named = Counter(
            b for cache in caches for table in cache._storage.rows[n].tables for b in table.blocks if b
        )
        pool = group.pool
        assert all(pool.references(b) == named[b] for b in range(pool.num_blocks))
        assert len(named) + pool.num_free + 1 == pool.num_blocks


def check_contents(memory, numbers, caches, rows_of, findable):
    """Visible tokens of every row, and all tokens of every findable block, lie where they should, bit by bit."""
    for n, group in enumerate(memory.groups):
        size, slots, entries = memory.block_size, [], []
        for cache, rows in zip(caches, rows_of, strict=True):
            for table, row in zip(cache._storage.rows[n].tables, rows, strict=True):
                first = first_visible(len(row.tokens), group.window)
                slots.append(table.slots(first, len(row.tokens) - first))
                entries.append(numbers.entries(tuple(row.tokens), row.keys)[first:])
        for block, text in findable[n].known.items():
            slots.append(np.arange(block * size, (block + 1) * size))
            entries.append(numbers.entries(*text)[-size:])
        slots, entries = torch.from_numpy(np.concatenate(slots)), torch.cat(entries)
        for layer, pages in group.pages.items():
            for name, page in pages.items():
                first, last, heads, dim = numbers.fields[layer, name]
                stored = page.values[slots // size, :, slots % size]
                assert torch.equal(stored, entries[:, first:last].unflatten(1, (heads, dim)))
