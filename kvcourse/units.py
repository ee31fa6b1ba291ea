"""Reading and printing sizes: bytes, tokens, parameters."""

import re
from fractions import Fraction

from kvcourse.errors import InputError

_NUMBER = re.compile(r"([0-9][0-9_,]*(?:\.[0-9]+)?)\s*([a-zA-Z]*)")
_DIGITS = 30  # more than any size needs, and few enough for float arithmetic on it
_BINARY = {"": 1, "k": 1 << 10, "m": 1 << 20}
_DECIMAL = {"k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}
_BYTES = {"": 1, "b": 1} | {
    f"{letter}{unit}": size
    for power, letter in enumerate("kmgt", start=1)
    for unit, size in (("b", 1000**power), ("ib", 1024**power))
}


def humanize(nbytes: int) -> str:
    """Bytes in binary units with one decimal: 131072 is "128.0 KiB"."""
    value, units = float(nbytes), ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]
    if abs(value) < 1024:
        return f"{nbytes} B"
    while round(abs(value), 1) >= 1024 and len(units) > 1:
        value, units = value / 1024, units[1:]
    return f"{value:.1f} {units[0]}"


def parse_bytes(text: int | str) -> int:
    """Bytes from a number or from text such as "80GB" (10^9), "24GiB" (2^30) or "512 MiB".

    Errors: InputError for anything else.
    """
    return _parse(
        text, _BYTES, "a size", '"80GB" (10^9 bytes a GB), "24GiB" (2^30 bytes a GiB) or a number of bytes'
    )


def parse_tokens(text: int | str) -> int:
    """Tokens from a number or from text such as "128k" (131,072: k is 1,024, as contexts are named) or "1M".

    Errors: InputError for anything else, or less than one token.
    """
    tokens = _parse(text, _BINARY, "a number of tokens", '"128k" (131,072), "1M" (1,048,576) or 4096')
    if tokens < 1:
        raise InputError(f"{text!r}: expected at least one token")
    return tokens


def parse_parameters(text: int | str) -> int:
    """Parameters from a number or from text such as "70B" (billions) or "135M" (millions).

    Errors: InputError for anything else.
    """
    return _parse(text, {"": 1} | _DECIMAL, "a number of parameters", '"70B", "135M" or 7000000000')


def _parse(text: int | str, units: dict[str, int], what: str, examples: str) -> int:
    if isinstance(text, int) and not isinstance(text, bool) and text >= 0:
        return text
    match = _NUMBER.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None or match[2].lower() not in units:
        raise InputError(f"{text!r} is not {what}: expected {examples}")
    if len(match[1]) > _DIGITS:
        raise InputError(f"{text[:_DIGITS]}… is far too large: expected {examples}")
    exact = Fraction(match[1].replace(",", "").replace("_", "")) * units[match[2].lower()]
    if exact.denominator != 1:
        raise InputError(f"{text!r} is not a whole number: expected {examples}")
    return int(exact)
