"""No compression: numbers are stored as floats."""

import torch
from torch import Tensor

from kvcourse.codecs.base import Codec
from kvcourse.codecs.formats import dtype_bytes, get_format

DTYPES = {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class FullPrecision(Codec):
    """Stores every number as a float of the named dtype; "auto" keeps the dtype that it is given.

    Rounds once, when a wider float comes in. Numbers beyond the range of fp16 (65,504) become infinite there.
    """

    def __init__(self, name: str = "auto") -> None:
        self.format = get_format(name)
        self.dtype = DTYPES.get(name)

    @property
    def bits_per_value(self) -> float:
        """Bits of the dtype; for "auto" those of bf16, the usual dtype of a served model."""
        return 8.0 * dtype_bytes(self.dtype or torch.bfloat16)

    def encode(self, x: Tensor) -> dict[str, Tensor]:
        return {"values": x if self.dtype is None else x.to(self.dtype)}

    def decode(self, planes: dict[str, Tensor]) -> Tensor:
        return planes["values"]
