"""Tests of the exercises of chapter 3, run against one submission after the other."""

import pytest
import torch

from kvcourse.course.grading import expect

DRAWS = 4
ROUNDING = 1e-9  # of sums in float64, which may be added up in another order
ANY_NUMBERS = 1e300  # a tolerance under which only kind, dtype and shape are compared, and that all is finite


def whole(rng, low, high):
    """A whole number from low to high, both included, as a plain int."""
    return int(rng.integers(low, high, endpoint=True))


def draw(rng, *shape):
    """A float64 tensor of independent normal numbers."""
    return torch.from_numpy(rng.standard_normal(shape))


@pytest.mark.exercise("ex-3-absorb-output")
class TestAbsorbOutput:
    """absorb_output(w_uv, w_o)"""

    @pytest.mark.points(
        0.5, hint="With one head, the layer multiplies by w_uv and then by w_o: what is that?"
    )
    def test_one_head(self, student, reference, rng):
        for _ in range(DRAWS):
            value, rank, hidden = whole(rng, 1, 4), whole(rng, 5, 7), whole(rng, 8, 9)
            w_uv, w_o = draw(rng, 1, value, rank), draw(rng, hidden, value)
            expect.agree(student.absorb_output, reference.absorb_output, w_uv, w_o, atol=ROUNDING)

    @pytest.mark.points(
        1, hint="Which columns of w_o meet the values of head i, and where does its average stand among all?"
    )
    def test_every_head_has_its_columns(self, student, reference, rng):
        for _ in range(DRAWS):
            heads, value, rank = whole(rng, 2, 5), whole(rng, 2, 4), whole(rng, 5, 7)
            w_uv, w_o = draw(rng, heads, value, rank), draw(rng, whole(rng, 1, 9), heads * value)
            expect.agree(student.absorb_output, reference.absorb_output, w_uv, w_o, atol=ROUNDING)
        # All sizes the same: a matrix that lies the wrong way round does not show in a shape.
        size = whole(rng, 2, 3)
        w_uv, w_o = draw(rng, size, size, size), draw(rng, size, size * size)
        expect.agree(student.absorb_output, reference.absorb_output, w_uv, w_o, atol=ROUNDING)

    @pytest.mark.points(0.5, hint="Weights come in the dtype of the model, and the new one must have it too.")
    def test_the_dtype_stays(self, student, reference, rng):
        for dtype in (torch.float32, torch.float64):
            w_uv, w_o = draw(rng, 3, 2, 4).to(dtype), draw(rng, 5, 6).to(dtype)
            expect.agree(student.absorb_output, reference.absorb_output, w_uv, w_o, atol=ANY_NUMBERS)


def same_state(student, reference, outs, lses, what):
    """Both must merge these states into the same one; the student may return a list as well as a tuple."""
    expected = reference.merge_all(outs.clone(), lses.clone())
    got = expect.parts(student.merge_all(outs, lses), 2, what=what)
    for name, mine, theirs in zip(("output", "LSE"), got, expected, strict=True):
        expect.close(mine, theirs, atol=ROUNDING, rtol=ROUNDING, what=f"{name} of {what}")


def states(rng, pieces):
    """Random states of a few queries: outputs (K, B, H, T, D), LSEs (K, B, H, T)."""
    rows = [whole(rng, 1, 3) for _ in range(3)]
    return draw(rng, pieces, *rows, whole(rng, 1, 4)), 2 * draw(rng, pieces, *rows)


