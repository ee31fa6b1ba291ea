"""What decode over pages refuses, and that the message says what to do."""

import math

import pytest
import torch

from kvcourse.kernels import paged_decode


def arguments(**changes):
    good = {
        "q": torch.zeros(2, 4, 8),
        "k_pages": torch.zeros(3, 2, 5, 8),
        "v_pages": torch.zeros(3, 2, 5, 6),
        "block_table": torch.tensor([[2, 0], [9, -1]], dtype=torch.int32),
        "seq_lens": torch.tensor([7, 0]),
    }
    return good | changes


DOUBLES = {name: value.double() for name, value in arguments().items() if value.is_floating_point()}
BAD = {
    "no tensor": ({"v_pages": None}, "v_pages is a NoneType: pass a tensor"),
    "a sparse tensor": (
        {"q": torch.zeros(2, 4, 8).to_sparse()},
        "q has layout torch.sparse_coo: pass a dense tensor",
    ),
    "a backend of many lines": ({"backend": torch.zeros(9, 9, 9)}, "use one of reference, torch"),
    "a list of lengths": ({"seq_lens": [7, 0]}, "seq_lens is a list: pass a tensor"),
    "a query with a token axis": ({"q": torch.zeros(2, 4, 1, 8)}, "(batch, num_heads, head_dim)"),
    "pages without heads": (
        {"k_pages": torch.zeros(3, 5, 8)},
        "(num_blocks, num_kv_heads, block_size, head_dim)",
    ),
    "another number of blocks": ({"v_pages": torch.zeros(4, 2, 5, 6)}, "one num_blocks"),
    "another block size": ({"v_pages": torch.zeros(3, 2, 4, 6)}, "block_size for both"),
    "empty blocks": (
        {"k_pages": torch.zeros(3, 2, 0, 8), "v_pages": torch.zeros(3, 2, 0, 6)},
        "at least 1",
    ),
    "values of width 0": ({"v_pages": torch.zeros(3, 2, 5, 0)}, "at least 1"),
    "another head_dim": ({"q": torch.zeros(2, 4, 7)}, "head_dim of the keys"),
    "an uneven group": ({"q": torch.zeros(2, 5, 8)}, "5 query heads on 2 kv heads"),
    "no head": ({"q": torch.zeros(2, 0, 8)}, "0 query heads on 2 kv heads"),
    "two types": ({"k_pages": torch.zeros(3, 2, 5, 8, dtype=torch.float16)}, "one floating type"),
    "integers": ({name: value.int() for name, value in DOUBLES.items()}, "one floating type"),
    "two devices": ({"v_pages": torch.zeros(3, 2, 5, 6, device="meta")}, "one device"),
    "a table of another batch": ({"block_table": torch.zeros(3, 2, dtype=torch.int32)}, "batch of 2"),
    "a flat table": ({"block_table": torch.zeros(2, dtype=torch.int32)}, "(batch, max_blocks)"),
    "a float table": ({"block_table": torch.zeros(2, 2)}, "int32 or int64"),
    "a table elsewhere": ({"block_table": torch.zeros(2, 2, dtype=torch.int32, device="meta")}, "move it"),
    "lengths of another batch": ({"seq_lens": torch.tensor([1])}, "(batch,)"),
    "float lengths": ({"seq_lens": torch.tensor([1.0, 2.0])}, "int32 or int64"),
    "a length above the table": ({"seq_lens": torch.tensor([11, 0])}, "0 to 10"),
    "a negative length": ({"seq_lens": torch.tensor([-1, 0])}, "0 to 10"),
    "a block that does not exist": ({"seq_lens": torch.tensor([7, 1])}, "block_table[1, 0] is 9"),
    "a negative block": ({"block_table": torch.tensor([[2, -1], [0, 0]])}, "one of the 3 blocks, 0 to 2"),
    "a hole inside the window": (
        {"block_table": torch.tensor([[-1, 0], [0, 0]]), "window": 3},
        "block_table[0, 0] is -1",
    ),
    "a scale that is no number": ({"scale": math.nan}, "scale is nan"),
    "a scale of several numbers": ({"scale": torch.ones(3)}, "scale is tensor("),
    "a window of no tokens": ({"window": 0}, "window is 0"),
    "a window that is no number": ({"window": 2.0}, "window is 2.0"),
    "a window that is a truth value": ({"window": True}, "itself included"),
    "a soft cap of zero": ({"soft_cap": 0.0}, "above 0, or None"),
    "a soft cap of infinity": ({"soft_cap": math.inf}, "soft_cap is inf"),
    "an unknown backend": ({"backend": "cuda"}, "use one of reference, torch"),
    "a list of backends": ({"backend": ["cpu"]}, "use one of reference, torch"),
    "the CPU kernel on another type": (DOUBLES | {"backend": "cpu"}, "backend='torch'"),
    "gradients of a kernel": (
        {"q": torch.zeros(2, 4, 8, requires_grad=True), "backend": "cpu"},
        "pass backend='torch'",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name):
    changes, advice = BAD[name]
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        paged_decode(**arguments(**changes))
    assert advice in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("backend", ["reference", "torch", "cpu"])
def test_a_block_that_does_not_exist_is_refused_before_anything_is_read(backend):
    """Reading it would be an access outside the pages: a crash, or another row's tokens."""
    with pytest.raises(ValueError, match=r"block_table\[0, 1\] is 1073741824"):
        paged_decode(**arguments(block_table=torch.tensor([[0, 2**30], [0, 0]])), backend=backend)


def test_good_input_is_not_refused():
    assert paged_decode(**arguments()).shape == (2, 4, 6)
    out, lse = paged_decode(**arguments(), return_lse=True)
    assert (out.shape, lse.shape) == ((2, 4, 6), (2, 4))


@pytest.mark.parametrize("backend", ["reference", "torch", "cpu"])
def test_numbers_beyond_64_bits_are_numbers(backend):
    huge = {"window": 10**30, "scale": 10**30, "soft_cap": 10**30}
    assert paged_decode(**arguments(**huge), backend=backend).shape == (2, 4, 6)


@pytest.mark.parametrize("hole", [0, -1, 2**30])
def test_entries_behind_the_window_may_hold_anything(hole):
    table = torch.tensor([[hole, 0], [hole, hole]])
    assert paged_decode(**arguments(block_table=table, window=2)).shape == (2, 4, 6)
