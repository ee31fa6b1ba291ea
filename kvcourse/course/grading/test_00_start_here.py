"""Tests of the exercises of chapter 0, run against one submission after the other."""

import pytest

from kvcourse.course.grading import expect

DRAWS = 4
ROUNDING = 1e-9  # a share may be computed in another order of operations


def whole(rng, low, high):
    """A whole number from low to high, both included, as a plain int."""
    return int(rng.integers(low, high, endpoint=True))


def wholes(rng, low, high, count):
    """A list of `count` such numbers."""
    return [whole(rng, low, high) for _ in range(count)]


@pytest.mark.exercise("ex-0-shared-prompt")
class TestSharedPrompt:
    """share_saved(system, own)"""

    @pytest.mark.points(0.5, hint="Count tokens twice: stored for each request, and stored once for all.")
    def test_requests_of_equal_length(self, student, reference, rng):
        for _ in range(DRAWS):
            system, own = whole(rng, 10, 3000), [whole(rng, 1, 500)] * whole(rng, 2, 40)
            expect.agree(student.share_saved, reference.share_saved, system, own, atol=ROUNDING)

    @pytest.mark.points(
        0.75, hint="A long request takes more memory than a short one: divide sums, once, at the end."
    )
    def test_long_requests_weigh_more_than_short_ones(self, student, reference, rng):
        for _ in range(DRAWS):
            own = [*wholes(rng, 1, 60, whole(rng, 2, 12)), whole(rng, 2000, 4000)]
            rng.shuffle(own)
            expect.agree(student.share_saved, reference.share_saved, whole(rng, 50, 2000), own, atol=ROUNDING)

    @pytest.mark.points(
        0.25, hint="The prompt has to be stored once in any case. What is saved if only one request comes?"
    )
    def test_the_first_request_saves_nothing(self, student, reference, rng):
        for _ in range(DRAWS):
            system, own = whole(rng, 10, 3000), wholes(rng, 1, 500, 2)
            expect.agree(student.share_saved, reference.share_saved, system, own[:1], atol=ROUNDING)
            expect.agree(student.share_saved, reference.share_saved, system, own, atol=ROUNDING)

    @pytest.mark.points(
        0.5, hint="A request may consist of the common prompt alone; it still counts as a request."
    )
    def test_requests_without_tokens_of_their_own(self, student, reference, rng):
        for _ in range(DRAWS):
            system, count = whole(rng, 1, 3000), whole(rng, 2, 30)
            expect.agree(student.share_saved, reference.share_saved, system, [0] * count, atol=ROUNDING)
            own = [0, *wholes(rng, 1, 500, count)]
            expect.agree(student.share_saved, reference.share_saved, system, own, atol=ROUNDING)


def longest(student, reference, *arguments):
    """Both give the same longest context."""
    expect.agree(student.longest_context, reference.longest_context, *arguments)


