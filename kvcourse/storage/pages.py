"""Pages: the memory of one field of one layer, cut into blocks."""

from collections.abc import Sequence

import torch
from torch import Tensor

from kvcourse.attention.layout import Field
from kvcourse.codecs.base import Codec
from kvcourse.codecs.full_precision import FullPrecision
from kvcourse.errors import InputError
from kvcourse.kernels import store_pages


class Pages:
    """One field, for example the keys of a layer, as the planes of a codec.

    planes: by name, (num_blocks, heads, block_size, …); a field without heads, such as MLA's latent, has one.
    raw: whether the only plane holds the numbers themselves, so that fused kernels can read it.

    Errors: InputError for a codec that encodes several tokens together, or when there is no memory.
    """

    def __init__(
        self,
        field: Field,
        codec: Codec,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        if codec.group_tokens != 1:
            raise InputError(
                f"codec {codec.format.name!r} encodes {codec.group_tokens} tokens together: paged storage writes "
                "token by token; use a codec whose group_tokens is 1"
            )
        self.codec, self.block_size, self.dtype = codec, block_size, dtype
        self.raw = isinstance(codec, FullPrecision)
        *heads, dim = field.shape
        example = codec.encode(torch.zeros(1, *(heads or [1]), dim, dtype=dtype, device=device))
        self.planes = {
            name: _zeros((num_blocks, plane.shape[1], block_size, *plane.shape[2:]), plane)
            for name, plane in example.items()
        }

    @property
    def nbytes(self) -> int:
        """Bytes of all planes, used or not."""
        return sum(plane.untyped_storage().nbytes() for plane in self.planes.values())

    @property
    def values(self) -> Tensor:
        """The numbers themselves, (num_blocks, heads, block_size, dim), of a codec that is `raw`."""
        (plane,) = self.planes.values()
        return plane

    def write(self, x: Tensor, slots: Tensor) -> None:
        """Store x (tokens, heads, dim) at flat slots (tokens,); -1 writes nothing."""
        if self.raw:
            store_pages(x, self.values, slots)
            return
        some = slots >= 0
        block, slot = slots[some] // self.block_size, slots[some] % self.block_size
        for name, plane in self.codec.encode(x[some]).items():
            self.planes[name][block, :, slot] = plane

    def gather(self, blocks: Tensor, slots: Tensor) -> Tensor:
        """The entries at blocks and slots, (rows, tokens) each. Returns (rows, heads, tokens, dim)."""
        planes = {name: plane[blocks, :, slots].flatten(0, 1) for name, plane in self.planes.items()}
        return self.codec.decode(planes).unflatten(0, blocks.shape).transpose(1, 2).to(self.dtype)

    def as_stored(self, x: Tensor) -> Tensor:
        """x (batch, heads, tokens, dim) as it comes back from these pages."""
        if self.raw:
            return x.to(self.values.dtype)
        tokens = x.transpose(1, 2)  # (batch, tokens, heads, dim)
        stored = self.codec.decode(self.codec.encode(tokens.flatten(0, 1))).unflatten(0, tokens.shape[:2])
        return stored.transpose(1, 2).to(self.dtype)

    def copy(self, source: Sequence[int], target: Sequence[int]) -> None:
        """Copy whole blocks, bit by bit."""
        for plane in self.planes.values():
            plane[list(target)] = plane[list(source)]

    def read(self, blocks: Sequence[int]) -> dict[str, Tensor]:
        """The planes of some blocks, copied."""
        return {name: plane[list(blocks)] for name, plane in self.planes.items()}

    def fill(self, blocks: Sequence[int], planes: dict[str, Tensor]) -> None:
        """Put back what `read` gave, into other blocks."""
        for name, plane in self.planes.items():
            plane[list(blocks)] = planes[name].to(plane.device)

    def grown(self, num_blocks: int) -> dict[str, Tensor]:
        """The planes with more blocks at the end. Errors: InputError when there is no memory."""
        grown = {name: _zeros((num_blocks, *plane.shape[1:]), plane) for name, plane in self.planes.items()}
        for name, plane in self.planes.items():
            grown[name][: len(plane)] = plane
        return grown


def _zeros(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Zeros, not empty: a masked slot may be multiplied by zero, and zero times a stray NaN is NaN.

    Made outside of inference mode: a cache outlives the forward in which it grows.
    """
    try:
        with torch.inference_mode(False):
            return torch.zeros(shape, dtype=like.dtype, device=like.device)
    except RuntimeError as error:
        if like.device.type != "cpu" and not isinstance(error, torch.OutOfMemoryError):
            raise  # a fault of the device that only shows here
        raise InputError(
            f"no memory for pages {shape} of {like.dtype}: give fewer or smaller blocks (num_blocks, block_size)"
        ) from None
