"""Faults that people reported of attention kernels, as tests of ours (K1 to K7).

K8 to K14 are in test_k_merge_cases.py, which also lets Triton's interpreter run both files. K3, K6, K9 and K12 are
not in the list of cases.
"""

# ruff: noqa: N802 (tests carry the name of their case)

import math

import pytest
import torch
from doubles import tiny
from paged_world import INTERPRETED, WINDOWS, World, close, draw, each_backend, here_only

import kvcourse as kv
from kvcourse.kernels import store_kv

LENGTHS, NEWS = (9, 1, 22), (3, 1, 5)
HEADS = [(1, 1), (10, 2), (28, 4)] if INTERPRETED else [(1, 1), (5, 1), (10, 2), (12, 12), (28, 4)]


class TestK1:
    """vllm-project/vllm#47671, #50427; sgl-project/sglang#20389: block × stride wrapped around in 32 bits."""

    @each_backend
    def test_K1_the_last_blocks_of_a_pool_of_more_than_2_31_elements(self, backend, tmp_path):
        """A pool of 8.6 GB, of which a few pages are touched; first and last blocks differ."""
        per_block = 2 * 2 * 4 * 8  # keys and values, heads, slots, dims
        num_blocks = 2**31 // per_block + 40
        pool = sparse(tmp_path, num_blocks * per_block).view(num_blocks, 2, 2, 4, 8)
        self.check(backend, (pool[:, 0], pool[:, 1]), num_blocks - 12)

    @each_backend
    def test_K2_views_of_fused_projections_have_longer_strides(self, backend, tmp_path):
        """thu-ml/SageAttention#386: the same with strides of queries, keys and values together, 10 heads a slot."""
        per_slot = (6 + 2 + 2) * 8
        num_blocks = 2**31 // (4 * per_slot) + 40
        pool = sparse(tmp_path, num_blocks * 4 * per_slot).view(num_blocks, 4, 10, 8).transpose(1, 2)
        self.check(backend, (pool[:, 6:8], pool[:, 8:]), num_blocks - 12)

    def check(self, backend, pages, first):
        near = World(LENGTHS, NEWS, pages=pages, first=1, seed=3).fill()
        far = World(LENGTHS, NEWS, pages=pages, first=first)
        store_kv(torch.cat(far.k), torch.cat(far.v), *pages, far.slots, backend=backend)
        assert close(near.prefill(backend), near.expected()[0])  # nothing was written over it
        assert close(far.prefill(backend), far.expected()[0])
        assert close(far.decode(backend), far.expected_decode()[0])
        for page, entries in zip(pages, (far.k, far.v), strict=True):
            for slot, entry in zip(far.slots.tolist(), torch.cat(entries), strict=True):
                assert torch.equal(page[slot // 4, :, slot % 4], entry)

    @here_only
    def test_K2_an_offset_that_wraps_would_be_noticed(self):
        """What 32 bits make of the first number behind 2**31: the address of something else."""
        block = 2**31 // 128 + 28
        offset = torch.tensor(block, dtype=torch.int32) * torch.tensor(128, dtype=torch.int32)
        assert offset.item() != block * 128


def sparse(folder, elements):
    """float32 numbers in a file without contents: memory is taken for what is touched."""
    return torch.from_file(str(folder / "pool"), shared=True, size=elements, dtype=torch.float32)


@each_backend
@pytest.mark.parametrize(("num_heads", "num_kv_heads"), HEADS)
def test_K4_heads_that_are_no_power_of_two(backend, num_heads, num_kv_heads):
    """vllm-project/vllm#27965: right for 8 and 16 heads, and not for 10."""
    world = World(LENGTHS, NEWS, (num_heads, num_kv_heads, 8)).fill()
    assert close(world.prefill(backend), world.expected()[0])
    assert close(world.decode(backend), world.expected_decode()[0])


class TestK5:
    """ROCm/aiter#3498, #3492, #4531; vllm-project/vllm-xpu-kernels#258; m87-labs/kestrel#104: a kernel that takes
    blocks and tokens to lie one after the other."""

    def both_in_a_block(self):  # [N, 2, B, H, D]
        both = torch.full((20, 2, 4, 2, 8), math.nan).transpose(2, 3)
        return both[:, 0], both[:, 1]

    def fused_with_queries(self):
        fused = torch.full((20, 4, 6 + 2 + 2, 8), math.nan).transpose(1, 2)
        return fused[:, 6:8], fused[:, 8:]

    def blocks_inside(self):
        both = torch.full((2, 4, 8, 20, 2), math.nan).permute(4, 3, 0, 1, 2)
        return both[0], both[1]

    def dims_outside(self):
        return tuple(torch.full((2, 20, 2, 8, 4), math.nan).mT)

    LAYOUTS = (both_in_a_block, fused_with_queries, blocks_inside, dims_outside)

    @each_backend
    @pytest.mark.parametrize("layout", LAYOUTS[: 2 if INTERPRETED else 4], ids=lambda layout: layout.__name__)
    @pytest.mark.parametrize("window", WINDOWS)
    def test_K5_views_give_the_bits_of_contiguous_pages(self, backend, layout, window):
        pages = layout(self)
        assert not any(page.is_contiguous() for page in pages)
        plain, viewed = World(LENGTHS, NEWS), World(LENGTHS, NEWS, pages=pages)
        for world in (plain, viewed):
            store_kv(torch.cat(world.k), torch.cat(world.v), *world.pages, world.slots, backend=backend)
        for plain_page, page in zip(plain.pages, pages, strict=True):
            kept = page[: len(plain_page)]
            assert torch.equal(torch.nan_to_num(kept, 99.0), torch.nan_to_num(plain_page, 99.0))
        queries = torch.full((len(plain.q), 6, 11), math.nan)[..., 2:10].copy_(plain.q)
        for world in (plain, viewed):
            world.outs = world.prefill(backend, window=window), world.decode(backend, window=window)
        viewed.q = queries
        again = viewed.prefill(backend, window=window), viewed.decode(backend, window=window)
        for a, b, c in zip(plain.outs, viewed.outs, again, strict=True):
            assert torch.equal(a, b)
            assert torch.equal(a, c)
        assert close(plain.outs[0], plain.expected(window)[0])


class TestK7:
    """vllm-project/vllm#35219, #43990: a block that held another type, or nothing yet, is full of NaN patterns."""

    @each_backend
    @pytest.mark.parametrize("window", WINDOWS)
    def test_K7_what_a_block_held_before_does_not_matter(self, backend, window):
        clean = World(LENGTHS, NEWS, pages=torch.zeros(2, 12, 2, 4, 8)).fill()
        noise = torch.randint(-128, 128, (2, 12, 2, 4, 8 * 4), generator=torch.manual_seed(0)).to(torch.int8)
        noise[..., 3::8] = 0x7F  # every other number has the exponent of inf and NaN
        noise[..., 2::8] = -1
        old = noise.view(torch.float32)
        assert old.isnan().any()
        dirty = World(LENGTHS, NEWS, pages=old).fill()
        for operation in ("prefill", "decode"):
            for return_lse in (False, True):
                found = [
                    getattr(w, operation)(backend, window=window, return_lse=return_lse)
                    for w in (clean, dirty)
                ]
                pairs = zip(*found, strict=True) if return_lse else [found]
                assert all(torch.equal(a, b) for a, b in pairs)

    @here_only
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize("window", [None, 5])
    def test_K7_blocks_of_a_cache_that_are_used_again(self, dtype, window):
        """The row before left NaN in every number of them."""
        config = tiny(num_heads=6, num_kv_heads=2, head_dim=8, num_layers=1, sliding_window=window).config
        plan, outs = kv.Plan(storage="paged", block_size=4), []
        for poison in (0.0, math.nan):
            memory = kv.storage.PagedMemory(config, 9, 4, dtype)
            before = kv.KVCache(config, plan, memory=memory)
            before.append(0, *torch.full((2, 1, 2, 32 if window is None else 8, 8), poison, dtype=dtype))
            before.reset()
            cache = kv.KVCache(config, plan, 2, memory=memory)
            for step, mask in ((5, [[0, 0, 1, 1, 1], [1] * 5]), (1, [[1], [1]]), (3, [[0, 0, 1], [1, 1, 1]])):
                cache.begin(step, torch.tensor(mask))
                q = draw(2, 6, step, 8, seed=step).to(dtype)
                k, v = (draw(2, 2, step, 8, seed=seed + step).to(dtype) for seed in (10, 20))
                real = torch.tensor(mask).bool()[:, None, :, None]
                outs.append(cache.attend(0, q, k, v).masked_fill(~real, 0))
                cache.commit()
        for clean, dirty in zip(outs[:3], outs[3:], strict=True):
            assert torch.isfinite(clean).all()
            assert torch.equal(clean, dirty)
