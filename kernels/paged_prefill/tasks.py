"""How the CPU kernel cuts its work: the lanes of a row and kv head into tiles, their tokens into chunks."""

import numpy as np
import torch

CHUNK = 512  # tokens of a chunk
MOST_PARTS = (
    1 << 14
)  # chunks whose results are kept until the last of their tile is done: 400 MB of 128-wide values


def plan_tasks(seq_lens, query_starts, group, num_kv_heads, window, width):
    """What there is to do, as int64 arrays, so that each thread has several tasks. width: lanes of a tile.

    Returns rows (batch, 3): first new token, new tokens, all tokens; tiles (…, 3): row, kv head, first lane; and
    tasks (…, 2): tile, and a chunk of it or -1 for all. The chunks of a tile are tasks next to each other.
    """
    starts, lengths = query_starts.numpy().astype(np.int64), seq_lens.numpy().astype(np.int64)
    counts = np.diff(starts)
    per_head = -(-counts * group // width)
    row, place = _repeat(per_head * num_kv_heads)
    head, place = np.divmod(place, per_head[row])
    # The tiles at the end of a row see the most tokens: they go first, so that no thread is left with one alone.
    lane = (per_head[row] - 1 - place) * width
    rows, tiles = np.stack([starts[:-1], counts, lengths], axis=1), np.stack([row, head, lane], axis=1)
    before = (lengths - counts)[row]
    last = before + (np.minimum(lane + width, counts[row] * group) - 1) // group  # position of the last lane
    first = 0 * last if window is None else np.maximum(0, before + lane // group - window + 1)
    num_chunks = last // CHUNK - first // CHUNK + 1
    enough = len(tiles) >= 4 * torch.get_num_threads() or num_chunks.max(initial=0) <= 1
    if enough or num_chunks.sum() > MOST_PARTS:
        return rows, tiles, np.stack([np.arange(len(tiles)), np.full(len(tiles), -1)], axis=1)
    tile, chunk = _repeat(num_chunks)
    return rows, tiles, np.stack([tile, first[tile] // CHUNK + chunk], axis=1)


def _repeat(counts):
    """(which count, place within it) of each thing, where there are counts[i] things of kind i."""
    which = np.repeat(np.arange(len(counts)), counts)
    return which, np.arange(len(which)) - (np.cumsum(counts) - counts)[which]
