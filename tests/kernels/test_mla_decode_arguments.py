"""What latent decode refuses, and that the message says what to do."""

import math

import pytest
import torch

from kvcourse.kernels import mla_decode


def arguments(**changes):
    good = {
        "q_latent": torch.zeros(2, 4, 8),
        "q_rope": torch.zeros(2, 4, 6),
        "latent_pages": torch.zeros(3, 5, 8),
        "rope_pages": torch.zeros(3, 5, 6),
        "block_table": torch.tensor([[2, 0], [9, -1]], dtype=torch.int32),
        "seq_lens": torch.tensor([7, 0]),
        "scale": 0.25,
    }
    return good | changes


DOUBLES = {
    name: value.double()
    for name, value in arguments().items()
    if torch.is_tensor(value) and value.is_floating_point()
}
BAD = {
    "a query with a token axis": ({"q_latent": torch.zeros(2, 4, 1, 8)}, "pass queries as"),
    "pages without blocks": ({"rope_pages": torch.zeros(15, 6)}, "pages as"),
    "another batch": ({"q_rope": torch.zeros(3, 4, 6)}, "one batch"),
    "another block size": ({"rope_pages": torch.zeros(3, 4, 6)}, "one num_blocks and block_size"),
    "a query that is not absorbed": ({"q_latent": torch.zeros(2, 4, 7)}, "absorb"),
    "another rope width": ({"q_rope": torch.zeros(2, 4, 4)}, "qk_rope_head_dim in q_rope"),
    "empty blocks": (
        {"latent_pages": torch.zeros(3, 0, 8), "rope_pages": torch.zeros(3, 0, 6)},
        "block_size and rank of at least 1",
    ),
    "no head": ({"q_latent": torch.zeros(2, 0, 8), "q_rope": torch.zeros(2, 0, 6)}, "at least one head"),
    "no tensor": ({"rope_pages": None}, "rope_pages is a NoneType: pass a tensor"),
    "a list of lengths": ({"seq_lens": [7, 0]}, "seq_lens is a list: pass a tensor"),
    "a scale beyond floats": ({"scale": 10**400}, "times YaRN's mscale"),
    "a scale of several numbers": ({"scale": torch.ones(3)}, "scale is tensor("),
    "gradients of a kernel": (
        {"q_rope": torch.zeros(2, 4, 6, requires_grad=True), "backend": "cpu"},
        "pass backend='torch'",
    ),
    "two types": ({"latent_pages": torch.zeros(3, 5, 8, dtype=torch.float16)}, "one floating type"),
    "integers": ({name: value.int() for name, value in DOUBLES.items()}, "one floating type"),
    "two devices": ({"rope_pages": torch.zeros(3, 5, 6, device="meta")}, "one device"),
    "a table of another batch": ({"block_table": torch.zeros(3, 2, dtype=torch.int32)}, "batch of 2"),
    "a flat table": ({"block_table": torch.zeros(2, dtype=torch.int32)}, "(batch, max_blocks)"),
    "a float table": ({"block_table": torch.zeros(2, 2)}, "int32 or int64"),
    "a table elsewhere": ({"block_table": torch.zeros(2, 2, dtype=torch.int32, device="meta")}, "move it"),
    "lengths of another batch": ({"seq_lens": torch.tensor([1])}, "(batch,)"),
    "float lengths": ({"seq_lens": torch.tensor([1.0, 2.0])}, "int32 or int64"),
    "a length above the table": ({"seq_lens": torch.tensor([11, 0])}, "0 to 10"),
    "a negative length": ({"seq_lens": torch.tensor([-1, 0])}, "0 to 10"),
    "a block that does not exist": ({"seq_lens": torch.tensor([7, 1])}, "block_table[1, 0] is 9"),
    "a negative block": (
        {"block_table": torch.tensor([[2, -1], [0, 0]])},
        "one of the 3 blocks, 0 to 2",
    ),
    "no scale": ({"scale": None}, "(qk_nope_head_dim + qk_rope_head_dim) ** -0.5"),
    "a scale that is no number": ({"scale": math.nan}, "scale is nan"),
    "an unknown backend": ({"backend": "cuda"}, "'reference', 'torch'"),
    "the CPU kernel on another type": (DOUBLES | {"backend": "cpu"}, "backend='torch'"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name):
    changes, advice = BAD[name]
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        mla_decode(**arguments(**changes))
    assert advice.replace("'", "") in str(caught.value).replace("'", "")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("backend", ["reference", "torch", "cpu"])
def test_a_block_that_does_not_exist_is_refused_before_anything_is_read(backend):
    """Reading it would be an access outside the pages: a crash, or another row's tokens."""
    with pytest.raises(ValueError, match=r"block_table\[0, 1\] is 1073741824"):
        mla_decode(**arguments(block_table=torch.tensor([[0, 2**30], [0, 0]])), backend=backend)


def test_scale_has_no_default():
    without = {name: value for name, value in arguments().items() if name != "scale"}
    with pytest.raises(TypeError, match="scale"):
        mla_decode(**without)


def test_good_input_is_not_refused():
    assert mla_decode(**arguments()).shape == (2, 4, 8)
    out, lse = mla_decode(**arguments(), return_lse=True)
    assert (out.shape, lse.shape) == ((2, 4, 8), (2, 4))
