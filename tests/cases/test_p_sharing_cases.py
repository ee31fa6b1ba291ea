"""Faults that people reported of prefixes that sequences share, as tests of ours: P11, P28 to P32, P37, P41."""

# ruff: noqa: N802 (tests carry the name of their case)

import pytest
import torch
from doubles import far, same, step_by_step, tiny
from tiny_models import tokens

import kvcourse as kv
from kvcourse.errors import InputError, PoolExhausted
from kvcourse.storage.block_pool import BlockPool
from kvcourse.storage.block_table import BlockTable

B = 4
KINDS = {
    "heads": {"num_heads": 4, "num_kv_heads": 2, "head_dim": 8},
    "window": {"sliding_window": 6},
    "latents": {"num_heads": 3, "head_dim": 6, "kv_lora_rank": 10},
}
each_kind = pytest.mark.parametrize("kind", KINDS)
each_mode = pytest.mark.parametrize("token_granular", [False, True], ids=["blocks", "tokens"])


class Shared:
    """A tiny model, and caches of one row that share a memory."""

    def __init__(self, kind="heads", num_blocks=64, **options):
        self.model = tiny(**KINDS[kind])
        self.memory = kv.storage.PagedMemory(self.model.config, num_blocks, B, torch.float64, **options)
        self.plan = kv.Plan(storage="paged", block_size=B)

    def cache(self, rows=1):
        return kv.KVCache(self.model.config, self.plan, rows, memory=self.memory)

    def publish(self, ids):
        """The cache of a prompt that was published block by block, before a window leaves blocks behind."""
        cache = self.cache()
        for end in range(B, ids.shape[1] + B, B):
            self.model(ids[:, end - B : end], cache=cache)
            cache.publish(ids[:, :end])
        return cache

    def stored(self):
        """Everything in all pages."""
        return [
            plane.clone()
            for group in self.memory.groups
            for pages in group.all_pages()
            for plane in pages.planes.values()
        ]


def blocks(cache):
    """The block table of the first row."""
    return list(cache._storage.rows[0].tables[0].blocks)


class TestP11:
    """vllm-project/vllm#11186, #17999: of a prompt that was cached whole, no token was left to compute."""

    @each_kind
    @each_mode
    @pytest.mark.parametrize("num_blocks", [1, 2, 5])
    def test_P11_a_token_is_left_and_its_logits_are_those_of_a_cold_run(
        self, kind, token_granular, num_blocks
    ):
        box, ids = Shared(kind, token_granular=token_granular), tokens(1, num_blocks * B)
        expected = box.model(ids)
        held = box.publish(ids)
        cache = box.cache()
        (hit,) = cache.reuse(ids)
        assert hit == (num_blocks * B - 1 if token_granular else (num_blocks - 1) * B)
        assert cache.seen == (hit,)
        assert same(box.model(ids[:, hit:], cache=cache), expected[:, hit:])
        assert same(box.model(ids[:, :1], cache=held), box.model(torch.cat([ids, ids[:, :1]], 1))[:, -1:])
        box.memory.check()

    @each_mode
    def test_P11_later_blocks_have_the_names_of_a_cold_run(self, token_granular):
        """A warm row goes on past the prompt and is published; a longer prompt finds those blocks, too."""
        box, ids, text = Shared(token_granular=token_granular), tokens(1, 3 * B), tokens(1, 6 * B + 1)
        text = torch.cat([ids, text], 1)
        box.publish(ids)
        warm = box.cache()
        (hit,) = warm.reuse(ids)
        box.model(text[:, hit:], cache=warm)
        warm.publish(text)
        found = box.cache()
        assert found.reuse(text) == (9 * B,)
        assert same(box.model(text[:, 9 * B :], cache=found), box.model(text)[:, 9 * B :])


