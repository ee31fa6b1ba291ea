"""Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, §2.1; unchanged in V3).

A token leaves two small vectors that all heads share: a latent, from which keys and values are linear maps, and one
rotary key. The same attention has two forms:

* expanded: make every head's keys and values of the latents, then attend as in MHA. Fewer operations per pair of
  tokens, so it is the form for many new tokens at once (prefill).
* absorbed: move the key map into the query and the value map behind the sum, and attend to the latents themselves, as
  MQA does with one wide head. Reads the least memory, so it is the form for one new token (decode).
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from kvcourse.attention.gqa import attention
from kvcourse.attention.rope import rotate
from kvcourse.config import LATENT_NORM_EPS, ModelConfig
from kvcourse.errors import InputError
from kvcourse.norm import RMSNorm


@dataclass(frozen=True)
class UpProjection:
    """From a latent to every head's key (the part without position) and value.

    w_uk: (num_heads, qk_nope_head_dim, kv_lora_rank). w_uv: (num_heads, v_head_dim, kv_lora_rank).
    """

    w_uk: Tensor
    w_uv: Tensor

    def expand(self, latent: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of all heads. latent: (batch, tokens, kv_lora_rank).

        Returns (batch, num_heads, tokens, qk_nope_head_dim) and (batch, num_heads, tokens, v_head_dim).
        """
        return _to_heads(latent, self.w_uk), _to_heads(latent, self.w_uv)

    def absorb(self, q_nope: Tensor) -> Tensor:
        """Queries that score latents as the given ones score keys: q · (W c) = (Wᵀ q) · c.

        q_nope: (batch, num_heads, tokens, qk_nope_head_dim). Returns (batch, num_heads, tokens, kv_lora_rank).
        """
        return _by_head(q_nope, self.w_uk)

    def project(self, out: Tensor) -> Tensor:
        """Values of averaged latents: Σ p (W c) = W (Σ p c).

        out: (batch, num_heads, tokens, kv_lora_rank). Returns (batch, num_heads, tokens, v_head_dim).
        """
        return _by_head(out, self.w_uv.mT)


def _to_heads(latent: Tensor, weights: Tensor) -> Tensor:
    """(batch, tokens, R) times each head's (D, R), as one product: (batch, heads, tokens, D)."""
    return (latent @ weights.flatten(0, 1).T).unflatten(-1, weights.shape[:2]).transpose(1, 2)


def _by_head(x: Tensor, weights: Tensor) -> Tensor:
    """(batch, heads, tokens, n) times (heads, n, m), one product a head: (batch, heads, tokens, m).

    `x @ weights` gives the same, but copies the weights for every row of the batch first.
    """
    rows = x.transpose(0, 1).flatten(1, 2) @ weights  # (H, B · T, m)
    return rows.unflatten(1, (x.shape[0], x.shape[2])).transpose(0, 1)


def check_up(up: Any, config: ModelConfig, like: Tensor) -> None:
    """Raise InputError unless `up` has the shapes of the config, and the dtype and device of `like`."""
    if not isinstance(up, UpProjection):
        raise InputError(f"up is a {type(up).__name__}: expected an UpProjection, a layer's self_attn.up")
    dims = {"w_uk": config.qk_nope_head_dim, "w_uv": config.v_head_dim}
    for name, dim in dims.items():
        w, shape = getattr(up, name), (config.num_heads, dim, config.kv_lora_rank)
        if not isinstance(w, Tensor) or tuple(w.shape) != shape:
            found = tuple(w.shape) if isinstance(w, Tensor) else type(w).__name__
            raise InputError(f"up.{name} is {found}: expected (num_heads, dim, kv_lora_rank) = {shape}")
        if w.dtype != like.dtype or w.device != like.device:
            raise InputError(
                f"up.{name} is {w.dtype} on {w.device} and q_nope is {like.dtype} on {like.device}: "
                "expected one dtype and one device"
            )


def expanded_key_value(latent: Tensor, rope: Tensor, up: UpProjection) -> tuple[Tensor, Tensor]:
    """Each head's whole key, the shared rotary part last, and its value.

    latent: (batch, tokens, kv_lora_rank); rope: (batch, tokens, qk_rope_head_dim), rotated.
    Returns (batch, num_heads, tokens, qk_head_dim) and (batch, num_heads, tokens, v_head_dim).
    """
    k_nope, v = up.expand(latent)
    shared = rope[:, None].expand(-1, k_nope.shape[1], -1, -1)  # (B, H, S, D_r)
    return torch.cat((k_nope, shared), dim=-1), v


