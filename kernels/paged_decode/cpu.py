"""Decode attention over pages on the CPU in float32: numba and explicit vectors, each kv head read once.

The tokens that each (row, kv head) sees are cut into chunks of CHUNK, the tasks that threads take one by one. A task
looks up where BLOCK tokens lie, scores them, adds their values to a running softmax, and so on; what it leaves is a
partial, and whoever finishes the last chunk of a pair merges its partials in order. Chunks depend on nothing but how
many tokens a row sees, so its result does not depend on its batch mates, on the threads, or on which blocks of which
size hold its tokens.

The processor foresees reads that go on to the next address, but not that a block ends and where the next one lies. So
while keys are scored, their values are asked for, and while values are added, the keys of the next tokens. Computing
takes a third of the time that reading takes: keys stored transposed, which would save the sums across lanes, gain
nothing.
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
from ..softmax import BLOCK, clear_partial, merge_lse, merge_partials, weigh
from ..threads import run_workers
from ..vectors import LANES, fetch_add, floats_at, integers_at, pad
from . import tiles as own_tiles
from .tiles import add_values, score_tile

CHUNK = 512  # tokens of a task
REGISTERS = 24 if LANES == 16 else 10  # vectors of sums that stay in registers
# The job that threads share is a list of int64: numbers and addresses, three tensors (address, then strides in bytes
# of rows, heads and dims of queries, or of blocks, heads and slots of pages), then per row lengths, first tokens seen
# and first tasks, then finished chunks a pair.
NEXT, THREADS, BATCH, NUM_KV_HEADS, BLOCK_SIZE, SCALE, CAP, OUT, LSE, PARTIALS, SCRATCH = range(11)
TABLE, TABLE_ROW, Q, K, V, ROWS = 11, 12, 13, 17, 21, 25


def attend_cpu(q, k_pages, v_pages, block_table, seq_lens, scale, window=None, soft_cap=None):
    """The operation of `attend_reference` (same arguments) for float32 on the CPU.

    Fastest where the last dimension of the pages is contiguous; other strides cost a copy of all of them.
    Returns out (batch, num_heads, v_head_dim) and lse (batch, num_heads), both float32.
    """
    batch, num_heads, head_dim = q.shape
    _, num_kv_heads, block_size, v_head_dim = v_pages.shape
    group = num_heads // num_kv_heads
    k_pages = k_pages if k_pages.stride(3) == 1 else k_pages.contiguous()
    v_pages = v_pages if v_pages.stride(3) == 1 else v_pages.contiguous()
    lengths = seq_lens.tolist()
    seen = lengths if window is None else [min(length, window) for length in lengths]
    firsts = [length - count for length, count in zip(lengths, seen, strict=True)]
    tasks = [0, *itertools.accumulate(max(1, -(-count // CHUNK)) * num_kv_heads for count in seen)]
    num_tasks = tasks[-1]
    num_threads = max(1, min(torch.get_num_threads(), num_tasks))
    partial, scratch = sizes(group, head_dim, v_head_dim)
    # Type and device are said: the worker writes floats to these addresses, whatever torch's defaults are.
    floats = {"dtype": torch.float32, "device": "cpu"}
    out, lse = torch.empty(batch, num_heads, v_head_dim, **floats), torch.empty(batch, num_heads, **floats)
    memory = torch.empty(num_tasks * partial + num_threads * scratch, **floats)
    table = block_table[:, : -(-max(lengths, default=0) // block_size)].to(torch.int64).contiguous()
    job = [0, 0, batch, num_kv_heads, block_size]
    job += struct.unpack("qq", struct.pack("dd", scale / math.log(2), (soft_cap or 0) / math.log(2)))
    job += [out.data_ptr(), lse.data_ptr(), memory.data_ptr(), memory.data_ptr() + 4 * num_tasks * partial]
    job += [table.data_ptr(), 8 * table.shape[1]]
    for tensor in (q, k_pages, v_pages):
        job += [tensor.data_ptr(), *(4 * stride for stride in tensor.stride()[:3])]
    job = array("q", job + lengths + firsts + tasks + [0] * (batch * num_kv_heads))
    worker = build_worker(group, head_dim, v_head_dim, soft_cap is not None)
    run_workers(worker.ctypes, job.buffer_info()[0], num_threads)
    return out, lse


def sizes(group, head_dim, v_head_dim):
    """Floats of a partial, and of a thread's scratch: addresses of keys and values, queries, scores."""
    return group * (pad(v_head_dim) + 2), 4 * BLOCK + group * (pad(head_dim) + BLOCK)


