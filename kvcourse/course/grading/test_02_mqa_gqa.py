"""Tests of the exercises of chapter 2, run against one submission after the other."""

import math

import pytest
import torch

from kvcourse.course.grading import expect

DRAWS = 4
FLOAT32 = {"atol": 1e-5, "rtol": 1e-4}  # sums of random numbers in another order
FLOAT64 = {"atol": 1e-12, "rtol": 1e-10}


def whole(rng, low, high):
    """A whole number from low to high, both included, as a plain int."""
    return int(rng.integers(low, high, endpoint=True))


def divisors(number):
    """All divisors, from 1 to the number itself."""
    return [d for d in range(1, number + 1) if number % d == 0]


def normal(rng, *shape):
    """Random float32 numbers of a shape."""
    return torch.from_numpy(rng.standard_normal(shape, dtype="float32"))


def decode_inputs(rng, heads, kv_heads, rows=3, slots=9, dim=4, value_dim=None):
    """q, k, v of one decode step; `lengths` is left to the test."""
    k = normal(rng, rows, kv_heads, slots, dim)
    v = normal(rng, rows, kv_heads, slots, value_dim or dim)
    return normal(rng, rows, heads, dim), k, v


@pytest.mark.exercise("ex-2-grouped-decode")
class TestGroupedDecode:
    """grouped_decode(q, k, v, lengths)"""

    @pytest.mark.points(
        0.5, hint="Query head h reads kv head h // group. Which kv head does each query head of (4, 2) read?"
    )
    def test_each_query_head_reads_its_own_kv_head(self, student, reference, rng):
        for heads, kv_heads in ((4, 2), (6, 2), (6, 3), (8, 4), (3, 3), (5, 1)):
            q, k, v = decode_inputs(rng, heads, kv_heads)
            lengths = torch.full((3,), 9)
            expect.agree(student.grouped_decode, reference.grouped_decode, q, k, v, lengths, **FLOAT32)

    @pytest.mark.points(1, hint="Row b sees its slots 0 to lengths[b] - 1, and no other.")
    def test_rows_of_different_length(self, student, reference, rng):
        for _ in range(DRAWS):
            q, k, v = decode_inputs(rng, 6, whole(rng, 1, 3), rows=4)
            lengths = torch.tensor([1, whole(rng, 2, 5), whole(rng, 6, 8), 9])[
                torch.from_numpy(rng.permutation(4))
            ]
            expect.agree(student.grouped_decode, reference.grouped_decode, q, k, v, lengths, **FLOAT32)

    @pytest.mark.points(
        0.5,
        hint="A weight of 0 does not undo a NaN: 0 · NaN is NaN. Where else can it be stopped?",
    )
    def test_unused_slots_hold_anything(self, student, reference, rng):
        for garbage in (math.nan, math.inf, -math.inf):
            q, k, v = decode_inputs(rng, 4, 2)
            lengths = torch.tensor([3, whole(rng, 4, 7), 9])
            for row, length in enumerate(lengths.tolist()):
                k[row, :, length:] = garbage
                v[row, :, length:] = garbage
            expect.agree(student.grouped_decode, reference.grouped_decode, q, k, v, lengths, **FLOAT32)

    @pytest.mark.points(0.5, hint="A softmax over nothing is not a number; such a row is to give zeros.")
    def test_an_empty_row_gives_zeros(self, student, reference, rng):
        for _ in range(DRAWS):
            q, k, v = decode_inputs(rng, 4, 2)
            lengths = torch.tensor([whole(rng, 1, 9), 0, whole(rng, 1, 9)])
            expect.agree(student.grouped_decode, reference.grouped_decode, q, k, v, lengths, **FLOAT32)

    @pytest.mark.points(
        0.5,
        hint="D_v need not be D. The result is as wide as a value, and the scale is that of queries and keys.",
    )
    def test_values_of_another_width(self, student, reference, rng):
        for width in (1, 3, 16):
            q, k, v = decode_inputs(rng, 6, 3, value_dim=width)
            lengths = torch.tensor([2, 5, 9])
            expect.agree(student.grouped_decode, reference.grouped_decode, q, k, v, lengths, **FLOAT32)


