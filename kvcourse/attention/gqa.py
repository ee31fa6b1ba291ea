"""Scaled-dot-product attention with shared key/value heads: MHA, GQA and MQA in one function.

Ainslie et al. 2023 (GQA) §2.2; `num_kv_heads == num_heads` is MHA, `num_kv_heads == 1` is MQA (Shazeer 2019).
"""

from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


def causal_mask(query_position: Tensor, key_position: Tensor, window: int | None = None) -> Tensor:
    """Which keys each query sees: those at its own position or before, at most `window` of them.

    query_position: (batch, queries), negative for padding; key_position: (batch or 1, keys), negative for
    nothing. Returns a boolean (batch, 1, queries, keys), True where visible. A padding query sees every key:
    its output is never read, and a softmax over nothing would be NaN.
    """
    query, key = query_position[:, :, None], key_position[:, None, :]
    visible = (key <= query) & (key >= 0)  # (batch, queries, keys)
    if window is not None:
        visible &= key > query - window
    return (visible | (query < 0))[:, None]


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """softmax(q kᵀ · scale + mask) v, where query head h reads kv head h // (num_heads / num_kv_heads).

    q: (batch, num_heads, queries, head_dim); k: (batch, num_kv_heads, keys, head_dim); v likewise, its last
    dimension may differ. mask: boolean, broadcastable to (batch, 1, queries, keys), True where visible.
    causal: query i sees keys 0…i; only when queries == keys, since torch aligns its mask to the upper left.
    scale: head_dim ** -0.5 by default. Returns (batch, num_heads, queries, v_head_dim).
    """
    return scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=causal, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
    )
