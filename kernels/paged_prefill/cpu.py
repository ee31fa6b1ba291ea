"""Attention of new tokens over pages on the CPU in float32: numba and explicit vectors.

The query heads of a kv head, of all new tokens of a row, are the lanes of one long vector; it is cut into tiles of
MAX_WIDTH lanes. A tile meets the tokens that its lanes see BLOCK at a time, few enough to stay in the first-level
cache, and keeps a running maximum, sum and weighted values (online softmax, "FlashAttention", arXiv 2205.14135) for
each CHUNK of tokens; the chunks of a tile are merged in order ("Flash-Decoding", PyTorch blog 2023). Where there are
few tiles the chunks are shared among threads. Chunks and blocks begin at fixed positions of a row and lanes never
meet, so a query's result has the same bits whichever tokens come with it in a call: alone, in a chunk of any size, in
any batch, on any number of threads, and wherever the blocks lie.
"""

import functools
import math
import struct
import zlib
from array import array
from pathlib import Path

import numpy as np
import torch
from numba import carray, cfunc, njit, types

from .. import polynomials, vectors
from ..threads import run_workers
from ..vectors import LANES, fetch_add, floats_at, integers_at
from . import tasks, tiles
from .tasks import CHUNK, plan_tasks
from .tiles import (
    MAX_WIDTH,
    TOKENS,
    add_values,
    cap_scores,
    mask_scores,
    merge_state,
    prefetch,
    score_tokens,
    weigh,
)

BLOCK = 64  # tokens whose scores are kept before their values are added; whole chunks, whole tiles
# The job that threads share is a list of int64: numbers and addresses, then of each tensor an address and strides in
# bytes. Rows, tiles and tasks are lists of int64: see `plan_tasks`.
UNLIMITED = 1 << 30  # tokens of a window that no row fills
NEXT, THREADS, NUM_TASKS, BLOCK_SIZE, GROUP, NUM_HEADS, WINDOW, SCALE, CAP, OUT, LSE = range(11)
SCRATCH, PARTIALS, ROWS, TILES, TASKS, FINISHED, TABLE, TABLE_ROW, Q = range(11, 20)
K, V, FIELDS = 23, 28, 33


