"""A small decoder of the Llama family that runs with or without a KV cache.

Module names are those of Hugging Face checkpoints without the leading "model.", so their weights load as they are.
"""

from dataclasses import fields
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from kvcourse.attention.gqa import attention, causal_mask
from kvcourse.attention.padding import positions_of, read_mask
from kvcourse.attention.rope import frequencies, rotate, rotations
from kvcourse.config import ModelConfig
from kvcourse.counts import read_count
from kvcourse.errors import InputError
from kvcourse.placement import read_device, read_dtype

if TYPE_CHECKING:
    from kvcourse.cache import KVCache


class RMSNorm(nn.Module):
    """x / rms(x) · weight (Zhang and Sennrich 2019), in at least float32 inside."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """x: (…, size). Returns the same shape and dtype."""
        wide = x if x.dtype == torch.float64 else x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


class Attention(nn.Module):
    """Projections, rotary embedding, and attention over the cache or over the input alone."""

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

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor], masks: dict, cache: "KVCache | None") -> Tensor:
        """x: (batch, tokens, hidden). turn: cos and sin of the positions. masks: by window, used without a cache."""
        heads = (*x.shape[:-1], -1, self.head_dim)
        q = rotate(self.q_norm(self.q_proj(x).view(heads)).transpose(1, 2), *turn)  # (B, H, T, D)
        k = rotate(self.k_norm(self.k_proj(x).view(heads)).transpose(1, 2), *turn)  # (B, H_kv, T, D)
        v = self.v_proj(x).view(heads).transpose(1, 2)  # (B, H_kv, T, D)
        out = attention(q, k, v, masks[self.window]) if cache is None else cache.attend(self.layer, q, k, v)
        return self.o_proj(out.transpose(1, 2).flatten(2))  # (B, T, hidden)


class SwiGLU(nn.Module):
    """down(silu(gate(x)) · up(x)) (Shazeer 2020)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=config.mlp_bias)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=config.mlp_bias)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=config.mlp_bias)

    def forward(self, x: Tensor) -> Tensor:
        """x: (batch, tokens, hidden). Returns the same shape."""
        return self.down_proj(silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    """Attention and feed-forward, each behind its norm and added to the residual stream."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config, layer)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = SwiGLU(config)

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor], masks: dict, cache: "KVCache | None") -> Tensor:
        """x: (batch, tokens, hidden). Returns the same shape."""
        x = x + self.self_attn(self.input_layernorm(x), turn, masks, cache)
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    """A decoder-only transformer: embeddings, blocks, norm, head.

    config: a ModelConfig. tokenizer: set by `load_model`, None otherwise.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.tokenizer = None
        # Zeros, until weights come: torch's random ones make a "meta" model import torch._dynamo, a second a process.
        table = torch.zeros(config.vocab_size, config.hidden_size)
        self.embed_tokens = nn.Embedding.from_pretrained(table, freeze=False)
        self.layers = nn.ModuleList(Block(config, i) for i in range(config.num_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.tie_weights()
        self._rope: tuple[Tensor, float] | None = None

    def tie_weights(self) -> None:
        """Make the head the embedding matrix itself where the config ties them; again after loading weights."""
        if self.config.tie_word_embeddings:
            self.lm_head.weight = self.embed_tokens.weight

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.embed_tokens.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """What the weights are written in."""
        return self.embed_tokens.weight.dtype

    def forward(
        self,
        input_ids: Tensor,
        cache: "KVCache | None" = None,
        attention_mask: Tensor | None = None,
        last_only: bool = False,
    ) -> Tensor:
        """Logits of the next token after each input token.

        input_ids: (batch, tokens) integers. cache: a KVCache, which then also holds these tokens; its earlier
        tokens come before them. attention_mask: (batch, tokens), 0 for padding on the left, of this input alone.
        last_only: compute the last position's logits only, (batch, 1, vocab).

        Returns (batch, tokens, vocab). Errors: InputError for shapes, token ids or lengths that do not fit; the
        cache is unchanged.
        """
        self._check(input_ids, cache)
        batch, tokens = input_ids.shape
        if cache is None:
            positions = self._positions(batch, tokens, attention_mask)
            windows = {self.config.window(i) for i in range(self.config.num_layers)}
            masks = {window: causal_mask(positions, positions, window) for window in windows}
            return self._run(input_ids, positions, masks, None, last_only)
        positions = cache.begin(tokens, attention_mask, device=self.device)
        try:
            logits = self._run(input_ids, positions, {}, cache, last_only)
        except (
            BaseException
        ):  # an interrupt too: what was announced must not wait for a layer that never comes
            cache.rollback()
            raise
        cache.commit()
        return logits

    def _run(
        self, input_ids: Tensor, positions: Tensor, masks: dict, cache: "KVCache | None", last_only: bool
    ) -> Tensor:
        """The layers, for tokens whose positions are known. positions: (batch, tokens), -1 for padding."""
        longest = int(positions.max()) + 1
        if longest > self.config.max_position_embeddings:
            raise InputError(
                f"{longest} tokens: this model has positions for {self.config.max_position_embeddings}; "
                "shorten the input, or crop or reset the cache"
            )
        if self._rope is None or self._rope[0].device != self.device:
            self._rope = frequencies(self.config, self.device)
        freqs, factor = self._rope
        turn = rotations(freqs, positions.clamp(min=0), factor, self.dtype)
        x = self.embed_tokens(input_ids)  # (B, T, hidden)
        for block in self.layers:
            x = block(x, turn, masks, cache)
        return self.lm_head(self.norm(x[:, -1:] if last_only else x))

    def _positions(self, batch: int, tokens: int, attention_mask: Tensor | None) -> Tensor:
        """(batch, tokens), -1 for padding."""
        if attention_mask is None:
            return torch.arange(tokens, device=self.device).expand(batch, tokens)
        valid = read_mask(attention_mask, batch, tokens, self.device)
        return positions_of(torch.zeros(batch, dtype=torch.long, device=self.device), valid)

    def _check(self, input_ids: Tensor, cache: "KVCache | None") -> None:
        check_ids(input_ids)
        if input_ids.device != self.device:
            raise InputError(f"input_ids is on {input_ids.device} and the model on {self.device}: move one")
        low, high = input_ids.aminmax()
        if low < 0 or high >= self.config.vocab_size:
            wrong = int(low) if low < 0 else int(high)
            raise InputError(f"token id {wrong}: expected 0 to {self.config.vocab_size - 1}")
        if cache is not None and not hasattr(cache, "begin"):
            raise InputError(f"cache is a {type(cache).__name__}: expected a kvcourse.KVCache or None")
        if cache is not None and cache.batch_size != input_ids.shape[0]:
            raise InputError(
                f"input_ids has {input_ids.shape[0]} rows and the cache {cache.batch_size}: "
                "make the cache with batch_size equal to the batch"
            )


def check_ids(input_ids: Tensor) -> None:
    """Raise InputError unless these are token ids (batch, tokens), int32 or int64, at least one."""
    if not isinstance(input_ids, Tensor):
        raise InputError(
            f"input_ids is a {type(input_ids).__name__}: expected a tensor of integers (batch, tokens); "
            "torch.tensor([tokens]) makes one of a list"
        )
    if input_ids.dim() != 2 or input_ids.numel() == 0 or input_ids.dtype not in (torch.int32, torch.int64):
        raise InputError(
            f"input_ids is {input_ids.dtype} of shape {tuple(input_ids.shape)}: expected int64 or int32 "
            "(batch, tokens) with at least one token"
        )


def tiny_model(
    num_layers: int = 2,
    num_heads: int = 4,
    num_kv_heads: int = 2,
    head_dim: int = 16,
    vocab_size: int = 256,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    **config,
) -> Decoder:
    """A model with random weights for tests and experiments; every field of ModelConfig may be given.

    Norms and biases are random too, so that a test notices when one is left out.
    """
    device, dtype = read_device("cpu" if device is None else device), read_dtype(dtype)
    seed = read_count("seed", seed, least=0)
    unknown = sorted(set(config) - {field.name for field in fields(ModelConfig)})
    if unknown:
        raise InputError(f"tiny_model has no argument {unknown[0]!r}: expected a field of ModelConfig")
    hidden_size = config.setdefault(
        "hidden_size", read_count("num_heads", num_heads) * read_count("head_dim", head_dim)
    )
    config.setdefault("intermediate_size", 2 * read_count("hidden_size", hidden_size))
    model = Decoder(
        ModelConfig(
            num_layers=num_layers, num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim,
            vocab_size=vocab_size, **config,
        )
    )  # fmt: skip
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        spread = 0.2 if parameter.dim() == 1 else parameter.shape[-1] ** -0.5
        values = torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * spread
        parameter.data = values + 1 if "norm" in name else values
    model.tie_weights()
    return model.to(device=device, dtype=dtype).eval().requires_grad_(False)
