"""How each codec writes a number, to the byte: codes, scales, minima, and what stays in full precision.

A format says only how large things are. The codecs that write them are modules beside this one.
"""

import difflib
from dataclasses import dataclass, replace
from fractions import Fraction
from math import prod
from typing import Any

from kvcourse.errors import InputError

# Names of the number types that a cache may hold without a codec, and their bytes.
_DTYPES = {
    "fp64": 8, "float64": 8, "double": 8, "fp32": 4, "float32": 4, "float": 4,
    "bf16": 2, "bfloat16": 2, "fp16": 2, "float16": 2, "half": 2,
}  # fmt: skip


def dtype_bytes(dtype: Any) -> int:
    """Bytes of one number. dtype: fp64, fp32, bf16 or fp16, their long names, or a torch dtype.

    Errors: InputError for any other name.
    """
    name = str(dtype).removeprefix("torch.").lower()
    if name not in _DTYPES:
        raise InputError(f"dtype {dtype!r}: expected fp64, fp32, bf16, fp16 or a torch dtype of that kind")
    return _DTYPES[name]


@dataclass(frozen=True)
class CodecFormat:
    """How one number is written.

    bits: of one code; None for full precision in the dtype of the model.
    group_size: numbers along the last axis (head_dim) that share metadata; None: all of them.
    metadata_bytes: per group, for its scale and, where there is one, its minimum. 0: full precision.
    group_tokens: tokens of one key channel that share metadata. 1: keys are grouped like values.
    residual_length: newest tokens that stay in full precision whatever happens.
    source: where the format is described.
    """

    name: str
    bits: int | None
    group_size: int | None = None
    metadata_bytes: int = 0
    group_tokens: int = 1
    residual_length: int = 0
    source: str = ""

    def encoded(self, tokens: int, is_key: bool) -> int:
        """How many of the first `tokens` tokens are codes; the others are open and in full precision."""
        closed = max(tokens - self.residual_length, 0)
        return closed - closed % (self.group_tokens if is_key else 1)

    def nbytes(self, tokens: int, shape: tuple[int, ...], is_key: bool = False, full_bytes: int = 2) -> int:
        """Bytes of `tokens` entries of one field, exactly.

        shape: of one entry, the last axis being the one that groups run along, for example
        (num_kv_heads, head_dim). is_key: keys, which KIVI groups along tokens. full_bytes: of a number in full
        precision. A last group that is not full pays its whole metadata; codes are padded to bytes per row.
        """
        rows, width = prod(shape[:-1]), shape[-1]
        if self.bits is None:
            return tokens * rows * width * full_bytes
        encoded = self.encoded(tokens, is_key)
        if is_key and self.group_tokens > 1:
            group = -(-self.group_tokens * self.bits // 8) + self.metadata_bytes  # of one channel
            codes = encoded // self.group_tokens * rows * width * group
        else:
            groups = -(-width // (self.group_size or width))
            codes = encoded * rows * (-(-width * self.bits // 8) + groups * self.metadata_bytes)
        return codes + (tokens - encoded) * rows * width * full_bytes

    def bytes_per_entry(self, shape: tuple[int, ...], is_key: bool = False, full_bytes: int = 2) -> Fraction:
        """Bytes that one more entry adds in the long run, when it has long been encoded."""
        first = self.residual_length + self.group_tokens
        added = self.nbytes(first + self.group_tokens, shape, is_key, full_bytes) - self.nbytes(
            first, shape, is_key, full_bytes
        )
        return Fraction(added, self.group_tokens)

    def bits_per_value(self, head_dim: int = 128, is_key: bool = False, full_bytes: int = 2) -> float:
        """Bits of one stored number in the long run, metadata included."""
        return float(self.bytes_per_entry((head_dim,), is_key, full_bytes) * 8 / head_dim)


_FULL = "IEEE 754; bf16 as in Kalamkar et al. 2019"
_ASYMMETRIC = (
    "uniform codes between the minimum and the maximum of a group, both kept as scale and minimum in fp16"
)
_KIVI = "Liu et al. 2024 (KIVI), §3.3: keys per channel, values per token, newest tokens in full precision"

FORMATS: dict[str, CodecFormat] = {
    form.name: form
    for form in (
        CodecFormat("auto", None, source="full precision in the dtype of the model"),
        CodecFormat("fp64", 64, source=_FULL),
        CodecFormat("fp32", 32, source=_FULL),
        CodecFormat("bf16", 16, source=_FULL),
        CodecFormat("fp16", 16, source=_FULL),
        CodecFormat("fp8", 8, metadata_bytes=4, source="e4m3 codes, one fp32 scale per token and head"),
        CodecFormat("int8", 8, metadata_bytes=4, source="one fp32 scale per token and head"),
        CodecFormat("int4", 4, group_size=32, metadata_bytes=4, source=_ASYMMETRIC),
        CodecFormat("int4-g64", 4, group_size=64, metadata_bytes=4, source=_ASYMMETRIC),
        CodecFormat(
            "int2", 2, group_size=32, metadata_bytes=4, group_tokens=32, residual_length=128, source=_KIVI
        ),
    )
}
OPTIONS = ("group_size", "group_tokens", "residual_length")


def get_format(name: str, **options: int) -> CodecFormat:
    """The format called `name`, with other group sizes if given.

    options: group_size, group_tokens (at least 1) and residual_length (at least 0), for formats with groups.
    Errors: InputError for an unknown name or option, or an option that the format has no use for.
    """
    if not isinstance(name, str) or name not in FORMATS:
        close = difflib.get_close_matches(str(name), FORMATS, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise InputError(f"codec {name!r} is not known: {hint}Expected one of {', '.join(FORMATS)}")
    form = FORMATS[name]
    for option, value in options.items():
        if option not in OPTIONS or form.metadata_bytes == 0:
            usable = ", ".join(OPTIONS) if form.metadata_bytes else "no options"
            raise InputError(f"codec {name!r} has no option {option!r}: it takes {usable}")
        least = 0 if option == "residual_length" else 1
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise InputError(
                f"codec {name!r}: {option}={value!r}, expected a whole number of at least {least}"
            )
    return replace(form, **options)