def heads_of_norm(rng, norms, head_dim=3, hidden=5):
    """A float64 weight (heads · head_dim, hidden) whose heads have these Frobenius norms."""
    heads = torch.from_numpy(rng.standard_normal((len(norms), head_dim, hidden)))
    heads /= heads.flatten(1).norm(dim=1)[:, None, None]
    return (heads * torch.tensor(norms, dtype=torch.float64)[:, None, None]).flatten(0, 1)


@pytest.mark.exercise("ex-2-norm-pool")
class TestNormPool:
    """norm_pool(weight, head_dim, keep)"""

    @pytest.mark.points(0.5, hint="Heads of equal norm all count the same, so their mean comes out.")
    def test_equal_norms_give_the_mean(self, student, reference, rng):
        for heads, keep in ((2, 1), (4, 2), (6, 2), (3, 3)):
            weight = heads_of_norm(rng, [float(whole(rng, 1, 9))] * heads)
            expect.agree(student.norm_pool, reference.norm_pool, weight, 3, keep, **FLOAT64)

    @pytest.mark.points(
        0.75,
        hint="A head's share is the norm of its whole block, divided by the sum of the norms in its group.",
    )
    def test_heads_count_as_much_as_their_norm(self, student, reference, rng):
        for _ in range(DRAWS):
            norms = [float(norm) for norm in rng.uniform(0.2, 5.0, 6)]
            for keep in (1, 2, 3):
                weight = heads_of_norm(rng, norms)
                expect.agree(student.norm_pool, reference.norm_pool, weight, 3, keep, **FLOAT64)

    @pytest.mark.points(
        0.25, hint="Nothing divided by nothing is not a number. What should a sum of zeros be?"
    )
    def test_a_group_of_zeros_stays_zero(self, student, reference, rng):
        for _ in range(DRAWS):
            norms = [0.0, 0.0, float(whole(rng, 1, 5)), 0.0]
            expect.agree(student.norm_pool, reference.norm_pool, heads_of_norm(rng, norms), 3, 2, **FLOAT64)

    @pytest.mark.points(
        0.5, hint="Someone else still needs the weight: write into a tensor of your own, of its dtype."
    )
    def test_the_argument_stays_as_it_is(self, student, student_session, reference, rng):
        for dtype, tolerance in ((torch.float64, FLOAT64), (torch.float32, FLOAT32)):
            weight = heads_of_norm(rng, [float(norm) for norm in rng.uniform(0.2, 5.0, 4)]).to(dtype)
            there = student_session.put(weight)
            expect.close(
                student.norm_pool(there, 3, 2),
                reference.norm_pool(weight, 3, 2),
                **tolerance,
                what="pooled weight",
            )
            expect.equal(there.fetch(), weight, what="weight after the call")


def split_evenly(rng):
    """(heads, kv_heads, gpus) where each GPU gets whole groups."""
    gpus, per_gpu, group = whole(rng, 1, 8), whole(rng, 1, 4), whole(rng, 1, 6)
    return gpus * per_gpu * group, gpus * per_gpu, gpus


