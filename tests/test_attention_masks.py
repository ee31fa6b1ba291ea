"""Masks against their definition, one query and one key, or one row, at a time."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import MANY, windows

from kvcourse.attention.gqa import causal_mask
from kvcourse.attention.padding import read_mask
from kvcourse.errors import InputError

positions = st.lists(st.integers(-1, 9), min_size=1, max_size=8)


@MANY
@given(queries=positions, keys=positions, window=windows())
def test_a_query_sees_the_window_up_to_itself(queries, keys, window):
    mask = causal_mask(torch.tensor([queries]), torch.tensor([keys]), window)
    assert mask.shape == (1, 1, len(queries), len(keys))
    for row, query in enumerate(queries):
        if query < 0:  # padding: a softmax over no key would be NaN
            assert mask[0, 0, row].all()
        else:
            seen = range(0 if window is None else max(0, query - window + 1), query + 1)
            assert mask[0, 0, row].tolist() == [key in seen for key in keys]


@pytest.mark.parametrize("bits", range(16))
def test_padding_is_on_the_left_only(bits):
    row = [bits >> i & 1 for i in range(4)]
    mask = torch.tensor([[1] * 4, row])
    if row[-1] == 1 and row == sorted(row):
        assert torch.equal(read_mask(mask, 2, 4), mask.bool())
    else:
        with pytest.raises(InputError):
            read_mask(mask, 2, 4)
