"""New keys and values in pages: every backend against a loop, and what is refused. Cases K5, K14 and P25."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from paged_cases import LAYOUTS, make_pages
from strategies import MANY

from kvcourse.kernels import slot_mapping, store_kv, store_pages
from kvcourse.kernels.store_kv import choose_backend

BACKENDS = ("reference", "torch", "cpu", None)
TYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def checksum(pages):
    """The bits of some pages, NaN and what lies between them included."""
    return pages.untyped_storage().tolist()


def expected_pages(x, pages, slots):
    """What the pages have to be afterwards, by a loop over single numbers."""
    right = pages.clone()
    for token, slot in enumerate(slots.tolist()):
        for head, dim in itertools.product(range(x.shape[1]), range(x.shape[2])) if slot >= 0 else ():
            right[slot // pages.shape[2], head, slot % pages.shape[2], dim] = x[token, head, dim]
    return right


@st.composite
def store_cases(draw):
    """(k, v, k_pages, v_pages, slots): any layout and types, distinct slots in any order, some of them −1."""
    heads, block_size, num_blocks = draw(st.integers(1, 3)), draw(st.integers(1, 9)), draw(st.integers(1, 6))
    dims, count = (draw(st.integers(1, 20)), draw(st.integers(1, 20))), draw(st.integers(0, 12))
    pages = make_pages(draw(st.sampled_from(LAYOUTS)), num_blocks, heads, block_size, *dims)
    generator = torch.Generator().manual_seed(draw(st.integers(0, 999)))
    slots = torch.randperm(num_blocks * block_size, generator=generator)[:count]
    slots[torch.rand(len(slots), generator=generator) < 0.2] = -1
    slots = slots.to(draw(st.sampled_from((torch.int32, torch.int64))))
    kinds = draw(st.sampled_from(TYPES)), draw(st.sampled_from(TYPES))
    fused = torch.randn(len(slots), 2 * heads, max(dims), generator=generator).to(kinds[0])
    k, v = fused[:, :heads, : dims[0]], fused[:, heads:, : dims[1]]
    return k, v, *(copied_to(page, kinds[1]) for page in pages), slots


def copied_to(pages, dtype):
    """The same pages in another type, strides kept."""
    last = sum((size - 1) * stride for size, stride in zip(pages.shape, pages.stride(), strict=True))
    buffer = torch.zeros(last + 1, dtype=dtype)
    return buffer.as_strided(pages.shape, pages.stride()).copy_(pages)


@pytest.mark.parametrize("backend", BACKENDS)
@MANY
@given(case=store_cases())
def test_equals_a_loop(backend, case):
    """Exactly the named slots change, exactly to the tokens in the type of the pages."""
    k, v, k_pages, v_pages, slots = case
    k_right, v_right = expected_pages(k, k_pages, slots), expected_pages(v, v_pages, slots)
    store_kv(k, v, k_pages, v_pages, slots, backend=backend)
    for pages, right in ((k_pages, k_right), (v_pages, v_right)):
        assert torch.equal(pages.nan_to_num(7.0), right.nan_to_num(7.0))
        assert torch.equal(pages.isnan(), right.isnan())


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_slot_of_minus_one_writes_nothing(backend):
    pages = [torch.randn(4, 2, 8, dim) for dim in (6, 5)]
    before = [checksum(part) for part in pages]
    slots = torch.full((9,), -1)
    store_kv(torch.randn(9, 2, 6), torch.randn(9, 2, 5), *pages, slots, backend=backend)
    store_kv(torch.randn(0, 2, 6), torch.randn(0, 2, 5), *pages, slots[:0], backend=backend)
    assert [checksum(part) for part in pages] == before


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_view_of_a_larger_buffer_changes_only_inside(backend):
    """Pages that lie beside others: [N, 2, B, H, D] and slices of fused dims (case K5)."""
    for layout in ("block_of_both", "dims_fused", "gaps"):
        k_pages, v_pages = (copied_to(part, torch.float32) for part in make_pages(layout, 3, 2, 4, 6, 6))
        buffer = k_pages.untyped_storage()
        right = expected_pages(torch.ones(2, 2, 6), k_pages, torch.tensor([5, 0]))
        numbers = torch.tensor([], dtype=torch.float32).set_(buffer)
        untouched = numbers.isnan().sum() + numbers.eq(0).sum()
        store_pages(torch.ones(2, 2, 6), k_pages, torch.tensor([5, 0]), backend=backend)
        assert torch.equal(k_pages.nan_to_num(7.0), right.nan_to_num(7.0))
        assert numbers.isnan().sum() + numbers.eq(0).sum() == untouched - 2 * 2 * 6
        assert v_pages.isnan().all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_latents_have_no_heads(backend):
    x, pages, slots = torch.randn(3, 7), torch.zeros(4, 5, 7), torch.tensor([19, -1, 2])
    store_pages(x, pages, slots, backend=backend)
    assert torch.equal(pages[3, 4], x[0])
    assert torch.equal(pages[0, 2], x[2])
    assert pages.count_nonzero() == 14


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_pages_of_eight_bits(backend, dtype):
    x, pages = torch.randn(2, 1, 4), torch.zeros(2, 1, 3, 4).to(dtype)
    store_pages(x, pages, torch.tensor([4, 0]), backend=backend)
    assert torch.equal(pages[1, :, 1].float(), x[0].to(dtype).float())
    assert torch.equal(pages[0, :, 0].float(), x[1].to(dtype).float())


@pytest.mark.parametrize("backend", BACKENDS)
def test_offsets_beyond_32_bits(backend):
    buffer = torch.empty(2**31 + 64)
    pages = torch.as_strided(buffer, (3, 1, 2, 4), (2**30 + 8, 8, 4, 1))
    x = torch.randn(1, 1, 4)
    store_pages(x, pages, torch.tensor([5]), backend=backend)
    assert torch.equal(pages[2, :, 1], x[0])


def arguments(**changes):
    good = {
        "k": torch.ones(3, 2, 6),
        "v": torch.ones(3, 2, 5),
        "k_pages": torch.zeros(4, 2, 8, 6),
        "v_pages": torch.zeros(4, 2, 8, 5),
        "slots": torch.tensor([3, 31, -1]),
    }
    return good | changes


BAD = {
    "a slot named twice": ({"slots": torch.tensor([9, 4, 9])}, "slot 9 is named by the tokens 0, 2"),
    "a slot past the end": ({"slots": torch.tensor([0, 32, -1])}, "slots[1] is 32"),
    "a slot below -1": ({"slots": torch.tensor([0, 1, -2])}, "0 to 31"),
    "fewer slots than tokens": ({"slots": torch.tensor([0, 1])}, "a slot for each new token"),
    "more slots than tokens": ({"slots": torch.arange(4)}, "shape (3,)"),
    "float slots": ({"slots": torch.zeros(3)}, "int32 or int64"),
    "a list of slots": ({"slots": [0, 1, 2]}, "slots is a list: pass a tensor"),
    "slots elsewhere": ({"slots": torch.zeros(3, dtype=torch.int64, device="meta")}, "move it"),
    "another width": ({"k": torch.ones(3, 2, 5)}, "k is (3, 2, 5) and k_pages (4, 2, 8, 6)"),
    "other heads": ({"v": torch.ones(3, 1, 5)}, "one num_kv_heads"),
    "other pages": ({"v_pages": torch.zeros(4, 2, 4, 5)}, "one num_blocks and block_size"),
    "other tokens": ({"v": torch.ones(2, 2, 5)}, "one num_tokens"),
    "a batch axis": ({"k": torch.ones(1, 3, 2, 6)}, "(num_tokens, num_kv_heads, dim)"),
    "integers": ({"k_pages": torch.zeros(4, 2, 8, 6).int()}, "floating types"),
    "two devices": ({"v_pages": torch.zeros(4, 2, 8, 5, device="meta")}, "one device"),
    "empty blocks": ({"k_pages": torch.zeros(4, 2, 0, 6)}, "at least 1"),
    "no tensor": ({"v": None}, "v is a NoneType"),
    "an unknown backend": ({"backend": "cuda"}, "'reference', 'torch'"),
    "gradients of a kernel": (
        {"v": torch.ones(3, 2, 5, requires_grad=True), "backend": "cpu"},
        "pass backend='torch'",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_writes_nothing(name):
    changes, advice = BAD[name]
    passed = arguments(**changes)
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        store_kv(**passed)
    assert advice.replace("'", "") in str(caught.value).replace("'", "")
    assert "\n" not in str(caught.value)
    assert all(
        passed[part].count_nonzero() == 0 for part in ("k_pages", "v_pages") if not passed[part].is_meta
    )


def test_chosen_backend():
    x, pages = torch.ones(3, 2, 6), torch.zeros(4, 2, 8, 6)
    trained = x.clone().requires_grad_()
    cases = ((x, pages), (x.half(), pages), (x, pages.mT.contiguous().mT), (trained, pages))
    assert [choose_backend(*case) for case in cases] == ["cpu", "cpu", "torch", "torch"]
    with torch.no_grad():
        assert choose_backend(trained, pages) == "cpu"


def test_gradients_flow_through_the_chosen_backend():
    x, pages = torch.randn(3, 2, 6, requires_grad=True), torch.zeros(4, 2, 8, 6)
    store_pages(x, pages, torch.tensor([0, -1, 9]))
    pages.square().sum().backward()
    assert torch.equal(x.grad, 2 * x.detach() * torch.tensor([1, 0, 1])[:, None, None])


def test_slots_of_the_new_tokens_of_rows():
    table = torch.tensor([[5, 2, 0], [1, -1, -1], [-1, 4, -1]], dtype=torch.int32)
    lengths, starts = torch.tensor([9, 3, 7]), torch.tensor([0, 2, 2, 4])
    # Row 0 writes positions 7 and 8, row 1 nothing, row 2 positions 5 and 6: its first block was given back.
    assert slot_mapping(table, lengths, starts, 4).tolist() == [2 * 4 + 3, 0, 4 * 4 + 1, 4 * 4 + 2]


@pytest.mark.parametrize(
    ("table", "lengths", "advice"),
    [
        ([[5, -1]], [5], "block_table[0, 1] is -1: position 4 of row 0 needs it"),
        ([[5, 1]], [9], "hold the positions 0 to 7"),
        ([[5, 1]], [0], "seq_lens must count the new tokens"),
    ],
)
def test_a_new_token_without_a_block_is_refused(table, lengths, advice):
    """A block of −1 and its last slot would make the slot −1, and the token would be lost without a word."""
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        slot_mapping(torch.tensor(table), torch.tensor(lengths), torch.tensor([0, 1]), 4)
    assert advice in str(caught.value)


@pytest.mark.parametrize(
    ("starts", "block_size", "advice"),
    [
        ([0, 5, 4], 4, "query_starts is 0, 5, 4"),
        ([1, 4, 5], 4, "query_starts is 1, 4, 5"),
        ([0, 1, 2], 0, "block_size is 0"),
        ([0, 1, 2], None, "block_size is None"),
        ([0, 1, 2], 2.0, "block_size is 2.0"),
        ([0, 1, 2], 10**30, "block_size is 1000"),
        ([0, 1], 4, "(batch + 1,)"),
    ],
)
def test_bad_starts_and_block_sizes_are_refused(starts, block_size, advice):
    lengths, table = torch.tensor([5, 5]), torch.tensor([[0, 1], [2, 3]])
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        slot_mapping(table, lengths, torch.tensor(starts), block_size)
    assert advice in str(caught.value)
