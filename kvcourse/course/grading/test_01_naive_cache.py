"""Tests of the exercises of chapter 1, run against one submission after the other."""

import pytest
import torch

from kvcourse.course.grading import expect

DRAWS = 4
ROUNDING = 1e-9  # a share may be computed in another order of operations


def whole(rng, low, high):
    """A whole number from low to high, both included, as a plain int."""
    return int(rng.integers(low, high, endpoint=True))


def row(rng, numbers, tokens):
    """One packed row: the documents `numbers` one after the other, `tokens` in all, at least one each."""
    cuts = sorted(int(cut) for cut in rng.choice(tokens - 1, len(numbers) - 1, replace=False) + 1)
    ends = zip([0, *cuts], [*cuts, tokens], strict=True)
    return [number for number, (start, end) in zip(numbers, ends, strict=True) for _ in range(end - start)]


def distinct(rng, count):
    """Different small numbers in no order."""
    return [int(number) for number in rng.permutation(20)[:count]]


@pytest.mark.exercise("ex-1-packed-positions")
class TestPackedPositions:
    """packed_positions(document)"""

    @pytest.mark.points(0.5, hint="Find the column where each document starts. A position counts from there.")
    def test_documents_with_different_numbers(self, student, reference, rng):
        for _ in range(DRAWS):
            numbers, tokens = distinct(rng, 12), whole(rng, 12, 20)
            rows = [row(rng, numbers[start:end], tokens) for start, end in ((0, 3), (3, 5), (5, 9), (9, 12))]
            expect.agree(student.packed_positions, reference.packed_positions, torch.tensor(rows))

    @pytest.mark.points(
        0.5, hint="Only neighbours tell where a document starts: its number may have been there before."
    )
    def test_a_number_that_comes_back_starts_anew(self, student, reference, rng):
        for _ in range(DRAWS):
            first, second, third = distinct(rng, 3)
            rows = [
                row(rng, numbers, 16)
                for numbers in (
                    [first, second, first],
                    [second, first, third, first, second],
                    [third, second] * 2,
                )
            ]
            expect.agree(student.packed_positions, reference.packed_positions, torch.tensor(rows))

    @pytest.mark.points(
        0.5, hint="Any integers can be document numbers, 0 and -1 too, in any integer dtype. int64 comes out."
    )
    def test_any_integers_as_numbers(self, student, reference, rng):
        for dtype in (torch.int64, torch.int32, torch.int16):
            largest = torch.iinfo(dtype).max
            rows = [
                row(rng, numbers, 14)
                for numbers in ([-1, 0, -7], [0, -1, 0], [largest, -largest - 1, largest], [-2, -1, 5])
            ]
            document = torch.tensor(rows, dtype=dtype)
            expect.agree(student.packed_positions, reference.packed_positions, document)

    @pytest.mark.points(0.25, hint="Rows have nothing to do with each other, and a row may have one token.")
    def test_every_row_starts_at_zero(self, student, reference, rng):
        for _ in range(DRAWS):
            numbers = distinct(rng, 3)
            # The second row begins with the document that the first one ends with.
            document = torch.tensor([row(rng, numbers, 9), row(rng, numbers[::-1], 9)])
            for part in (document, document[:1], document[:, :1], document[:1, :1]):
                expect.agree(student.packed_positions, reference.packed_positions, part.contiguous())

    @pytest.mark.points(
        0.25, hint="Someone else still needs the document numbers: write into a tensor of your own."
    )
    def test_the_argument_stays_as_it_is(self, student, student_session, reference, rng):
        for _ in range(DRAWS):
            numbers = distinct(rng, 6)
            document = torch.tensor([row(rng, numbers[:3], 10), row(rng, numbers[3:], 10)])
            there = student_session.put(document)
            expect.equal(
                student.packed_positions(there), reference.packed_positions(document), what="positions"
            )
            expect.equal(there.fetch(), document, what="document after the call")


