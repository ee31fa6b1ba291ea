"""Decode over pages in Triton; collected by test_paged_decode_triton.py in a process of its own.

On a GPU (KVCOURSE_DEVICE=cuda) the kernel runs as it is, elsewhere under TRITON_INTERPRET=1, which has to be set
before Triton is imported. The interpreter multiplies bfloat16 matrices wrongly, so that type is left to the GPU.
"""

import collections
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from paged_cases import (
    LAYOUTS,
    SHAPES,
    SMOLLM2,
    brute_force,
    far_apart,
    make_case,
    moved,
    needed,
    paged_cases,
    zero_filled,
)
from strategies import FEW
from triton_checks import DEVICE, LONG, TOLERANCES, assert_close

from kvcourse.kernels import paged_decode
from kvcourse.kernels.paged_decode import attend_reference, choose_backend
from kvcourse.kernels.paged_decode.triton import attend_triton, bytes_moved
from kvcourse.kernels.triton import INTERPRETED


def attend(case, num_splits=None):
    q, *arguments = case.arguments
    arguments[4] = q.shape[-1] ** -0.5 if case.scale is None else case.scale
    return attend_triton(q, *arguments, "ieee", num_splits)


@pytest.mark.parametrize("num_splits", [1, 2])
@FEW
@given(case=paged_cases(shapes=SHAPES[:5]))
def test_equals_loops(num_splits, case):
    """Slots that no row sees hold NaN and entries that none needs name no block: one of them would show."""
    found = attend(case.to(DEVICE, torch.float32), num_splits)
    for part, expected in zip(found, brute_force(case), strict=True):
        assert_close(part, expected, torch.float32)


@pytest.mark.parametrize("shape", [SHAPES[2], SHAPES[5]])
@pytest.mark.parametrize("dtype", TOLERANCES)
def test_splits_windows_and_types(shape, dtype):
    for options in ({}, {"window": LONG - 9, "soft_cap": 5.0}):
        case = make_case(shape, [LONG, 31, 0], 16, "dims_fused", **options).to(DEVICE, dtype)
        expected = attend_reference(*case.to(DEVICE, torch.float64).arguments)
        for num_splits in (1, 3):
            for found, right in zip(attend(case, num_splits), expected, strict=True):
                assert_close(found, right, dtype)


@pytest.mark.parametrize("layout", LAYOUTS[1:])
def test_views_give_the_bits_of_contiguous_tensors(layout):
    case = make_case((4, 2, 16, 16), [LONG, 30], 7, layout).to(DEVICE, torch.float32)
    same = replace(case, k_pages=case.k_pages.contiguous(), v_pages=case.v_pages.contiguous())
    found, expected = attend(case, 2)[0], attend(same, 2)[0]
    if layout in ("gaps", "dims_first"):  # other strides choose other tiles: equal up to rounding
        assert_close(found, expected, torch.float32)
    else:
        assert torch.equal(found, expected)


@pytest.mark.parametrize("block_size", [1, 3, 8, 24, 64])
def test_the_order_of_physical_blocks_does_not_change_a_bit(block_size):
    case = make_case(SMOLLM2, [LONG, 0, 64], block_size).to(DEVICE, torch.float32)
    assert torch.equal(attend(moved(case), 2)[0], attend(case, 2)[0])


@pytest.mark.parametrize("window", [None, 20])
def test_slots_that_no_row_sees_do_not_matter(window):
    case = make_case(SMOLLM2, [LONG, 3], 16, window=window).to(DEVICE, torch.float16)
    found = attend(case, 2)[0]
    assert found.isfinite().all()
    assert torch.equal(attend(zero_filled(case), 2)[0], found)


def test_result_does_not_depend_on_batch_mates():
    """With the same number of splits, that is: their number follows the batch."""
    case = make_case(SMOLLM2, [LONG, 3], 16).to(DEVICE, torch.float32)
    together = attend(case, 2)[0]
    for row in range(2):
        assert torch.equal(attend(case.row(row), 2)[0], together[row : row + 1])


