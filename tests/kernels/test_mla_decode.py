"""Absorbed latent decode on the CPU backends, against loops in float64 and against each other (cases M8, K8, K10)."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from mla_cases import (
    DEEPSEEK,
    LAYOUTS,
    SHAPES,
    brute_force,
    far_apart,
    make_case,
    mla_cases,
    moved,
    tokens_of,
    zero_filled,
)
from strategies import FEW, MANY

from kvcourse.kernels import merge_states, mla_decode
from kvcourse.kernels.mla_decode import choose_backend
from kvcourse.kernels.mla_decode.cpu import BLOCK, CHUNK

BACKENDS = ("reference", "torch", "cpu")
LONG = CHUNK + BLOCK + 13  # two tasks of the CPU kernel a row, the second not whole blocks and odd
TOLERANCES = {torch.float64: 1e-12, torch.float32: 3e-6, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def assert_close(found, expected, dtype=torch.float32):
    tolerance = TOLERANCES[dtype]
    torch.testing.assert_close(found.double().cpu(), expected.double(), rtol=tolerance, atol=tolerance)


def assert_equals_loops(case, backend, dtype):
    found, found_lse = mla_decode(*case.to("cpu", dtype).arguments, backend=backend, return_lse=True)
    out, lse = brute_force(case)
    assert found.dtype == dtype
    assert_close(found, out, dtype)
    assert_close(found_lse, lse, dtype)  # natural logarithm


@MANY
@given(case=mla_cases())
def test_reference_equals_loops(case):
    assert_equals_loops(case, "reference", torch.float64)


@MANY
@given(case=mla_cases())
def test_torch_equals_loops(case):
    """Slots that no row may read hold NaN and unused entries of the table name no block: one of them would show."""
    assert_equals_loops(case, "torch", torch.float64)


@MANY
@given(case=mla_cases())
def test_cpu_equals_loops(case):
    assert_equals_loops(case, "cpu", torch.float32)


@FEW
@given(case=mla_cases(max_tokens=3 * CHUNK, shapes=SHAPES[:3]))
def test_long_rows_equal_the_reference(case):
    expected, lse = mla_decode(*case.arguments, backend="reference", return_lse=True)
    single = case.to("cpu", torch.float32)
    for backend in ("torch", "cpu"):
        found, found_lse = mla_decode(*single.arguments, backend=backend, return_lse=True)
        assert_close(found, expected)
        assert_close(found_lse, lse)


def test_the_heads_of_deepseek_v3():
    case = make_case(DEEPSEEK, [LONG, 70], 64, layout="fused")
    expected = mla_decode(*case.arguments, backend="reference")
    assert_close(mla_decode(*case.to("cpu", torch.float32).arguments, backend="cpu"), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_on_the_cpu(dtype):
    case = make_case(SHAPES[2], [40, 7], 16).to("cpu", dtype)
    found = mla_decode(*case.arguments)
    assert found.dtype == dtype
    assert_close(found, mla_decode(*case.to("cpu", torch.float64).arguments, backend="reference"), dtype)


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("block_size", [1, 5, 64])
def test_absorbed_equals_expanded(block_size, rows):
    """Keys and values of every head from the latents, then plain attention: the form that absorption replaces."""
    heads, rank, rope_dim, nope, value = 4, 24, 8, 12, 10
    case = make_case((heads, rank, rope_dim), [37] * rows, block_size, scale=(nope + rope_dim) ** -0.5)
    generator = torch.Generator().manual_seed(3)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    w_uk, w_uv, q_nope = draw(heads, nope, rank), draw(heads, value, rank), draw(rows, heads, nope)
    case.q_latent = torch.einsum("bhn,hnr->bhr", q_nope, w_uk)
    for backend in ("reference", "torch"):
        absorbed = torch.einsum("bhr,hvr->bhv", mla_decode(*case.arguments, backend=backend), w_uv)
        for row in range(rows):
            latents, rope_keys = tokens_of(case, row)
            keys = torch.einsum("sr,hnr->hsn", latents, w_uk)
            keys = torch.cat([keys, rope_keys.expand(heads, -1, -1)], dim=-1)
            values = torch.einsum("sr,hvr->hsv", latents, w_uv)
            query = torch.cat([q_nope[row], case.q_rope[row]], dim=-1)
            weights = torch.softmax(torch.einsum("hd,hsd->hs", query, keys) * case.scale, dim=-1)
            expanded = torch.einsum("hs,hsv->hv", weights, values)
            torch.testing.assert_close(absorbed[row], expanded, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("block_size", [1, 7, 64])
def test_the_order_of_physical_blocks_does_not_change_a_bit(backend, block_size):
    case = make_case(SHAPES[3], [LONG, 0, 64], block_size).to("cpu", torch.float32)
    found = mla_decode(*case.arguments, backend=backend)
    assert torch.equal(mla_decode(*moved(case).arguments, backend=backend), found)


@pytest.mark.parametrize("backend", BACKENDS)
def test_unused_slots_do_not_matter(backend):
    case = make_case(SHAPES[3], [LONG, 3], 16).to("cpu", torch.float32)
    found = mla_decode(*case.arguments, backend=backend)
    assert found.isfinite().all()
    assert torch.equal(mla_decode(*zero_filled(case).arguments, backend=backend), found)


@pytest.mark.parametrize("layout", LAYOUTS[1:])
def test_views_give_the_bits_of_contiguous_tensors(layout):
    case = make_case(SHAPES[3], [LONG, 30], 16, layout=layout).to("cpu", torch.float32)
    same = replace(case, latent_pages=case.latent_pages.contiguous(), rope_pages=case.rope_pages.contiguous())
    assert torch.equal(mla_decode(*case.arguments, backend="cpu"), mla_decode(*same.arguments, backend="cpu"))


def test_strides_of_queries_and_tables_are_free():
    case = make_case(SHAPES[3], [LONG, 30], 16).to("cpu", torch.float32)
    expected = mla_decode(*case.arguments, backend="cpu")
    case.q_latent, case.q_rope = (q.mT.contiguous().mT for q in (case.q_latent, case.q_rope))
    case.block_table = case.block_table.T.contiguous().T.long()
    case.seq_lens = case.seq_lens.int()
    assert torch.equal(mla_decode(*case.arguments, backend="cpu"), expected)


@pytest.mark.parametrize("shape", [SHAPES[3], DEEPSEEK])
def test_result_does_not_depend_on_batch_mates_or_threads(shape):
    case = make_case(shape, [LONG, 3, 0], 16).to("cpu", torch.float32)
    together = mla_decode(*case.arguments, backend="cpu")
    before = torch.get_num_threads()
    try:
        for count in (1, 2, 5):
            torch.set_num_threads(count)
            for row in range(3):
                alone = mla_decode(*case.row(row).arguments, backend="cpu")
                assert torch.equal(alone, together[row : row + 1])
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("backend", BACKENDS)
def test_states_of_two_parts_merge_to_the_whole(backend):
    """Rows cut at a block boundary, as for a prefix that several rows share."""
    case = make_case(SHAPES[0], [50, 20], 10).to("cpu", torch.float32)
    whole = mla_decode(*case.arguments, backend=backend, return_lse=True)
    before = replace(case, seq_lens=case.seq_lens.clamp(max=20))
    after = replace(case, seq_lens=case.seq_lens - before.seq_lens, block_table=case.block_table[:, 2:])
    parts = [mla_decode(*part.arguments, backend=backend, return_lse=True) for part in (before, after)]
    assert parts[1][1][1].eq(-math.inf).all()
    for found, expected in zip(merge_states(*parts[0], *parts[1]), whole, strict=True):
        assert_close(found, expected)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("place", [0, CHUNK - 1, CHUNK, LONG - 1])
def test_a_score_far_above_the_others_takes_all_wherever_it_lies(backend, place):
    """e to the power of 1,000 overflows, so every part of the tokens has to be scaled by the largest score of all."""
    case = make_case((2, 16, 4), [LONG], LONG, scale=1.0).to("cpu", torch.float32)
    case.q_latent[:], case.q_rope[:], case.rope_pages[:] = 0.0, 1.0, 0.0
    block = case.block_table[0, 0]
    case.rope_pages[block, place] = 250.0
    found = mla_decode(*case.arguments, backend=backend)
    assert torch.equal(found, case.latent_pages[block, place].expand(1, 2, 16))


@pytest.mark.parametrize("backend", BACKENDS)
def test_scores_of_minus_infinity_have_no_weight(backend):
    """Also where they come first and fill a block: minus infinity less minus infinity is not a number."""
    case = make_case((2, 16, 4), [LONG], 1).to("cpu", torch.float32)
    case.q_rope.abs_()
    case.rope_pages[case.block_table[0, :100], :, 3] = -math.inf
    later = replace(case, block_table=case.block_table[:, 100:], seq_lens=case.seq_lens - 100)
    expected = mla_decode(*later.arguments, backend="reference")
    assert_close(mla_decode(*case.arguments, backend=backend), expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_nan_in_a_valid_slot_is_not_hidden(backend):
    case = make_case(SHAPES[3], [LONG, LONG], 16).to("cpu", torch.float32)
    case.rope_pages[case.block_table[0, 2], 5, 3] = math.nan
    found = mla_decode(*case.arguments, backend=backend)
    assert found[0].isnan().all()
    assert found[1].isfinite().all()


def test_offsets_beyond_32_bits():
    case = far_apart("cpu", torch.float32)
    expected = mla_decode(*case.arguments, backend="reference")
    assert_close(mla_decode(*case.arguments, backend="cpu"), expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_nothing_to_attend(backend):
    no_rows = make_case(SHAPES[0], [], 4).to("cpu", torch.float32)
    assert mla_decode(*no_rows.arguments, backend=backend).shape == (0, 3, 24)
    no_tokens = make_case(SHAPES[0], [0, 0], 4).to("cpu", torch.float32)
    for width in (0, 1):
        case = replace(no_tokens, block_table=no_tokens.block_table[:, :width])
        out, lse = mla_decode(*case.arguments, backend=backend, return_lse=True)
        assert torch.equal(out, torch.zeros(2, 3, 24))
        assert torch.equal(lse, torch.full((2, 3), -math.inf))


def test_defaults_of_torch_do_not_matter():
    """The worker writes float32 to addresses on the CPU: a buffer of the default type or device would be another."""
    case = make_case(SHAPES[0], [LONG], 16).to("cpu", torch.float32)
    expected = mla_decode(*case.arguments, backend="cpu")
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            found = mla_decode(*case.arguments, backend="cpu")
    finally:
        torch.set_default_dtype(torch.float32)
    assert found.device.type == "cpu"
    assert torch.equal(found, expected)


def test_chosen_backend():
    double = make_case(SHAPES[0], [LONG], 16)
    single, half = (double.to("cpu", dtype) for dtype in (torch.float32, torch.float16))
    strided = make_case(SHAPES[0], [LONG], 16, layout="dims_first").to("cpu", torch.float32)
    trained = replace(single, q_rope=single.q_rope.clone().requires_grad_())
    cases = (single, double, half, strided, trained)
    names = [choose_backend(*case.arguments[:4]) for case in cases]
    assert names == ["cpu", "torch", "torch", "torch", "torch"]
    with torch.no_grad():
        assert choose_backend(*trained.arguments[:4]) == "cpu"


def test_gradients_flow_through_the_chosen_backend():
    case = zero_filled(make_case(SHAPES[0], [30, 7], 16))
    tensors = [t.clone().requires_grad_() for t in case.arguments[:4]]
    mla_decode(*tensors, *case.arguments[4:]).sum().backward()
    assert all(t.grad.abs().sum() > 0 for t in tensors)
