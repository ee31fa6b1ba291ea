"""Faults that people reported of prefix indexes, as tests of ours (P1 to P10).

The pool of blocks (P13, P14 and P22 to P29), sharing on a cache (P11, P28 and P31 to P41) and serving (P16 to P20 and
P38) have files of their own. The other numbers up to P41 are not in the list of cases.
"""

# ruff: noqa: N802 (tests carry the name of their case)

import random

import numpy
import pytest
from prefix_boxes import HashIndex

from kvcourse.storage.prefix_hash import content_key

ADAPTER_A, ADAPTER_B, SALT_A = ("adapter", b"A"), ("adapter", b"B"), ("salt", b"A")


INDEXES = {"hash": HashIndex}
each_index = pytest.mark.parametrize("make", INDEXES.values(), ids=INDEXES)


class TestP1:
    """vllm-project/vllm#12621, CVE-2025-25183: hash chains began with a constant that anybody could guess."""

    def first_hash(self, tokens=range(4), **options):
        return HashIndex(**options).index.chain(tokens).hashes[0]

    def test_P1_the_root_is_random_unless_it_is_given(self):
        assert len({self.first_hash() for _ in range(20)}) == 20
        assert self.first_hash(seed=b"one") == self.first_hash(seed=b"one")
        assert self.first_hash(seed=b"one") != self.first_hash(seed=b"two")

    def test_P1_every_block_of_a_chain_depends_on_it(self):
        one, two = (HashIndex().index.chain(range(12)).hashes for _ in range(2))
        assert len({*one, *two}) == 6

    def test_P1_an_empty_seed_is_a_seed(self):
        assert self.first_hash(seed=b"") == self.first_hash(seed=b"") != self.first_hash()


class TestP2:
    """openvinotoolkit/openvino.genai#3722: where hashes collide, the blocks of another prompt were returned."""

    def test_P2_a_block_found_by_name_is_verified(self):
        box = HashIndex(hash_fn=lambda *_: 0)
        box.store([1, 2, 3, 4])
        assert box.found([5, 6, 7, 8, 9]) == 0
        assert box.index.collisions == 1
        assert box.found([1, 2, 3, 4, 9]) == 4
        assert box.index.collisions == 1

    def test_P2_the_tokens_before_a_block_are_verified_too(self):
        """The second blocks are equal, and the hash function sees no more than the block."""
        box = HashIndex(hash_fn=lambda parent, tokens, extras: tokens)
        box.store([1, 2, 3, 4, 7, 7, 7, 7])
        box.store([5, 6, 7, 8])
        assert box.found([5, 6, 7, 8, 7, 7, 7, 7, 7]) == 4
        assert box.index.collisions == 1

    def test_P2_collisions_cost_hits_and_nothing_else(self):
        """Eight names for everything: whatever is found is right."""
        box = HashIndex(hash_fn=lambda parent, tokens, extras: sum(tokens) % 8)
        draw = random.Random(0)
        contents = {}
        for _ in range(300):
            prompt = [draw.randrange(2) for _ in range(draw.randrange(1, 13))]
            hit = box.index.match(prompt)
            for i, block in enumerate(hit.blocks):
                assert contents[block] == prompt[: 4 * (i + 1)]
            for i, block in enumerate(box.store(prompt)):
                contents[block] = prompt[: 4 * (i + 1)]
        assert box.index.hit_tokens > 0
        assert box.index.collisions > 0


@each_index
@pytest.mark.parametrize("kinds", [("adapter", "salt"), ("salt", "adapter"), ("image", "salt")])
def test_P4_an_adapter_of_the_name_of_a_salt(make, kinds):
    """vllm-project/vllm#44701: extra keys were joined without their kinds, so one kind passed for another."""
    stored, asked = kinds
    box, prompt = make(), list(range(9))
    box.store(prompt, [(stored, b"X")])
    assert box.found(prompt, [(asked, b"X")]) == 0
    assert box.found(prompt, [(stored, b"X")]) == 8


@each_index
def test_P4_nor_do_parts_of_names_run_together(make):
    box, prompt = make(), list(range(9))
    splits = [("ad", b"apter"), ("adapter", b""), ("a", b"dapter")]
    for n, key in enumerate(splits):
        assert all(box.found(prompt, [other]) == 0 for other in splits[n:])
        box.store(prompt, [key])
    box.store(prompt, [("x", b"12"), ("y", b"3")])
    assert box.found(prompt, [("x", b"1"), ("y", b"23")]) == 0
    assert box.found(prompt, [("y", b"3"), ("x", b"12")]) == 8


