"""Storing and attending together: prefixes, chunks and slots, against dense causal attention. Cases P25, P34, P37."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import FEW, splits
from torch.nn.functional import scaled_dot_product_attention

from kvcourse.kernels import paged_prefill, slot_mapping, store_kv

BACKENDS = ("reference", "torch", "cpu")


class Sequence:
    """One sequence of random queries, keys and values, and pages in shuffled order that it can be written to."""

    def __init__(self, length, block_size, dtype=torch.float64, seed=0, heads=(6, 2), dims=(16, 16)):
        generator = torch.Generator().manual_seed(seed)
        draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)  # noqa: E731
        self.q = draw(length, heads[0], dims[0])
        self.k, self.v = draw(length, heads[1], dims[0]), draw(length, heads[1], dims[1])
        blocks = -(-length // block_size)
        self.table = torch.randperm(blocks + 3, generator=generator)[None, :blocks]
        self.pages = [
            torch.full((blocks + 3, heads[1], block_size, dim), math.nan, dtype=dtype) for dim in dims
        ]
        self.block_size = block_size

    def dense(self):
        """(tokens, heads, dims): causal attention over contiguous keys and values."""
        q, k, v = (x.transpose(0, 1)[None] for x in (self.q, self.k, self.v))
        return scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)[0].transpose(0, 1)

    def store(self, begin, end):
        """Writes the tokens from `begin` to `end`; returns the slots."""
        lengths, starts = torch.tensor([end]), torch.tensor([0, end - begin])
        slots = slot_mapping(self.table, lengths, starts, self.block_size)
        store_kv(self.k[begin:end], self.v[begin:end], *self.pages, slots)
        return slots

    def attend(self, begin, end, backend):
        lengths, starts = torch.tensor([end]), torch.tensor([0, end - begin])
        return paged_prefill(self.q[begin:end], *self.pages, self.table, lengths, starts, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS[:2])
@FEW
@given(
    length=st.integers(1, 40), block_size=st.integers(1, 20), hit=st.integers(0, 39), seed=st.integers(0, 99)
)
def test_new_tokens_after_a_stored_prefix_equal_dense_attention(backend, length, block_size, hit, seed):
    hit = min(hit, length - 1)
    sequence = Sequence(length, block_size, seed=seed)
    sequence.store(0, hit)
    sequence.store(hit, length)
    found = sequence.attend(hit, length, backend)
    torch.testing.assert_close(found, sequence.dense()[hit:], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
@FEW
@given(sizes=st.integers(1, 60).flatmap(splits), block_size=st.integers(1, 20))
def test_chunk_by_chunk_equals_all_at_once(backend, sizes, block_size):
    """Each chunk is attended before the next is stored: the slots of later tokens still hold NaN."""
    sequence = Sequence(sum(sizes), block_size, torch.float32)
    ends = [0, *itertools.accumulate(sizes)]
    chunks = []
    for begin, end in itertools.pairwise(ends):
        sequence.store(begin, end)
        chunks.append(sequence.attend(begin, end, backend))
    whole = sequence.attend(0, ends[-1], backend)
    if backend == "torch":
        torch.testing.assert_close(torch.cat(chunks), whole, rtol=3e-6, atol=3e-6)
    else:
        assert torch.equal(torch.cat(chunks), whole)
    torch.testing.assert_close(whole, sequence.dense(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("sizes", [[1] * 5 + [700], [600, 1, 1, 103], [512, 193], [64] * 11 + [1], [705]])
def test_a_query_of_the_cpu_kernel_has_the_same_bits_in_any_chunk(sizes):
    """Longer than a chunk of the kernel, and so many queries that tiles are cut elsewhere in each call."""
    sequence = Sequence(705, 16, torch.float32, dims=(20, 12))
    sequence.store(0, 705)
    chunks = [
        sequence.attend(begin, end, "cpu")
        for begin, end in itertools.pairwise([0, *itertools.accumulate(sizes)])
    ]
    assert torch.equal(torch.cat(chunks), sequence.attend(0, 705, "cpu"))


@pytest.mark.parametrize("block_size", [1, 4, 7])
@pytest.mark.parametrize("chunk", [1, 5, 8, 30])
def test_there_is_one_slot_for_each_new_token(block_size, chunk):
    """Whatever part of the prompt was hit before (case P25); and all slots of a sequence differ."""
    length = 30
    for hit in range(length):
        sequence, written = Sequence(length, block_size), []
        for begin in range(hit, length, chunk):
            end = min(length, begin + chunk)
            slots = sequence.store(begin, end)
            assert slots.shape == (end - begin,)
            written += slots.tolist()
        expected = [
            int(sequence.table[0, p // block_size]) * block_size + p % block_size for p in range(hit, length)
        ]
        assert written == expected
        assert len(set(written)) == length - hit


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("block_size", [1, 4, 7])
def test_a_hit_before_inside_and_behind_a_chunk(block_size, backend):
    """The three ways in which a stored prefix can meet a chunk from `begin` to `end` (case P37)."""
    length, begin, end = 24, 8, 16
    cold = Sequence(length, block_size, torch.float32)
    cold.store(0, length)
    expected = cold.attend(0, length, backend)
    for hit in (0, 3, 8, 11, 15, 16, 20, 23):
        warm = Sequence(length, block_size, torch.float32)
        warm.store(0, hit)
        at = hit
        for stop in (begin, end, length):
            if stop <= at:
                assert warm.attend(stop, stop, backend).shape == (0, 6, 16)
                continue
            warm.store(at, stop)
            found = warm.attend(at, stop, backend)
            torch.testing.assert_close(found, expected[at:stop], rtol=3e-6, atol=3e-6)
            at = stop
