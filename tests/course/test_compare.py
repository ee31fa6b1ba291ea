"""What `compare.difference` calls equal, against numpy.testing and against plain Python."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from kvcourse.course.checks.compare import difference

DTYPES = st.sampled_from(
    ["bool", "uint8", "int32", "int64", "uint64", "float16", "float32", "float64", "complex64"]
)
SHAPES = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)
MORE = settings(max_examples=400)
NAN, INF = float("nan"), float("inf")


class Liar:
    """Agrees to everything, and notes that it was asked."""

    asked: list = []  # noqa: RUF012 - shared on purpose

    def __getattribute__(self, name):
        Liar.asked.append(name)
        return object.__getattribute__(self, name)

    def __eq__(self, other):
        Liar.asked.append("==")
        return True

    __hash__ = None
    __ne__ = __le__ = __lt__ = __ge__ = __gt__ = lambda self, other: bool(Liar.asked.append("compare"))
    __repr__ = __str__ = lambda self: Liar.asked.append("repr") or "9"
    __len__ = __index__ = __int__ = lambda self: Liar.asked.append("number") or 9


@st.composite
def array_pairs(draw):
    """(a, b) of the same or of another dtype and shape; mostly a few elements apart, often near, NaN and inf too."""
    a = draw(hnp.arrays(draw(DTYPES), draw(SHAPES)))
    if draw(st.booleans()):
        b = a.copy()
        for _ in range(draw(st.integers(0, 2)) if a.size else 0):
            index = draw(st.integers(0, a.size - 1))
            near = a.dtype.kind in "fc" and draw(st.booleans())
            with np.errstate(all="ignore"):
                b.flat[index] = a.flat[index] * 1.01 if near else draw(hnp.from_dtype(a.dtype))
        return a, b
    return a, draw(hnp.arrays(draw(DTYPES), draw(SHAPES)))


@MORE
@given(array_pairs())
def test_arrays_are_equal_when_numpy_says_so(pair):
    got, expected = pair
    try:
        np.testing.assert_array_equal(got, expected, strict=True)
        equal = True
    except AssertionError:
        equal = False
    assert (difference(got, expected) is None) == equal


EDGES = {
    "int64": [0, 1, 2, 3, -1, 2**63 - 1, -(2**63), 2**62],
    "uint64": [0, 1, 2, 3, 2**64 - 1, 2**63],
    "float32": [0.0, -0.0, 1.0, 1.5, 2.0, 1e38, -1e38, 1e-45, NAN, INF, -INF],
    "float64": [0.0, 1.0, 1.0 + 2**-52, 2.0, 1e308, -1e308, 5e-324, NAN, INF, -INF],
    "complex64": [
        0j,
        1 + 0j,
        1 + 1j,
        2 + 0j,
        complex(NAN, 0),
        complex(0, NAN),
        complex(INF, 0),
        complex(0, -INF),
    ],
}


@pytest.mark.parametrize("dtype", EDGES)
@pytest.mark.parametrize("rtol", [0.0, 0.6])
@pytest.mark.parametrize("atol", [0.0, 1.0])
def test_elements_are_close_when_plain_python_says_so(dtype, atol, rtol):
    """Every pair of edge cases: as an array, as a tensor, and as two numbers."""
    for got, expected in itertools.product(EDGES[dtype], EDGES[dtype]):
        arrays = [np.array([[0, x]], dtype) for x in (got, expected)]
        told = [
            difference(*arrays, atol=atol, rtol=rtol),
            difference(*map(torch.from_numpy, arrays), atol=atol, rtol=rtol),
            difference(arrays[0][0, 1], arrays[1][0, 1].item(), atol=atol, rtol=rtol),
        ]
        close = is_close(arrays[0][0, 1].item(), arrays[1][0, 1].item(), atol, rtol)
        assert [text is None for text in told] == [close] * 3, (got, expected, told)
        assert told[0] == told[1]


def is_close(g, e, atol, rtol):
    if g != g or e != e:
        return g != g and e != e
    if g == e or type(g) is bool:
        return g == e
    finite = all(map(math.isfinite, (g.real, g.imag, e.real, e.imag)))
    return finite and abs(g - e) <= atol + rtol * abs(e)


@MORE
@given(array_pairs(), st.sampled_from([0.0, 1e-6, 1.0]))
def test_arrays_are_close_when_each_element_is(pair, tolerance):
    got, expected = pair
    close = got.dtype == expected.dtype and got.shape == expected.shape
    if close:
        pairs = zip(got.ravel().tolist(), expected.ravel().tolist(), strict=True)
        close = all(is_close(g, e, tolerance, tolerance) for g, e in pairs)
    assert (difference(got, expected, atol=tolerance, rtol=tolerance) is None) == close
    tensors = map(torch.from_numpy, (got, expected))
    assert (difference(*tensors, atol=tolerance, rtol=tolerance) is None) == close


LEAVES = [None, False, True, -1, 0, 1, 2, 0.0, 1.0, 1.5, NAN, INF, 1j, 1 + 0j, "", "a", "1", b"", b"a"]
KEYS = ["a", 0, 1, 1.0, True, (1,), (True,), None]
VALUES = st.recursive(
    st.sampled_from(LEAVES),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.sampled_from(KEYS), inner, max_size=3),
    ),
    max_leaves=6,
)
# The same value, but for one leaf or one key somewhere in it.
NEAR = VALUES.flatmap(lambda value: st.tuples(st.just(value), st.sampled_from(list(neighbours(value)))))


def neighbours(value):
    yield value
    if type(value) in (list, tuple):
        yield type(value)(reversed(value))
        yield list(value) if type(value) is tuple else tuple(value)
        for i, item in enumerate(value):
            yield from (type(value)([*value[:i], other, *value[i + 1 :]]) for other in neighbours(item))
    elif type(value) is dict:
        yield dict(reversed(value.items()))
        for key, item in value.items():
            rest = {k: v for k, v in value.items() if k is not key}
            yield from ({**rest, other: item} for other in KEYS if other not in rest)
            yield from ({**rest, key: other} for other in neighbours(item))
    else:
        yield from LEAVES


def test_leaves_are_equal_when_they_look_the_same():
    for got, expected in itertools.product([*LEAVES, [], (), {}, [1], (1,)], repeat=2):
        same = canonical(got) == canonical(int_as_float(got, expected)[1])
        assert (difference(got, expected) is None) == same, (got, expected)


@MORE
@given(st.one_of(st.tuples(VALUES, VALUES), NEAR))
def test_values_are_equal_when_they_look_the_same(pair):
    """repr tells 1, 1.0 and True, lists and tuples apart; a dict is sorted first."""
    got, expected = pair
    same = canonical(got) == canonical(int_as_float(got, expected)[1])
    assert (difference(got, expected) is None) == same


def canonical(value):
    if type(value) is dict:
        return "{" + ",".join(sorted(f"{key!r}:{canonical(item)}" for key, item in value.items())) + "}"
    if type(value) in (list, tuple):
        return f"{type(value).__name__}({','.join(map(canonical, value))})"
    return repr(value)


def int_as_float(got, expected):
    """The pair with `expected` an int where a float is expected, an int is there, and they are equal."""
    if type(expected) is float and type(got) is int and got == expected:
        return got, int(expected)
    if type(got) is type(expected) and type(got) in (list, tuple) and len(got) == len(expected):
        return got, type(got)(int_as_float(g, e)[1] for g, e in zip(got, expected, strict=True))
    if type(got) is type(expected) is dict:
        keys = {repr(key): key for key in got}
        same = {
            k: int_as_float(got[keys[repr(k)]], e)[1] if repr(k) in keys else e for k, e in expected.items()
        }
        return got, same
    return got, expected


@pytest.mark.parametrize(
    ("got", "expected"),
    [
        (np.int32(3), 3),
        (3, np.int64(3)),
        (np.bool_(True), True),
        (np.float32(0.5), 0.5),
        (3, 3.0),
        (torch.zeros(2, 3).shape, (2, 3)),
        (torch.nn.Parameter(torch.tensor([1.0])), torch.tensor([1.0])),
        (torch.tensor([1.0], requires_grad=True) * 2, torch.tensor([2.0])),
        (torch.tensor([1 + 2j]).conj(), torch.tensor([1 - 2j])),
        (torch.tensor([1.5]).bfloat16(), torch.tensor([1.5]).bfloat16()),
        (
            torch.tensor([1 + 2j], dtype=torch.complex128).conj().imag,
            torch.tensor([-2.0], dtype=torch.float64),
        ),
        (np.zeros(2, ">i4"), np.zeros(2, "<i4")),
        (INF, INF),
        (torch.tensor([-INF, NAN]), torch.tensor([-INF, NAN])),
    ],
)
def test_what_counts_as_the_same(got, expected):
    assert difference(got, expected) is None


@pytest.mark.parametrize(
    "expected",
    [9, 9.0, True, "9", None, [9], (9,), {"a": 9}, torch.tensor([9]), torch.tensor(9), np.array([9])],
)
@pytest.mark.parametrize("place", [lambda x: x, lambda x: [x], lambda x: {"a": x}, lambda x: (x, x)])
def test_an_object_that_agrees_to_everything_is_not_asked(expected, place):
    liar = Liar()
    Liar.asked.clear()
    told = difference(place(liar), place(expected))
    assert Liar.asked == []
    assert "a Liar object" in told


def test_a_key_that_agrees_to_everything_is_not_looked_up():
    class Key:
        def __hash__(self):
            return hash("a")

        def __eq__(self, other):
            raise AssertionError("asked")

    for key in (Key(), (1, Key())):
        assert "unexpected key" in difference({key: 1}, {"a": 1})


@pytest.mark.parametrize("base", [int, float, str, list, tuple, dict, torch.Tensor, np.ndarray])
def test_a_subclass_is_another_kind(base):
    """Its methods could be anything."""
    kind = type("Sub", (base,), {"__eq__": lambda self, other: True, "__hash__": None})
    empty = {torch.Tensor: torch.zeros(2), np.ndarray: np.zeros(2)}.get(base)
    got = (
        empty.as_subclass(kind)
        if base is torch.Tensor
        else empty.view(kind)
        if base is np.ndarray
        else kind()
    )
    assert difference(got, base() if empty is None else empty).endswith("got a Sub object")


def test_an_attribute_of_a_tensor_does_not_come_before_its_method():
    got = torch.zeros(2)
    got.detach = got.cpu = got.numpy = lambda: torch.ones(2)
    assert "expected 1, got 0" in difference(got, torch.ones(2))