@pytest.mark.exercise("ex-0-longest-context")
class TestLongestContext:
    """longest_context(card_bytes, parameters, bits, token_bytes, requests)"""

    @pytest.mark.points(
        0.5, hint="Room is what the weights leave. One more token takes its bytes once for each request."
    )
    def test_room_is_shared_by_all_requests(self, student, reference, rng):
        for _ in range(DRAWS):
            parameters, bits = whole(rng, 10, 1000), 8 * whole(rng, 1, 4)
            token_bytes, requests = whole(rng, 2, 50), whole(rng, 2, 9)
            unit = token_bytes * requests
            # A rest that is not quite one token each: rounding up would show.
            room = whole(rng, 3, 200) * unit + unit - 1
            card = parameters * bits // 8 + room
            longest(student, reference, card, parameters, bits, token_bytes, requests)

    @pytest.mark.points(
        0.5, hint="Add up the bits of all weights first. A byte that is filled in part is still a byte."
    )
    def test_weights_take_whole_bytes_in_all(self, student, reference, rng):
        for bits in (1, 3, 4, 6):
            full, token_bytes, requests = 8 * whole(rng, 10, 100), whole(rng, 1, 3), whole(rng, 1, 3)
            room = whole(rng, 200, 400) * token_bytes * requests
            # With some bits over, one byte short of another token each, which weights rounded down would find;
            # then weights of whole bytes, and not one byte to spare.
            for parameters, spare in ((full + 1, -1), (full, 0)):
                card = -(-parameters * bits // 8) + room + spare
                longest(student, reference, card, parameters, bits, token_bytes, requests)

    @pytest.mark.points(0.5, hint="A card can be smaller than the weights. There are no fewer than 0 tokens.")
    def test_weights_that_do_not_fit_leave_nothing(self, student, reference, rng):
        for _ in range(DRAWS):
            parameters, token_bytes, requests = whole(rng, 100, 1000), whole(rng, 1, 9), whole(rng, 1, 9)
            unit = token_bytes * requests
            for room in (-unit * whole(rng, 2, 9), -1, 0, unit * whole(rng, 1, 9)):
                card = parameters * 2 + room
                longest(student, reference, card, parameters, 16, token_bytes, requests)

    @pytest.mark.points(0.5, hint="A float holds about 16 digits. Which operators keep whole numbers whole?")
    def test_sizes_beyond_the_digits_of_a_float(self, student, reference, rng):
        for bits in (1, 2, 4, 8):
            # From 2**57 on, floats are 32 apart or more: these weights and contexts are far from each of them.
            weight_bytes = 32 * whole(rng, 2**52, 2**53 - 1) + (9, 23)[whole(rng, 0, 1)]
            tokens = 32 * whole(rng, 2**52, 2**53 - 1) + 15
            token_bytes, requests = whole(rng, 1, 3), whole(rng, 1, 3)
            unit = token_bytes * requests
            card = weight_bytes + tokens * unit + unit - 1
            parameters = weight_bytes * 8 // bits
            longest(student, reference, card, parameters, bits, token_bytes, requests)


def equal_reads(student, reference, *arguments):
    """Both give the same number of requests."""
    expect.agree(student.requests_until_equal, reference.requests_until_equal, *arguments)


@pytest.mark.exercise("ex-0-equal-reads")
class TestEqualReads:
    """requests_until_equal(weight_bytes, token_bytes, lengths)"""

    @pytest.mark.points(
        1, hint="Each request adds the bytes of its own tokens. Stop at the one that makes it enough."
    )
    def test_requests_of_different_lengths(self, student, reference, rng):
        for _ in range(DRAWS):
            token_bytes, lengths = whole(rng, 2, 1000), wholes(rng, 1, 500, whole(rng, 8, 30))
            enough = whole(rng, 3, len(lengths) - 2)
            # In the midst of what the last request needed adds: neither bound is met by chance.
            weight_bytes = (
                sum(lengths[: enough - 1]) * token_bytes + lengths[enough - 1] * token_bytes // 2 + 1
            )
            equal_reads(student, reference, weight_bytes, token_bytes, lengths)

    @pytest.mark.points(0.5, hint="The requests join in the order of the list, whatever their lengths.")
    def test_requests_join_in_the_order_of_the_list(self, student, reference, rng):
        for _ in range(DRAWS):
            token_bytes, short = whole(rng, 1, 1000), wholes(rng, 1, 10, whole(rng, 3, 9))
            weight_bytes = 500 * token_bytes
            for lengths in ([1000, *short], [*short, 1000], [*short[:2], 1000, *short[2:]]):
                equal_reads(student, reference, weight_bytes, token_bytes, lengths)

    @pytest.mark.points(0.5, hint="Read once more: at least as many bytes, or more bytes?")
    def test_as_many_bytes_are_enough(self, student, reference, rng):
        for _ in range(DRAWS):
            token_bytes, lengths = whole(rng, 2, 1000), wholes(rng, 1, 500, 1) * 9  # equal: no order is wrong
            exactly = sum(lengths[: whole(rng, 2, 8)]) * token_bytes
            for weight_bytes in (exactly - 1, exactly, exactly + 1):
                equal_reads(student, reference, weight_bytes, token_bytes, lengths)

    @pytest.mark.points(0.5, hint="What is returned when the list ends too early? And when it is empty?")
    def test_none_when_it_never_happens(self, student, reference, rng):
        for _ in range(DRAWS):
            token_bytes, lengths = whole(rng, 2, 1000), wholes(rng, 1, 500, whole(rng, 2, 9))
            total = sum(lengths) * token_bytes
            for weight_bytes, requests in ((total, lengths), (total + 1, lengths), (1, [])):
                equal_reads(student, reference, weight_bytes, token_bytes, requests)

    @pytest.mark.points(0.5, hint="Requests are counted from 1, and the first one may be all it takes.")
    def test_the_first_request_can_be_enough(self, student, reference, rng):
        for _ in range(DRAWS):
            token_bytes, lengths = whole(rng, 2, 1000), wholes(rng, 2, 500, 1) * 5  # equal: no order is wrong
            first = lengths[0] * token_bytes
            for weight_bytes in (1, first - 1, first, first + 1):
                equal_reads(student, reference, weight_bytes, token_bytes, lengths)
