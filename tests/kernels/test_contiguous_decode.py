"""Decode attention on the CPU backends, against loops in float64 and against each other."""

import math
import threading

import pytest
import torch
from decode_cases import LAYOUTS, SHAPES, brute_force, decode_cases, far_apart, make_case
from hypothesis import given
from strategies import FEW, MANY

from kvcourse.kernels import contiguous_decode, threads
from kvcourse.kernels.contiguous_decode import attend_reference, choose_backend
from kvcourse.kernels.contiguous_decode.cpu import CHUNK

FUSED = ("torch", "cpu")
LONG = CHUNK + 77  # two tasks of the CPU kernel a row, the second not whole blocks


def assert_close(found, expected, dtype=torch.float32):
    tolerance = {torch.float64: 1e-12, torch.float32: 3e-6, torch.float16: 4e-3, torch.bfloat16: 3e-2}[dtype]
    torch.testing.assert_close(found.double().cpu(), expected.double(), rtol=tolerance, atol=tolerance)


@MANY
@given(case=decode_cases())
def test_reference_equals_loops(case):
    out, lse = brute_force(case)
    found, found_lse = attend_reference(*case.arguments)
    assert_close(found, out, torch.float64)
    assert_close(found_lse, lse, torch.float64)  # natural logarithm


@MANY
@given(case=decode_cases())
def test_sdpa_equals_loops(case):
    assert_close(contiguous_decode(*case.arguments, backend="torch"), brute_force(case)[0], torch.float64)


@MANY
@given(case=decode_cases())
def test_cpu_equals_loops(case):
    """Slots that no row may read hold NaN, so one of them in any sum fails."""
    found = contiguous_decode(*case.to("cpu", torch.float32).arguments, backend="cpu")
    assert_close(found, brute_force(case)[0])


@FEW
@given(case=decode_cases(max_capacity=3 * CHUNK, shapes=SHAPES[1:3]))
def test_long_rows_equal_the_reference(case):
    expected = attend_reference(*case.arguments)[0]
    for backend in FUSED:
        assert_close(contiguous_decode(*case.to("cpu", torch.float32).arguments, backend=backend), expected)


@pytest.mark.parametrize("backend", ["reference", *FUSED])
def test_rows_of_one_length_may_start_apart(backend):
    case = make_case(SHAPES[0], [5, 5, 5], [0, 3, 6], 8).to("cpu", torch.float32)
    assert_close(contiguous_decode(*case.arguments, backend=backend), brute_force(case)[0])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_on_the_cpu(dtype):
    case = make_case(SHAPES[1], [40, 7], None, 64).to("cpu", dtype)
    found = contiguous_decode(*case.arguments)
    assert found.dtype == dtype
    assert_close(found, attend_reference(*case.arguments)[0], dtype)


@pytest.mark.parametrize("backend", ["reference", *FUSED])
def test_large_scores_do_not_overflow(backend):
    case = make_case(SHAPES[1], [LONG], None, LONG, scale=200.0).to("cpu", torch.float32)
    found = contiguous_decode(*case.arguments, backend=backend)
    assert_close(
        found, attend_reference(*case.to("cpu", torch.float64).arguments)[0].round(decimals=3), torch.float16
    )


@pytest.mark.parametrize("backend", ["reference", *FUSED])
@pytest.mark.parametrize("place", [0, CHUNK - 1, CHUNK, LONG - 1])
def test_a_score_far_above_the_others_takes_all_wherever_it_lies(backend, place):
    """e to the power of 1,000 overflows, so every part of the tokens has to be scaled by the largest score of all."""
    case = make_case((2, 1, 16, 16), [LONG], None, LONG, scale=1.0).to("cpu", torch.float32)
    case.q[:], case.k[:] = 1.0, 0.0
    case.k[0, 0, place] = 1000 / 16
    found = contiguous_decode(*case.arguments, backend=backend)
    assert torch.equal(found, case.v[:, :, place].expand(1, 2, 16))


@pytest.mark.parametrize("backend", ["reference", *FUSED])
def test_scores_of_minus_infinity_have_no_weight(backend):
    """Also where they come first and fill a block: minus infinity less minus infinity is not a number."""
    case = make_case((2, 1, 16, 16), [LONG], None, LONG).to("cpu", torch.float32)
    case.q.abs_()
    case.k[0, 0, :100, 3] = -math.inf
    later = case.q, case.k[:, :, 100:], case.v[:, :, 100:], case.lengths - 100
    assert_close(contiguous_decode(*case.arguments, backend=backend), attend_reference(*later)[0])


