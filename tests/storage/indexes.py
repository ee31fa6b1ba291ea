"""Prefix indexes over small pools, and requests that fill them."""

from kvcourse.storage.block_pool import BlockPool
from kvcourse.storage.prefix_index import PrefixIndex

B = 4


def make(num_blocks=32, **options):
    return PrefixIndex(BlockPool(num_blocks, B), **options)


def stored(index, tokens, extra_keys=()):
    """A request that computed these tokens, made its blocks findable and still holds them: its table."""
    table = index.pool.allocate(-(-len(tokens) // B))
    index.insert(tokens, table, extra_keys)
    index.check()
    return table


def finished(index, tokens, extra_keys=()):
    """The same for a request that has ended."""
    table = stored(index, tokens, extra_keys)
    index.pool.free(table)
    index.check()
    return table


def evict_everything(index):
    everything = index.pool.allocate(index.pool.num_free)
    index.check()
    index.pool.free(everything)
    index.check()
