"""Decode over pages on the CPU backends: where tokens lie, and what else is in the batch, changes no bit of a result.

Cases K1, K2, K5, K7, K13, P34 and P35.
"""

from dataclasses import replace

import pytest
import torch
from paged_cases import (
    BLOCK_SIZES,
    LAYOUTS,
    SHAPES,
    SMOLLM2,
    brute_force,
    far_apart,
    in_blocks_of,
    make_case,
    moved,
    zero_filled,
)
from test_paged_decode import BACKENDS, LONG, assert_close

from kvcourse.kernels import contiguous_decode, paged_decode


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("window", [None, 1, 77])
@pytest.mark.parametrize("block_size", BLOCK_SIZES)
def test_the_order_of_physical_blocks_does_not_change_a_bit(backend, window, block_size):
    case = make_case(SMOLLM2, [LONG, 0, 64], block_size, window=window).to("cpu", torch.float32)
    found = paged_decode(*case.arguments, backend=backend)
    assert torch.equal(paged_decode(*moved(case).arguments, backend=backend), found)


@pytest.mark.parametrize("window", [None, 77])
def test_the_block_size_does_not_change_a_bit_on_the_cpu(window):
    case = make_case(SMOLLM2, [LONG, 3, 64], 16, window=window).to("cpu", torch.float32)
    found = paged_decode(*case.arguments, backend="cpu")
    for block_size in (1, 3, 24, 64, LONG):
        other = in_blocks_of(case, block_size)
        assert torch.equal(paged_decode(*other.arguments, backend="cpu"), found)


def test_pages_give_the_bits_of_a_contiguous_cache():
    case = make_case(SMOLLM2, [LONG, 3, 64], 16).to("cpu", torch.float32)
    whole = in_blocks_of(case, LONG)  # one block a row
    order = whole.block_table[:, 0]
    expected = contiguous_decode(
        case.q, whole.k_pages[order], whole.v_pages[order], case.seq_lens, backend="cpu"
    )
    assert torch.equal(paged_decode(*case.arguments, backend="cpu"), expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_that_share_blocks_equal_rows_with_copies(backend):
    case = make_case(SMOLLM2, [LONG, LONG], 16).to("cpu", torch.float32)
    shared = replace(case, block_table=case.block_table[[0, 0]], q=case.q[[0, 0]])
    expected = paged_decode(*case.row(0).arguments, backend=backend)
    assert torch.equal(paged_decode(*shared.arguments, backend=backend), expected.expand(2, -1, -1))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("window", [None, 20])
def test_slots_that_no_row_sees_do_not_matter(backend, window):
    case = make_case(SMOLLM2, [LONG, 3], 16, window=window).to("cpu", torch.float32)
    found = paged_decode(*case.arguments, backend=backend)
    assert found.isfinite().all()
    assert torch.equal(paged_decode(*zero_filled(case).arguments, backend=backend), found)


@pytest.mark.parametrize("layout", LAYOUTS[1:])
def test_views_give_the_bits_of_contiguous_tensors(layout):
    case = make_case(SMOLLM2, [LONG, 30], 16, layout).to("cpu", torch.float32)
    assert not case.k_pages.is_contiguous()
    same = replace(case, k_pages=case.k_pages.contiguous(), v_pages=case.v_pages.contiguous())
    for backend in BACKENDS:
        found = paged_decode(*case.arguments, backend=backend)
        assert torch.equal(found, paged_decode(*same.arguments, backend=backend))


def test_strides_of_queries_and_tables_are_free():
    case = make_case(SHAPES[2], [LONG, 30], 16).to("cpu", torch.float32)
    expected = paged_decode(*case.arguments, backend="cpu")
    case.q = case.q.mT.contiguous().mT
    case.block_table = case.block_table.T.contiguous().T.long()
    case.seq_lens = case.seq_lens.int()
    assert torch.equal(paged_decode(*case.arguments, backend="cpu"), expected)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shape", [SMOLLM2, SHAPES[4]])
def test_result_does_not_depend_on_batch_mates_or_threads(shape, backend):
    case = make_case(shape, [LONG, 3, 0, LONG], 16, window=LONG - 9).to("cpu", torch.float32)
    together = paged_decode(*case.arguments, backend=backend)
    before = torch.get_num_threads()
    try:
        for count in (1, 2, 5) if backend == "cpu" else (before,):
            torch.set_num_threads(count)
            for row in range(4):
                alone = paged_decode(*case.row(row).arguments, backend=backend)
                assert torch.equal(alone, together[row : row + 1])
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("axis", [0, 1, 2], ids=["block", "head", "slot"])
def test_offsets_beyond_32_bits(axis):
    case = far_apart(axis, "cpu", torch.float32)
    expected = brute_force(case)[0]
    for backend in BACKENDS:
        assert_close(paged_decode(*case.arguments, backend=backend), expected)


def test_defaults_of_torch_do_not_matter():
    """The worker writes float32 to addresses on the CPU: a buffer of the default type or device would be another."""
    case = make_case(SHAPES[2], [LONG], 16).to("cpu", torch.float32)
    expected = paged_decode(*case.arguments, backend="cpu")
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            found = paged_decode(*case.arguments, backend="cpu")
    finally:
        torch.set_default_dtype(torch.float32)
    assert found.device.type == "cpu"
    assert torch.equal(found, expected)