@pytest.mark.parametrize("backend", ["reference", *FUSED])
def test_nan_in_a_valid_slot_is_not_hidden(backend):
    case = make_case(SHAPES[1], [LONG, LONG], None, LONG).to("cpu", torch.float32)
    case.k[0, 1, 5, 3] = math.nan
    found = contiguous_decode(*case.arguments, backend=backend)
    bad = found.isnan().all(-1)
    assert bad.tolist() == [[False] * 3 + [True] * 3 + [False] * 3, [False] * 9]


@pytest.mark.parametrize("layout", [layout for layout in LAYOUTS if layout != "dims_first"])
def test_views_give_the_bits_of_contiguous_tensors(layout):
    case = make_case(SHAPES[1], [LONG, 30], [5, LONG - 9], LONG, layouts=(layout, layout)).to(
        "cpu", torch.float32
    )
    same = (case.q.contiguous(), case.k.contiguous(), case.v.contiguous(), case.lengths, case.starts)
    assert torch.equal(
        contiguous_decode(*case.arguments, backend="cpu"), contiguous_decode(*same, backend="cpu")
    )


def test_result_does_not_depend_on_batch_mates_or_threads():
    case = make_case(SHAPES[1], [LONG, 3, 3 * CHUNK], None, 3 * CHUNK).to("cpu", torch.float32)
    together = contiguous_decode(*case.arguments, backend="cpu")
    before = torch.get_num_threads()
    try:
        for count in (1, 2, 5):
            torch.set_num_threads(count)
            for row in range(3):
                one = [t[row : row + 1] for t in (case.q, case.k, case.v, case.lengths)]
                assert torch.equal(contiguous_decode(*one, backend="cpu"), together[row : row + 1])
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("openmp", [True, False])
def test_python_threads_may_call_at_once(openmp, monkeypatch):
    if not openmp:  # macOS and Windows: Python threads instead of torch's
        monkeypatch.setattr(threads, "_openmp", lambda: None)
    cases = [
        make_case(SHAPES[1], [LONG, LONG - i], None, LONG, seed=i).to("cpu", torch.float32) for i in range(4)
    ]
    expected = [contiguous_decode(*case.arguments, backend="cpu") for case in cases]
    wrong = []

    def repeat(i):
        for _ in range(50):
            if not torch.equal(contiguous_decode(*cases[i].arguments, backend="cpu"), expected[i]):
                wrong.append(i)

    callers = [threading.Thread(target=repeat, args=(i,)) for i in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not wrong


@pytest.mark.parametrize("axis", [0, 1, 2], ids=["row", "head", "token"])
def test_offsets_beyond_32_bits(axis):
    case = far_apart(axis, "cpu", torch.float32)
    expected = attend_reference(*case.to("cpu", torch.float32).arguments)[0]
    assert_close(contiguous_decode(*case.arguments, backend="cpu"), expected)


@pytest.mark.parametrize("backend", ["reference", *FUSED])
@pytest.mark.parametrize("starts", [None, [0, 3]])
def test_nothing_to_attend(backend, starts):
    no_rows = make_case(SHAPES[0], [], None, 4).to("cpu", torch.float32)
    no_slots = make_case(SHAPES[0], [0, 0], starts, 0).to("cpu", torch.float32)
    assert contiguous_decode(*no_rows.arguments, backend=backend).shape == (0, 3, 16)
    assert torch.equal(contiguous_decode(*no_slots.arguments, backend=backend), torch.zeros(2, 3, 16))


def test_defaults_of_torch_do_not_matter():
    """The worker writes float32 to addresses on the CPU: a buffer of the default type or device would be another."""
    case = make_case(SHAPES[1], [LONG], None, LONG).to("cpu", torch.float32)
    expected = contiguous_decode(*case.arguments, backend="cpu")
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            found = contiguous_decode(*case.arguments, backend="cpu")
    finally:
        torch.set_default_dtype(torch.float32)
    assert found.device.type == "cpu"
    assert torch.equal(found, expected)


def test_chosen_backend():
    small = make_case(SHAPES[1], [8], None, 8).to("cpu", torch.float32)
    large = make_case(SHAPES[1], [LONG], None, LONG)
    single = large.to("cpu", torch.float32)
    strided = make_case(SHAPES[1], [LONG], None, LONG, layouts=("dims_first", "contiguous")).to(
        "cpu", torch.float32
    )
    trained = single.q.clone().requires_grad_()
    names = [choose_backend(case.q, case.k, case.v, case.lengths) for case in (small, single, large, strided)]
    assert names == ["torch", "cpu", "torch", "torch"]
    assert choose_backend(trained, single.k, single.v, single.lengths) == "torch"


def test_gradients_flow_through_the_chosen_backend():
    case = make_case(SHAPES[1], [LONG], None, LONG)
    q, k, v = (t.clone().requires_grad_() for t in (case.q, case.k, case.v))
    contiguous_decode(q, k, v, case.lengths).sum().backward()
    assert all(t.grad.abs().sum() > 0 for t in (q, k, v))
