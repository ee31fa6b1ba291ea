"""Merging attention over parts of the tokens (cases K8, K10, K11)."""

import itertools
import math

import torch
from decode_cases import make_case
from hypothesis import given
from hypothesis import strategies as st
from strategies import MANY

from kvcourse.kernels.contiguous_decode import attend_reference, merge_states

NOTHING = torch.zeros(2, 3), torch.full((2,), -math.inf)
STATE = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), torch.tensor([0.5, -200.0])


def assert_equal(found, expected):
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=0)


def test_two_empty_states():
    assert_equal(merge_states(*NOTHING, *NOTHING), NOTHING)


def test_an_empty_state_changes_nothing():
    assert_equal(merge_states(*STATE, *NOTHING), STATE)
    assert_equal(merge_states(*NOTHING, *STATE), STATE)


def test_plus_infinity_is_empty_too():
    empty = NOTHING[0], -NOTHING[1]
    assert_equal(merge_states(*STATE, *empty), STATE)
    assert_equal(merge_states(*empty, *empty), NOTHING)


def test_lse_is_a_natural_logarithm():
    """Two tokens of score 0 sum to 2: ln 2, where a base-2 logarithm would give 1."""
    one = torch.ones(1, 1), torch.zeros(1)
    assert_equal(merge_states(*one, *one), (torch.ones(1, 1), torch.tensor([math.log(2)])))
    q, k = torch.zeros(1, 1, 4), torch.zeros(1, 1, 2, 4)
    assert_equal(attend_reference(q, k, k, torch.tensor([2]))[1:], (torch.tensor([[math.log(2)]]),))


@MANY
@given(
    cuts=st.lists(st.integers(0, 9), min_size=1, max_size=4).map(sorted),
    order=st.randoms(use_true_random=False),
)
def test_any_partition_in_any_order_equals_the_whole(cuts, order):
    case = make_case((4, 2, 6, 5), [9], None, 9)
    edges = [0, *cuts, 9]
    parts = [
        attend_reference(case.q, case.k[:, :, a:b], case.v[:, :, a:b], torch.tensor([b - a]))
        for a, b in itertools.pairwise(edges)
    ]
    order.shuffle(parts)
    merged = parts[0]
    for part in parts[1:]:
        merged = merge_states(*merged, *part)
    for found, expected in zip(merged, attend_reference(*case.arguments), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