@pytest.mark.exercise("ex-3-merge-states")
class TestMergeStates:
    """merge_all(outs, lses)"""

    @pytest.mark.points(
        1,
        hint="Each piece weighs exp(its LSE). The weights of a query sum to 1; the LSE of all is the log of the sum.",
    )
    def test_pieces_of_one_softmax(self, student, reference, rng):
        for pieces in (1, 2, *(whole(rng, 3, 7) for _ in range(DRAWS))):
            outs, lses = states(rng, pieces)
            same_state(student, reference, outs, lses, f"{pieces} pieces")

    @pytest.mark.points(
        0.75, hint="Its weight is 0, but 0 times NaN is NaN. What must stand in place of such an output?"
    )
    def test_an_empty_piece_does_not_count(self, student, reference, rng):
        for rubbish in (0.0, 1e9, torch.inf, torch.nan):
            outs, lses = states(rng, whole(rng, 3, 5))
            for empty in (
                lses[0],
                lses[1:, :, :, :1],
            ):  # one worker for all queries; the others for the first
                empty.fill_(-torch.inf)
            lses[-1] = 1.0
            outs = torch.where((lses == -torch.inf)[..., None], rubbish, outs)
            same_state(student, reference, outs, lses, f"pieces of which some are empty and hold {rubbish}")

    @pytest.mark.points(0.5, hint="No key: zeros and −∞. Look for −∞ − (−∞) and for 0 / 0.")
    def test_no_piece_saw_a_key(self, student, reference, rng):
        for pieces in (1, whole(rng, 2, 4)):
            outs, lses = states(rng, pieces)
            lses[..., 0] = -torch.inf  # the first query only
            outs[..., 0, :] = 0.0
            same_state(student, reference, outs, lses, f"{pieces} pieces with a query that sees nothing")
            same_state(
                student, reference, torch.zeros_like(outs), torch.full_like(lses, -torch.inf), "nothing"
            )

    @pytest.mark.points(
        0.75, hint="Before exp, subtract what is largest for this query; add it again to the logarithm."
    )
    def test_large_and_small_log_sums(self, student, reference, rng):
        for sign in (1, -1):
            outs, lses = states(rng, whole(rng, 2, 5))
            same_state(student, reference, outs, lses + sign * 9000.0, f"LSEs near {sign * 9000:,}")
            far = lses.clone()
            far[..., 0] += sign * 9000.0  # one query far from the others
            same_state(student, reference, outs, far, "queries whose LSEs are far apart")


def card(rng, flops, read, tokens):
    """peak and bandwidth whose limit lies strictly between tokens - 1 and tokens, by a good margin."""
    bandwidth = float(whole(rng, 100, 5000)) * 1e9
    between = tokens - 1 + (0.2 + 0.6 * float(rng.random()))
    return between * flops / read * bandwidth, bandwidth


def sizes(rng):
    """heads, rank, rope of a model, and the FLOPs and values of one cached token."""
    heads, rank, rope = 2 ** whole(rng, 2, 7), 64 * whole(rng, 1, 8), 16 * whole(rng, 1, 4)
    return (heads, rank, rope), 2 * heads * (2 * rank + rope), rank + rope


@pytest.mark.exercise("ex-3-ridge-tokens")
class TestRidgeTokens:
    """tokens_to_ridge(heads, rank, rope, peak, bandwidth, batch=1, value_bytes=2)"""

    @pytest.mark.points(
        0.5, hint="FLOPs per byte with one token, as in Measure. How many times that does the card need?"
    )
    def test_one_request(self, student, reference, rng):
        for tokens in (1, 2, *(whole(rng, 3, 40) for _ in range(DRAWS))):
            model, flops, values = sizes(rng)
            peak, bandwidth = card(rng, flops, 2 * values, tokens)
            expect.agree(student.tokens_to_ridge, reference.tokens_to_ridge, *model, peak, bandwidth)

    @pytest.mark.points(0.5, hint="Twice the requests: twice the FLOPs. And how many bytes are read?")
    def test_each_request_reads_its_own_cache(self, student, reference, rng):
        for _ in range(DRAWS):
            model, flops, values = sizes(rng)
            peak, bandwidth = card(rng, flops, 2 * values, whole(rng, 5, 20))
            for batch in (1, 2, whole(rng, 3, 64)):
                expect.agree(
                    student.tokens_to_ridge, reference.tokens_to_ridge, *model, peak, bandwidth, batch
                )

    @pytest.mark.points(0.5, hint="value_bytes says how large a cached number is: 1 in fp8, 4 in float32.")
    def test_other_sizes_of_a_number(self, student, reference, rng):
        for value_bytes in (1, 4, 1, 4):
            model, flops, values = sizes(rng)
            peak, bandwidth = card(rng, flops, value_bytes * values, whole(rng, 5, 20))
            expect.agree(
                student.tokens_to_ridge,
                reference.tokens_to_ridge,
                *model,
                peak,
                bandwidth,
                1,
                value_bytes,
            )

    @pytest.mark.points(0.5, hint="As many FLOPs per byte as the card can do is no longer bound by memory.")
    def test_exactly_at_the_limit(self, student, reference, rng):
        for _ in range(DRAWS):
            # Powers of two, so that every order of operations gives the limit exactly.
            heads, rank, rope = 2 ** whole(rng, 0, 5), 48, 16
            bandwidth = float(2 ** whole(rng, 30, 40))
            one = heads * (2 * rank + rope) / (rank + rope)  # FLOPs per byte of one token, in two bytes
            peak = whole(rng, 2, 9) * one * bandwidth
            expect.agree(
                student.tokens_to_ridge, reference.tokens_to_ridge, heads, rank, rope, peak, bandwidth
            )


