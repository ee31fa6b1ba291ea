"""Prefix indexes behind one face, so that a case holds for each of them."""

from kvcourse.storage.block_pool import BlockPool, blocks_for
from kvcourse.storage.prefix_index import PrefixIndex


class HashIndex:
    """A prefix index as the cases see it: prompts are stored and looked for, each through a table of its own."""

    def __init__(self, num_blocks=32, block_size=4, **options):
        self.pool = BlockPool(num_blocks, block_size)
        self.index = PrefixIndex(self.pool, **options)

    def store(self, tokens, extra_keys=()):
        """Compute and keep a prompt, then end it; returns its table."""
        table = self.pool.allocate(blocks_for(len(tokens), self.pool.block_size))
        self.index.insert(tokens, table, extra_keys)
        self.pool.free(table)
        self.check()
        return table

    def found(self, tokens, extra_keys=()):
        """How many of the tokens need not be computed."""
        return self.index.match(tokens, extra_keys).num_tokens

    def check(self):
        self.pool.check()
        self.index.check()