class Pair:
    """The student's cache and the reference's, made alike and given the same tokens."""

    def __init__(self, student, reference, rng, capacity=None):
        self.rng, self.sizes = rng, [whole(rng, 1, 3), whole(rng, 1, 3), whole(rng, 1, 5)]
        arguments = self.sizes if capacity is None else [*self.sizes, capacity]
        self.expected = reference.FusedCache(*arguments)
        self.got = student.FusedCache(*arguments)

    def append(self, tokens):
        """Give both the same keys and values, and compare what they return."""
        batch, heads, dim = self.sizes
        k, v = torch.from_numpy(self.rng.standard_normal((2, batch, heads, tokens, dim), dtype="float32"))
        before = self.expected.length
        expected = self.expected.append(k, v)
        what = f"append of {tokens} to {before} tokens"
        keys, values = expect.parts(self.got.append(k, v), 2, what=what)
        expect.equal(keys, expected[0], what=f"keys from {what}")
        expect.equal(values, expected[1], what=f"values from {what}")

    def grow_to(self, *lengths):
        """Append up to each length and compare the size of the buffer, whatever `append` returns."""
        batch, heads, dim = self.sizes
        for length in lengths:
            tokens, capacity = length - self.expected.length, self.expected.buffer.shape[3]
            k = v = torch.ones(batch, heads, tokens, dim)
            self.expected.append(k, v)
            self.got.append(k, v)
            what = f"with capacity {capacity}, {length - tokens} tokens and {tokens} more"
            expect.equal(self.got.length, self.expected.length, what=f"length {what}")
            expect.equal(
                tuple(self.got.buffer.shape), tuple(self.expected.buffer.shape), what=f"buffer.shape {what}"
            )


