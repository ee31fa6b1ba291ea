"""Decode attention over pages on the CPU backends, against loops in float64 and against each other.

Cases K4, K10, K11 and P14; test_paged_decode_bits.py has those of where the tokens lie.
"""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from paged_cases import (
    BLOCK_SIZES,
    CAPPED,
    SHAPES,
    SMOLLM2,
    brute_force,
    make_case,
    paged_cases,
    zero_filled,
)
from strategies import FEW, MANY

from kvcourse.kernels import merge_states, paged_decode
from kvcourse.kernels.paged_decode import choose_backend
from kvcourse.kernels.paged_decode.cpu import CHUNK
from kvcourse.kernels.softmax import BLOCK

BACKENDS = ("reference", "torch", "cpu")
LONG = CHUNK + BLOCK + 13  # two tasks of the CPU kernel a row, the second no whole blocks or tiles
TOLERANCES = {torch.float64: 1e-12, torch.float32: 3e-6, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def assert_close(found, expected, dtype=torch.float32):
    tolerance = TOLERANCES[dtype]
    torch.testing.assert_close(found.double().cpu(), expected.double(), rtol=tolerance, atol=tolerance)


def assert_equals_loops(case, backend, dtype):
    found, found_lse = paged_decode(*case.to("cpu", dtype).arguments, backend=backend, return_lse=True)
    out, lse = brute_force(case)
    assert found.dtype == dtype
    assert_close(found, out, dtype)
    assert_close(found_lse, lse, dtype)  # natural logarithm


@MANY
@given(case=paged_cases())
def test_reference_equals_loops(case):
    assert_equals_loops(case, "reference", torch.float64)


@MANY
@given(case=paged_cases())
def test_torch_equals_loops(case):
    """Slots that no row sees hold NaN and entries that none needs name no block: one of them would show."""
    assert_equals_loops(case, "torch", torch.float64)


@MANY
@given(case=paged_cases())
def test_cpu_equals_loops(case):
    assert_equals_loops(case, "cpu", torch.float32)


@FEW
@given(case=paged_cases(max_tokens=3 * CHUNK, shapes=SHAPES[1:3]))
def test_long_rows_equal_the_reference(case):
    expected, lse = paged_decode(*case.arguments, backend="reference", return_lse=True)
    single = case.to("cpu", torch.float32)
    for backend in ("torch", "cpu"):
        found, found_lse = paged_decode(*single.arguments, backend=backend, return_lse=True)
        assert_close(found, expected)
        assert_close(found_lse, lse)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_on_the_cpu(dtype):
    case = make_case(SHAPES[2], [40, 7], 16, window=9).to("cpu", dtype)
    found = paged_decode(*case.arguments)
    assert found.dtype == dtype
    assert_close(found, paged_decode(*case.to("cpu", torch.float64).arguments, backend="reference"), dtype)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("block_size", BLOCK_SIZES)
def test_every_length_around_a_block_boundary(backend, block_size):
    lengths = [block_size - 1, block_size, block_size + 1, 2 * block_size, 2 * block_size + 1]
    assert_equals_loops(make_case(SHAPES[2], lengths, block_size), backend, torch.float32)


@pytest.mark.parametrize("backend", BACKENDS)
def test_states_of_two_parts_merge_to_the_whole(backend):
    """Rows cut at a block boundary, as for a prefix that several rows share."""
    case = make_case(SHAPES[2], [50, 20], 10).to("cpu", torch.float32)
    whole = paged_decode(*case.arguments, backend=backend, return_lse=True)
    before = replace(case, seq_lens=case.seq_lens.clamp(max=20))
    after = replace(case, seq_lens=case.seq_lens - before.seq_lens, block_table=case.block_table[:, 2:])
    parts = [paged_decode(*part.arguments, backend=backend, return_lse=True) for part in (before, after)]
    assert parts[1][1][1].eq(-math.inf).all()
    for found, expected in zip(merge_states(*parts[0], *parts[1]), whole, strict=True):
        assert_close(found, expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_window_sees_what_a_row_of_its_last_tokens_sees(backend):
    """Behind it, keys and values may change and tables may forget their blocks."""
    case = make_case(SMOLLM2, [LONG, 40], 16).to("cpu", torch.float32)
    seen = replace(case, window=50)
    found, lse = paged_decode(*seen.arguments, backend=backend, return_lse=True)
    expected, expected_lse = brute_force(seen)
    assert_close(found, expected)
    assert_close(lse, expected_lse)
    case.block_table[0, : (LONG - 50) // 16] = 0  # the null block: another row's tokens, or none
    again = paged_decode(*seen.arguments, backend=backend)
    assert torch.equal(again, found)
    whole = paged_decode(*replace(case.row(1), window=None).arguments, backend=backend)
    assert torch.equal(found[1:], whole)  # a window that is wider than the row changes nothing


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_soft_cap_limits_scores(backend):
    case = make_case(CAPPED[1], [LONG, 30], 16, scale=50.0, soft_cap=2.0).to("cpu", torch.float32)
    _, lse = paged_decode(*case.arguments, backend=backend, return_lse=True)
    assert (lse <= 2.0 + case.seq_lens.log()[:, None] + 1e-5).all()
    assert_equals_loops(case, backend, torch.float32)
    loose = replace(case, scale=None, soft_cap=1e6)
    free = replace(loose, soft_cap=None)
    assert_close(paged_decode(*loose.arguments, backend=backend), brute_force(free)[0])


@pytest.mark.parametrize("soft_cap", [0.1, 1.0, 50.0])
def test_the_hyperbolic_tangent_is_exact_to_rounding(soft_cap):
    """One token whose score is swept from far below to far above the cap; lse is the capped score itself."""
    scores = torch.cat([torch.linspace(-15, 15, 4001), torch.logspace(-30, 3, 400)]).double() * soft_cap
    q = torch.ones(len(scores), 1, 1)
    pages = scores.float().view(-1, 1, 1, 1)
    table, lengths = torch.arange(len(scores))[:, None], torch.ones(len(scores), dtype=torch.int64)
    _, lse = paged_decode(
        q, pages, pages, table, lengths, 1.0, soft_cap=soft_cap, backend="cpu", return_lse=True
    )
    expected = soft_cap * torch.tanh(pages.double().view(-1, 1) / soft_cap)
    torch.testing.assert_close(lse.double(), expected, rtol=4e-7, atol=1e-37)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("place", [0, CHUNK - 1, CHUNK, LONG - 1])
def test_a_score_far_above_the_others_takes_all_wherever_it_lies(backend, place):
    """e to the power of 1,000 overflows, so every part of the tokens has to be scaled by the largest score of all."""
    case = make_case((2, 1, 4, 16), [LONG], LONG, scale=1.0).to("cpu", torch.float32)
    case.q[:], case.k_pages[:] = 1.0, 0.0
    block = case.block_table[0, 0]
    case.k_pages[block, 0, place] = 250.0
    found = paged_decode(*case.arguments, backend=backend)
    assert torch.equal(found, case.v_pages[block, :, place].expand(1, 2, 16))


@pytest.mark.parametrize("backend", BACKENDS)
def test_scores_of_minus_infinity_have_no_weight(backend):
    """Also where they come first and fill a block: minus infinity less minus infinity is not a number."""
    case = make_case((2, 1, 4, 16), [LONG], 1).to("cpu", torch.float32)
    case.q.abs_()
    case.k_pages[case.block_table[0, :100], :, :, 3] = -math.inf
    later = replace(case, block_table=case.block_table[:, 100:], seq_lens=case.seq_lens - 100)
    expected = paged_decode(*later.arguments, backend="reference")
    assert_close(paged_decode(*case.arguments, backend=backend), expected)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("soft_cap", [None, 30.0])
def test_nan_in_a_slot_that_is_seen_is_not_hidden(backend, soft_cap):
    case = make_case(SMOLLM2, [LONG, LONG], 16, soft_cap=soft_cap).to("cpu", torch.float32)
    case.k_pages[case.block_table[0, 2], :, 5, 3] = math.nan
    found = paged_decode(*case.arguments, backend=backend)
    assert found[0].isnan().all()
    assert found[1].isfinite().all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_nothing_to_attend(backend):
    no_rows = make_case(SHAPES[2], [], 4).to("cpu", torch.float32)
    assert paged_decode(*no_rows.arguments, backend=backend).shape == (0, 10, 12)
    no_tokens = make_case(SHAPES[2], [0, 0], 4, window=3).to("cpu", torch.float32)
    for width in (0, 1):
        case = replace(no_tokens, block_table=no_tokens.block_table[:, :width])
        out, lse = paged_decode(*case.arguments, backend=backend, return_lse=True)
        assert torch.equal(out, torch.zeros(2, 10, 12))
        assert torch.equal(lse, torch.full((2, 10), -math.inf))


def test_chosen_backend():
    double = make_case(SHAPES[2], [LONG], 16)
    single, half = (double.to("cpu", dtype) for dtype in (torch.float32, torch.float16))
    strided = make_case(SHAPES[2], [LONG], 16, "dims_first").to("cpu", torch.float32)
    trained = replace(single, v_pages=single.v_pages.clone().requires_grad_())
    cases = (single, double, half, strided, trained)
    found = [choose_backend(case.q, case.k_pages, case.v_pages) for case in cases]
    assert found == ["cpu", "torch", "torch", "torch", "torch"]
    with torch.no_grad():
        assert choose_backend(trained.q, trained.k_pages, trained.v_pages) == "cpu"


@pytest.mark.parametrize("window", [None, 6])
def test_gradients_of_the_chosen_backend(window):
    case = make_case((4, 2, 3, 2), [11, 7], 4, window=window, soft_cap=1.5)
    tensors = [t.clone().requires_grad_() for t in zero_filled(case).arguments[:3]]
    attend = lambda *tensors: paged_decode(*tensors, *case.arguments[3:], return_lse=True)  # noqa: E731
    assert torch.autograd.gradcheck(attend, tensors)
    attend(*tensors)[0].sum().backward()
    unseen = case.k_pages.isnan()
    assert unseen.any()
    assert not tensors[1].grad[unseen].any()
    assert tensors[1].grad[~unseen].all()
