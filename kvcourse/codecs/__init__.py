"""How each number is written: the codec axis."""

import importlib

from kvcourse.codecs.formats import FORMATS, CodecFormat, get_format
from kvcourse.errors import InputError

__all__ = ["ENCODERS", "FORMATS", "CodecFormat", "get", "get_format"]

# Where each encoder lives. Imported on use: sizes need no torch.
ENCODERS = dict.fromkeys(("auto", "fp64", "fp32", "bf16", "fp16"), ("full_precision", "FullPrecision"))


def get(name: str, **options: int):
    """The `Codec` called `name`; options as in `get_format`.

    Errors: InputError for an unknown name or option, and for a format that has no encoder in this release.
    """
    get_format(name, **options)  # refuses names and options that nobody knows
    if name not in ENCODERS:
        raise InputError(
            f"codec {name!r} is known to the memory arithmetic, but its encoder is not in this release: "
            f"use one of {', '.join(ENCODERS)}"
        )
    module, encoder = ENCODERS[name]
    return getattr(importlib.import_module(f"kvcourse.codecs.{module}"), encoder)(name, **options)
