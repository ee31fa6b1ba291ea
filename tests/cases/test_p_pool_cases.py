"""Faults that people reported of block pools and block tables, as tests of ours (P13, P14 and P22 to P29)."""

# ruff: noqa: N802 (tests carry the name of their case)

import random

import pytest
import torch
from prefix_boxes import HashIndex

from kvcourse.errors import InputError, PoolExhausted
from kvcourse.kernels import slot_mapping
from kvcourse.storage.block_pool import BlockPool, blocks_for
from kvcourse.storage.block_table import BlockTable
from kvcourse.storage.prefix_index import PrefixIndex


class TestP13:
    """GeeeekExplorer/nano-vllm#163; ovg-project/kvcached#362: a block that was given out again kept its old name."""

    def test_P13_other_tokens_in_the_same_block(self):
        box, old, new = HashIndex(num_blocks=4), list(range(9)), list(range(20, 29))
        table = box.store(old)
        assert box.found(old) == 8
        assert set(box.store(new)) == set(table)
        assert (box.found(old), box.found(new)) == (0, 8)

    def drive(self, box, operations=10_000):
        """`written` holds what each block was last filled with; nothing is found that is not there."""
        written, running, hits, evicted, draw = {}, [], 0, 0, random.Random(1)
        for _ in range(operations):
            if running and (len(running) == 3 or draw.random() < 0.5):
                box.pool.free(running.pop(draw.randrange(len(running))))
                continue
            prompt = [draw.randrange(2) for _ in range(draw.randrange(1, 13))]
            hit = box.index.acquire(prompt)
            for i, block in enumerate(hit.blocks):
                assert written[block] == prompt[: 4 * (i + 1)]
            if hit.source is not None:
                assert written[hit.source][: hit.num_tokens] == prompt[: hit.num_tokens]
                box.pool.free([hit.source])
            need = blocks_for(len(prompt), 4) - len(hit.blocks)
            if need > box.pool.num_free:
                box.pool.free(hit.blocks)
                continue
            new = box.pool.allocate(need)
            evicted += sum(block in written for block in new)
            table = [*hit.blocks, *new]
            written |= {block: prompt[: 4 * (i + 1)] for i, block in enumerate(table)}
            box.index.insert(prompt, table)
            running.append(table)
            hits += hit.num_tokens > 0
        return hits, evicted

    @pytest.mark.parametrize("token_granular", [False, True])
    def test_P13_names_and_contents_agree_over_10_000_operations(self, token_granular):
        box = HashIndex(num_blocks=12, token_granular=token_granular)
        assert min(self.drive(box)) > 1000
        box.check()

    def test_P13_an_index_that_is_not_told_would_be_noticed(self):
        box = HashIndex(num_blocks=12)
        box.pool.on_reuse = None
        with pytest.raises((AssertionError, InputError)):
            self.drive(box)


