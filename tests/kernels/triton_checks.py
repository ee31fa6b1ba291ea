"""Decode attention in Triton; collected by test_contiguous_decode_triton.py in a process of its own.

On a GPU (KVCOURSE_DEVICE=cuda) the kernels run as they are, elsewhere under TRITON_INTERPRET=1, which has to be set
before Triton is imported. The interpreter multiplies bfloat16 matrices wrongly, so that type is left to the GPU.
"""

import os

import pytest
import torch
from decode_cases import SHAPES, brute_force, decode_cases, far_apart, make_case
from hypothesis import given
from strategies import FEW

from kvcourse.kernels import contiguous_decode
from kvcourse.kernels.contiguous_decode import attend_reference, choose_backend
from kvcourse.kernels.contiguous_decode import triton as decode_kernel
from kvcourse.kernels.contiguous_decode.triton import attend_triton, bytes_moved
from kvcourse.kernels.triton import INTERPRETED, choose_splits

DEVICE = os.environ.get("KVCOURSE_DEVICE", "cpu")
TOLERANCES = {torch.float32: 3e-6, torch.float16: 4e-3} | ({torch.bfloat16: 3e-2} if DEVICE == "cuda" else {})
LONG = 100  # tokens: two or more blocks, so two splits


def assert_close(found, expected, dtype):
    torch.testing.assert_close(
        found.double().cpu(), expected.double().cpu(), rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype]
    )


def attend(case, num_splits=None):
    scale = case.q.shape[-1] ** -0.5 if case.scale is None else case.scale
    return attend_triton(case.q, case.k, case.v, case.lengths, case.starts, scale, "ieee", num_splits)


@pytest.mark.parametrize("num_splits", [1, 2])
@FEW
@given(case=decode_cases(shapes=(SHAPES[0], *SHAPES[2:4])))
def test_equals_loops(num_splits, case):
    """Slots that no row may read hold NaN, so one of them in any sum fails."""
    assert_close(attend(case.to(DEVICE, torch.float32), num_splits), brute_force(case)[0], torch.float32)


@pytest.mark.parametrize("shape", [*SHAPES[1:4], *SHAPES[5:]])
@pytest.mark.parametrize("dtype", TOLERANCES)
def test_splits_and_types(shape, dtype):
    case = make_case(shape, [LONG, 31], [LONG - 20, 0], LONG, layouts=("fused", "tokens_first")).to(
        DEVICE, dtype
    )
    expected = attend_reference(*case.arguments)[0]
    for num_splits in (1, 3):
        assert_close(attend(case, num_splits), expected, dtype)


@pytest.mark.parametrize(
    "layouts", [("fused", "fused"), ("tokens_first", "tokens_first"), ("gaps", "dims_first")]
)
def test_views_give_the_bits_of_contiguous_tensors(layouts):
    case = make_case((4, 2, 16, 16), [LONG, 30], [5, LONG - 9], LONG, layouts=layouts).to(
        DEVICE, torch.float32
    )
    views = attend(case, 2)
    case.k, case.v = case.k.contiguous(), case.v.contiguous()
    if (
        "gaps" in layouts
    ):  # strides that are no multiple of 16 choose another block size: equal up to rounding
        assert_close(views, attend(case, 2), torch.float32)
    else:
        assert torch.equal(views, attend(case, 2))


def test_equal_calls_give_equal_bits():
    case = make_case(SHAPES[1], [LONG, 31], None, LONG).to(DEVICE, torch.float32)
    assert torch.equal(attend(case, 3), attend(case, 3))


@pytest.mark.parametrize("axis", [0, 1, 2], ids=["row", "head", "token"])
def test_offsets_beyond_32_bits(axis):
    case = far_apart(axis, DEVICE)
    assert_close(attend(case), attend_reference(*case.arguments)[0], torch.float16)


def test_lengths_may_lie_on_either_device():
    case = make_case(SHAPES[1], [LONG, 0], [3, 4], LONG).to(DEVICE, torch.float32)
    here = contiguous_decode(*case.arguments, backend="triton")
    case.lengths, case.starts = case.lengths.to(DEVICE), case.starts.to(DEVICE)
    assert torch.equal(contiguous_decode(*case.arguments, backend="triton"), here)


@pytest.mark.parametrize("num_splits", [1, 2])
def test_a_length_above_the_capacity_counts_as_the_capacity(num_splits):
    """Lengths on the GPU are not read back; past the last slot lie the keys of another head."""
    case = make_case((4, 2, 16, 16), [LONG, LONG], None, LONG).to(DEVICE, torch.float32)
    expected = attend(case, num_splits)
    case.lengths = torch.tensor([LONG + 40, LONG], dtype=torch.int32)
    assert torch.equal(attend(case, num_splits), expected)


def test_a_group_of_several_blocks_of_heads_gets_fewer_splits(monkeypatch):
    """Each block of heads is a program of its own, so fewer splits fill the GPU."""
    case = make_case((160, 1, 16, 16), [LONG], None, LONG).to(DEVICE, torch.float32)  # 160 heads: 3 blocks
    programs = []

    def note(rows, *arguments):
        programs.append(rows)
        return choose_splits(rows, *arguments)

    monkeypatch.setattr(decode_kernel, "choose_splits", note)
    assert_close(attend(case), attend_reference(*case.arguments)[0], torch.float32)
    assert programs == [3]


def test_chosen_backend_is_triton_on_a_gpu_only():
    case = make_case(SHAPES[1], [4], None, 4).to(DEVICE, torch.float16)
    assert choose_backend(case.q, case.k, case.v, case.lengths) == ("triton" if DEVICE == "cuda" else "torch")


def test_the_newer_setting_of_matmul_precision():
    """torch refuses its older getter once the newer setting was used."""
    case = make_case(SHAPES[1], [LONG], None, LONG).to(DEVICE, torch.float32)
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        found = contiguous_decode(*case.arguments, backend="triton")
    finally:
        torch.backends.cuda.matmul.fp32_precision = before
    torch.testing.assert_close(found, attend_reference(*case.arguments)[0], rtol=1e-2, atol=1e-2)


def test_float64_is_refused():
    case = make_case(SHAPES[1], [4], None, 4).to(DEVICE, torch.float64)
    with pytest.raises(ValueError, match="float16 or bfloat16"):
        contiguous_decode(*case.arguments, backend="triton")


@pytest.mark.parametrize("num_splits", [1, 2])
@pytest.mark.parametrize("shape", [(9, 3, 64, 64), (10, 2, 20, 12), (3, 3, 16, 16)])
def test_bytes_loaded_are_the_fewest(shape, num_splits, monkeypatch):
    """Counts the unmasked lanes of every load of 2-byte numbers: q once a split, each valid key and value once."""
    if not INTERPRETED:
        pytest.skip("only the interpreter can count loads")
    from triton.runtime.interpreter import InterpreterBuilder

    loaded = []
    load = InterpreterBuilder.create_masked_load

    def count(self, pointers, mask, *rest):
        result = load(self, pointers, mask, *rest)
        if result.data.dtype.itemsize == 2:
            loaded.append(2 * int(mask.data.sum()))
        return result

    monkeypatch.setattr(InterpreterBuilder, "create_masked_load", count)
    lengths = [LONG, LONG - 20]
    case = make_case(shape, lengths, None, LONG).to(DEVICE, torch.float16)
    attend(case, num_splits)
    again = (num_splits - 1) * case.q.numel() * 2  # the second split reads the queries too
    assert sum(loaded) == bytes_moved(lengths, *shape, itemsize=2) + again
