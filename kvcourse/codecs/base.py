"""What every codec can do."""

from abc import ABC, abstractmethod

from torch import Tensor

from kvcourse.codecs.formats import CodecFormat


class Codec(ABC):
    """Turns a run of tokens of one field into planes, and back.

    A plane is a tensor whose leading axis counts tokens, or groups of `group_tokens` tokens. Codes depend only
    on the numbers of their own group, so it never matters how the tokens arrived.

    format: the sizes, to the byte. group_tokens: tokens that are encoded together; runs are multiples of it.
    """

    format: CodecFormat

    @property
    def group_tokens(self) -> int:
        return self.format.group_tokens

    @property
    @abstractmethod
    def bits_per_value(self) -> float:
        """Bits of one stored number, metadata included."""

    @abstractmethod
    def encode(self, x: Tensor) -> dict[str, Tensor]:
        """x: (tokens, …, head_dim), a multiple of `group_tokens` tokens. Returns the planes by name."""

    @abstractmethod
    def decode(self, planes: dict[str, Tensor]) -> Tensor:
        """The planes of `encode`, or the same slice of each. Returns (tokens, …, head_dim)."""