def expanded_attention(
    q_nope: Tensor,
    q_rope: Tensor,
    latent: Tensor,
    rope: Tensor,
    up: UpProjection,
    scale: float,
    mask: Tensor | None = None,
    causal: bool = False,
) -> Tensor:
    """Attention over keys and values made of the latents.

    q_nope: (batch, num_heads, queries, qk_nope_head_dim).
    q_rope: (batch, num_heads, queries, qk_rope_head_dim), rotated.
    latent: (batch, keys, kv_lora_rank), normed. rope: (batch, keys, qk_rope_head_dim), rotated.
    scale: of the scores, `ModelConfig.attention_scale`: the width of the keys decides it, never that of the latent.
    mask, causal: as in `gqa.attention`.
    Returns (batch, num_heads, queries, v_head_dim).
    """
    k, v = expanded_key_value(latent, rope, up)
    return attention(torch.cat((q_nope, q_rope), dim=-1), k, v, mask, causal, scale)


def absorbed_attention(
    q_nope: Tensor,
    q_rope: Tensor,
    latent: Tensor,
    rope: Tensor,
    up: UpProjection,
    scale: float,
    mask: Tensor | None = None,
    causal: bool = False,
) -> Tensor:
    """The same numbers without keys or values: MQA over the latents, one kv head that is (latent, rope) wide.

    Arguments and result as in `expanded_attention`; DeepSeek-V2, §2.1.2: "absorbed" projections.
    """
    q = torch.cat((up.absorb(q_nope), q_rope), dim=-1)  # (B, H, T, R + D_r)
    k = torch.cat((latent, rope), dim=-1)[:, None]  # (B, 1, S, R + D_r)
    return up.project(attention(q, k, latent[:, None], mask, causal, scale))


class LatentAttention(nn.Module):
    """A layer's projections, norms and rotary embedding, and attention over the cache or over the input alone.

    Module names are those of DeepSeek checkpoints. Attention in the cache: `KVCache.attend_latent`.
    """

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.layer, self.scale, self.interleave = layer, config.attention_scale, config.rope_interleave
        self.num_heads, self.rank = config.num_heads, config.kv_lora_rank
        self.nope_dim, self.rope_dim = config.qk_nope_head_dim, config.qk_rope_head_dim
        hidden, bias = config.hidden_size, config.attention_bias
        width = config.num_heads * config.qk_head_dim

        def norm(size: int) -> nn.Module:
            return RMSNorm(size, LATENT_NORM_EPS) if config.latent_norm else nn.Identity()

        self.plain_queries = config.q_lora_rank is None
        if self.plain_queries:
            self.q_proj = nn.Linear(hidden, width, bias=False)
        else:
            self.q_a_proj = nn.Linear(hidden, config.q_lora_rank, bias=bias)
            self.q_a_layernorm = norm(config.q_lora_rank)
            self.q_b_proj = nn.Linear(config.q_lora_rank, width, bias=False)
        self.kv_a_proj_with_mqa = nn.Linear(hidden, self.rank + self.rope_dim, bias=bias)
        self.kv_a_layernorm = norm(self.rank)
        up_width = config.num_heads * (config.qk_nope_head_dim + config.v_head_dim)
        self.kv_b_proj = nn.Linear(self.rank, up_width, bias=False)
        self.o_proj = nn.Linear(config.num_heads * config.v_head_dim, hidden, bias=config.attention_out_bias)

    @property
    def up(self) -> UpProjection:
        """The two halves of kv_b_proj, as views."""
        heads = self.kv_b_proj.weight.unflatten(0, (self.num_heads, -1))  # (H, D_n + D_v, R)
        return UpProjection(heads[:, : self.nope_dim], heads[:, self.nope_dim :])

    def queries(self, x: Tensor, turn: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """(batch, num_heads, tokens, qk_nope_head_dim), and the rotated (…, qk_rope_head_dim)."""
        if not self.plain_queries:
            x = self.q_a_layernorm(self.q_a_proj(x))  # (B, T, q_lora_rank)
        q = self.q_proj(x) if self.plain_queries else self.q_b_proj(x)
        q = q.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)  # (B, H, T, D_n + D_r)
        q_nope, q_rope = q.split((self.nope_dim, self.rope_dim), dim=-1)
        return q_nope, rotate(q_rope, *turn, self.interleave)

    def compress(self, x: Tensor, turn: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """What a token stores: normed latent (batch, tokens, kv_lora_rank), rotated key (…, qk_rope_head_dim)."""
        latent, rope = self.kv_a_proj_with_mqa(x).split((self.rank, self.rope_dim), dim=-1)
        return self.kv_a_layernorm(latent), rotate(rope[:, None], *turn, self.interleave)[:, 0]

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor], masks: dict, cache=None) -> Tensor:
        """x: (batch, tokens, hidden). turn: cos and sin of the positions. masks: by window, used without a cache.

        cache: a KVCache, or None. Returns (batch, tokens, hidden).
        """
        (q_nope, q_rope), (latent, rope) = self.queries(x, turn), self.compress(x, turn)
        if cache is None:
            out = expanded_attention(q_nope, q_rope, latent, rope, self.up, self.scale, masks[None])
        else:
            out = cache.attend_latent(self.layer, q_nope, q_rope, latent, rope, self.up)
        return self.o_proj(out.transpose(1, 2).flatten(2))  # (B, T, hidden)
