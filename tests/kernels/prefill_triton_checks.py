"""Prefill over pages and the store, in Triton; collected by test_paged_prefill_triton.py in a process of its own.

On a GPU (KVCOURSE_DEVICE=cuda) the kernels run as they are, elsewhere under TRITON_INTERPRET=1, which has to be set
before Triton is imported. The interpreter multiplies bfloat16 matrices wrongly, so that type is left to the GPU.
"""

import collections
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
    needed,
    prefill_cases,
    zero_filled,
)
from strategies import FEW
from test_store_kv import expected_pages, store_cases
from triton_checks import DEVICE, LONG, TOLERANCES, assert_close

from kvcourse.kernels import paged_prefill, store_kv
from kvcourse.kernels.paged_prefill import attend_reference, choose_backend
from kvcourse.kernels.paged_prefill import triton as prefill_kernel
from kvcourse.kernels.paged_prefill.triton import attend_triton, bytes_moved, choose_blocks
from kvcourse.kernels.store_kv.triton import bytes_moved as bytes_stored
from kvcourse.kernels.store_kv.triton import store_triton
from kvcourse.kernels.triton import INTERPRETED, choose_splits


def attend(case, num_splits=None):
    scale = case.q.shape[-1] ** -0.5 if case.scale is None else case.scale
    return attend_triton(*case.arguments[:6], scale, case.window, case.soft_cap, "ieee", num_splits)


@pytest.mark.parametrize("num_splits", [1, 2])
@FEW
@given(case=prefill_cases(shapes=SHAPES[:4]))
def test_equals_loops(num_splits, case):
    """Slots that no query sees hold NaN and entries that none needs name no block: one of them would show."""
    found = attend(case.to(DEVICE, torch.float32), num_splits)
    for part, expected in zip(found, brute_force(case), strict=True):
        assert_close(part, expected, torch.float32)


@pytest.mark.parametrize("shape", [*SHAPES[1:3], SHAPES[4]])
@pytest.mark.parametrize("dtype", TOLERANCES)
def test_tiles_splits_windows_and_types(shape, dtype):
    """Rows of several tiles, of one, of one query and of none."""
    for options in ({}, {"window": LONG - 9, "soft_cap": 5.0}):
        new = 2 if shape[0] > 16 else 18
        case = make_case(shape, [LONG, 31, 0, 50, 4], [new, 1, 0, 0, 4], 16, "dims_fused", **options)
        case = case.to(DEVICE, dtype)
        expected = attend_reference(*case.to(DEVICE, torch.float64).arguments)
        for num_splits in (1,) if options else (1, 3):  # a window is never split
            for found, right in zip(attend(case, num_splits), expected, strict=True):
                assert_close(found, right, dtype)


@pytest.mark.parametrize("layout", LAYOUTS[1:])
def test_views_give_the_bits_of_contiguous_tensors(layout):
    case = make_case((4, 2, 16, 16), [LONG, 30], [20, 1], 7, layout).to(DEVICE, torch.float32)
    same = replace(case, k_pages=case.k_pages.contiguous(), v_pages=case.v_pages.contiguous())
    found, expected = attend(case, 2)[0], attend(same, 2)[0]
    if layout in ("gaps", "dims_first"):  # other strides choose other tiles: equal up to rounding
        assert_close(found, expected, torch.float32)
    else:
        assert torch.equal(found, expected)


@pytest.mark.parametrize("block_size", [1, 3, 8, 24, 64])
def test_the_order_of_physical_blocks_does_not_change_a_bit(block_size):
    case = make_case(SMOLLM2, [LONG, 0, 64], [6, 0, 3], block_size).to(DEVICE, torch.float32)
    assert torch.equal(attend(moved(case), 2)[0], attend(case, 2)[0])


@pytest.mark.parametrize("window", [None, 20])
def test_slots_that_no_query_sees_do_not_matter(window):
    case = make_case(SMOLLM2, [LONG, 3], [25, 2], 16, window=window).to(DEVICE, torch.float16)
    found = attend(case, 2)[0]
    assert found.isfinite().all()
    assert torch.equal(attend(zero_filled(case), 2)[0], found)


@pytest.mark.parametrize("num_splits", [1, 2])
def test_result_does_not_depend_on_batch_mates(num_splits):
    """With the same number of splits, that is: their number follows the batch."""
    counts = [9, 1, 0, 3]
    case = make_case(SMOLLM2, [LONG, LONG, 9, 3], counts, 16).to(DEVICE, torch.float32)
    together = attend(case, num_splits)[0].split(counts)
    for row in (0, 1, 3):
        assert torch.equal(attend(case.rows(row), num_splits)[0], together[row])


@pytest.mark.parametrize("axis", [0, 1, 2], ids=["block", "head", "slot"])
def test_offsets_beyond_32_bits(axis):
    case = far_apart(axis, DEVICE)
    assert_close(attend(case)[0], attend_reference(*case.arguments)[0], torch.float16)


def test_lengths_starts_and_tables_may_lie_on_either_device():
    case = make_case(SMOLLM2, [LONG, 0, 5], [9, 0, 5], 16).to(DEVICE, torch.float32)
    here = paged_prefill(*case.arguments, backend="triton")
    case.seq_lens, case.query_starts = case.seq_lens.to(DEVICE), case.query_starts.long().to(DEVICE)
    case.block_table = case.block_table.to(DEVICE).T.contiguous().T
    assert torch.equal(paged_prefill(*case.arguments, backend="triton"), here)