@pytest.mark.parametrize("block_size", [1, 2, 3, 16])
def test_P14_a_new_block_exactly_when_the_stored_tokens_fill_all(block_size):
    """GeeeekExplorer/nano-vllm#30, #91, #150, #240: is it `len % B == 1`, where len counts the token to come?

    Ours counts what is stored: a new block if and only if num_stored % B == 0, which holds for blocks of 1, too.
    """
    for stored in sorted({0, 1, block_size - 1, block_size, block_size + 1, 2 * block_size}):
        table = BlockTable(BlockPool(8, block_size))
        table.reserve(stored)
        table.commit(stored)
        is_new = stored % block_size == 0
        assert table.missing(1) == is_new
        assert blocks_for(stored + 1, block_size) - blocks_for(stored, block_size) == is_new
        before = list(table.blocks)
        table.reserve(1)
        assert len(table.blocks) == len(before) + is_new
        assert list(table.slots(stored, 1)) == [
            table.blocks[stored // block_size] * block_size + stored % block_size
        ]
        table.commit(1)
        table.check()
        by_length = (stored + 1) % block_size == 1  # the form that readers dispute
        assert by_length == (is_new and block_size > 1)


def test_P22_null_entries_do_not_pass_through_free():
    """ModelEngine-Group/unified-cache-management#1053: placeholder blocks were freed like others."""
    pool = BlockPool(8, 4)
    a, b = pool.allocate(2)
    for _ in range(3):
        pool.free([0, 0, 0])
        pool.fork([0, 0])
        assert (pool.num_free, pool.references(0)) == (5, 0)
    pool.free([0, a, 0, 0, b])
    assert (pool.num_free, pool.references(0)) == (7, 0)
    pool.check()
    assert 0 not in pool.allocate(7)


class TestP23:
    """vllm-project/vllm#37076: a block was given out again while others still held it."""

    def drive(self, pool, steps, draw):
        """Random requests; counts for itself how many tables name a block, and yields what each call gave."""
        tables, index = [], PrefixIndex(pool)
        for _ in range(steps):
            move = draw.random()
            held = {block for table in tables for block in table}
            if move < 0.45:
                n = draw.randrange(1, 5)
                free = pool.num_blocks - 1 - len(held)
                if n > free:
                    with pytest.raises(PoolExhausted):
                        pool.allocate(n)
                    continue
                new = pool.allocate(n)
                assert len(set(new)) == n
                assert not set(new) & (held | {0})
                if draw.random() < 0.5:  # half of them stay findable
                    index.insert([draw.randrange(3) for _ in range(n * pool.block_size)], new)
                tables.append(new)
            elif move < 0.6 and tables:
                tables.append(pool.fork(draw.choice(tables)))
            elif move < 0.75:
                hit = index.acquire([draw.randrange(3) for _ in range(9)])
                tables.append(list(hit.blocks))
            elif tables:
                pool.free(tables.pop(draw.randrange(len(tables))))
            for block in range(1, pool.num_blocks):
                assert pool.references(block) == sum(block in table for table in tables)
            pool.check()
            index.check()

    @pytest.mark.parametrize("num_blocks", [2, 7, 20])
    def test_P23_a_held_block_is_never_given_out(self, num_blocks):
        self.drive(BlockPool(num_blocks, 2), 1500, random.Random(num_blocks))

    def test_P23_a_pool_that_forgets_a_reference_would_be_noticed(self):
        class Forgetful(BlockPool):
            def fork(self, blocks):
                return list(blocks)

        with pytest.raises((AssertionError, InputError)):
            self.drive(Forgetful(7, 2), 1500, random.Random(7))


class TestP25:
    """LMCache/LMCache#2327: fewer slots than tokens."""

    @pytest.mark.parametrize("block_size", [1, 3, 4, 16])
    @pytest.mark.parametrize("chunk", [1, 2, 5, 16, 40])
    def test_P25_a_slot_for_each_new_token(self, block_size, chunk):
        """Every hit, in whole blocks or inside one; two rows, the second of which is a token longer."""
        for hit in range(0, 41, 3):
            tables = [BlockTable(BlockPool(200, block_size)) for _ in range(2)]
            for row, table in enumerate(tables):
                table.pool.allocate(row)  # so that the rows' blocks differ
                table.reserve(hit + chunk + row)
                table.commit(hit + chunk + row)
            width = max(len(table.blocks) for table in tables)
            blocks = torch.tensor([[*table.blocks, *[-1] * (width - len(table.blocks))] for table in tables])
            lengths, starts = (
                torch.tensor([hit + chunk, hit + chunk + 1]),
                torch.tensor([0, chunk, 2 * chunk + 1]),
            )
            slots = slot_mapping(blocks, lengths, starts, block_size)
            assert len(slots) == 2 * chunk + 1
            expected = [
                table.blocks[position // block_size] * block_size + position % block_size
                for row, table in enumerate(tables)
                for position in range(hit, hit + chunk + row)
            ]
            assert slots.tolist() == expected
            assert [*tables[0].slots(hit, chunk), *tables[1].slots(hit, chunk + 1)] == expected


class TestP26:
    """vllm-project/vllm#42656: blocks that nobody can find again pushed out those that are still wanted."""

    def test_P26_unnamed_blocks_go_out_first_and_named_ones_last(self):
        box = HashIndex(num_blocks=12)
        hot = box.store(list(range(8)))
        table = box.pool.allocate(3)
        box.index.insert(list(range(20, 30)), table)  # two full blocks and a part of one
        box.pool.free(table)
        assert box.pool.free_order()[0] == table[2]
        assert box.pool.free_order()[-4:] == [*reversed(hot), table[1], table[0]]

    @pytest.mark.parametrize("length", [1, 2, 3])
    def test_P26_a_hot_prefix_outlives_100_short_prompts(self, length):
        box, prefix = HashIndex(num_blocks=6), list(range(17))  # four of five blocks keep it
        box.store(prefix)
        assert box.found(prefix) == 16
        for n in range(100):
            box.store([100 + n] * length)
        assert box.found(prefix) == 16

    def test_P26_used_again_is_used_last(self):
        box = HashIndex(num_blocks=7)
        hot, cold = list(range(9)), list(range(20, 29))
        box.store(hot)
        box.store(cold)
        box.pool.free(box.index.acquire(hot).blocks)
        box.pool.free(box.pool.allocate(4))
        assert (box.found(hot), box.found(cold)) == (8, 0)


class TestP29:
    """local-inference-lab/vllm#480: hits on blocks that had all been evicted."""

    @pytest.mark.parametrize("token_granular", [False, True])
    def test_P29_nothing_is_found_once_all_is_evicted(self, token_granular):
        box = HashIndex(num_blocks=16, token_granular=token_granular)
        prompts = [[n, *range(12)] for n in range(3)]
        for prompt in prompts:
            box.store(prompt)
        assert all(box.found(prompt) for prompt in prompts)
        box.pool.free(box.pool.allocate(15))
        assert all(box.found(prompt) == 0 for prompt in prompts)
        assert (box.index.num_indexed, box.pool.num_labelled, box.pool.num_cached) == (0, 0, 0)
        assert box.pool.num_free == 15
        box.check()

    def test_P29_one_by_one(self):
        """What is found shrinks with every block that is given out, and no block is found afterwards."""
        box, prompt = HashIndex(num_blocks=7), list(range(21))
        *table, tail = box.store(prompt)
        assert box.pool.allocate(1) == [tail]  # it has no name
        taken = []
        for left in range(5, 0, -1):
            assert box.found(prompt) == 4 * left == 4 * box.index.num_indexed
            taken += box.pool.allocate(1)
            assert not set(box.index.match(prompt).blocks) & set(taken)
        assert box.found(prompt) == box.index.num_indexed == 0
        assert sorted(taken) == sorted(table)