class TestP5:
    """vllm-project/vllm#3264: the prefix cache knew nothing of the adapter."""

    def test_P5_each_adapter_has_a_chain_of_its_own(self):
        box, prompt, keys = HashIndex(), list(range(13)), ([ADAPTER_A], [ADAPTER_B], [])
        names = [box.index.chain(prompt, key).hashes for key in keys]
        assert len(set().union(*names)) == 9
        for n, key in enumerate(keys):
            assert box.found(prompt, key) == 0
            box.store(prompt, key)
            assert [box.found(prompt, other) for other in keys] == [12] * (n + 1) + [0] * (2 - n)


class TestP7:
    """vllm-project/vllm#42125, #42495: an adapter was loaded anew, and the blocks of the old one still served."""

    def test_P7_old_blocks_are_unreachable_and_not_lost(self):
        box, prompt = HashIndex(num_blocks=9), list(range(9))
        table = box.store(prompt, [ADAPTER_A])
        box.store(prompt, [ADAPTER_B])
        box.index.bump_version(*ADAPTER_A)
        assert box.found(prompt, [ADAPTER_A]) == 0
        assert box.found(prompt, [ADAPTER_B]) == 8
        assert box.pool.num_free == 8
        assert set(table) <= set(box.pool.allocate(8))  # all can be given out again
        box.check()

    def test_P7_the_new_version_is_found_and_the_old_never_again(self):
        box, prompt = HashIndex(), list(range(9))
        old = box.store(prompt, [ADAPTER_A])
        for _ in range(3):
            box.index.bump_version(*ADAPTER_A)
            assert box.found(prompt, [ADAPTER_A]) == 0
            new = box.store(prompt, [ADAPTER_A])
            assert box.index.match(prompt, [ADAPTER_A]).blocks == tuple(new[:2])
            assert not set(new[:2]) & set(old[:2])

    def test_P7_a_request_that_began_before_stores_nothing_for_the_new_one(self):
        box, prompt = HashIndex(), list(range(9))
        chain, table = box.index.chain(prompt, [ADAPTER_A]), box.pool.allocate(3)
        box.index.bump_version(*ADAPTER_A)
        assert box.index.insert(chain, table) == 0
        assert box.found(prompt, [ADAPTER_A]) == 0


class TokensOnly(HashIndex):
    """The fault of P8: what else the numbers depend on is forgotten."""

    def store(self, tokens, extra_keys=()):
        return super().store(tokens)

    def found(self, tokens, extra_keys=()):
        return super().found(tokens)


class TestP8:
    """vllm-project/vllm#8240: a second block manager hashed tokens only, while the first knew of adapters."""

    def misses(self, make):
        keys = ([], [ADAPTER_A], [ADAPTER_B], [SALT_A], [ADAPTER_A, SALT_A])
        box, prompt = make(), list(range(10, 19))
        box.store(prompt, keys[1])
        return [box.found(prompt, key) for key in keys]

    @each_index
    def test_P8_every_index_tells_extra_keys_apart(self, make):
        assert self.misses(make) == [0, 8, 0, 0, 0]

    def test_P8_one_that_does_not_would_be_noticed(self):
        assert self.misses(TokensOnly) == [8] * 5


class TestP10:
    """ai-dynamo/dynamo#8340; sgl-project/sglang#25462, #2151; LMCache/LMCache#4415, #4783: an image's key without
    shape or type, or cut to 16 or 64 bits."""

    numbers = numpy.arange(30 * 150, dtype=numpy.int32)

    def test_P10_shape_and_type_are_part_of_the_key(self):
        wide = self.numbers.reshape(30, 150)
        views = [wide, wide.reshape(150, 30), self.numbers, wide.view(numpy.uint32), wide.view(numpy.float32)]
        assert len({content_key(view) for view in views}) == len(views)

    def test_P10_how_lists_are_nested_is_part_of_the_key(self):
        lists = [[[1, 2], [3]], [[1], [2, 3]], [[1, 2, 3]], [1, 2, 3], [[[1, 2], [3]]], [[], [1, 2, 3]]]
        assert len({content_key(item) for item in lists}) == len(lists)

    def test_P10_equal_contents_have_one_key_whatever_their_strides(self):
        wide = self.numbers.reshape(30, 150)
        assert content_key(wide) == content_key(numpy.asfortranarray(wide)) == content_key(wide.copy())
        assert content_key(wide) == content_key(wide[::-1][::-1])

    def test_P10_every_number_counts_and_the_digest_is_long(self):
        keys = {content_key(self.numbers)}
        for place in (0, 1, 15, 16, 2000, self.numbers.size - 1):
            changed = self.numbers.copy()
            changed[place] ^= 1 << 30
            keys.add(content_key(changed))
        assert len(keys) == 7
        assert all(len(key) * 8 >= 128 for key in keys)