@pytest.mark.parametrize("num_splits", [1, 2])
@pytest.mark.parametrize("window", [None, 37])
def test_a_length_above_the_capacity_counts_as_the_capacity(num_splits, window):
    """Lengths on the GPU are not read back; past the last entry of a table lies that of another row."""
    case = make_case(SMOLLM2, [LONG, LONG], [7, 7], 10, window=window).to(DEVICE, torch.float32)
    case.block_table = case.block_table[:, :10]
    expected = attend(case, num_splits)[0]
    case.seq_lens = torch.tensor([LONG + 40, LONG])
    assert torch.equal(attend(case, num_splits)[0], expected)


@pytest.mark.parametrize("num_splits", [None, 2])
def test_a_table_of_more_slots_than_32_bits_count(num_splits, monkeypatch):
    """Its last split would end at 2**31, which a program would read as less than nothing."""
    case = make_case(SMOLLM2, [16], [3], 16).to(DEVICE, torch.float32)
    expected = attend(case)[0]
    case.block_table = case.block_table[:, :1].expand(1, 2**27)  # 2**31 slots, one entry in memory
    chosen = []

    def note(*arguments):
        chosen.append(choose_splits(*arguments))
        return chosen[-1]

    monkeypatch.setattr(prefill_kernel, "choose_splits", note)
    assert_close(attend(case, num_splits)[0], expected, torch.float32)
    ((chunk, splits),) = chosen
    assert splits * chunk < 2**31


def test_chosen_backend_is_triton_on_a_gpu_only():
    case = make_case(SMOLLM2, [4], [2], 4).to(DEVICE, torch.float16)
    name = choose_backend(case.q, case.k_pages, case.v_pages, case.seq_lens)
    assert name == ("triton" if DEVICE == "cuda" else "torch")


def test_float64_is_refused():
    case = make_case(SMOLLM2, [4], [2], 4).to(DEVICE, torch.float64)
    with pytest.raises(ValueError, match="float16 or bfloat16"):
        paged_prefill(*case.arguments, backend="triton")


@pytest.mark.parametrize(("window", "num_splits"), [(None, 1), (None, 2), (30, 1)])  # a window is never split
@pytest.mark.parametrize("shape", [SMOLLM2, SHAPES[2], SHAPES[4]])
def test_bytes_loaded_are_the_fewest(shape, window, num_splits, monkeypatch):
    """Counts the unmasked lanes of every load of 2-byte numbers: each query once, keys and values once a tile.

    Of the table, an entry of four bytes a token, kv head and tile, and never one of a block that is not needed.
    """
    if not INTERPRETED:
        pytest.skip("only the interpreter can count loads")
    loaded, entries = count_loads(monkeypatch)
    new = 4 if shape[0] > 16 else 30
    case = make_case(shape, [LONG, LONG - 20, 30], [new, 1, 0], 16, window=window).to(DEVICE, torch.float16)
    case.query_starts = case.query_starts.long()  # 64 bits, unlike the table
    attend(case, num_splits)
    aligned = shape[2] % 16 == shape[3] % 16 == 0
    block_m = choose_blocks(*shape[2:], 2, aligned)[0]["BLOCK_M"]
    lists = case.seq_lens.tolist(), case.query_starts.tolist()
    fewest = bytes_moved(*lists, *shape, itemsize=2, block_m=block_m, window=window)
    queries = case.q.numel() * 2
    numbers = shape[1] * (shape[2] + shape[3])  # of a token
    assert loaded["float16"] == fewest + (num_splits - 1) * queries  # the second split reads the queries too
    assert loaded["int32"] == 4 * shape[1] * (fewest - queries) // (2 * numbers)
    assert entries == set(case.block_table[needed(case)].tolist())


def count_loads(monkeypatch):
    """Bytes of every masked load by type, and the 32-bit integers that were loaded, as they come in."""
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
    return loaded, entries


@FEW
@given(case=store_cases())
def test_store_equals_a_loop(case):
    k, v, k_pages, v_pages, slots = case
    for x, pages in ((k, k_pages), (v, v_pages)):
        if torch.float64 in (x.dtype, pages.dtype) or (
            INTERPRETED and torch.bfloat16 in (x.dtype, pages.dtype)
        ):
            continue
        right = expected_pages(x, pages, slots)
        on_device = pages.to(DEVICE)
        store_triton(x.to(DEVICE), on_device, slots)
        assert torch.equal(on_device.cpu().nan_to_num(7.0), right.nan_to_num(7.0))


def test_slots_outside_the_pages_write_nothing():
    """Slots on the GPU are not read back to be checked."""
    pages = torch.zeros(2, 2, 4, 8, device=DEVICE)
    store_triton(torch.ones(3, 2, 8, device=DEVICE), pages[:1], torch.tensor([-1, 4, -9], device=DEVICE))
    assert pages.count_nonzero() == 0
    x = torch.ones(1, 2, 8, device=DEVICE)
    store_kv(x, x, pages, pages.clone(), torch.tensor([7]), backend="triton")
    assert torch.equal(pages[1, :, 3], x[0])


def test_store_beyond_32_bits():
    buffer = torch.empty(2**31 + 64, dtype=torch.float16, device=DEVICE)
    pages = torch.as_strided(buffer, (3, 1, 2, 4), (2**30 + 8, 8, 4, 1))
    x = torch.ones(1, 1, 4, dtype=torch.float16, device=DEVICE)
    store_triton(x, pages, torch.tensor([5], device=DEVICE))
    assert torch.equal(pages[2, :, 1], x[0])


def test_store_loads_the_written_tokens_once(monkeypatch):
    if not INTERPRETED:
        pytest.skip("only the interpreter can count loads")
    loaded, _ = count_loads(monkeypatch)
    x, pages = torch.ones(5, 3, 20, dtype=torch.float16), torch.zeros(2, 3, 4, 20, dtype=torch.float16)
    store_triton(x, pages, torch.tensor([7, -1, 0, 2, -1]))
    assert loaded["float16"] == bytes_stored(3, 3, 20, itemsize=2)