def left_over(up, down, w, moment):
    """Mean squared error of up @ down instead of w on vectors with this second moment."""
    error = w - up @ down
    return float((error @ moment @ error.T).trace())


def as_good(student, reference, w, moment, r, what):
    """The student's factors must leave no more than the reference's; which of the best they are is free."""
    best = reference.best_factors(w.clone(), moment.clone(), r)
    got = expect.parts(student.best_factors(w, moment, r), 2, what=what)
    for name, mine, theirs in zip(("up", "down"), got, best, strict=True):
        expect.close(mine, theirs, atol=ANY_NUMBERS, what=f"{name} for {what}")
    least, left = (max(0.0, left_over(*pair, w, moment)) for pair in (best, got))  # rounding may go below
    everything = float((w @ moment @ w.T).trace())
    expect.close(left, least, atol=1e-7 * everything, what=f"mean squared error for {what}")


def text(rng, n_in, directions, tokens=200):
    """Vectors (n_in, tokens) that differ a lot between directions, which are not the axes."""
    spread = torch.logspace(1, -1, directions, dtype=torch.float64)
    return draw(rng, n_in, directions) * spread @ draw(rng, directions, tokens)


@pytest.mark.exercise("ex-3-best-factors")
class TestBestFactors:
    """best_factors(w, moment, r)"""

    @pytest.mark.points(
        0.75, hint="If the text favours no direction, the largest singular values of w decide."
    )
    def test_an_even_text(self, student, reference, rng):
        for _ in range(DRAWS):
            n_out, n_in = whole(rng, 4, 8), whole(rng, 4, 8)
            moment = whole(rng, 1, 5) * torch.eye(n_in, dtype=torch.float64)
            r = whole(rng, 1, 3)
            as_good(student, reference, draw(rng, n_out, n_in), moment, r, f"rank {r}")

    @pytest.mark.points(
        1, hint="An error counts by how often the text goes there: look at the second moment of the outputs."
    )
    def test_an_uneven_text(self, student, reference, rng):
        for _ in range(DRAWS):
            n_out, n_in = whole(rng, 5, 8), whole(rng, 5, 8)
            x = text(rng, n_in, n_in)
            r = whole(rng, 1, 3)
            as_good(student, reference, draw(rng, n_out, n_in), x @ x.T / 200, r, f"rank {r}")

    @pytest.mark.points(
        0.75, hint="A text may use few directions. Then `moment` has no inverse and no Cholesky factor."
    )
    def test_a_text_in_few_directions(self, student, reference, rng):
        for directions in (1, 2, 3):
            n_out, n_in = whole(rng, 5, 8), whole(rng, 6, 8)
            x = text(rng, n_in, directions)
            for r in (1, 2, 4):
                what = f"rank {r}, a text of rank {directions}"
                as_good(student, reference, draw(rng, n_out, n_in), x @ x.T / 200, r, what)

    @pytest.mark.points(0.5, hint="With as many directions as w has rows or columns, nothing is lost.")
    def test_full_rank_loses_nothing(self, student, reference, rng):
        for n_out, n_in in ((3, 7), (7, 3), (4, 4)):
            x = text(rng, n_in, n_in)
            as_good(student, reference, draw(rng, n_out, n_in), x @ x.T / 200, min(n_out, n_in), "full rank")
