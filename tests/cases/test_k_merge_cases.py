"""Faults that people reported of merged, batched and padded attention, as tests of ours (K8 to K14)."""

# ruff: noqa: N802 (tests carry the name of their case)

import importlib.util
import math
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from doubles import tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import left_padded
from paged_world import INTERPRETED, WINDOWS, World, close, draw, each_backend, here_only
from strategies import FEW
from tiny_models import tokens

import kvcourse as kv
from kvcourse.kernels import (
    contiguous_decode,
    merge_states,
    mla_decode,
    paged_decode,
    paged_prefill,
    store_kv,
    store_pages,
)

LENGTHS, NEWS = (9, 1, 22), (3, 1, 5)
EMPTY = torch.zeros(2, 3, 8), torch.full((2, 3), -math.inf)


def equal(found, expected):
    return all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


class TestK8:
    """flashinfer-ai/flashinfer#4051, #5262; vllm-project/vllm#28181, #39148: two parts without tokens made NaN."""

    @here_only
    def test_K8_nothing_and_nothing_is_nothing(self):
        assert equal(merge_states(*EMPTY, *EMPTY), EMPTY)

    @here_only
    @pytest.mark.parametrize("size", [1e-30, 1.0, 1e30])
    def test_K8_nothing_is_neutral(self, size):
        state = draw(2, 3, 8) * size, draw(2, 3, seed=1) * 80
        for merged in (merge_states(*state, *EMPTY), merge_states(*EMPTY, *state)):
            assert torch.allclose(merged[0], state[0], rtol=1e-6, atol=0)
            assert torch.allclose(merged[1], state[1], rtol=1e-6, atol=0)

    @each_backend
    def test_K8_a_row_without_tokens_is_that_nothing(self, backend):
        world = World((5, 3), (1, 1)).fill()
        out, lse = paged_decode(
            world.q, *world.pages, world.table, torch.tensor([5, 0]), backend=backend, return_lse=True
        )
        assert equal((out[1], lse[1]), (torch.zeros(6, 8), torch.full((6,), -math.inf)))
        merged = merge_states(out[1], lse[1], out[1], lse[1])
        assert equal(merged, (out[1], lse[1]))
        assert close(merge_states(out[0], lse[0], out[1], lse[1])[0], world.expected_decode()[0][0])


class TestK10:
    """Dao-AILab/flash-attention#978: +inf as the log-sum-exp of an empty row."""

    @here_only
    def test_K10_plus_infinity_is_read_as_nothing(self):
        odd, state = (EMPTY[0], -EMPTY[1]), (draw(2, 3, 8), draw(2, 3))
        assert equal(merge_states(*odd, *odd), EMPTY)
        for merged in (merge_states(*odd, *state), merge_states(*state, *odd)):
            assert close(merged[0], state[0])
            assert close(merged[1], state[1])

    @each_backend
    @settings(FEW, max_examples=3 if INTERPRETED else 12)
    @given(owners=st.lists(st.integers(0, 4), min_size=8, max_size=8), order=st.permutations(range(5)))
    def test_K10_any_split_of_the_blocks_equals_the_whole(self, backend, owners, order):
        """Each block goes to one of five workers, some of which get none; they report in any order."""
        world = World((30,), (1,)).fill()
        whole = world.decode(backend, return_lse=True)
        merged = None
        for worker in order:
            own = [i for i, owner in enumerate(owners) if owner == worker]
            own.sort(key=lambda i: i == 7)  # the last block, which is not full, comes last
            length = 4 * len(own) - 2 * (7 in own)
            table = world.table[:, own] if own else world.table[:, :1]
            part = paged_decode(
                world.q, *world.pages, table, torch.tensor([length]), backend=backend, return_lse=True
            )
            merged = part if merged is None else merge_states(*merged, *part)
        for found, one_call, expected in zip(merged, whole, world.expected_decode(), strict=True):
            assert close(found, expected)
            assert close(one_call, expected)


class TestK11:
    """meta-pytorch/attention-gym#205: logarithms to base 2 merged with natural ones.

    All of ours are natural, so there is nothing to convert: n equal scores s have s + ln n.
    """

    @each_backend
    @pytest.mark.parametrize("n", [1, 7] if INTERPRETED else [1, 2, 7, 16])
    def test_K11_of_pages(self, backend, n):
        q, ones = torch.full((1, 6, 8), 0.5), torch.ones(8, 2, 4, 8)
        table = torch.arange(8)[None]
        score = 0.5 * 8 / math.sqrt(8)
        length, starts = torch.tensor([n]), torch.tensor([0, 1])
        decode = paged_decode(q, ones, ones, table, length, backend=backend, return_lse=True)[1]
        prefill = paged_prefill(q, ones, ones, table, length, starts, backend=backend, return_lse=True)[1]
        expected = torch.full((1, 6), score + math.log(n))
        assert close(decode, expected)
        assert close(prefill, expected)
        assert n == 1 or not close(decode, torch.full((1, 6), score + math.log2(n)))
        state = torch.ones(1, 6, 8), torch.full((1, 6), score)
        merged = state
        for _ in range(n - 1):
            merged = merge_states(*merged, *state)
        assert close(merged[1], expected)

    @each_backend
    @pytest.mark.parametrize("n", [1, 7] if INTERPRETED else [1, 2, 7, 16])
    def test_K11_of_latents(self, backend, n):
        latent, rope = torch.ones(8, 4, 8), torch.ones(8, 4, 4)
        q = torch.full((1, 6, 8), 0.5), torch.full((1, 6, 4), 0.25)
        _, lse = mla_decode(
            *q, latent, rope, torch.arange(8)[None], torch.tensor([n]), 0.3, backend, return_lse=True
        )
        assert close(lse, torch.full((1, 6), 0.3 * (0.5 * 8 + 0.25 * 4) + math.log(n)))


