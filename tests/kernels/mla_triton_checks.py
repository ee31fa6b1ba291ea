"""Absorbed latent decode in Triton; collected by test_mla_decode_triton.py in a process of its own.

On a GPU (KVCOURSE_DEVICE=cuda) the kernels run as they are, elsewhere under TRITON_INTERPRET=1, which has to be set
before Triton is imported. The interpreter multiplies bfloat16 matrices wrongly, so that type is left to the GPU.
"""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from mla_cases import (
    DEEPSEEK,
    DEEPSEEK_LITE,
    SHAPES,
    brute_force,
    far_apart,
    make_case,
    mla_cases,
    moved,
    zero_filled,
)
from strategies import FEW
from triton_checks import DEVICE, LONG, TOLERANCES, assert_close

from kvcourse.kernels import mla_decode
from kvcourse.kernels.mla_decode import attend_reference, choose_backend
from kvcourse.kernels.mla_decode.triton import attend_triton, bytes_moved, choose_blocks
from kvcourse.kernels.triton import INTERPRETED


def attend(case, num_splits=None):
    return attend_triton(*case.arguments, "ieee", num_splits)


@pytest.mark.parametrize("num_splits", [1, 2])
@FEW
@given(case=mla_cases(shapes=(*SHAPES[:2], *SHAPES[3:5])))
def test_equals_loops(num_splits, case):
    """Slots that no row may read hold NaN and unused entries of the table name no block: one of them would show."""
    for found, expected in zip(
        attend(case.to(DEVICE, torch.float32), num_splits), brute_force(case), strict=True
    ):
        assert_close(found, expected, torch.float32)


@pytest.mark.parametrize("shape", [*SHAPES[2:4], DEEPSEEK_LITE])
@pytest.mark.parametrize("dtype", TOLERANCES)
def test_splits_and_types(shape, dtype):
    case = make_case(shape, [LONG, 31, 0], 16, layout="fused").to(DEVICE, dtype)
    double = case.to(DEVICE, torch.float64)
    expected = attend_reference(*double.arguments)
    for num_splits in (1, 3):
        for found, right in zip(attend(case, num_splits), expected, strict=True):
            assert_close(found, right, dtype)


def test_the_heads_of_deepseek_v3():
    case = make_case(DEEPSEEK, [40], 16, layout="fused").to(DEVICE, torch.float16)
    expected = attend_reference(*case.to(DEVICE, torch.float64).arguments)
    for found, right in zip(attend(case), expected, strict=True):
        assert_close(found, right, torch.float16)


@pytest.mark.parametrize("layout", ["fused", "gaps", "blocks_inside", "dims_first"])
def test_views_give_the_bits_of_contiguous_tensors(layout):
    case = make_case(SHAPES[3], [LONG, 30], 7, layout=layout).to(DEVICE, torch.float32)
    same = replace(case, latent_pages=case.latent_pages.contiguous(), rope_pages=case.rope_pages.contiguous())
    assert torch.equal(attend(case, 2)[0], attend(same, 2)[0])


@pytest.mark.parametrize("block_size", [1, 7, 64])
def test_the_order_of_physical_blocks_does_not_change_a_bit(block_size):
    case = make_case(SHAPES[3], [LONG, 0, 64], block_size).to(DEVICE, torch.float32)
    assert torch.equal(attend(moved(case), 2)[0], attend(case, 2)[0])


def test_unused_slots_do_not_matter():
    case = make_case(SHAPES[3], [LONG, 3], 16).to(DEVICE, torch.float16)
    found = attend(case, 2)[0]
    assert found.isfinite().all()
    assert torch.equal(attend(zero_filled(case), 2)[0], found)


def test_result_does_not_depend_on_batch_mates():
    """With the same number of splits, that is: their number follows the batch."""
    case = make_case(SHAPES[3], [LONG, 3], 16).to(DEVICE, torch.float32)
    together = attend(case, 2)[0]
    for row in range(2):
        assert torch.equal(attend(case.row(row), 2)[0], together[row : row + 1])


def test_offsets_beyond_32_bits():
    case = far_apart(DEVICE)
    assert_close(attend(case)[0], attend_reference(*case.arguments)[0], torch.float16)


def test_lengths_and_tables_may_lie_on_either_device():
    case = make_case(SHAPES[3], [LONG, 0], 16).to(DEVICE, torch.float32)
    here = mla_decode(*case.arguments, backend="triton")
    case.seq_lens, case.block_table = case.seq_lens.to(DEVICE), case.block_table.to(DEVICE).T.contiguous().T
    assert torch.equal(mla_decode(*case.arguments, backend="triton"), here)


@pytest.mark.parametrize("num_splits", [1, 2])
def test_a_length_above_the_capacity_counts_as_the_capacity(num_splits):
    """Lengths on the GPU are not read back; past the last entry of a table lies that of another row."""
    case = make_case(SHAPES[3], [LONG, LONG], 10).to(DEVICE, torch.float32)
    case.block_table = case.block_table[:, :10]
    expected = attend(case, num_splits)[0]
    case.seq_lens = torch.tensor([LONG + 40, LONG])
    assert torch.equal(attend(case, num_splits)[0], expected)


def test_chosen_backend_is_triton_on_a_gpu_only():
    case = make_case(SHAPES[0], [4], 4).to(DEVICE, torch.float16)
    assert choose_backend(*case.arguments[:4]) == ("triton" if DEVICE == "cuda" else "torch")


@pytest.mark.parametrize("num_splits", [1, 2])
@pytest.mark.parametrize("shape", [DEEPSEEK_LITE, (9, 96, 32), (40, 20, 12)])
def test_bytes_loaded_are_the_fewest(shape, num_splits, monkeypatch):
    """Counts the unmasked lanes of every load: each latent and rope key once a block of heads, q once a split.

    Two bytes a number; the table adds its four bytes a token.
    """
    if not INTERPRETED:
        pytest.skip("only the interpreter can count loads")
    from triton.runtime.interpreter import InterpreterBuilder

    loaded = {2: 0, 4: 0}
    load = InterpreterBuilder.create_masked_load

    def count(self, pointers, mask, *rest):
        result = load(self, pointers, mask, *rest)
        size = result.data.dtype.itemsize
        if size == 2 or result.data.dtype.kind == "i":
            loaded[size] = loaded.get(size, 0) + size * int(mask.data.sum())
        return result

    monkeypatch.setattr(InterpreterBuilder, "create_masked_load", count)
    num_heads, rank, rope_dim = shape
    lengths = [LONG, LONG - 20]
    case = make_case(shape, lengths, 16).to(DEVICE, torch.float16)
    attend(case, num_splits)
    head_blocks = -(-num_heads // choose_blocks(*shape, 2)[0]["BLOCK_H"])
    queries = bytes_moved([], num_heads, rank, rope_dim, 2) + 2 * num_heads * (rank + rope_dim) * 2
    cached = bytes_moved(lengths, *shape, 2) - queries
    assert cached == sum(lengths) * (rank + rope_dim) * 2
    assert loaded[2] == head_blocks * cached + num_splits * queries
    assert loaded[4] == head_blocks * sum(lengths) * 4
