"""What the layers of a model store per token, independent of where and how it is written.

The layout is the seam between the attention axis and everything below it: storage, codecs and the memory
arithmetic know fields and their shapes, and nothing else about heads or latents.
"""

from dataclasses import dataclass
from math import prod


@dataclass(frozen=True)
class Field:
    """One growing array of a layer, for example its keys.

    name: "k", "v", "latent", "rope", "index", …
    shape: of one entry, for example (num_kv_heads, head_dim).
    window: the field keeps only this many last tokens (None: all).
    stride: tokens that one entry stands for (1; more in compressed attention, DeepSeek-V4).
    """

    name: str
    shape: tuple[int, ...]
    window: int | None = None
    stride: int = 1

    @property
    def values(self) -> int:
        """Numbers in one entry."""
        return prod(self.shape)

    def entries(self, tokens: int) -> int:
        """Entries that `tokens` tokens leave in the field."""
        kept = tokens if self.window is None else min(tokens, self.window)
        return kept // self.stride


@dataclass(frozen=True)
class LayerLayout:
    """What one layer stores: its growing fields, and numbers whose count does not depend on the context.

    state_bytes: bytes of fixed-size state per sequence (linear-attention layers), 0 for attention.
    """

    fields: tuple[Field, ...]
    state_bytes: int = 0


Layout = tuple[LayerLayout, ...]


def grouped_query_layer(
    num_kv_heads: int, head_dim: int, window: int | None = None, v_head_dim: int | None = None
) -> LayerLayout:
    """LayerLayout of MHA, GQA and MQA: keys and values per kv head (Ainslie et al. 2023, §2.2)."""
    return LayerLayout(
        (
            Field("k", (num_kv_heads, head_dim), window),
            Field("v", (num_kv_heads, v_head_dim or head_dim), window),
        )
    )
