"""Random requests through a pool and its prefix index, against dictionaries of what every block holds.

The model knows nothing of hashes or chains. It notes for each block the whole prefix whose end the block holds, token
by token with all that the token's keys and values depend on, and finds prefixes by comparing.
"""

import itertools

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from kvcourse.errors import InputError, PoolExhausted
from kvcourse.storage.block_pool import BlockPool, blocks_for
from kvcourse.storage.prefix_hash import ExtraKey
from kvcourse.storage.prefix_index import PrefixIndex

MACHINE = settings(max_examples=50, stateful_step_count=50, deadline=None, derandomize=True, database=None)
PICK = st.integers(0, 1 << 20)
TOKENS = st.lists(st.integers(0, 1), max_size=13)  # so few different ones that prompts share their beginnings
TAGS = [("adapter", b"A"), ("salt", b"A"), ("image", b"1")]
KEYS = st.lists(
    st.one_of(
        st.sampled_from(TAGS[:2]),
        st.builds(
            lambda start, size: ExtraKey(*TAGS[2], start, start + size), st.integers(0, 8), st.integers(1, 6)
        ),
    ),
    max_size=2,
)
FEW_KEYS = st.one_of(st.just([]), st.just([]), KEYS)


class IndexMachine(RuleBasedStateMachine):
    """Requests of three kinds of index, which the subclasses name."""

    options = {}  # noqa: RUF012

    @initialize(num_blocks=st.integers(2, 16), block_size=st.integers(1, 4))
    def start(self, num_blocks, block_size):
        self.pool = BlockPool(num_blocks, block_size)
        self.index = PrefixIndex(self.pool, **self.options)
        self.size = block_size
        self.known = {}  # block: the prefix that it ends
        self.versions = dict.fromkeys(TAGS, 0)
        self.requests = []  # (table, prefix, tokens, keys)
        self.old_chains = []

    def spell(self, tokens, keys):
        """Every token with the versions and places of the items that concern it."""
        keys = [ExtraKey(*key) for key in keys]
        return tuple(
            (
                token,
                frozenset(
                    (*key[:2], self.versions[key[:2]], i - key.start)
                    for key in keys
                    if key.start <= i and (key.end is None or i < key.end)
                ),
            )
            for i, token in enumerate(tokens)
        )

    def blocks_of(self, prefix):
        return [block for block, known in self.known.items() if known == prefix]

    def expect(self, prefix):
        """(blocks, tokens of a part) that a lookup finds, by trying every length and every block."""
        most = max(len(prefix) - 1, 0)
        blocks = []
        for end in range(self.size, most + 1, self.size):
            found = self.blocks_of(prefix[:end])
            if not found:
                break
            blocks += found
        start = len(blocks) * self.size
        common = [0]
        for known in self.known.values():
            if len(known) == start + self.size and known[:start] == prefix[:start]:
                same = itertools.takewhile(
                    lambda pair: pair[0] == pair[1], zip(known, prefix[:most], strict=False)
                )
                common.append(len(list(same)) - start)
        return tuple(blocks), max(common) if self.index.token_granular else 0

    def check_hit(self, hit, prefix):
        blocks, part = self.expect(prefix)
        assert (hit.blocks, hit.source_tokens) == (blocks, part)
        self.check_sound(hit, prefix)

    def check_sound(self, hit, prefix):
        """Every block of a hit holds exactly what the prompt needs."""
        full = len(hit.blocks) * self.size
        assert hit.num_tokens == full + hit.source_tokens <= max(len(prefix) - 1, 0)
        for i, block in enumerate(hit.blocks):
            assert self.known[block] == prefix[: (i + 1) * self.size]
        assert (hit.source is None) == (hit.source_tokens == 0)
        if hit.source is not None:
            assert self.known[hit.source][: hit.num_tokens] == prefix[: hit.num_tokens]
            assert 0 < hit.source_tokens < self.size

    def allocate(self, n):
        """New blocks, whose old contents are gone; None when there are not enough."""
        if n > self.pool.num_free:
            with pytest.raises(PoolExhausted):
                self.pool.allocate(n)
            return None
        blocks = self.pool.allocate(n)
        for block in blocks:
            self.known.pop(block, None)
        return blocks

    def is_taken(self, content):
        """Whether a block has the name already that one with this content would have."""
        return bool(self.blocks_of(content))

    def enter(self, tokens, table, keys, prefix):
        """Insert a table, and note what the first block of each prefix holds."""
        new = 0
        for i in range(len(tokens) // self.size):
            content = prefix[: (i + 1) * self.size]
            if table[i] and table[i] not in self.known and not self.is_taken(content):
                self.known[table[i]] = content
                new += 1
        assert self.index.insert(tokens, table, keys) == new

    @rule(tokens=TOKENS, keys=FEW_KEYS)
    def look(self, tokens, keys):
        self.check_hit(self.index.match(tokens, keys), self.spell(tokens, keys))

    @rule(tokens=TOKENS, keys=FEW_KEYS)
    def serve(self, tokens, keys):
        """Take what is known, copy the source, compute the rest, make all of it findable."""
        prefix = self.spell(tokens, keys)
        hit = self.index.acquire(tokens, keys)
        self.check_hit(hit, prefix)
        held = [*hit.blocks, *([] if hit.source is None else [hit.source])]
        assert all(self.pool.references(block) >= 1 for block in held)
        new = self.allocate(blocks_for(len(tokens), self.size) - len(hit.blocks))
        if new is None:
            self.pool.free(held)
            return
        if hit.source is not None:
            assert hit.source in self.known  # not given out before the copy
            self.pool.free([hit.source])
        table = [*hit.blocks, *new]
        self.enter(tokens, table, keys, prefix)
        self.requests.append((table, prefix, tokens, keys))

    @rule(which=PICK)
    def finish(self, which):
        if self.requests:
            table, *_ = self.requests.pop(which % len(self.requests))
            self.pool.free(table)

    @rule(which=PICK, end=st.integers(0, 4))
    def move_a_window(self, which, end):
        """The first blocks are given back, and the rest of the table is entered again."""
        if self.requests:
            table, prefix, tokens, keys = self.requests[which % len(self.requests)]
            self.pool.free(table[:end])
            table[:end] = [0] * len(table[:end])
            if self.spell(tokens, keys) == prefix:  # no version has changed since
                self.enter(tokens, table, keys, prefix)

    @rule(which=PICK)
    def fork(self, which):
        if self.requests:
            table, *rest = self.requests[which % len(self.requests)]
            self.requests.append((self.pool.fork(table), *rest))

    @rule(n=st.integers(1, 6))
    def press(self, n):
        """A request that nobody repeats."""
        blocks = self.allocate(n)
        if blocks is not None:
            self.pool.free(blocks)

    @rule(tokens=TOKENS, keys=FEW_KEYS, i=st.integers(0, 4))
    def find(self, tokens, keys, i):
        chain, prefix = self.index.chain(tokens, keys), self.spell(tokens, keys)
        self.old_chains.append((chain, prefix, {key[:2]: self.versions[key[:2]] for key in keys}))
        if i < len(tokens) // self.size:
            found = self.index.find(chain, i)
            assert ([] if found is None else [found]) == self.blocks_of(prefix[: (i + 1) * self.size])
        else:
            with pytest.raises(InputError):
                self.index.find(chain, i)

    @rule(which=PICK)
    def look_with_a_chain_made_earlier(self, which):
        if self.old_chains:
            chain, prefix, versions = self.old_chains[which % len(self.old_chains)]
            hit = self.index.match(chain)
            if any(self.versions[tag] != version for tag, version in versions.items()):
                assert hit.num_tokens == 0
            else:
                self.check_hit(hit, prefix)

    @rule(tag=st.sampled_from(TAGS))
    def bump(self, tag):
        self.index.bump_version(*tag)
        self.versions[tag] += 1

    @rule(really=st.integers(0, 9))
    def clear(self, really):
        if really == 0:
            self.index.clear()
            self.known.clear()

    @rule()
    def grow(self):
        if self.pool.num_blocks < 30:
            self.pool.grow(self.pool.num_blocks + 1)

    @invariant()
    def everything_fits(self):
        if not hasattr(self, "index"):
            return
        self.index.check()
        blocks = range(self.pool.num_blocks)
        assert {block for block in blocks if self.pool.is_labelled(block)} == set(self.known)
        held = [block for table, *_ in self.requests for block in table if block]
        assert [held.count(block) for block in blocks] == [self.pool.references(block) for block in blocks]
        assert self.pool.num_free == len(blocks) - 1 - len(set(held))


class BlockMachine(IndexMachine):
    """Whole blocks."""


class TokenMachine(IndexMachine):
    """Parts of blocks too."""

    options = {"token_granular": True}  # noqa: RUF012


class CollisionMachine(IndexMachine):
    """A hash function so weak that blocks share names: fewer of them are entered, and none is taken for another."""

    options = {"token_granular": True, "hash_fn": lambda _, tokens, extras: tokens[0]}  # noqa: RUF012

    def is_taken(self, content):
        return any(known[-self.size][0] == content[-self.size][0] for known in self.known.values())


@pytest.mark.parametrize("machine", [BlockMachine, TokenMachine, CollisionMachine])
def test_hits_are_what_comparing_everything_finds(machine):
    run_state_machine_as_test(machine, settings=MACHINE)