class TestP28:
    """vllm-project/vllm#46384; kvcache-ai/Mooncake#4153: a hit of a part of a block, written into without a copy."""

    @pytest.mark.parametrize("kind", ["heads", "latents"])
    @pytest.mark.parametrize("is_held", [True, False], ids=["held", "cached"])
    @pytest.mark.parametrize("common", [1, 3, 5, 6, 7])
    def test_P28_the_writer_gets_a_copy_and_the_source_stays(self, kind, common, is_held):
        box, ids = Shared(kind, token_granular=True), tokens(1, 2 * B)
        held = box.publish(ids)
        sources = blocks(held)
        if not is_held:
            del held
        before = [plane[sources].clone() for plane in box.stored()]
        other = (ids[:, common:] + 1) % 61
        prompt = torch.cat([ids[:, :common], other, tokens(1, 3, seed=2)], 1)
        cache = box.cache()
        assert cache.reuse(prompt) == (common,)  # the tokens, not those of the whole block
        logits = box.model(prompt[:, common:], cache=cache)
        assert same(logits, box.model(prompt)[:, common:])
        assert blocks(cache)[common // B] not in sources
        assert all(torch.equal(plane[sources], old) for plane, old in zip(box.stored(), before, strict=True))
        box.memory.check()

    def test_P28_the_copy_counts_when_room_is_needed(self):
        """Two more tokens fit into the blocks that there are, but not without a copy of the second one."""
        box, ids = Shared(num_blocks=4, token_granular=True), tokens(1, 2 * B)
        held, other = box.publish(ids), box.cache()
        box.model(tokens(1, 1), cache=other)
        assert box.memory.pools[0].num_free == 0
        cache = box.cache()
        prompt = torch.cat([ids[:, :6], (ids[:, 6:] + 1) % 61], 1)
        (hit,) = cache.reuse(prompt)
        assert hit in (B, 6)
        before = box.stored()
        with pytest.raises(PoolExhausted):
            box.model(prompt[:, hit:], cache=cache)
        assert cache.seen == (hit,)
        assert all(torch.equal(a, b) for a, b in zip(box.stored(), before, strict=True))
        other.reset()
        assert same(box.model(prompt[:, hit:], cache=cache), box.model(prompt)[:, hit:])
        sources = blocks(held)
        assert all(torch.equal(a[sources], b[sources]) for a, b in zip(box.stored(), before, strict=True))

    @pytest.mark.parametrize("common", [1, 3, 5, 7])
    def test_P28_without_granularity_a_part_is_no_hit(self, common):
        box, ids = Shared(), tokens(1, 2 * B)
        box.publish(ids)
        prompt = torch.cat([ids[:, :common], (ids[:, common:] + 1) % 61], 1)
        assert box.cache().reuse(prompt) == (common // B * B,)


class TestP31:
    """vllm-project/vllm#644, #1101: a beam's parent was used again in place; children did not begin with it."""

    @pytest.mark.parametrize("num_stored", [1, 3, 4, 5, 9])
    def test_P31_tables(self, num_stored):
        pool = BlockPool(32, B)
        parent = BlockTable(pool)
        parent.reserve(num_stored)
        parent.commit(num_stored)
        before = list(parent.blocks)
        children = [parent.fork(), parent.fork()]
        assert all(pool.references(block) == 3 for block in before)
        for child in children:
            copies = child.reserve(1)
            child.commit(1)
            full = num_stored // B
            assert list(child.blocks[:full]) == before[:full]
            assert copies == ([(before[-1], child.blocks[full])] if num_stored % B else [])
        assert list(parent.blocks) == before
        assert [pool.references(block) for block in before] == [3] * (num_stored // B) + [1] * (
            num_stored % B > 0
        )
        assert len({child.blocks[-1] for child in (parent, *children)}) == 3
        pool.check()

    @each_kind
    @pytest.mark.parametrize("num_stored", [3, 4, 5, 10])
    def test_P31_children_begin_with_their_parent(self, kind, num_stored):
        box, ids = Shared(kind), tokens(1, num_stored)
        parent = box.cache()
        box.model(ids, cache=parent)
        children = parent.fork(), parent.select([0, 0])
        steps = tokens(1, 7, seed=1), tokens(2, 7, seed=2)
        for child, more in zip(children, steps, strict=True):
            text = torch.cat([ids.expand(len(more), -1), more], 1)
            assert same(box.model(more, cache=child), box.model(text)[:, num_stored:])
        more = tokens(1, 7, seed=3)
        assert same(box.model(more, cache=parent), box.model(torch.cat([ids, more], 1))[:, num_stored:])
        box.memory.check()


class TestP32:
    """ggml-org/llama.cpp#3802: beams that had parted went on sharing one context."""

    @each_kind
    @pytest.mark.parametrize("num_stored", [1, 4, 6])
    def test_P32_forks_write_different_tokens_into_the_last_block(self, kind, num_stored):
        box, ids = Shared(kind), tokens(1, num_stored)
        one = box.cache()
        box.model(ids, cache=one)
        two = one.fork()
        tails = tokens(1, 6, seed=1), (tokens(1, 6, seed=1) + 7) % 61
        outs = [[], []]
        for place in range(6):  # in turns, so that each overwrites what it can reach of the other's
            for out, cache, tail in zip(outs, (one, two), tails, strict=True):
                out.append(box.model(tail[:, place : place + 1], cache=cache))
        outs = [torch.cat(out, 1) for out in outs]
        assert far(*outs)
        for out, tail in zip(outs, tails, strict=True):
            assert same(out, step_by_step(box.model, torch.cat([ids, tail], 1))[:, num_stored:])

    def test_P32_writing_without_a_copy_would_be_noticed(self, monkeypatch):
        monkeypatch.setattr(BlockPool, "is_writable", lambda self, block: True)
        with pytest.raises(AssertionError):
            self.test_P32_forks_write_different_tokens_into_the_last_block("heads", 6)


class TestP37:
    """vllm-project/vllm#6144, #7753: chunks of a prefill and a hit that ends before, in or behind a chunk."""

    @each_kind
    @each_mode
    @pytest.mark.parametrize("known", [3, 8, 11, 20])
    def test_P37_every_chunk_and_every_hit(self, kind, token_granular, known):
        """known: tokens that are stored; chunks of 3 to 20 tokens end before, at and after each of them."""
        box, ids = Shared(kind, token_granular=token_granular), tokens(1, 20)
        expected = box.model(ids)
        held = box.publish(ids[:, :known])
        for chunk in (3, B, 7, 20):
            cache, computed = box.cache(), []
            (hit,) = cache.reuse(ids)
            assert hit <= min(known, 19)
            out = []
            for first in range(0, 20, chunk):  # a scheduler that plans chunks from the first token on
                piece = ids[:, max(first, hit) : first + chunk]
                if piece.shape[1]:
                    out.append(box.model(piece, cache=cache))
                    computed.append(piece.shape[1])
            assert sum(computed) == 20 - hit
            assert cache.seen == (20,)
            assert same(torch.cat(out, 1), expected[:, hit:])
        assert held.seen == (known,)
        box.memory.check()

    def test_P37_a_row_that_has_tokens_takes_no_hit(self):
        """The overlap with tokens that the row computed itself does not arise: only fresh rows look for prefixes."""
        box, ids = Shared(), tokens(1, 16)
        box.publish(ids)
        cache = box.cache()
        box.model(ids[:, :B], cache=cache)
        with pytest.raises(InputError):
            cache.reuse(ids)
        assert cache.seen == (B,)
        assert same(box.model(ids[:, B:], cache=cache), box.model(ids)[:, B:])


class TestP41:
    """jjang-ai/vmlx#198: what is stored was changed by the request that used it again."""

    @each_kind
    @each_mode
    def test_P41_a_hit_and_50_steps_leave_it_as_it_was(self, kind, token_granular):
        box, ids = Shared(kind, token_granular=token_granular), tokens(1, 10)
        held = box.publish(ids)
        own = [sorted({*rows.tables[0].blocks} - {0}) for rows in held._storage.rows]
        snapshot = lambda: [  # noqa: E731
            plane[kept].clone()
            for group, kept in zip(box.memory.groups, own, strict=True)
            for pages in group.all_pages()
            for plane in pages.planes.values()
        ]
        before, cache = snapshot(), box.cache()
        (hit,) = cache.reuse(ids)
        assert hit > 0
        text = torch.cat([ids, tokens(1, 50, seed=1)], 1)
        out = [box.model(step, cache=cache) for step in text[:, hit:].split(1, 1)]
        assert all(torch.equal(a, b) for a, b in zip(snapshot(), before, strict=True))
        assert same(torch.cat(out, 1), box.model(text)[:, hit:])
        assert same(box.model(ids[:, :2], cache=held), box.model(torch.cat([ids, ids[:, :2]], 1))[:, 10:])