def attend_cpu(q, k_pages, v_pages, block_table, seq_lens, query_starts, scale, window=None, soft_cap=None):
    """The operation of `attend_reference` (same arguments) for float32 on the CPU; strides are free.

    Returns out (num_tokens, num_heads, v_head_dim) and lse (num_tokens, num_heads), both float32.
    """
    num_tokens, num_heads, head_dim = q.shape
    _, num_kv_heads, block_size, v_head_dim = v_pages.shape
    group = num_heads // num_kv_heads
    # Type and device are said: the worker writes floats to these addresses, whatever torch's defaults are.
    floats = {"dtype": torch.float32, "device": "cpu"}
    out = torch.empty(num_tokens, num_heads, v_head_dim, **floats)
    lse = torch.empty(num_tokens, num_heads, **floats)
    rows, parts, todo = plan_tasks(seq_lens, query_starts, group, num_kv_heads, window, MAX_WIDTH)
    if not len(todo):
        return out, lse
    num_threads = min(torch.get_num_threads(), len(todo))
    split = bool(todo[0, 1] >= 0)
    state, scratch = sizes(head_dim, v_head_dim)
    memory = torch.empty(num_threads * scratch + split * len(todo) * state, **floats)
    finished = np.zeros(len(parts), np.int64)
    table = block_table[:, : -(-int(rows[:, 2].max()) // block_size)].to(torch.int64).contiguous()
    job = [0, 0, len(todo), block_size, group, num_heads, min(window or UNLIMITED, UNLIMITED)]
    job += struct.unpack("qq", struct.pack("dd", scale / math.log(2), (soft_cap or 0) / math.log(2)))
    job += [out.data_ptr(), lse.data_ptr(), memory.data_ptr(), memory.data_ptr() + 4 * num_threads * scratch]
    job += [part.ctypes.data for part in (rows, parts, todo, finished)]
    job += [table.data_ptr(), 8 * table.shape[1]]
    for tensor in (q, k_pages, v_pages):
        job += [tensor.data_ptr(), *(4 * stride for stride in tensor.stride())]
    job = array("q", job)
    run_workers(build_worker(head_dim, v_head_dim).ctypes, job.buffer_info()[0], num_threads)
    return out, lse


def sizes(head_dim, v_head_dim):
    """Floats of a state, and of a thread's scratch: addresses, ends, queries, scores, factors, two states."""
    state = (v_head_dim + 2) * MAX_WIDTH
    return state, 8 * BLOCK + (head_dim + BLOCK + 3) * MAX_WIDTH + 2 * state


@functools.cache
def build_worker(head_dim, v_head_dim):
    """Compiles the worker for one shape, a few seconds; later processes read it from numba's cache on disk.

    head_dim: floats of a query and a key. v_head_dim: floats of a value.
    Returns a numba cfunc, `void (int64)`, that takes the address of a job and works until no task of it is left.
    """
    state, scratch = sizes(head_dim, v_head_dim)
    # Numba's cache on disk looks at the code and constants of this function only. This constant stands for the
    # functions it calls, and for the name under which this module was imported, which the cached code refers to.
    files = [*(module.__file__ for module in (vectors, polynomials, tasks, tiles)), __file__]
    sources = b"".join(Path(file).read_bytes() for file in files)
    stamp = zlib.crc32(sources + __name__.encode())
    one, two, three = LANES, min(2 * LANES, MAX_WIDTH), MAX_WIDTH

    def work(job_at):
        job = carray(integers_at(job_at), FIELDS + 0 * stamp)
        scratch_at = job[SCRATCH] + 4 * fetch_add(job_at + 8 * THREADS) * scratch
        while True:
            task = fetch_add(job_at + 8 * NEXT)
            if task >= job[NUM_TASKS]:
                return
            what = carray(integers_at(job[TASKS] + 16 * task), 2)
            tile, chunk = what[0], what[1]
            place = carray(integers_at(job[TILES] + 24 * tile), 3)
            row, head, lane = place[0], place[1], place[2]
            size = carray(integers_at(job[ROWS] + 24 * row), 3)
            start, count, length = size[0], size[1], size[2]
            lanes = min(MAX_WIDTH, count * job[GROUP] - lane)
            if lanes <= one:
                attend_tile(
                    job, scratch_at, task, tile, chunk, row, head, lane, lanes, start, count, length,
                    one, head_dim, v_head_dim, state,
                )  # fmt: skip
            elif lanes <= two:
                attend_tile(
                    job, scratch_at, task, tile, chunk, row, head, lane, lanes, start, count, length,
                    two, head_dim, v_head_dim, state,
                )  # fmt: skip
            else:
                attend_tile(
                    job, scratch_at, task, tile, chunk, row, head, lane, lanes, start, count, length,
                    three, head_dim, v_head_dim, state,
                )  # fmt: skip

    signature = types.void(types.int64)
    try:
        return cfunc(signature, cache=True)(work)
    except RuntimeError:  # no folder that numba may write its cache to
        return cfunc(signature)(work)


@njit(inline="always")
def attend_tile(
    job, scratch_at, task, tile, chunk, row, head, lane, lanes, start, count, length,
    width, head_dim, v_head_dim, state,
):  # fmt: skip
    """One task: the tile of `lanes` lanes from `lane` on over one chunk of its tokens, or over all of them."""
    keys_at = scratch_at
    values_at = keys_at + 8 * BLOCK
    next_at = values_at + 8 * BLOCK
    ends_at = next_at + 16 * BLOCK
    factors_at = ends_at + 8 * MAX_WIDTH
    query_at = factors_at + 4 * MAX_WIDTH
    scores_at = query_at + 4 * MAX_WIDTH * head_dim
    state_at = scores_at + 4 * MAX_WIDTH * BLOCK
    part_at = state_at + 4 * state if chunk < 0 else job[PARTIALS] + 4 * state * task
    key_lines, value_lines = (head_dim + 15) // 16, (v_head_dim + 15) // 16
    window, cap = job[WINDOW], np.int64(job[CAP]).view(np.float64)
    lowest = length - count + lane // job[GROUP]  # positions of the first and the last lane
    highest = length - count + (lane + lanes - 1) // job[GROUP]
    begin, end = max(0, lowest - window + 1), highest + 1
    first_chunk, num_chunks = begin // CHUNK, (end - 1) // CHUNK - begin // CHUNK + 1
    copy_queries(job, start, length - count, head, lane, lanes, query_at, ends_at, width, head_dim)
    if chunk < 0:
        clear_state(state_at, width, v_head_dim)
    else:
        begin, end = max(begin, chunk * CHUNK), min(end, (chunk + 1) * CHUNK)
    block_end = min(end, (begin // BLOCK + 1) * BLOCK)
    find_tokens(job, row, head, begin, block_end - begin, keys_at, values_at, key_lines, value_lines)
    while begin < end:
        clear_state(part_at, width, v_head_dim)
        chunk_end = min(end, (begin // CHUNK + 1) * CHUNK)
        while begin < chunk_end:
            tokens, next_end = block_end - begin, min(end, block_end + BLOCK)
            if block_end < end:
                find_tokens(
                    job, row, head, block_end, next_end - block_end, next_at, next_at + 8 * BLOCK,
                    key_lines, value_lines,
                )  # fmt: skip
            score_tokens(
                keys_at, (tokens + TOKENS - 1) // TOKENS, job[K + 4], query_at, scores_at, width, head_dim
            )
            if cap > 0:
                cap_scores(scores_at, tokens, np.float32(cap), width)
            if block_end > lowest + 1 or begin < highest - window + 1:
                mask_scores(scores_at, tokens, begin, ends_at, window, width)
            weigh(scores_at, tokens, part_at + 4 * width * v_head_dim, factors_at, width)
            add_values(values_at, tokens, job[V + 4], scores_at, factors_at, part_at, width, v_head_dim)
            begin, block_end = block_end, next_end
            keys_at, next_at = next_at, keys_at
            values_at = keys_at + 8 * BLOCK
        if chunk < 0:
            merge_state(state_at, part_at, width, v_head_dim)
    if chunk < 0:
        write_out(job, state_at, start, head, lane, lanes, width, v_head_dim)
    elif fetch_add(job[FINISHED] + 8 * tile) == num_chunks - 1:
        clear_state(state_at, width, v_head_dim)
        for i in range(num_chunks):
            merge_state(state_at, part_at + 4 * state * (first_chunk + i - chunk), width, v_head_dim)
        write_out(job, state_at, start, head, lane, lanes, width, v_head_dim)


@njit(nogil=True)
def copy_queries(job, start, before, head, lane, lanes, query_at, ends_at, width, head_dim):
    """Writes the queries of a tile side by side, (head_dim, width), and the end of what each sees.

    They are multiplied by scale / log(2), so that exp becomes exp2. Lanes without a query are zero and see as much as
    the last one.
    """
    scale = np.int64(job[SCALE]).view(np.float64)
    queries = carray(floats_at(query_at), head_dim * width)
    ends = carray(integers_at(ends_at), width)
    for i in range(width):
        token, g = divmod(lane + min(i, lanes - 1), job[GROUP])
        ends[i] = before + token + 1
        at = job[Q] + (start + token) * job[Q + 1] + (head * job[GROUP] + g) * job[Q + 2]
        for d in range(head_dim):
            number = carray(floats_at(at + d * job[Q + 3]), 1)[0]
            queries[d * width + i] = np.float32(number * scale) if i < lanes else np.float32(0)


@njit(nogil=True)
def find_tokens(job, row, head, first, count, keys_at, values_at, key_lines, value_lines):
    """Writes where the keys and values of `count` tokens lie, the last one again up to a whole tile; asks for them.

    key_lines, value_lines: how many times 64 bytes to ask for. The tiles touch a few numbers of many tokens at a
    time, an order that processors do not foresee.
    """
    keys, values = carray(integers_at(keys_at), BLOCK), carray(integers_at(values_at), BLOCK)
    block_size = job[BLOCK_SIZE]
    column, slot = divmod(first, block_size)
    token = 0
    while token < count:
        block = carray(integers_at(job[TABLE] + row * job[TABLE_ROW] + 8 * column), 1)[0]
        key = job[K] + block * job[K + 1] + head * job[K + 2] + slot * job[K + 3]
        value = job[V] + block * job[V + 1] + head * job[V + 2] + slot * job[V + 3]
        for _ in range(min(count - token, block_size - slot)):
            keys[token], values[token] = key, value
            prefetch(key, key_lines)
            prefetch(value, value_lines)
            key += job[K + 3]
            value += job[V + 3]
            token += 1
        column += 1
        slot = 0
    while token % TOKENS:
        keys[token] = keys[count - 1]
        token += 1


@njit(nogil=True)
def clear_state(state_at, width, v_head_dim):
    """The state of no tokens: weighted values and sums of weights 0, largest scores -inf."""
    state = carray(floats_at(state_at), (v_head_dim + 2) * width)
    state[:] = 0
    state[v_head_dim * width : (v_head_dim + 1) * width] = -np.inf


@njit(nogil=True)
def write_out(job, state_at, start, head, lane, lanes, width, v_head_dim):
    """Writes the result and the log-sum-exp of each lane, from the state of all its tokens."""
    state = carray(floats_at(state_at), (v_head_dim + 2) * width)
    for i in range(lanes):
        token, g = divmod(lane + i, job[GROUP])
        place = (start + token) * job[NUM_HEADS] + head * job[GROUP] + g
        top, total = state[v_head_dim * width + i], state[(v_head_dim + 1) * width + i]
        some = total != 0  # not where every score is -inf
        share = np.float32(1) / total if some else np.float32(0)
        out = carray(floats_at(job[OUT] + 4 * place * v_head_dim), v_head_dim)
        for d in range(v_head_dim):
            out[d] = state[d * width + i] * share
        lse = carray(floats_at(job[LSE] + 4 * place), 1)
        lse[0] = (math.log2(total) + top) * math.log(2) if some else -np.inf