class TestK13:
    """vllm-project/vllm#51902: what a row gets depended on its batch mates. Ours is the same bit for bit."""

    @each_backend
    @pytest.mark.parametrize("window", WINDOWS)
    def test_K13_a_row_alone_and_in_any_company(self, backend, window):
        lengths, news = (9, 1, 22, 40, 13, 4), (3, 1, 2, 1, 13, 2)
        world = World(lengths, news).fill()
        options = {"window": window, "return_lse": True, "backend": backend}
        together, rows = world.prefill(**options), world.decode(**options)
        for company in ([0], [3], [4, 2], [2, 4, 5, 0, 3, 1], [5, 3, 3, 3, 3, 1, 0, 0])[-2 * INTERPRETED :]:
            own = [torch.arange(*world.starts[row : row + 2].tolist()) for row in company]
            length, table = torch.tensor([lengths[row] for row in company]), world.table[company]
            starts = torch.tensor([0, *map(len, own)]).cumsum(0)
            own = torch.cat(own)
            pieces = paged_prefill(world.q[own], *world.pages, table, length, starts, **options)
            assert equal(pieces, [x[own] for x in together])
            steps = paged_decode(world.last_queries[company], *world.pages, table, length, **options)
            assert equal(steps, [x[company] for x in rows])

    @each_backend
    def test_K13_contiguous_rows(self, backend):
        q, k, v = draw(5, 6, 8), draw(5, 2, 40, 8, seed=1), draw(5, 2, 40, 8, seed=2)
        lengths = torch.tensor([9, 40, 0, 1, 23])
        together = contiguous_decode(q, k, v, lengths, backend=backend)
        for rows in ([0], [4, 1], [3, 2, 1, 0]):
            found = contiguous_decode(q[rows], k[rows], v[rows], lengths[rows], backend=backend)
            assert torch.equal(found, together[rows])


class TestK14:
    """The convention of vLLM and nano-vllm: a slot of −1 is that of padding, which must not be written."""

    @each_backend
    @pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
    def test_K14_minus_one_writes_nothing(self, backend, dtype):
        world = World(LENGTHS, NEWS)
        pages = [draw(*page.shape, seed=9) for page in world.pages]
        before = [page.clone() for page in pages]
        k, v = torch.cat(world.k), torch.cat(world.v)
        nothing = torch.full((len(k),), -1, dtype=dtype)
        store_kv(k, v, *pages, nothing, backend=backend)
        store_kv(k[:0], v[:0], *pages, nothing[:0], backend=backend)
        store_pages(k, pages[0], nothing, backend=backend)
        assert equal(pages, before)
        slots, kept = world.slots.to(dtype), random.Random(1).sample(range(len(k)), 11)
        some = nothing.clone()
        some[kept] = slots[kept]
        store_kv(k, v, *pages, some, backend=backend)
        for page, old, entries in zip(pages, before, (k, v), strict=True):
            for i in kept:
                old[slots[i] // 4, :, slots[i] % 4] = entries[i]
            assert torch.equal(page, old)

    @each_backend
    def test_K14_of_latents(self, backend):
        pages, x = draw(6, 4, 10), draw(5, 10, seed=1)
        before = pages.clone()
        store_pages(x, pages, torch.tensor([-1, 4, -1, 23, -1]), backend=backend)
        before[1, 0], before[5, 3] = x[1], x[3]
        assert torch.equal(pages, before)

    @here_only
    @pytest.mark.parametrize("fields", [{}, {"kv_lora_rank": 10, "num_heads": 3}, {"sliding_window": 6}])
    def test_K14_the_padding_of_a_batch_changes_no_slot(self, fields):
        """As many slots change as there are tokens, in blocks that the rows hold; the null block never does."""
        model = tiny(**fields)
        memory = kv.storage.PagedMemory(model.config, 30, 4, torch.float64)
        memory.prepare(torch.float64, torch.device("cpu"))
        planes = [
            plane for group in memory.groups for pages in group.all_pages() for plane in pages.planes.values()
        ]
        for plane in planes:
            plane.fill_(math.nan)
        cache = kv.KVCache(model.config, kv.Plan(storage="paged", block_size=4), 3, memory=memory)
        total = 0
        for step in ((7, 2, 1), (1, 6, 3), (1, 1, 1)):
            ids, mask = left_padded([tokens(n, seed=n).tolist() for n in step])
            model(ids, cache=cache, attention_mask=mask)
            total += sum(step)
            for plane in planes:
                written = plane.isfinite().all(-1).all(1)  # (num_blocks, block_size)
                assert written.sum() == total
                assert torch.equal(written, plane.isfinite().any(-1).any(1))
                assert not written[0].any()


@pytest.mark.skipif(
    INTERPRETED or importlib.util.find_spec("triton") is None, reason="Triton exists on Linux only"
)
def test_K1_to_K14_in_triton():
    """Both files of K cases once more, with the Triton kernels on the CPU."""
    here = Path(__file__).parent
    done = subprocess.run(
        [
            sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider",
            here / "test_k_cases.py", here / "test_k_merge_cases.py",
        ],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        cwd=here.parents[1],
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
