"""Decode attention on the CPU in float32: numba and explicit vectors, each kv head read once.

The tokens of each (row, kv head) are cut into chunks of CHUNK, the tasks that threads take one by one. A task keeps a
running maximum, sum and weighted values (online softmax, "FlashAttention", arXiv 2205.14135) and leaves them as a
partial; whoever finishes the last chunk of a pair merges its partials in order ("Flash-Decoding", PyTorch blog 2023).
Chunks depend on nothing but the row's length, so a row's result does not depend on its batch mates or on the threads.
"""

import functools
import itertools
import math
import struct
import zlib
from array import array
from pathlib import Path

import numpy as np
import torch
from numba import carray, cfunc, njit, types

from .. import polynomials, softmax, tiles, vectors
from ..softmax import BLOCK, clear_partial, merge_partials, weigh
from ..threads import run_workers
from ..vectors import LANES, fetch_add, floats_at, integers_at, pad
from . import tiles as own_tiles
from .tiles import add_values, score_tile

CHUNK = 512  # tokens of a task
REGISTERS = 24 if LANES == 16 else 10  # vectors of sums that stay in registers
# The job that threads share is a list of int64: numbers, three tensors (address, then strides in bytes of rows,
# heads, and query dims or cached tokens), then per row lengths, starts and first tasks, then finished chunks a pair.
NEXT, THREADS, BATCH, NUM_KV_HEADS, CAPACITY, SCALE, OUT, PARTIALS, SCRATCH = range(9)
Q, K, V, ROWS = 9, 13, 17, 21