@pytest.mark.exercise("ex-1-fused-append")
class TestFusedAppend:
    """FusedCache(batch, heads, dim, capacity=4).append(k, v)"""

    @pytest.mark.points(
        0.5, hint="Write keys and values at `length`, move it, and return the filled slots only."
    )
    def test_tokens_that_fit(self, student, reference, rng):
        for capacity in (None, *(whole(rng, 8, 16) for _ in range(DRAWS))):
            pair = Pair(student, reference, rng, capacity)
            for tokens in (1, 2, 1) if capacity is None else (whole(rng, 1, 4), 1, whole(rng, 2, 3)):
                pair.append(tokens)
            expect.equal(pair.got.length, pair.expected.length, what="length")

    @pytest.mark.points(
        1,
        hint="All keys and values lie in `buffer`. A new one is empty: which slots of the old one belong there?",
    )
    def test_old_tokens_survive_growth(self, student, reference, rng):
        for _ in range(DRAWS):
            pair = Pair(student, reference, rng, whole(rng, 1, 5))
            for tokens in (whole(rng, 1, 3), whole(rng, 4, 6), 1, whole(rng, 9, 12), whole(rng, 1, 30)):
                pair.append(tokens)
            filled = pair.expected.length
            expect.equal(
                pair.got.buffer[:, :, :, :filled],
                pair.expected.buffer[:, :, :, :filled],
                what="filled part of buffer",
            )

    @pytest.mark.points(
        0.5, hint="What is one and a half times the old capacity, filled or not, rounded down?"
    )
    def test_it_grows_by_half_rounded_down(self, student, reference, rng):
        for capacity in (1, 2, 5, whole(rng, 6, 9)):
            Pair(student, reference, rng, capacity).grow_to(*range(1, capacity + 8))
        for _ in range(DRAWS):
            # Two or three tokens at once, of which the first still has a slot.
            capacity = whole(rng, 6, 16)
            Pair(student, reference, rng, capacity).grow_to(capacity - whole(rng, 1, 2), capacity + 1)

    @pytest.mark.points(0.5, hint="A buffer can be full to the last slot. It grows when a token has no slot.")
    def test_the_last_slot_is_used_before_it_grows(self, student, reference, rng):
        for _ in range(DRAWS):
            capacity = whole(rng, 4, 12)
            Pair(student, reference, rng, capacity).grow_to(whole(rng, 1, capacity - 1), capacity)

    @pytest.mark.points(
        0.5, hint="The smallest capacity that meets both conditions: which one decides for a long chunk?"
    )
    def test_a_long_chunk_gets_just_its_room(self, student, reference, rng):
        for _ in range(DRAWS):
            capacity = whole(rng, 5, 12)
            once = capacity * 3 // 2
            # Between one step of growth and two: who grows in steps gets too much.
            end = whole(rng, once + 1, once * 3 // 2 - 1)
            pair = Pair(student, reference, rng, capacity)
            pair.grow_to(whole(rng, 1, capacity - 1), end, end + whole(rng, 2 * end, 3 * end))


@pytest.mark.exercise("ex-1-dropped-cache")
class TestDroppedCache:
    """scores_with_drops(p, n, m)"""

    @pytest.mark.points(
        0.5, hint="A prefill of p tokens, then a pass for each new token but the first. Of what length is it?"
    )
    def test_too_few_tokens_for_a_drop(self, student, reference, rng):
        for _ in range(DRAWS):
            p, n = whole(rng, 1, 50), whole(rng, 2, 40)
            for new, m in ((1, n), (n, n), (n, n + whole(rng, 1, 9))):
                expect.agree(student.scores_with_drops, reference.scores_with_drops, p, new, m)

    @pytest.mark.points(0.5, hint="With m = 1 every pass is a prefill, of one token more each time.")
    def test_a_drop_after_every_token(self, student, reference, rng):
        for n in (1, 2, *(whole(rng, 3, 40) for _ in range(DRAWS))):
            expect.agree(student.scores_with_drops, reference.scores_with_drops, whole(rng, 1, 50), n, 1)

    @pytest.mark.points(0.5, hint="Which new tokens come from a prefill? Write them down for m = 3.")
    def test_drops_now_and_then(self, student, reference, rng):
        for _ in range(DRAWS):
            m = whole(rng, 2, 7)
            n = m * whole(rng, 2, 5) + whole(rng, 2, m)
            expect.agree(student.scores_with_drops, reference.scores_with_drops, whole(rng, 1, 50), n, m)

    @pytest.mark.points(0.5, hint="After the last token nothing has to be computed any more.")
    def test_a_drop_after_the_last_token_costs_nothing(self, student, reference, rng):
        for _ in range(DRAWS):
            p, m = whole(rng, 1, 50), whole(rng, 2, 9)
            n = m * whole(rng, 1, 4)
            for new in (n, n + 1):
                expect.agree(student.scores_with_drops, reference.scores_with_drops, p, new, m)


@pytest.mark.exercise("ex-1-empty-share")
class TestEmptyShare:
    """empty_share(lengths, first=16)"""

    @pytest.mark.points(
        0.5, hint="How many slots has one request? It starts with 16 and doubles until the request fits."
    )
    def test_one_request(self, student, reference, rng):
        for length in (
            whole(rng, 1, 8),
            whole(rng, 9, 15),
            whole(rng, 17, 31),
            whole(rng, 33, 63),
            whole(rng, 65, 5000),
        ):
            expect.agree(student.empty_share, reference.empty_share, [length], atol=ROUNDING)

    @pytest.mark.points(0.5, hint="A request that fills its slots to the last one has not doubled them yet.")
    def test_a_request_that_just_fits(self, student, reference, rng):
        for _ in range(DRAWS):
            slots = 16 * 2 ** whole(rng, 0, 9)
            for length in (slots, slots + 1):
                expect.agree(student.empty_share, reference.empty_share, [length], atol=ROUNDING)

    @pytest.mark.points(
        0.5, hint="A share of the slots of all requests together, each of which starts anew with 16."
    )
    def test_slots_of_all_requests_together(self, student, reference, rng):
        for _ in range(DRAWS):
            # Odd, so that none just fits.
            large = [2 * whole(rng, 50, 1500) + 1 for _ in range(whole(rng, 1, 9))]
            lengths = [whole(rng, 1, 15), whole(rng, 1, 15), *large]
            rng.shuffle(lengths)
            expect.agree(student.empty_share, reference.empty_share, lengths, atol=ROUNDING)

    @pytest.mark.points(0.5, hint="The first capacity is an argument, and it need not be a power of two.")
    def test_another_first_capacity(self, student, reference, rng):
        for first in (1, 6, 2 * whole(rng, 5, 7), 2 * whole(rng, 50, 100)):
            lengths = [2 * whole(rng, 1, 150) + 1 for _ in range(whole(rng, 2, 9))]
            expect.agree(student.empty_share, reference.empty_share, lengths, first, atol=ROUNDING)
