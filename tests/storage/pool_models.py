"""What the block pool is measured against: one list of free blocks, searched from end to end, and dictionaries."""

from kvcourse.storage.block_pool import BlockPool

NULL = 0


class ListPool:
    """vLLM's free list as an ordinary list: its head is given out first. Every operation may take O(num_blocks)."""

    def __init__(self, num_blocks):
        self.num_blocks = num_blocks
        self.queue = list(range(1, num_blocks))
        self.references = dict.fromkeys(range(num_blocks), 0)
        self.labels = set()
        self.reused = []  # blocks that have lost their label

    def allocate(self, n):
        taken, self.queue = self.queue[:n], self.queue[n:]
        for block in taken:
            self.references[block] = 1
            if block in self.labels:
                self.labels.remove(block)
                self.reused.append(block)
        return taken

    def free(self, table):
        released = []
        for block in reversed([block for block in table if block != NULL]):
            self.references[block] -= 1
            if self.references[block] == 0:
                released.append(block)
        clean = [block for block in released if block not in self.labels]
        cached = [block for block in released if block in self.labels]
        self.queue = clean + self.queue + cached

    def share(self, table):
        """Fork a table or touch blocks."""
        for block in table:
            if block != NULL:
                self.references[block] += 1
                if block in self.queue:
                    self.queue.remove(block)

    def unlabel(self, block):
        if block in self.labels and block in self.queue:
            self.queue.remove(block)
            self.queue.insert(0, block)
        if block in self.labels:
            self.labels.remove(block)
            self.reused.append(block)

    def grow(self, num_blocks):
        new = range(self.num_blocks, num_blocks)
        cached = [block for block in self.queue if block in self.labels]
        self.queue = [block for block in self.queue if block not in self.labels] + [*new, *cached]
        self.references.update(dict.fromkeys(new, 0))
        self.num_blocks = num_blocks


def state_of(pool: BlockPool):
    """All that can be seen of a pool."""
    blocks = range(pool.num_blocks)
    return (
        pool.num_blocks,
        pool.num_free,
        pool.num_cached,
        pool.num_labelled,
        pool.free_order(),
        [pool.references(block) for block in blocks],
        [pool.is_labelled(block) for block in blocks],
        [pool.is_writable(block) for block in blocks],
    )
