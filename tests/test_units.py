"""Sizes as people write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import MANY

from kvcourse.errors import InputError
from kvcourse.units import humanize, parse_bytes, parse_parameters, parse_tokens


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (131_072, "128.0 KiB"), (10_334_371_840, "9.6 GiB"),
        (2**20 - 1, "1.0 MiB"), (2**60, "1024.0 PiB"),
    ],
)  # fmt: skip
def test_humanize(nbytes, text):
    assert humanize(nbytes) == text


@MANY
@given(st.integers(0, 2**59))
def test_humanize_is_within_half_a_tenth(nbytes):
    number, unit = humanize(nbytes).split()
    size = 1024 ** ["B", "KiB", "MiB", "GiB", "TiB", "PiB"].index(unit)
    assert abs(float(number) * size - nbytes) <= 0.05 * size * (1 + 1e-9)
    assert float(number) < 1024 or unit == "PiB"


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (parse_tokens, "128k", 131_072), (parse_tokens, "1M", 1_048_576), (parse_tokens, " 4,096 ", 4_096),
        (parse_tokens, "0.5K", 512), (parse_tokens, 7, 7), (parse_tokens, "131_072", 131_072),
        (parse_bytes, "80GB", 80 * 10**9), (parse_bytes, "24 GiB", 24 * 2**30), (parse_bytes, "1.5kb", 1_500),
        (parse_bytes, "12", 12), (parse_bytes, 12, 12), (parse_bytes, "12B", 12), (parse_bytes, "2TiB", 2**41),
        (parse_parameters, "70B", 70 * 10**9), (parse_parameters, "135m", 135 * 10**6),
        (parse_parameters, "1.6T", 16 * 10**11), (parse_parameters, "8.03b", 8_030_000_000),
    ],
)  # fmt: skip
def test_parse(parse, text, value):
    assert parse(text) == value


@pytest.mark.parametrize("parse", [parse_tokens, parse_bytes, parse_parameters])
@pytest.mark.parametrize(
    "text", ["", "k", "-1", -1, "1.2.3", "12 parsecs", "0.3", None, True, 1.5, "1e9", "½"]
)
def test_bad_sizes_show_good_ones(parse, text):
    with pytest.raises(InputError, match="expected"):
        parse(text)


def test_no_tokens_are_no_context():
    with pytest.raises(InputError, match="at least one token"):
        parse_tokens("0")
