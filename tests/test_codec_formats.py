"""Sizes of codec formats against a count of every byte, one by one."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import MANY

from kvcourse import codecs
from kvcourse.codecs.formats import FORMATS, dtype_bytes, get_format
from kvcourse.errors import InputError

QUANTISED = [name for name, form in FORMATS.items() if form.metadata_bytes]


def count_bytes(form, tokens, shape, is_key, full_bytes):
    """Walk over every number, and pay for codes, metadata and full-precision numbers where they occur."""
    *heads, width = shape
    rows = 1
    for size in heads:
        rows *= size
    group_tokens = form.group_tokens if is_key else 1
    encoded = 0
    while encoded + group_tokens <= tokens - form.residual_length:
        encoded += group_tokens
    total = 0
    for token in range(tokens):
        for _ in range(rows):
            if token >= encoded:
                total += width * full_bytes
            elif group_tokens == 1:
                bits = 0
                for channel in range(width):
                    bits += form.bits
                    if channel % (form.group_size or width) == 0:
                        total += form.metadata_bytes
                total += (bits + 7) // 8
            elif token % group_tokens == 0:  # one group per channel starts here
                for _ in range(width):
                    total += form.metadata_bytes + (group_tokens * form.bits + 7) // 8
    return total


@MANY
@given(
    name=st.sampled_from(QUANTISED),
    tokens=st.integers(0, 90),
    heads=st.integers(1, 3),
    width=st.integers(1, 70),
    is_key=st.booleans(),
    full_bytes=st.sampled_from([2, 4, 8]),
    group_size=st.integers(1, 40),
    group_tokens=st.integers(1, 9),
    residual_length=st.integers(0, 40),
)
def test_nbytes_equals_a_count_of_every_byte(name, tokens, heads, width, is_key, full_bytes, **options):
    for form in (get_format(name), get_format(name, **options)):
        expected = count_bytes(form, tokens, (heads, width), is_key, full_bytes)
        assert form.nbytes(tokens, (heads, width), is_key, full_bytes) == expected


@pytest.mark.parametrize(
    ("name", "is_key", "head_dim", "bits"),
    [
        ("int8", False, 128, 8.25), ("int8", True, 64, 8.5), ("fp8", False, 128, 8.25),
        ("int4", False, 128, 5.0), ("int4-g64", False, 128, 4.5), ("int2", True, 128, 3.0),
        ("int2", False, 128, 3.0), ("int2", True, 80, 3.0), ("bf16", False, 128, 16.0), ("fp64", True, 6, 64.0),
    ],
)  # fmt: skip
def test_bits_of_a_stored_number(name, is_key, head_dim, bits):
    assert get_format(name).bits_per_value(head_dim, is_key) == bits


def test_int8_row_of_128_is_132_bytes():
    assert get_format("int8").nbytes(1, (1, 128)) == 132
    assert get_format("int8").nbytes(10, (8, 128)) == 10 * 8 * 132


def test_kivi_keeps_its_open_group_and_its_residual_in_full_precision():
    form = get_format("int2")
    assert (form.group_tokens, form.residual_length) == (32, 128)
    one = (1, 128)
    assert form.nbytes(159, one, is_key=True) == 159 * 256  # 31 tokens beyond the residual: no group yet
    assert form.nbytes(160, one, is_key=True) == 128 * 256 + 128 * (8 + 4)
    assert form.nbytes(129, one) == 128 * 256 + 128 // 4 + 4 * 4  # values close token by token


@pytest.mark.parametrize("name", QUANTISED)
def test_long_run_growth_is_what_many_tokens_approach(name):
    form, tokens = get_format(name), 320_000
    for is_key in (True, False):
        size = form.nbytes(tokens, (2, 96), is_key)
        assert size / tokens == pytest.approx(float(form.bytes_per_entry((2, 96), is_key)), rel=2e-3)


@pytest.mark.parametrize(
    ("dtype", "size"),
    [("fp64", 8), ("float32", 4), ("bf16", 2), (torch.bfloat16, 2), (torch.float16, 2), (torch.float64, 8)],
)
def test_dtype_bytes(dtype, size):
    assert dtype_bytes(dtype) == size


@pytest.mark.parametrize("dtype", ["int8", torch.int8, "bf17", None, ""])
def test_other_dtypes_are_refused(dtype):
    with pytest.raises(InputError, match="expected fp64, fp32, bf16, fp16"):
        dtype_bytes(dtype)


@pytest.mark.parametrize("name", ["fp64", "fp32", "bf16", "fp16", "auto"])
def test_full_precision_encodes_by_a_cast(name):
    codec = codecs.get(name)
    x = torch.randn(5, 2, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    planes = codec.encode(x)
    dtype = {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    stored = dtype.get(name, torch.float64)
    assert torch.equal(codec.decode(planes), x.to(stored))
    assert codec.decode({key: plane[2:4] for key, plane in planes.items()}).shape == (2, 2, 6)
    assert all(len(plane) == 5 for plane in planes.values())
    assert codec.group_tokens == 1
    size = sum(plane.numel() * plane.element_size() for plane in planes.values())
    assert size == codec.format.nbytes(5, (2, 6), full_bytes=8)
    assert codec.bits_per_value == (16.0 if name == "auto" else dtype_bytes(name) * 8)


@pytest.mark.parametrize("name", sorted(set(FORMATS) - set(codecs.ENCODERS)))
def test_formats_without_an_encoder_say_so(name):
    with pytest.raises(InputError, match=rf"{name}.*memory arithmetic.*not in this release.*fp32"):
        codecs.get(name)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("int9", {}, "not known: did you mean 'int"),
        ("zstd", {}, "Expected one of auto"),
        ("int4", {"groups": 3}, "no option 'groups': it takes group_size"),
        ("fp32", {"group_size": 3}, "no option 'group_size': it takes no options"),
        ("int4", {"group_size": 0}, "group_size=0"),
        ("int2", {"residual_length": -1}, "at least 0"),
        ("int2", {"group_tokens": True}, "whole number"),
    ],
)
def test_bad_names_and_options(name, options, message):
    for function in (get_format, codecs.get):
        with pytest.raises(InputError, match=message):
            function(name, **options)
