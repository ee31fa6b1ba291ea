"""Values cross to a child and back as they are."""

import math
import struct

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sandboxed import outcome, program

from kvcourse.course.grading.sandbox import Limits
from kvcourse.course.grading.sandbox.values import DTYPES, Encoder, NotData, decode
from kvcourse.course.grading.sandbox.wire import HEADER, pack, sizes, unpack

ECHO = "def attempt(x): return x"
KINDS = [name for name in DTYPES if hasattr(np, name)]


def no_objects(value):
    raise AssertionError(f"{value!r} is taken for an object")


def through_bytes(value):
    """The value after the way of every request and reply."""
    encoder = Encoder(no_objects, 2**24)
    frame = pack(encoder.encode(value), encoder.arrays)
    text, data = sizes(frame[: HEADER.size], 2**24)
    assert len(frame) == HEADER.size + text + data
    start = HEADER.size + text
    return decode(*unpack(frame[HEADER.size : start], frame[start:]), no_objects)


def same(a, b):
    """Equal in type, bits and shape; not through any method that the code under test uses."""
    if type(a) is not type(b):
        return False
    if isinstance(a, list | tuple) and not isinstance(a, torch.Size):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return same(list(a.items()), list(b.items()))
    if isinstance(a, torch.Tensor):
        sizes_agree = a.shape == b.shape and a.dtype == b.dtype and not b.requires_grad
        raw = (
            [bytes(x.detach().clone().contiguous().untyped_storage()) for x in (a, b)]
            if a.numel()
            else [0, 0]
        )
        return sizes_agree and raw[0] == raw[1]
    if isinstance(a, np.ndarray | np.generic):
        return (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
    if isinstance(a, float):
        return struct.pack("d", a) == struct.pack("d", b) or (math.isnan(a) and math.isnan(b))
    if isinstance(a, complex):
        return same(a.real, b.real) and same(a.imag, b.imag)
    return a == b


arrays = st.sampled_from(KINDS).flatmap(
    lambda kind: hnp.arrays(kind, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
)
tensors = st.one_of(
    arrays.map(torch.from_numpy),
    st.builds(
        lambda name, shape: torch.arange(math.prod(shape)).remainder(5).reshape(shape).to(DTYPES[name]),
        st.sampled_from([name for name in DTYPES if name != "complex32"]),
        st.lists(st.integers(0, 3), max_size=3),
    ),
)
ends = st.none() | st.integers(-10, 10)
leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(2**53 - 2, 2**53 + 2),
    st.integers(-(10**400), 10**400),
    st.floats(),
    st.complex_numbers(),
    st.text(st.characters()),
    st.binary(),
    st.builds(slice, ends, ends, ends),
    st.builds(range, st.integers(-9, 9), st.integers(-9, 9), st.integers(1, 3)),
    st.sampled_from(list(DTYPES.values())),
    st.lists(st.integers(0, 9)).map(torch.Size),
    arrays,
    arrays.filter(lambda array: array.size).map(lambda array: array.reshape(-1)[0]),
    tensors,
)
keys = st.one_of(st.none(), st.integers(), st.text(), st.tuples(st.integers(), st.text()), st.binary())
values = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(keys, inner, max_size=4),
    ),
    max_leaves=12,
)


@given(values)
def test_values_stay_what_they_are(value):
    assert same(through_bytes(value), value)


def test_values_come_back_from_a_child(sandbox):
    with sandbox.session(program(ECHO), Limits(cpu_seconds=60, wall_seconds=300)) as session:
        echo = session.names.attempt

        @settings(max_examples=40)
        @given(values)
        def comes_back(value):
            assert same(echo(value), value)

        comes_back()


def test_unusual_tensors():
    base = torch.arange(6.0).reshape(2, 3)
    for tensor in (
        base.t(),
        base[:, ::2],
        base.expand(2, 2, 3),
        base.clone().requires_grad_(),
        torch.tensor(3j).conj(),
    ):
        assert same(through_bytes(tensor), tensor.detach().clone().resolve_conj())
    assert np.array_equal(through_bytes(np.asfortranarray(base.numpy())), base.numpy())


def test_what_is_not_dense_data_stays_in_the_child(sandbox):
    source = """
import torch, numpy, collections
def attempt():
    return [torch.eye(2).to_sparse(), torch.empty(2, device="meta"), torch.nn.Parameter(torch.ones(1)), {1},
            collections.OrderedDict(), numpy.array(["a"]), numpy.array([object()]), collections.Counter("a"), print]
"""
    kinds = [repr(value).split()[1] for value in outcome(sandbox, source)]
    assert kinds == [
        "Tensor", "Tensor", "Parameter", "set", "OrderedDict", "ndarray", "ndarray", "Counter",
        "builtin_function_or_method",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("make", "message"),
    [
        ("x = []; x.append(x)", "a list that holds itself"),
        ("x = {}; x[1] = (x,)", "a dict that holds itself"),
        ("x = []\n  for _ in range(60): x = [x]", "nested more than 50 deep"),
        ("x = {object(): 1}", "a dict with a object as a key"),
    ],
)
def test_values_without_an_end_are_told_so(sandbox, make, message):
    error = outcome(sandbox, f"def attempt():\n  {make}\n  return x")
    assert error.kind == "ValueError"
    assert message in error.message


def test_a_range_of_more_than_a_list_can_hold_stays_in_the_child(sandbox):
    """tuple(range(10**12)) in the parent would take all of its memory."""
    source = "def attempt(stop, step): return range(0, stop, step)"
    for stop, step in ((10**12, 1), (-(2**80), -1), (500_001, 1)):
        assert repr(outcome(sandbox, source, stop, step)) == "<a range object of the learner>"
    assert outcome(sandbox, source, 10**12, 10**11) == range(0, 10**12, 10**11)


def test_a_value_may_stand_in_many_places():
    shared = [torch.ones(2)]
    assert same(through_bytes([shared, shared, (shared,)]), [shared, shared, (shared,)])
    with pytest.raises(NotData):
        Encoder(no_objects, 100).encode([x := [], x.append(x)])
