"""What attention of new tokens over pages refuses, and that the message says what to do."""

import math

import pytest
import torch

from kvcourse.kernels import paged_prefill


def arguments(**changes):
    good = {
        "q": torch.zeros(4, 4, 8),
        "k_pages": torch.zeros(3, 2, 5, 8),
        "v_pages": torch.zeros(3, 2, 5, 6),
        "block_table": torch.tensor([[2, 0], [9, -1], [9, 9]], dtype=torch.int32),
        "seq_lens": torch.tensor([7, 0, 9]),
        "query_starts": torch.tensor([0, 4, 4, 4]),
    }
    return good | changes


DOUBLES = {
    name: value.double()
    for name, value in arguments().items()
    if torch.is_tensor(value) and value.is_floating_point()
}
BAD = {
    "a batch axis": ({"q": torch.zeros(1, 4, 4, 8)}, "pass q as (num_tokens, num_heads, head_dim)"),
    "pages without heads": ({"k_pages": torch.zeros(3, 5, 8)}, "pass (num_blocks, num_kv_heads, block_size"),
    "another block size": (
        {"v_pages": torch.zeros(3, 2, 4, 6)},
        "one num_blocks, num_kv_heads and block_size",
    ),
    "another head dim": ({"q": torch.zeros(4, 4, 7)}, "with the head_dim of the keys"),
    "a broken group": ({"q": torch.zeros(4, 3, 8)}, "a whole number of query heads per kv head"),
    "two types": ({"k_pages": torch.zeros(3, 2, 5, 8, dtype=torch.float16)}, "one floating type"),
    "integers": ({name: value.int() for name, value in DOUBLES.items()}, "one floating type"),
    "two devices": ({"v_pages": torch.zeros(3, 2, 5, 6, device="meta")}, "one device"),
    "no tensor": ({"q": None}, "q is a NoneType: pass a tensor"),
    "a list of starts": ({"query_starts": [0, 4, 4, 4]}, "query_starts is a list: pass a tensor"),
    "a table of another batch": ({"block_table": torch.zeros(2, 2, dtype=torch.int32)}, "batch of 3"),
    "a float table": ({"block_table": torch.zeros(3, 2)}, "int32 or int64"),
    "lengths of two dimensions": ({"seq_lens": torch.zeros(3, 1, dtype=torch.int64)}, "(batch,)"),
    "a single length": ({"seq_lens": torch.tensor(7)}, "(batch,)"),
    "starts without their end": ({"query_starts": torch.tensor([0, 4, 4])}, "(batch + 1,)"),
    "starts elsewhere": ({"query_starts": torch.zeros(4, dtype=torch.int64, device="meta")}, "move it"),
    "starts from another token": ({"query_starts": torch.tensor([1, 4, 4, 4])}, "query_starts is 1, 4, 4, 4"),
    "starts of more tokens": ({"query_starts": torch.tensor([0, 5, 5, 5])}, "ends with 5 for 4 new tokens"),
    "starts of fewer tokens": ({"query_starts": torch.tensor([0, 3, 3, 3])}, "let it end with 4"),
    "starts that go back": ({"query_starts": torch.tensor([0, 5, 4, 4])}, "query_starts is 0, 5, 4, 4"),
    "more new tokens than tokens": (
        {"seq_lens": torch.tensor([3, 0, 0])},
        "row 0 has 4 new tokens and seq_lens[0] is 3: count the new tokens in seq_lens",
    ),
    "a length above the table": ({"seq_lens": torch.tensor([11, 0, 0])}, "0 to 10"),
    "a negative length": ({"seq_lens": torch.tensor([7, -1, 0])}, "0 to 10"),
    "a block that does not exist": (
        {"block_table": torch.tensor([[2, 3], [0, 0], [0, 0]])},
        "block_table[0, 1] is 3: the 7 tokens of row 0 need it",
    ),
    "a window of nothing": ({"window": 0}, "window is 0"),
    "an infinite window": ({"window": math.inf}, "window is inf"),
    "a window of half a token": ({"window": 1.5}, "window is 1.5"),
    "a cap of nothing": ({"soft_cap": 0.0}, "soft_cap is 0.0"),
    "a scale that is no number": ({"scale": math.nan}, "scale is nan"),
    "an unknown backend": ({"backend": "cuda"}, "'reference', 'torch'"),
    "the CPU kernel on another type": (DOUBLES | {"backend": "cpu"}, "backend='torch'"),
    "gradients of a kernel": (
        {"q": torch.zeros(4, 4, 8, requires_grad=True), "backend": "cpu"},
        "pass backend='torch'",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name):
    changes, advice = BAD[name]
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        paged_prefill(**arguments(**changes))
    assert advice.replace("'", "") in str(caught.value).replace("'", "")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("backend", ["reference", "torch", "cpu"])
def test_a_block_that_does_not_exist_is_refused_before_anything_is_read(backend):
    """Reading it would be an access outside the pages: a crash, or another row's tokens."""
    with pytest.raises(ValueError, match=r"block_table\[0, 1\] is 1073741824"):
        paged_prefill(**arguments(block_table=torch.tensor([[0, 2**30], [0, 0], [0, 0]])), backend=backend)


def test_entries_that_no_new_token_needs_may_name_no_block():
    """Those of rows without new tokens, and of blocks that lie wholly before the window of the first new token."""
    assert paged_prefill(**arguments()).shape == (4, 4, 6)
    behind = arguments(block_table=torch.tensor([[-1, 1], [9, -1], [9, 9]]), seq_lens=torch.tensor([9, 0, 9]))
    with pytest.raises(ValueError, match=r"block_table\[0, 0\] is -1"):
        paged_prefill(
            **behind, window=2
        )  # the first new token has position 5 and sees position 4, in block 0
    assert paged_prefill(**behind, window=1).shape == (4, 4, 6)


def test_good_input_is_not_refused():
    out, lse = paged_prefill(**arguments(), return_lse=True)
    assert (out.shape, lse.shape) == ((4, 4, 6), (4, 4))


@pytest.mark.parametrize("backend", ["reference", "torch", "cpu"])
def test_numbers_beyond_64_bits_are_numbers(backend):
    """A window that no row fills is none; a scale may be a whole number."""
    q, pages = torch.randn(4, 4, 8), torch.randn(3, 2, 5, 8)
    given = arguments(q=q, k_pages=pages, v_pages=pages, backend=backend)
    assert torch.equal(paged_prefill(**given, window=10**30), paged_prefill(**given))
    assert torch.equal(paged_prefill(**given, scale=10**30), paged_prefill(**given, scale=1e30))
    assert torch.equal(paged_prefill(**given, soft_cap=10**30), paged_prefill(**given, soft_cap=1e30))
