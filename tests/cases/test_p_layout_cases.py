"""Faults that people reported of block tables that nobody reads and of rings, as tests of ours (P34, P35, P40)."""

# ruff: noqa: N802 (tests carry the name of their case)

import random

import pytest
import torch
from doubles import far, numbers, same, tiny
from tiny_models import tokens

import kvcourse as kv
from kvcourse.kernels import mla_decode, paged_decode, paged_prefill

B = 4
KINDS = {
    "heads": {"num_heads": 4, "num_kv_heads": 2, "head_dim": 8},
    "mixed": {"sliding_window": 6, "layer_types": ("sliding_attention", "full_attention")},
    "latents": {"num_heads": 3, "head_dim": 6, "kv_lora_rank": 10},
}


class TestP34:
    """tanishqkumar/ssd#23: after a prefix hit the kernel read the pool from its start, without the block table."""

    def shuffled(self, config):
        """A memory whose free blocks come in a random order."""
        memory, draw = kv.storage.PagedMemory(config, 64, B, torch.float64), random.Random(3)
        for pool in memory.pools:
            blocks = pool.allocate(pool.num_free)
            draw.shuffle(blocks)
            for block in blocks:
                pool.free([block])
        return memory

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("chunk", [1, 3, 8])
    def test_P34_a_hit_in_blocks_in_any_order(self, kind, chunk):
        """chunk: tokens at once behind the hit: decode, part of a block, more than a block."""
        model = tiny(**KINDS[kind])
        memory, plan = self.shuffled(model.config), kv.Plan(storage="paged", block_size=B)
        ids = tokens(1, 24)
        expected = model(ids)
        first = kv.KVCache(model.config, plan, memory=memory)
        for end in range(B, 17, B):
            model(ids[:, end - B : end], cache=first)
            first.publish(ids[:, :end])
        cache = kv.KVCache(model.config, plan, memory=memory)
        assert cache.reuse(ids) == (16,)
        out = [model(piece, cache=cache) for piece in ids[:, 16:].split(chunk, 1)]
        table = cache._storage.rows[-1].tables[0].blocks
        assert sorted(table) != list(table)
        assert set(table) != set(range(1, len(table) + 1))
        assert same(torch.cat(out, 1), expected[:, 16:])


def decode(backend, q, pages, table):
    k, v = pages
    return paged_decode(q[:, -1], k, v, table, torch.tensor([10, 23]), backend=backend)


def decode_in_a_window(backend, q, pages, table):
    k, v = pages
    return paged_decode(q[:, -1], k, v, table, torch.tensor([10, 23]), window=9, backend=backend)


def prefill(backend, q, pages, table):
    k, v = pages
    packed, starts = q[:, :5].flatten(0, 1), torch.tensor([0, 5, 10])
    return paged_prefill(packed, k, v, table, torch.tensor([10, 23]), starts, backend=backend)


def prefill_of_one_row_and_a_step_of_the_other(backend, q, pages, table):
    k, v = pages
    packed, starts = q.flatten(0, 1)[:6], torch.tensor([0, 5, 6])
    return paged_prefill(packed, k, v, table, torch.tensor([10, 23]), starts, window=7, backend=backend)


def latent_decode(backend, q, pages, table):
    latent, rope = (page[:, 0].contiguous() for page in pages)
    return mla_decode(q[:, -1], q[:, -2], latent, rope, table, torch.tensor([10, 23]), 0.3, backend=backend)


ENTRIES = (decode, decode_in_a_window, prefill, prefill_of_one_row_and_a_step_of_the_other, latent_decode)


@pytest.mark.parametrize("backend", ["reference", "torch", "cpu", None])
@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.__name__)
def test_P35_every_entry_point_follows_the_table(entry, backend):
    """golang-design/accel#10: prefill ignored the page table, and nobody noticed.

    Blocks and table permuted alike give the same bits; blocks alone give something else.
    """
    q = numbers(2, 6, 4, 8).float()
    pages = tuple(numbers(13, 2, B, 8, seed=seed).float() for seed in (1, 2))
    table = torch.tensor([[1, 2, 3, 0, 0, 0], [4, 5, 6, 7, 8, 9]], dtype=torch.int32)
    order = torch.randperm(13, generator=torch.Generator().manual_seed(5))
    where = torch.argsort(order)
    moved = tuple(page[order] for page in pages)
    expected = entry(backend, q, pages, table)
    assert torch.equal(entry(backend, q, moved, where[table.long()]), expected)
    assert torch.equal(entry(backend, q, moved, where[table.long()].int()), expected)
    assert far(entry(backend, q, moved, table), expected)


class TestP40:
    """awslabs/keys_values#140: a ring buffer was wrong after a write that filled a part of it."""

    plans = (
        kv.Plan(),
        kv.Plan(block_size=1),
        kv.Plan(storage="paged", block_size=16),
        kv.Plan(storage="paged", block_size=5),
    )
    each_plan = pytest.mark.parametrize(
        "plan", plans, ids=["ring of 16s", "ring of 1s", "pages of 16", "pages of 5"]
    )

    def model(self, window, num_layers=2):
        return tiny(
            sliding_window=window, layer_types=("sliding_attention",) * num_layers, num_layers=num_layers
        )

    @each_plan
    @pytest.mark.parametrize(
        ("prompt", "suffix", "window", "chunk"), [(300, 128, 128, 128), (128, 128, 128, 32)]
    )
    def test_P40_pieces_of_the_size_of_the_window_and_of_a_part(self, prompt, suffix, window, chunk, plan):
        model, ids = self.model(window), tokens(1, prompt + suffix)
        expected = model(ids)
        cache = kv.KVCache(model.config, plan)
        sizes = [prompt] + [chunk] * (suffix // chunk)
        out = torch.cat([model(piece, cache=cache) for piece in ids.split(sizes, 1)], 1)
        assert same(out, expected)

    @each_plan
    def test_P40_only_the_kept_suffix_matters(self, plan):
        """One layer: its last token sees `window` tokens, wherever they begin. (Angles are float32: 1e-5.)"""
        model, ids = self.model(32, num_layers=1), tokens(1, 75 + 32)
        cache = kv.KVCache(model.config, plan)
        for piece in ids.split([75, 8, 8, 16], 1):
            last = model(piece, cache=cache)[:, -1]
        assert torch.allclose(last, model(ids[:, -32:])[:, -1], rtol=0, atol=1e-5)
        assert far(last, model(ids[:, -31:])[:, -1])

    @each_plan
    def test_P40_writes_of_any_size_at_any_place(self, plan):
        model, ids, draw = self.model(7), tokens(2, 90), random.Random(0)
        expected = model(ids)
        for _ in range(4):
            cache, done, out = kv.KVCache(model.config, plan, 2), 0, []
            while done < 90:
                size = min(90 - done, draw.choice([1, 2, 3, 6, 7, 8, 13, 14, 15, 20]))
                out.append(model(ids[:, done : done + size], cache=cache))
                done += size
            assert same(torch.cat(out, 1), expected)
