"""Absorbed latent attention on the CPU in float32: numba and explicit vectors, each latent read once.

The tokens of each row are cut into chunks of CHUNK, the tasks that threads take one by one. A task takes BLOCK tokens
at a time, few enough to stay in the second-level cache while all heads use them, a few heads at a time: as keys for
the scores, then as values. It keeps a running maximum, sum and weighted values (online softmax, "FlashAttention",
arXiv 2205.14135) and leaves them as a partial; whoever finishes the last chunk of a row merges its partials in order
("Flash-Decoding", PyTorch blog 2023). Chunks depend on nothing but the row's length, so a row's result does not
depend on its batch mates, on the threads or on which blocks hold its tokens.
"""

import functools
import itertools
import math
import zlib
from array import array
from pathlib import Path

import numpy as np
import torch
from numba import carray, cfunc, njit, types

from .. import polynomials, vectors
from ..threads import run_workers
from ..vectors import LANES, fetch_add, floats_at, integers_at, pad
from . import tiles
from .tiles import HEADS, add_latents, score_pair, weigh

CHUNK = 512  # tokens of a task
BLOCK = 64  # tokens whose scores are kept before their latents are added: 147 KB of latents of 576 floats
REGISTERS = 24 if LANES == 16 else 8  # vectors of sums that stay in registers
# The job that threads share is a list of int64: numbers and addresses, then strides in bytes of the pages' blocks and
# slots, then per row lengths, first tasks, and finished chunks.
NEXT, THREADS, BATCH, BLOCK_SIZE, OUT, LSE, PARTIALS, SCRATCH, QUERY, TABLE, TABLE_ROW = range(11)
LATENT, ROPE, ROWS = 11, 14, 17


