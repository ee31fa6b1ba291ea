"""Which block already holds a given prefix: automatic prefix caching over the blocks of one pool.

A full block is entered under its name (see prefix_hash), which stands for its tokens and everything before them. A
new prompt takes the blocks of its longest known prefix and computes the rest. A block found by name is verified: its
own tokens and extra keys are compared, and what precedes it by digest, so that a weak hash function costs hits and
never gives wrong ones. At least one token is always left to compute, since logits come from computing.

An entry lives as long as its block's label: the pool tells when one is given out again.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from kvcourse.counts import one_line, read_count
from kvcourse.errors import InputError
from kvcourse.storage.block_pool import NULL_BLOCK, BlockPool
from kvcourse.storage.prefix_hash import (
    TOKEN_BYTES,
    BlockKey,
    Chain,
    HashFunction,
    block_hash,
    common_symbols,
    make_chain,
    make_root,
    pack_tokens,
    read_extra_keys,
    read_tag,
    symbols,
)


@dataclass(frozen=True)
class Hit:
    """What a prompt need not compute.

    blocks: full blocks, in order. num_tokens: tokens in all, those of `source` included.
    source: a block of which only the first `source_tokens` tokens (fewer than a block) are the prompt's own: to be
    copied before anything is written behind them. None without token granularity, or where nothing begins alike.
    """

    blocks: tuple[int, ...] = ()
    num_tokens: int = 0
    source: int | None = None
    source_tokens: int = 0


@dataclass(frozen=True)
class Entry:
    """What the index knows of one block: its name, the digest of all before it, and its contents."""

    name: Any
    parent: bytes
    digest: bytes
    tokens: bytes
    extras: tuple[BlockKey, ...]
    symbols: bytes  # empty without token granularity

    def holds(self, chain: Chain, i: int) -> bool:
        """Whether the contents are those of block i of a chain: compared, whatever the names say."""
        return (
            self.tokens == chain.tokens(i)
            and self.parent == chain.parent(i)
            and self.extras == chain.extras[i]
        )


class PrefixIndex:
    """Finds the blocks of a pool by what they hold.

    pool: its blocks; a pool has one index. seed: bytes that fix the root of all chains, which is random for None.
    hash_fn: names blocks instead of blake2b; called with (name before, packed tokens, encoded extra keys).
    token_granular: also find blocks of which only the first tokens fit.

    Where tokens are expected, a Chain that `chain` made of them does as well, and is not hashed again.
    queries, query_tokens, hit_tokens: calls of `match` and `acquire`, the tokens they asked for and those they found.
    collisions: blocks found by name that held something else.

    A refused call (InputError) changes nothing. For one thread.
    """

    def __init__(
        self,
        pool: BlockPool,
        seed: bytes | None = None,
        hash_fn: HashFunction | None = None,
        token_granular: bool = False,
    ) -> None:
        if not isinstance(pool, BlockPool):
            raise InputError(f"pool={one_line(pool)}: expected a BlockPool")
        if pool.on_reuse is not None:
            raise InputError("this pool has an index already; make a pool for each index")
        if hash_fn is not None and not callable(hash_fn):
            raise InputError(f"hash_fn={hash_fn!r}: expected a function of (parent, tokens, extras)")
        self.pool = pool
        self.token_granular = token_granular
        self.queries = self.query_tokens = self.hit_tokens = self.collisions = 0
        self._root = make_root(seed)
        self._hash_fn = hash_fn
        self._versions: dict[tuple[str, bytes], int] = {}
        self._blocks: dict[Any, int] = {}  # by name
        self._entries: dict[int, Entry] = {}  # by block
        self._children: dict[bytes, list[tuple[bytes, int]]] = {}  # by parent: (symbols, block), sorted
        pool.on_reuse = self._forget

    @property
    def num_indexed(self) -> int:
        """Blocks that can be found, held and cached."""
        return len(self._entries)

    def chain(self, tokens: Any, extra_keys: Iterable[Any] = ()) -> Chain:
        """The names of all full blocks of a sequence.

        tokens: whole numbers ≥ 0. extra_keys: (kind, value) pairs or ExtraKeys, in any order.
        """
        keys = read_extra_keys(extra_keys)
        versions = {key[:2]: self._versions.get(key[:2], 0) for key in keys}
        return make_chain(
            pack_tokens(tokens), keys, versions, self.pool.block_size, self._root, self._hash_fn
        )

    def find(self, chain: Chain, i: int) -> int | None:
        """The block, held or cached, that holds block i of the chain; the blocks before it need not be there."""
        i = read_count("find: i", i, least=0, most=len(self._read_chain(chain)) - 1)
        return self._find(chain, i) if self._is_current(chain) else None

    def match(self, tokens: Any, extra_keys: Iterable[Any] = ()) -> Hit:
        """The longest known prefix of these tokens, at most all but one. Takes no reference."""
        chain = self._read_chain(tokens, extra_keys)
        most = max(chain.num_tokens - 1, 0)
        blocks: list[int] = []
        source, source_tokens = None, 0
        if self._is_current(chain):
            for i in range(most // chain.block_size):
                block = self._find(chain, i)
                if block is None:
                    break
                blocks.append(block)
            if self.token_granular:
                left = most - len(blocks) * chain.block_size
                source, source_tokens = self._find_part(chain, len(blocks), left)
        hit = Hit(tuple(blocks), len(blocks) * chain.block_size + source_tokens, source, source_tokens)
        self.queries += 1
        self.query_tokens += chain.num_tokens
        self.hit_tokens += hit.num_tokens
        return hit

    def acquire(self, tokens: Any, extra_keys: Iterable[Any] = ()) -> Hit:
        """As `match`, with one reference on each of `hit.blocks` and on `hit.source`, to be freed by the caller."""
        hit = self.match(tokens, extra_keys)
        self.pool.touch(hit.blocks if hit.source is None else (*hit.blocks, hit.source))
        return hit

    def insert(self, tokens: Any, blocks: Iterable[int], extra_keys: Iterable[Any] = ()) -> int:
        """Make the full blocks of a table findable, and label them. Returns how many are new.

        blocks: the table of these tokens. Null entries are skipped, and so are blocks whose contents are known of
        another block (the first one keeps the name) and blocks that have a name.
        A chain made before a `bump_version` of one of its keys enters nothing: its blocks hold outdated numbers.

        Errors: InputError for a table too short, a block that nobody holds, a block known with other tokens.
        """
        chain = self._read_chain(tokens, extra_keys)
        table = self._read_table(chain, blocks)
        if not self._is_current(chain):
            return 0
        num_new = 0
        for i, block in enumerate(table):
            if block != NULL_BLOCK and block not in self._entries and chain[i] not in self._blocks:
                self._enter(chain, i, block)
                num_new += 1
        return num_new

    def bump_version(self, kind: str, value: bytes) -> None:
        """Nothing that was computed with this extra key will be found any more: an adapter was loaded anew, say.

        The blocks keep their labels until the pool gives them out again, so nothing is lost of it.
        """
        tag = read_tag(kind, value)
        self._versions[tag] = self._versions.get(tag, 0) + 1

    def clear(self) -> None:
        """Forget everything: all labels are taken off, and cached blocks become clean. The counters stay."""
        for block in list(self._entries):
            self.pool.unlabel(block)

    def check(self) -> None:
        """Prove that index and pool fit together. Raises AssertionError with the invariant that is broken."""
        self.pool.check()
        assert len(self._entries) == self.pool.num_labelled, "a block is known exactly if it has a label"
        assert len(self._blocks) == len(self._entries), "one name for each block"
        width = self.pool.block_size * TOKEN_BYTES
        for block, entry in self._entries.items():
            assert self.pool.is_labelled(block), f"block {block} is known and has a label"
            assert self._blocks[entry.name] == block, f"block {block} is found by its name"
            assert len(entry.tokens) == width, f"block {block} is full"
            encoded = b"".join(key.encode() for key in entry.extras)
            assert block_hash(entry.parent, entry.tokens, encoded) == entry.digest, f"digest of block {block}"
            assert self._hash_fn is not None or entry.name == entry.digest, f"name of block {block}"
        children = [(entry.parent, entry.symbols, block) for block, entry in self._entries.items()]
        listed = [(parent, *child) for parent, under in self._children.items() for child in under]
        assert sorted(children if self.token_granular else []) == sorted(listed), "children of every parent"
        assert all(under == sorted(under) and under for under in self._children.values()), "children in order"

    def _find(self, chain: Chain, i: int) -> int | None:
        block = self._blocks.get(chain[i])
        if block is None or self._entries[block].holds(chain, i):
            return block
        self.collisions += 1
        return None

    def _find_part(self, chain: Chain, i: int, most: int) -> tuple[int | None, int]:
        """The child of the first i blocks with the longest common prefix, up to `most` tokens: (block, tokens)."""
        children = self._children.get(chain.parent(i), [])
        if not children or most < 1:
            return None, 0
        wanted = symbols(chain.tokens(i), chain.extras[i])
        # Of sorted strings, one of the two next to the wanted one has the longest common prefix with it.
        place = bisect_left(children, (wanted,))
        near = children[max(place - 1, 0) : place + 1]
        common, block = max((common_symbols(wanted, found), block) for found, block in near)
        common = min(
            common, most
        )  # and less than a block: one that has all of it would have been found by name
        return (block, common) if common else (None, 0)

    def _enter(self, chain: Chain, i: int, block: int) -> None:
        tokens, extras = chain.tokens(i), chain.extras[i]
        spelled = symbols(tokens, extras) if self.token_granular else b""
        entry = Entry(chain[i], chain.parent(i), chain.digests[i], tokens, extras, spelled)
        self.pool.label(block)
        self._entries[block] = entry
        self._blocks[entry.name] = block
        if self.token_granular:
            insort(self._children.setdefault(entry.parent, []), (spelled, block))

    def _forget(self, block: int) -> None:
        """What the pool calls when a block loses its label."""
        entry = self._entries.pop(block, None)
        if entry is None:  # someone else's label
            return
        del self._blocks[entry.name]
        if self.token_granular:
            children = self._children[entry.parent]
            del children[bisect_left(children, (entry.symbols, block))]
            if not children:
                del self._children[entry.parent]

    def _is_current(self, chain: Chain) -> bool:
        return all(self._versions.get(tag, 0) == version for tag, version in chain.versions.items())

    def _read_chain(self, tokens: Any, extra_keys: Iterable[Any] = ()) -> Chain:
        if not isinstance(tokens, Chain):
            return self.chain(tokens, extra_keys)
        if read_extra_keys(extra_keys):
            raise InputError(
                "extra_keys: this chain has its own; give tokens, or make a chain with these keys"
            )
        if tokens.block_size != self.pool.block_size:
            raise InputError(
                f"a chain of blocks of {tokens.block_size} tokens: this pool has blocks of {self.pool.block_size}"
            )
        return tokens

    def _read_table(self, chain: Chain, blocks: Iterable[int]) -> list[int]:
        """The entries of a table for the full blocks of a chain, once they are seen to fit."""
        try:
            table = list(blocks)
        except TypeError:
            raise InputError(f"insert: blocks={one_line(blocks)}: expected a list of block numbers") from None
        if len(table) < len(chain):
            raise InputError(
                f"insert: a table of {len(table)} blocks for {chain.num_tokens} tokens, "
                f"which fill {len(chain)} blocks of {chain.block_size}"
            )
        full = table[: len(chain)]
        for i, block in enumerate(full):
            if not self.pool.references(block) and block != NULL_BLOCK:
                raise InputError(f"insert: block {block}: nobody holds it; insert a table before it is freed")
            known = self._entries.get(block)
            if known is not None and known.tokens != chain.tokens(i):
                raise InputError(
                    f"insert: block {block} is known with other tokens; a block with a label is not written"
                )
        held = [int(block) for block in full if block != NULL_BLOCK]
        if len(set(held)) != len(held):
            raise InputError("insert: the table names a block twice; each block holds tokens of one place")
        return [int(block) for block in full]