@functools.cache
def build_worker(group, head_dim, v_head_dim, capped):
    """Compiles the worker for one shape, about a second; later processes read it from numba's cache on disk.

    group: query heads per kv head. head_dim: floats of a query and a key. v_head_dim: floats of a value.
    capped: whether there is a soft cap.
    Returns a numba cfunc, `void (int64)`, that takes the address of a job and works until no task of it is left.
    """
    passes = -(-group * len(vectors.chunks(max(head_dim, v_head_dim))) // REGISTERS)
    some = -(-group // passes)  # query heads of a pass
    full, rest = divmod(group, some)
    q_pad, v_pad = pad(head_dim), pad(v_head_dim)
    partial, scratch = sizes(group, head_dim, v_head_dim)
    query_pass, score_pass, sum_pass = 4 * some * q_pad, 4 * some * BLOCK, 4 * some * v_pad  # bytes
    # Numba's cache on disk looks at the code and constants of this function only. This constant stands for the
    # functions it calls, and for the name under which this module was imported, which the cached code refers to.
    files = [module.__file__ for module in (polynomials, vectors, tiles, softmax, own_tiles)]
    sources = b"".join(Path(file).read_bytes() for file in (*files, __file__))
    stamp = zlib.crc32(sources + __name__.encode())

    def work(job_at):
        job = carray(integers_at(job_at), ROWS + 0 * stamp)
        batch, num_kv_heads = job[BATCH], job[NUM_KV_HEADS]
        cap = np.float32(np.int64(job[CAP]).view(np.float64))
        rows = carray(integers_at(job_at + 8 * ROWS), 3 * batch + 1)
        finished_at = job_at + 8 * (ROWS + 3 * batch + 1)
        keys_at = job[SCRATCH] + 4 * fetch_add(job_at + 8 * THREADS) * scratch
        values_at = keys_at + 8 * BLOCK
        query_at = values_at + 8 * BLOCK
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
            partial_at = job[PARTIALS] + 4 * task * partial
            clear_partial(partial_at, group, v_pad)
            begin = rows[batch + row] + chunk * CHUNK
            end = min(begin + CHUNK, rows[row])
            if begin < end:
                find_tokens(job, K, row, head, begin, min(BLOCK, end - begin), keys_at)
            for first in range(begin, end, BLOCK):
                count = min(BLOCK, end - first)
                find_tokens(job, V, row, head, first, count, values_at)
                for token in range(0, BLOCK, LANES):
                    for g in range(full):
                        score_tile(
                            keys_at + 8 * token, values_at + 8 * token, count - token,
                            query_at + g * query_pass, cap, scores_at + 4 * token + g * score_pass, BLOCK,
                            some, head_dim, v_head_dim, capped,
                        )  # fmt: skip
                    if rest:
                        score_tile(
                            keys_at + 8 * token, values_at + 8 * token, count - token,
                            query_at + full * query_pass, cap, scores_at + 4 * token + full * score_pass, BLOCK,
                            rest, head_dim, v_head_dim, capped,
                        )  # fmt: skip
                weigh(scores_at, partial_at, group, v_pad)
                if first + BLOCK < end:
                    find_tokens(job, K, row, head, first + BLOCK, min(BLOCK, end - first - BLOCK), keys_at)
                for g in range(full):
                    add_values(
                        values_at, keys_at, count, scores_at + g * score_pass, BLOCK,
                        partial_at + g * sum_pass, v_pad, some, v_head_dim, head_dim,
                    )  # fmt: skip
                if rest:
                    add_values(
                        values_at, keys_at, count, scores_at + full * score_pass, BLOCK,
                        partial_at + full * sum_pass, v_pad, rest, v_head_dim, head_dim,
                    )  # fmt: skip
            pair = row * num_kv_heads + head
            if fetch_add(finished_at + 8 * pair) == num_chunks - 1:
                first_at = partial_at - 4 * chunk * partial
                merge_partials(
                    first_at, num_chunks, job[OUT] + 4 * pair * group * v_head_dim, group, v_head_dim, v_pad
                )
                merge_lse(first_at, num_chunks, job[LSE] + 4 * pair * group, group, v_pad)

    signature = types.void(types.int64)
    try:
        return cfunc(signature, cache=True)(work)
    except RuntimeError:  # no folder that numba may write its cache to
        return cfunc(signature)(work)


@njit(nogil=True)
def copy_query(job, row, head, query_at, group, head_dim, q_pad):
    """Writes the queries of one kv head side by side, padded with zeros, times scale / log(2): exp becomes exp2."""
    scale = np.int64(job[SCALE]).view(np.float64)
    query = carray(floats_at(query_at), group * q_pad)
    for i in range(group * q_pad):
        g, d = i // q_pad, i % q_pad
        at = job[Q] + row * job[Q + 1] + (head * group + g) * job[Q + 2] + d * job[Q + 3]
        query[i] = carray(floats_at(at), 1)[0] * scale if d < head_dim else 0.0


@njit(nogil=True)
def find_tokens(job, pages, row, head, first, count, tokens_at):
    """Writes where the keys or values (`pages`: K or V) of `count` tokens lie; the last one again to fill a block."""
    tokens = carray(integers_at(tokens_at), BLOCK)
    table = carray(integers_at(job[TABLE] + row * job[TABLE_ROW]), job[TABLE_ROW] // 8)
    block_size, step = job[BLOCK_SIZE], job[pages + 3]
    column, slot = divmod(first, block_size)
    head_at = job[pages] + head * job[pages + 2]
    token = 0
    while token < count:
        address = head_at + table[column] * job[pages + 1] + slot * step
        last = min(count, token + block_size - slot)
        while token < last:
            tokens[token] = address
            address += step
            token += 1
        column += 1
        slot = 0
    for token in range(count, BLOCK):
        tokens[token] = tokens[count - 1]