@pytest.mark.exercise("ex-2-cache-per-gpu")
class TestCachePerGpu:
    """bytes_per_gpu(layers, heads, kv_heads, head_dim, gpus, number=2)"""

    @pytest.mark.points(
        0.5,
        hint="Layers times two (key and value) times kv heads on that GPU times numbers per head times bytes.",
    )
    def test_every_gpu_has_whole_groups(self, student, reference, rng):
        for _ in range(DRAWS):
            heads, kv_heads, gpus = split_evenly(rng)
            for count in (1, gpus, kv_heads):
                shape = (whole(rng, 1, 90), heads, kv_heads, 2 ** whole(rng, 3, 8), count)
                expect.agree(student.bytes_per_gpu, reference.bytes_per_gpu, *shape)

    @pytest.mark.points(
        0.5, hint="A GPU cannot compute without the keys that its query heads read, so they are copied."
    )
    def test_more_gpus_than_kv_heads(self, student, reference, rng):
        for _ in range(DRAWS):
            kv_heads, copies, group = whole(rng, 1, 4), whole(rng, 2, 4), whole(rng, 1, 3)
            gpus = kv_heads * copies
            heads = gpus * group
            expect.agree(student.bytes_per_gpu, reference.bytes_per_gpu, 32, heads, kv_heads, 128, gpus)

    @pytest.mark.points(
        0.5,
        hint="Which query heads has the second GPU, and which kv heads do they read? The GPU with the most counts.",
    )
    def test_groups_that_are_cut(self, student, reference, rng):
        for heads, kv_heads, gpus in (
            (12, 4, 6),
            (24, 8, 6),
            (12, 3, 2),
            (40, 8, 20),
            (30, 6, 10),
            (36, 4, 6),
        ):
            expect.agree(
                student.bytes_per_gpu, reference.bytes_per_gpu, whole(rng, 1, 90), heads, kv_heads, 64, gpus
            )

    @pytest.mark.points(0.5, hint="`number` is the bytes of one number, 2 unless it is said.")
    def test_numbers_of_any_size(self, student, reference, rng):
        for number in (1, 4, 8):
            heads, kv_heads, gpus = split_evenly(rng)
            shape = (whole(rng, 1, 90), heads, kv_heads, whole(rng, 1, 300), gpus)
            expect.agree(student.bytes_per_gpu, reference.bytes_per_gpu, *shape, number)


@pytest.mark.exercise("ex-2-kv-head-budget")
class TestKvHeadBudget:
    """most_kv_heads(layers, heads, head_dim, budget, number=2)"""

    @staticmethod
    def per_head(rng):
        """(layers, head_dim, bytes of one kv head in all layers)."""
        layers, dim = whole(rng, 2, 80), 2 ** whole(rng, 4, 8)
        return layers, dim, layers * 2 * dim * 2

    @pytest.mark.points(
        0.5, hint="kv heads must divide the query heads. Which of the divisors fit the budget?"
    )
    def test_a_budget_between_two_divisors(self, student, reference, rng):
        for heads in (9, 12, 24, 32, 40):
            layers, dim, size = self.per_head(rng)
            small, large = (int(d) for d in sorted(rng.choice(divisors(heads), 2, replace=False)))
            budget = whole(rng, small * size, large * size - 1)
            expect.agree(student.most_kv_heads, reference.most_kv_heads, layers, heads, dim, budget)

    @pytest.mark.points(0.5, hint="A budget that is used up to the last byte is kept.")
    def test_a_budget_that_is_just_met(self, student, reference, rng):
        for heads in (6, 16, 71):
            for kv_heads in divisors(heads):
                layers, dim, size = self.per_head(rng)
                expect.agree(
                    student.most_kv_heads, reference.most_kv_heads, layers, heads, dim, kv_heads * size
                )

    @pytest.mark.points(
        0.5, hint="If not even one kv head fits, there is none; and there are never more than query heads."
    )
    def test_too_little_and_more_than_enough(self, student, reference, rng):
        for _ in range(DRAWS):
            heads = whole(rng, 2, 48)
            layers, dim, size = self.per_head(rng)
            for budget in (0, size - 1, heads * size, whole(rng, 3, 9) * heads * size):
                expect.agree(student.most_kv_heads, reference.most_kv_heads, layers, heads, dim, budget)

    @pytest.mark.points(
        0.5, hint="`number` is the bytes of one number: at 1 byte, twice as many heads fit as at 2."
    )
    def test_numbers_of_any_size(self, student, reference, rng):
        for number in (1, 4, 8):
            layers, dim, _ = self.per_head(rng)
            heads, size = 24, layers * 2 * dim * number
            budget = whole(rng, 2, 12) * size
            expect.agree(student.most_kv_heads, reference.most_kv_heads, layers, heads, dim, budget, number)