def attend_cpu(q, k, v, lengths, starts, scale):
    """The operation of `attend_reference` (same arguments) for float32 on the CPU.

    Fastest where the last dimension of k and v is contiguous; other strides cost a copy.
    Returns (batch, num_heads, v_head_dim) float32.
    """
    batch, num_heads, head_dim = q.shape
    _, num_kv_heads, capacity, v_head_dim = v.shape
    group = num_heads // num_kv_heads
    k = k if k.stride(3) == 1 else k.contiguous()
    v = v if v.stride(3) == 1 else v.contiguous()
    lengths = lengths.tolist()
    starts = [0] * batch if starts is None else [start % max(1, capacity) for start in starts.tolist()]
    firsts = [0, *itertools.accumulate(max(1, -(-length // CHUNK)) * num_kv_heads for length in lengths)]
    num_tasks = firsts[-1]
    num_threads = max(1, min(torch.get_num_threads(), num_tasks))
    partial = group * (pad(v_head_dim) + 2)
    scratch = group * (pad(head_dim) + BLOCK)
    # Type and device are said: the worker writes floats to these addresses, whatever torch's defaults are.
    out = torch.empty(batch, num_heads, v_head_dim, dtype=torch.float32, device="cpu")
    memory = torch.empty(num_tasks * partial + num_threads * scratch, dtype=torch.float32, device="cpu")
    partials = memory.data_ptr()
    job = [0, 0, batch, num_kv_heads, capacity, *struct.unpack("q", struct.pack("d", scale))]
    job += [out.data_ptr(), partials, partials + 4 * num_tasks * partial]
    for tensor in (q, k, v):
        job += [tensor.data_ptr(), *(4 * stride for stride in tensor.stride()[:3])]
    job = array("q", job + lengths + starts + firsts + [0] * (batch * num_kv_heads))
    run_workers(build_worker(group, head_dim, v_head_dim).ctypes, job.buffer_info()[0], num_threads)
    return out


@functools.cache
def build_worker(group, head_dim, v_head_dim):
    """Compiles the worker for one shape, about a second; later processes read it from numba's cache on disk.

    group: query heads per kv head. head_dim: floats of a query and a key. v_head_dim: floats of a value.
    Returns a numba cfunc, `void (int64)`, that takes the address of a job and works until no task of it is left.
    """
    passes = -(-group * len(vectors.chunks(max(head_dim, v_head_dim))) // REGISTERS)
    some = -(-group // passes)  # query heads of a pass
    full, rest = divmod(group, some)
    q_pad, v_pad = pad(head_dim), pad(v_head_dim)
    query_pass, score_pass, sum_pass = 4 * some * q_pad, 4 * some * BLOCK, 4 * some * v_pad  # bytes
    # Numba's cache on disk looks at the code and constants of this function only. This constant stands for the
    # functions it calls, and for the name under which this module was imported, which the cached code refers to.
    files = [module.__file__ for module in (polynomials, vectors, tiles, softmax, own_tiles)]
    sources = b"".join(Path(file).read_bytes() for file in (*files, __file__))
    stamp = zlib.crc32(sources + __name__.encode())

    def work(job_at):
        job = carray(integers_at(job_at), ROWS + 0 * stamp)
        batch, num_kv_heads, capacity = job[BATCH], job[NUM_KV_HEADS], job[CAPACITY]
        rows = carray(integers_at(job_at + 8 * ROWS), 3 * batch + 1)
        finished_at = job_at + 8 * (ROWS + 3 * batch + 1)
        query_at = job[SCRATCH] + 4 * fetch_add(job_at + 8 * THREADS) * group * (q_pad + BLOCK)
        scores_at = query_at + 4 * group * q_pad
        row = 0
        while True:
            task = fetch_add(job_at + 8 * NEXT)
            while row < batch and task >= rows[2 * batch + row + 1]:
                row += 1
            if row == batch:
                return
            num_chunks = (rows[2 * batch + row + 1] - rows[2 * batch + row]) // num_kv_heads
            head, chunk = divmod(task - rows[2 * batch + row], num_chunks)
            copy_query(job, row, head, query_at, group, head_dim, q_pad)
            keys_at = job[K] + row * job[K + 1] + head * job[K + 2]
            values_at = job[V] + row * job[V + 1] + head * job[V + 2]
            key_bytes, value_bytes = job[K + 3], job[V + 3]
            sums_at = job[PARTIALS] + 4 * task * group * (v_pad + 2)
            clear_partial(sums_at, group, v_pad)
            left = min(CHUNK, rows[row] - chunk * CHUNK)
            slot = (rows[batch + row] + chunk * CHUNK) % max(1, capacity)
            while left > 0:
                count = min(BLOCK, left, capacity - slot)  # a block ends where the ring does
                for token in range(0, BLOCK, LANES):
                    tile_at = keys_at + (slot + min(token, count - 1)) * key_bytes
                    for g in range(full):
                        score_tile(
                            tile_at, key_bytes, count - token, query_at + g * query_pass,
                            scores_at + 4 * token + g * score_pass, BLOCK, some, head_dim,
                        )  # fmt: skip
                    if rest:
                        score_tile(
                            tile_at, key_bytes, count - token, query_at + full * query_pass,
                            scores_at + 4 * token + full * score_pass, BLOCK, rest, head_dim,
                        )  # fmt: skip
                weigh(scores_at, sums_at, group, v_pad)
                block_at = values_at + slot * value_bytes
                for g in range(full):
                    add_values(
                        block_at, value_bytes, count, scores_at + g * score_pass, BLOCK,
                        sums_at + g * sum_pass, v_pad, some, v_head_dim,
                    )  # fmt: skip
                if rest:
                    add_values(
                        block_at, value_bytes, count, scores_at + full * score_pass, BLOCK,
                        sums_at + full * sum_pass, v_pad, rest, v_head_dim,
                    )  # fmt: skip
                left -= count
                slot = (slot + count) % capacity
            pair = row * num_kv_heads + head
            if fetch_add(finished_at + 8 * pair) == num_chunks - 1:
                first_at = sums_at - 4 * chunk * group * (v_pad + 2)
                merge_partials(
                    first_at, num_chunks, job[OUT] + 4 * pair * group * v_head_dim, group, v_head_dim, v_pad
                )

    signature = types.void(types.int64)
    try:
        return cfunc(signature, cache=True)(work)
    except RuntimeError:  # no folder that numba may write its cache to
        return cfunc(signature)(work)


@njit(nogil=True)
def copy_query(job, row, head, query_at, group, head_dim, q_pad):
    """Writes the queries of one kv head side by side, padded with zeros, times scale / log(2): exp becomes exp2."""
    scale = np.int64(job[SCALE]).view(np.float64) / math.log(2)
    query = carray(floats_at(query_at), group * q_pad)
    for i in range(group * q_pad):
        g, d = i // q_pad, i % q_pad
        at = job[Q] + row * job[Q + 1] + (head * group + g) * job[Q + 2] + d * job[Q + 3]
        query[i] = carray(floats_at(at), 1)[0] * scale if d < head_dim else 0.0
