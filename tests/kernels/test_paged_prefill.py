"""Attention of new tokens over pages on the CPU backends, against loops in float64 and against each other.

Cases K1, K2, K4, K5, K7, K11, K13, P34 and P35.
"""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from paged_cases import LAYOUTS
from prefill_cases import (
    SHAPES,
    SMOLLM2,
    brute_force,
    far_apart,
    make_case,
    moved,
    prefill_cases,
    starts_of,
    zero_filled,
)
from strategies import MANY

from kvcourse.kernels import paged_decode, paged_prefill
from kvcourse.kernels.paged_prefill import choose_backend
from kvcourse.kernels.paged_prefill.cpu import BLOCK, CHUNK

BACKENDS = ("reference", "torch", "cpu")
LONG = CHUNK + BLOCK + 13  # two chunks of the CPU kernel, the second neither whole blocks nor whole tiles
TOLERANCES = {torch.float64: 1e-12, torch.float32: 3e-6, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def assert_close(found, expected, dtype=torch.float32):
    tolerance = TOLERANCES[dtype]
    torch.testing.assert_close(found.double().cpu(), expected.double(), rtol=tolerance, atol=tolerance)


def assert_equals_loops(case, backend, dtype):
    found, found_lse = paged_prefill(*case.to("cpu", dtype).arguments, backend=backend, return_lse=True)
    out, lse = brute_force(case)
    assert found.dtype == dtype
    assert_close(found, out, dtype)
    assert_close(found_lse, lse, dtype)  # natural logarithm


@MANY
@given(case=prefill_cases())
def test_reference_equals_loops(case):
    """Slots that no query sees hold NaN and entries that none needs name no block: one of them would show."""
    assert_equals_loops(case, "reference", torch.float64)


@MANY
@given(case=prefill_cases())
def test_torch_equals_loops(case):
    assert_equals_loops(case, "torch", torch.float64)


@MANY
@given(case=prefill_cases())
def test_cpu_equals_loops(case):
    assert_equals_loops(case, "cpu", torch.float32)


@pytest.mark.parametrize("shape", [SMOLLM2, SHAPES[3]])
@pytest.mark.parametrize("options", [{}, {"window": 100}, {"window": CHUNK + 40, "soft_cap": 5.0}])
def test_long_rows_equal_the_reference(shape, options):
    """Several tiles and chunks a row: shared among threads, and, with more rows, each tile by one thread."""
    for repeats in (1, 3):
        lengths, counts = [LONG, 3, 2 * CHUNK, LONG] * repeats, [40, 1, 1, 0] * repeats
        case = make_case(shape, lengths, counts, 16, **options)
        expected, lse = paged_prefill(*case.arguments, backend="reference", return_lse=True)
        single = case.to("cpu", torch.float32)
        for backend in ("torch", "cpu"):
            found, found_lse = paged_prefill(*single.arguments, backend=backend, return_lse=True)
            assert_close(found, expected)
            assert_close(found_lse, lse)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_on_the_cpu(dtype):
    case = make_case(SMOLLM2, [40, 7], [12, 1], 16).to("cpu", dtype)
    found = paged_prefill(*case.arguments)
    assert found.dtype == dtype
    expected = paged_prefill(*case.to("cpu", torch.float64).arguments, backend="reference")
    assert_close(found, expected, dtype)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("heads", [(1, 1), (5, 1), (10, 5), (12, 3), (28, 4), (32, 1)])
def test_head_counts_that_are_no_power_of_two(backend, heads):
    case = make_case((*heads, 16, 16), [LONG, 20], [5, 20], 16).to("cpu", torch.float32)
    expected = paged_prefill(*case.to("cpu", torch.float64).arguments, backend="reference")
    assert_close(paged_prefill(*case.arguments, backend=backend), expected)


@pytest.mark.parametrize("options", [{}, {"window": 6, "soft_cap": 2.0}])
def test_rows_of_one_new_token_are_decode_steps(options):
    case = make_case(SMOLLM2, [30, 1, 17], [1, 1, 1], 8, **options)
    arguments = (case.q, case.k_pages, case.v_pages, case.block_table, case.seq_lens)
    expected, lse = paged_decode(*arguments, **options, backend="reference", return_lse=True)
    for backend in ("reference", "torch"):
        found, found_lse = paged_prefill(*case.arguments, backend=backend, return_lse=True)
        assert_close(found, expected, torch.float64)
        assert_close(found_lse, lse, torch.float64)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("block_size", [1, 7, 16, 64])
@pytest.mark.parametrize("window", [None, 30])
def test_the_order_of_physical_blocks_does_not_change_a_bit(backend, block_size, window):
    case = make_case(SMOLLM2, [LONG, 0, 64], [9, 0, 64], block_size, window=window).to("cpu", torch.float32)
    found = paged_prefill(*case.arguments, backend=backend)
    assert torch.equal(paged_prefill(*moved(case).arguments, backend=backend), found)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("window", [None, 30])
def test_slots_that_no_query_sees_do_not_matter(backend, window):
    case = make_case(SMOLLM2, [LONG, 3], [40, 2], 16, window=window).to("cpu", torch.float32)
    found = paged_prefill(*case.arguments, backend=backend)
    assert found.isfinite().all()
    assert torch.equal(paged_prefill(*zero_filled(case).arguments, backend=backend), found)


@pytest.mark.parametrize("backend", BACKENDS[1:])
@pytest.mark.parametrize("layout", LAYOUTS[1:])
def test_views_give_the_bits_of_contiguous_tensors(layout, backend):
    case = make_case(SMOLLM2, [130, 30], [50, 1], 16, layout).to("cpu", torch.float32)
    same = replace(case, k_pages=case.k_pages.contiguous(), v_pages=case.v_pages.contiguous())
    found, expected = (paged_prefill(*part.arguments, backend=backend) for part in (case, same))
    if backend == "cpu":
        assert torch.equal(found, expected)
    else:  # a matrix product of another layout may sum in another order
        assert_close(found, expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_strides_of_queries_and_tables_are_free(backend):
    case = make_case(SMOLLM2, [LONG, 30], [20, 1], 16).to("cpu", torch.float32)
    expected = paged_prefill(*case.arguments, backend=backend)
    case.q = case.q.mT.contiguous().mT
    case.block_table = case.block_table.T.contiguous().T.long()
    case.seq_lens, case.query_starts = case.seq_lens.int(), case.query_starts.long()
    found = paged_prefill(*case.arguments, backend=backend)
    if backend == "cpu":
        assert torch.equal(found, expected)
    else:
        assert_close(found, expected)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("options", [{}, {"window": 40, "soft_cap": 3.0}])
def test_result_does_not_depend_on_batch_mates(backend, options):
    """A prompt, a chunk, a decode step and rows without a new token, in one call and alone."""
    lengths, counts = [60, LONG, 0, LONG, 20, 33], [60, 30, 0, 1, 0, 1]
    case = make_case(SMOLLM2, lengths, counts, 16, **options).to("cpu", torch.float32)
    found = paged_prefill(*case.arguments, backend=backend).split(counts)
    for row in range(6):
        assert torch.equal(paged_prefill(*case.rows(row).arguments, backend=backend), found[row])
    turned = paged_prefill(*case.rows(5, 3, 1, 0, 4, 2).arguments, backend=backend)
    assert torch.equal(turned, torch.cat([found[row] for row in (5, 3, 1, 0, 4, 2)]))


def test_result_of_the_cpu_kernel_does_not_depend_on_threads_or_block_size():
    case = make_case(SMOLLM2, [LONG, 60], [40, 60], 16).to("cpu", torch.float32)
    expected = paged_prefill(*case.arguments, backend="cpu")
    before = torch.get_num_threads()
    try:
        for count in (1, 2, 5):
            torch.set_num_threads(count)
            assert torch.equal(paged_prefill(*case.arguments, backend="cpu"), expected)
    finally:
        torch.set_num_threads(before)
    for block_size in (1, 24, 64):
        other = make_case(SMOLLM2, [LONG, 60], [40, 60], block_size).to("cpu", torch.float32)
        for part in ("k_pages", "v_pages"):
            for row, length in enumerate([LONG, 60]):
                at = torch.arange(length)
                place, old = (
                    (table[row, at // size].long(), slice(None), at % size)
                    for table, size in ((other.block_table, block_size), (case.block_table, 16))
                )
                getattr(other, part)[place] = getattr(case, part)[old]
        other.q = case.q
        assert torch.equal(paged_prefill(*other.arguments, backend="cpu"), expected)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("place", [0, CHUNK - 1, CHUNK, LONG - 1])
def test_a_score_far_above_the_others_takes_all_wherever_it_lies(backend, place):
    """e to the power of 1,000 overflows, so every part of the tokens has to be scaled by the largest score of all."""
    case = make_case((2, 1, 16, 16), [LONG], [1], LONG, scale=1.0).to("cpu", torch.float32)
    case.q[:], block = 1.0, case.block_table[0, 0]
    case.k_pages[block] = 0.0
    case.k_pages[block, :, place] = 1000 / 16
    found = paged_prefill(*case.arguments, backend=backend)
    assert torch.equal(found, case.v_pages[block, :, place].expand(1, 2, 16))


@pytest.mark.parametrize("backend", BACKENDS)
def test_scores_of_minus_infinity_have_no_weight(backend):
    """Also where they come first and fill a block: minus infinity less minus infinity is not a number."""
    case = make_case((2, 1, 16, 16), [LONG], [3], 1).to("cpu", torch.float32)
    case.q.abs_()
    case.k_pages[case.block_table[0, :100], :, :, 3] = -math.inf
    later = replace(case, block_table=case.block_table[:, 100:], seq_lens=case.seq_lens - 100)
    expected = paged_prefill(*later.to("cpu", torch.float64).arguments, backend="reference")
    assert_close(paged_prefill(*case.arguments, backend=backend), expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_nan_in_a_token_that_is_seen_is_not_hidden(backend):
    case = make_case(SMOLLM2, [LONG, LONG], [4, 4], 16).to("cpu", torch.float32)
    case.k_pages[case.block_table[0, 2], :, 5, 3] = math.nan
    found = paged_prefill(*case.arguments, backend=backend)
    assert found[:4].isnan().all()
    assert found[4:].isfinite().all()


@pytest.mark.parametrize("axis", [0, 1, 2], ids=["block", "head", "slot"])
@pytest.mark.parametrize("backend", ["torch", "cpu"])
def test_offsets_beyond_32_bits(axis, backend):
    case = far_apart(axis, "cpu", torch.float32)
    expected = paged_prefill(*case.arguments, backend="reference")
    assert_close(paged_prefill(*case.arguments, backend=backend), expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_nothing_to_attend(backend):
    no_rows = make_case(SHAPES[0], [], [], 4).to("cpu", torch.float32)
    assert paged_prefill(*no_rows.arguments, backend=backend).shape == (0, 3, 16)
    no_tokens = make_case(SHAPES[0], [0, 9], [0, 0], 4).to("cpu", torch.float32)
    out, lse = paged_prefill(*no_tokens.arguments, backend=backend, return_lse=True)
    assert (out.shape, lse.shape) == ((0, 3, 16), (0, 3))


def test_defaults_of_torch_do_not_matter():
    """The worker writes float32 to addresses on the CPU: a buffer of the default type or device would be another."""
    case = make_case(SMOLLM2, [LONG], [5], 16).to("cpu", torch.float32)
    expected = paged_prefill(*case.arguments, backend="cpu")
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            found = paged_prefill(*case.arguments, backend="cpu")
    finally:
        torch.set_default_dtype(torch.float32)
    assert found.device.type == "cpu"
    assert torch.equal(found, expected)


def test_chosen_backend():
    double = make_case(SMOLLM2, [LONG], [20], 16)
    single, half = (double.to("cpu", dtype) for dtype in (torch.float32, torch.float16))
    strided = make_case(SMOLLM2, [LONG], [20], 16, "dims_first").to("cpu", torch.float32)
    few = make_case(SMOLLM2, [20], [20], 16).to("cpu", torch.float32)
    trained = replace(single, q=single.q.clone().requires_grad_())
    cases = (single, double, half, strided, few, trained)
    expected = ["cpu", "torch", "torch", "cpu", "torch", "torch"]
    read = [(case.q, case.k_pages, case.v_pages, case.seq_lens) for case in cases]
    assert [choose_backend(*arguments) for arguments in read] == expected
    with torch.no_grad():
        assert choose_backend(*read[-1]) == "cpu"


@pytest.mark.parametrize("options", [{}, {"window": 5, "soft_cap": 2.0}])
def test_gradients_flow_through_the_chosen_backend(options):
    case = zero_filled(make_case((4, 2, 3, 2), [7, 5], [4, 1], 4, **options))
    tensors = [t.clone().requires_grad_() for t in case.arguments[:3]]
    attend = lambda *tensors: paged_prefill(*tensors, *case.arguments[3:])  # noqa: E731
    assert torch.autograd.gradcheck(attend, tensors, fast_mode=True)


def test_tokens_of_rows_lie_next_to_each_other():
    """What is passed as query_starts, in words: row 1 owns the queries 2 and 3."""
    case = make_case(SHAPES[0], [5, 6], [2, 2], 4).to("cpu", torch.float64)
    assert case.query_starts.tolist() == starts_of([2, 2]).tolist() == [0, 2, 4]
    alone = paged_prefill(*case.rows(1).arguments)
    assert_close(paged_prefill(*case.arguments)[2:], alone, torch.float64)