def attend_cpu(q_latent, q_rope, latent_pages, rope_pages, block_table, seq_lens, scale):
    """The operation of `attend_reference` (same arguments) for float32 on the CPU.

    Fastest where the last dimension of the pages is contiguous; other strides cost a copy.
    Returns out (batch, num_heads, kv_lora_rank) and lse (batch, num_heads), both float32.
    """
    batch, num_heads, rank = q_latent.shape
    rope_dim, block_size = q_rope.shape[2], latent_pages.shape[1]
    latent_pages = latent_pages if latent_pages.stride(2) == 1 else latent_pages.contiguous()
    rope_pages = rope_pages if rope_pages.stride(2) == 1 else rope_pages.contiguous()
    lengths = seq_lens.tolist()
    firsts = [0, *itertools.accumulate(max(1, -(-length // CHUNK)) for length in lengths)]
    num_tasks = firsts[-1]
    num_threads = max(1, min(torch.get_num_threads(), num_tasks))
    partial, scratch = sizes(num_heads, rank)
    # Type and device are said: the worker writes floats to these addresses, whatever torch's defaults are.
    floats = {"dtype": torch.float32, "device": "cpu"}
    out, lse = torch.empty(batch, num_heads, rank, **floats), torch.empty(batch, num_heads, **floats)
    memory = torch.empty(num_tasks * partial + num_threads * scratch, **floats)
    # Queries times scale / log(2), so that exp becomes exp2, each part padded with zeros to whole vectors.
    query = torch.zeros(batch, num_heads, pad(rank) + pad(rope_dim), **floats)
    torch.mul(q_latent, scale / math.log(2), out=query[..., :rank])
    torch.mul(q_rope, scale / math.log(2), out=query[..., pad(rank) : pad(rank) + rope_dim])
    used = -(-max(lengths, default=0) // block_size)
    table = block_table[:, :used].to(torch.int64).contiguous()
    job = [0, 0, batch, block_size, out.data_ptr(), lse.data_ptr(), memory.data_ptr()]
    job += [memory.data_ptr() + 4 * num_tasks * partial, query.data_ptr(), table.data_ptr(), 8 * used]
    for pages in (latent_pages, rope_pages):
        job += [pages.data_ptr(), *(4 * stride for stride in pages.stride()[:2])]
    job = array("q", job + lengths + firsts + [0] * batch)
    run_workers(build_worker(num_heads, rank, rope_dim).ctypes, job.buffer_info()[0], num_threads)
    return out, lse


def passes(num_heads):
    """(heads of a pass over the block, full passes, heads of a last smaller one): passes as even as can be."""
    some = -(-num_heads // -(-num_heads // HEADS))
    return some, *divmod(num_heads, some)


def strips(heads, rank):
    """(floats of a latent whose sums for `heads` heads fill the registers, floats that are left at the end)."""
    strip = min(REGISTERS // heads * LANES, pad(rank))
    return strip, rank % strip


def sizes(num_heads, rank):
    """Floats of a partial and of a thread's scratch.

    A partial is one state a pass: sums (heads, pad(rank)), largest scores and totals (a vector each). Scratch is the
    addresses of a block's tokens (two int64 each), their weights, and one vector of factors.
    """
    some, full, rest = passes(num_heads)
    return (full + (rest > 0)) * (some * pad(rank) + 2 * LANES), BLOCK * (4 + HEADS) + LANES


@functools.cache
def build_worker(num_heads, rank, rope_dim):
    """Compiles the worker for one shape, a few seconds; later processes read it from numba's cache on disk.

    Returns a numba cfunc, `void (int64)`, that takes the address of a job and works until no task of it is left.
    """
    some, full, rest = passes(num_heads)
    r_pad, q_pad = pad(rank), pad(rank) + pad(rope_dim)
    partial, scratch = sizes(num_heads, rank)
    state, tops = some * r_pad + 2 * LANES, some * r_pad  # floats
    strip, tail = strips(some, rank)
    rest_strip, rest_tail = strips(max(1, rest), rank)
    # Numba's cache on disk looks at the code and constants of this function only. This constant stands for the
    # functions it calls, and for the name under which this module was imported, which the cached code refers to.
    files = [module.__file__ for module in (polynomials, vectors, tiles)]
    sources = b"".join(Path(file).read_bytes() for file in (*files, __file__))
    stamp = zlib.crc32(sources + __name__.encode())

    def work(job_at):
        job = carray(integers_at(job_at), ROWS + 0 * stamp)
        batch = job[BATCH]
        rows = carray(integers_at(job_at + 8 * ROWS), 2 * batch + 1)
        finished_at = job_at + 8 * (ROWS + 2 * batch + 1)
        tokens_at = job[SCRATCH] + 4 * fetch_add(job_at + 8 * THREADS) * scratch
        p_at = tokens_at + 16 * BLOCK
        factors_at = p_at + 4 * BLOCK * HEADS
        row = 0
        while True:
            task = fetch_add(job_at + 8 * NEXT)
            while row < batch and task >= rows[batch + row + 1]:
                row += 1
            if row == batch:
                return
            num_chunks = rows[batch + row + 1] - rows[batch + row]
            chunk = task - rows[batch + row]
            query_at = job[QUERY] + 4 * row * num_heads * q_pad
            partial_at = job[PARTIALS] + 4 * task * partial
            clear_partial(partial_at, partial // state, state, tops)
            for first in range(chunk * CHUNK, min((chunk + 1) * CHUNK, rows[row]), BLOCK):
                count = min(BLOCK, rows[row] - first)
                find_tokens(job, row, first, count, tokens_at)
                for g in range(full):
                    attend_block(
                        tokens_at, count, query_at + 4 * g * some * q_pad, partial_at + 4 * g * state,
                        partial_at + 4 * (g * state + tops),
                        p_at, factors_at, some, rank, rope_dim, r_pad, strip, tail,
                    )  # fmt: skip
                if rest:
                    attend_block(
                        tokens_at, count, query_at + 4 * full * some * q_pad, partial_at + 4 * full * state,
                        partial_at + 4 * (full * state + tops),
                        p_at, factors_at, rest, rank, rope_dim, r_pad, rest_strip, rest_tail,
                    )  # fmt: skip
            if fetch_add(finished_at + 8 * row) == num_chunks - 1:
                first_at = partial_at - 4 * chunk * partial
                merge_partials(
                    first_at, num_chunks, job[OUT] + 4 * row * num_heads * rank,
                    job[LSE] + 4 * row * num_heads, num_heads, some, rank, r_pad, partial,
                )  # fmt: skip

    signature = types.void(types.int64)
    try:
        return cfunc(signature, cache=True)(work)
    except RuntimeError:  # no folder that numba may write its cache to
        return cfunc(signature)(work)


@njit(inline="always")
def attend_block(
    tokens_at, count, query_at, state_at, top_at, p_at, factors_at, heads, rank, rope_dim, r_pad, strip, tail
):
    """Brings the state of `heads` heads, the first of a pass, up to date with a block of tokens."""
    for token in range(0, count, 2):
        score_pair(
            tokens_at + 16 * token, count - token, query_at, p_at + 4 * HEADS * token, heads, rank, rope_dim
        )
    weigh(p_at, (count + 1) // 2, top_at, factors_at)
    for d in range(0, rank - tail, strip):
        add_latents(tokens_at, 4 * d, count, p_at, factors_at, state_at + 4 * d, r_pad, heads, strip)
    if tail:
        add_latents(
            tokens_at,
            4 * (rank - tail),
            count,
            p_at,
            factors_at,
            state_at + 4 * (rank - tail),
            r_pad,
            heads,
            tail,
        )


@njit(nogil=True)
def find_tokens(job, row, first, count, tokens_at):
    """Writes where the latents and rope keys of `count` tokens lie, two addresses a token; an odd last one twice."""
    tokens = carray(integers_at(tokens_at), 2 * BLOCK)
    block_size = job[BLOCK_SIZE]
    for i in range(count + count % 2):
        token = first + min(i, count - 1)
        block = carray(integers_at(job[TABLE] + row * job[TABLE_ROW] + 8 * (token // block_size)), 1)[0]
        slot = token % block_size
        tokens[2 * i] = job[LATENT] + block * job[LATENT + 1] + slot * job[LATENT + 2]
        tokens[2 * i + 1] = job[ROPE] + block * job[ROPE + 1] + slot * job[ROPE + 2]


@njit(nogil=True)
def clear_partial(partial_at, num_states, state, tops):
    """The partial of no tokens: weighted values and totals 0, largest scores -inf."""
    partial = carray(floats_at(partial_at), num_states * state)
    for i in range(num_states * state):
        partial[i] = 0
    for s in range(num_states):
        for lane in range(LANES):
            partial[s * state + tops + lane] = -np.inf


@njit(nogil=True)
def merge_partials(first_at, num_chunks, out_at, lse_at, num_heads, some, rank, r_pad, size):
    """Merges the partials of one row, in order, into its output and log-sum-exp."""
    partials = carray(floats_at(first_at), num_chunks * size)
    out = carray(floats_at(out_at), num_heads * rank)
    lse = carray(floats_at(lse_at), num_heads)
    tops, state = some * r_pad, some * r_pad + 2 * LANES
    for head in range(num_heads):
        h = head % some
        at = head // some * state
        top = partials[at + tops + h]
        for chunk in range(1, num_chunks):
            top = max(top, partials[chunk * size + at + tops + h])
        top = np.float32(0) if top == -np.inf else top
        total = np.float32(0)
        for d in range(rank):
            out[head * rank + d] = 0
        for chunk in range(num_chunks):
            here = chunk * size + at
            totals = here + tops + LANES + h
            weight = np.float32(math.exp2(partials[here + tops + h] - top))
            total += weight * (partials[totals] + partials[totals + HEADS])
            for d in range(rank):
                out[head * rank + d] += weight * partials[here + h * r_pad + d]
        lse[head] = -np.inf
        if total != 0:
            lse[head] = (math.log2(total) + top) * math.log(2)
            for d in range(rank):
                out[head * rank + d] /= total