@pytest.mark.parametrize("soft_cap", [0.1, 50.0])
def test_the_hyperbolic_tangent_is_exact_to_rounding(soft_cap):
    """One token that heads score from far below to far above the cap; lse is the capped score itself."""
    scores = (torch.linspace(-12, 12, 256, dtype=torch.float64) * soft_cap).float()
    pages, table, lengths = torch.ones(1, 1, 1, 1), torch.zeros(1, 1, dtype=torch.int64), torch.tensor([1])
    options = {"scale": 1.0, "soft_cap": soft_cap, "input_precision": "ieee"}
    q = scores.view(1, -1, 1)
    _, lse = attend_triton(*(t.to(DEVICE) for t in (q, pages, pages, table, lengths)), **options)
    expected = soft_cap * torch.tanh(scores.double() / soft_cap)
    torch.testing.assert_close(lse[0].double().cpu(), expected, rtol=6e-7, atol=1e-37)


@pytest.mark.parametrize("axis", [0, 1, 2], ids=["block", "head", "slot"])
def test_offsets_beyond_32_bits(axis):
    case = far_apart(axis, DEVICE)
    assert_close(attend(case)[0], attend_reference(*case.arguments)[0], torch.float16)


def test_lengths_and_tables_may_lie_on_either_device():
    case = make_case(SMOLLM2, [LONG, 0], 16).to(DEVICE, torch.float32)
    here = paged_decode(*case.arguments, backend="triton")
    case.seq_lens, case.block_table = case.seq_lens.to(DEVICE), case.block_table.to(DEVICE).T.contiguous().T
    assert torch.equal(paged_decode(*case.arguments, backend="triton"), here)


@pytest.mark.parametrize("num_splits", [1, 2])
@pytest.mark.parametrize("window", [None, 37])
def test_a_length_above_the_capacity_counts_as_the_capacity(num_splits, window):
    """Lengths on the GPU are not read back; past the last entry of a table lies that of another row."""
    case = make_case(SMOLLM2, [LONG, LONG], 10, window=window).to(DEVICE, torch.float32)
    case.block_table = case.block_table[:, :10]
    expected = attend(case, num_splits)[0]
    case.seq_lens = torch.tensor([LONG + 40, LONG])
    assert torch.equal(attend(case, num_splits)[0], expected)


def test_chosen_backend_is_triton_on_a_gpu_only():
    case = make_case(SMOLLM2, [4], 4).to(DEVICE, torch.float16)
    assert choose_backend(case.q, case.k_pages, case.v_pages) == ("triton" if DEVICE == "cuda" else "torch")


def test_float64_is_refused():
    case = make_case(SMOLLM2, [4], 4).to(DEVICE, torch.float64)
    with pytest.raises(ValueError, match="float16 or bfloat16"):
        paged_decode(*case.arguments, backend="triton")


@pytest.mark.parametrize("num_splits", [1, 2])
@pytest.mark.parametrize("window", [None, 70])
@pytest.mark.parametrize("shape", [SMOLLM2, SHAPES[2], SHAPES[3]])
def test_bytes_loaded_are_the_fewest(shape, window, num_splits, monkeypatch):
    """Counts the unmasked lanes of every load of 2-byte numbers: q once a split, each key and value seen once.

    Of the table, an entry of four bytes a token and kv head, and never one of a block that is not needed.
    """
    if not INTERPRETED:
        pytest.skip("only the interpreter can count loads")
    from triton.runtime.interpreter import InterpreterBuilder

    loaded, entries = collections.Counter(), set()
    load = InterpreterBuilder.create_masked_load

    def count(self, pointers, mask, *rest):
        result = load(self, pointers, mask, *rest)
        kind = str(result.data.dtype)  # float16: queries, keys and values, int32: the table
        loaded[kind] += result.data.dtype.itemsize * int(mask.data.sum())
        if kind == "int32":
            entries.update(result.data[mask.data].tolist())
        return result

    monkeypatch.setattr(InterpreterBuilder, "create_masked_load", count)
    lengths = [LONG, LONG - 20]
    case = make_case(shape, lengths, 16, window=window).to(DEVICE, torch.float16)
    attend(case, num_splits)
    seen = [min(length, window or length) for length in lengths]
    again = (num_splits - 1) * case.q.numel() * 2  # the second split reads the queries too
    assert loaded["float16"] == bytes_moved(seen, *shape, itemsize=2) + again
    assert loaded["int32"] == 4 * sum(seen) * shape[1]
    assert entries == set(case.block_table[needed(case)].tolist())
