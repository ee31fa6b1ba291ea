"""Scaled-dot-product attention with shared key/value heads: MHA, GQA and MQA in one function.

Ainslie et al. 2023 (GQA) §2.2; `num_kv_heads == num_heads` is MHA, `num_kv_heads == 1` is MQA (Shazeer 2019).
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from kvcourse.attention.rope import rotate
from kvcourse.config import ModelConfig
from kvcourse.norm import RMSNorm


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


def attention_with_lse(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, scale: float | None = None
) -> tuple[Tensor, Tensor]:
    """Attention and the log-sum-exp of its scores, so that parts over disjoint keys can be merged.

    Arguments as in `attention`. Returns out (batch, num_heads, queries, v_head_dim) and lse (batch, num_heads,
    queries), natural logarithms; a query that sees nothing gives (0, -inf), the neutral element of
    `merge_attention_states`. Both are in at least float32, whatever comes in: a part weighs exp(lse), and a bfloat16
    lse of 6 is off by up to 0.016. All scores are kept at once: bound the keys of a call.
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    wide = torch.promote_types(q.dtype, torch.float32)
    q, k, v = q.to(wide), k.to(wide), v.to(wide)
    grouped = q.unflatten(1, (k.shape[1], -1))  # (B, H_kv, G, T, D)
    scores = grouped @ k[:, :, None].mT * scale  # (B, H_kv, G, T, S)
    if mask is not None:
        scores = scores.masked_fill(~mask[:, :, None], -torch.inf)
    lse = scores.logsumexp(-1)  # (B, H_kv, G, T)
    out = torch.softmax(scores, -1) @ v[:, :, None]  # (B, H_kv, G, T, D_v)
    out = out.masked_fill((lse == -torch.inf)[..., None], 0.0)  # a softmax over nothing is NaN
    return out.flatten(1, 2), lse.flatten(1, 2)


class GroupedAttention(nn.Module):
    """A layer's projections, rotary embedding, and attention over the cache or over the input alone.

    config: `num_heads` query heads read `num_kv_heads` key and value heads. layer: its index.
    """

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.layer, self.head_dim, self.window = layer, config.head_dim, config.window(layer)
        width, kv_width = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, width, bias=config.attention_bias)
        self.k_proj = nn.Linear(config.hidden_size, kv_width, bias=config.attention_bias)
        self.v_proj = nn.Linear(config.hidden_size, kv_width, bias=config.attention_bias)
        self.o_proj = nn.Linear(width, config.hidden_size, bias=config.attention_out_bias)
        if config.qk_norm:
            self.q_norm = RMSNorm(config.head_dim, config.rms_norm_eps)
            self.k_norm = RMSNorm(config.head_dim, config.rms_norm_eps)
        else:
            self.q_norm = self.k_norm = nn.Identity()

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor], masks: dict, cache=None) -> Tensor:
        """x: (batch, tokens, hidden). turn: cos and sin of the positions. masks: by window, used without a cache.

        cache: a KVCache, or None. Returns (batch, tokens, hidden).
        """
        heads = (*x.shape[:-1], -1, self.head_dim)
        q = rotate(self.q_norm(self.q_proj(x).view(heads)).transpose(1, 2), *turn)  # (B, H, T, D)
        k = rotate(self.k_norm(self.k_proj(x).view(heads)).transpose(1, 2), *turn)  # (B, H_kv, T, D)
        v = self.v_proj(x).view(heads).transpose(1, 2)  # (B, H_kv, T, D)
        out = attention(q, k, v, masks[self.window]) if cache is None else cache.attend(self.layer, q, k, v)
        return self.o_proj(out.transpose(1, 2).flatten(2))  # (B, T, hidden)
