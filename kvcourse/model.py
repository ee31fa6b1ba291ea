"""A small decoder of the Llama and DeepSeek families that runs with or without a KV cache.

Module names are those of Hugging Face checkpoints without the leading "model.", so their weights load as they are.
"""

from collections.abc import Iterator
from dataclasses import fields
from itertools import chain, repeat
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from kvcourse.attention.gqa import GroupedAttention, causal_mask
from kvcourse.attention.mla import LatentAttention
from kvcourse.attention.padding import positions_of, read_mask
from kvcourse.attention.rope import frequencies, rotations
from kvcourse.config import ModelConfig
from kvcourse.counts import read_count
from kvcourse.errors import InputError
from kvcourse.experts import MixtureOfExperts
from kvcourse.feed_forward import SwiGLU
from kvcourse.norm import RMSNorm
from kvcourse.placement import read_device, read_dtype

if TYPE_CHECKING:
    from kvcourse.cache import KVCache


class Block(nn.Module):
    """Attention and feed-forward, each behind its norm and added to the residual stream."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = (LatentAttention if config.is_latent else GroupedAttention)(config, layer)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        if config.has_experts(layer):
            self.mlp = MixtureOfExperts(config)
        else:
            self.mlp = SwiGLU(config.hidden_size, config.intermediate_size, config.mlp_bias)

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
            cache.commit()
        except (
            BaseException
        ):  # an interrupt too: what was announced must not wait for a layer that never comes
            cache.rollback()
            raise
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
        x = self.embed_tokens(input_ids)  # (B, T, hidden)
        for block, turn in zip(self.layers, self._turns(positions.clamp(min=0)), strict=True):
            x = block(x, turn, masks, cache)
        return self.lm_head(self.norm(x[:, -1:] if last_only else x))

    def _turns(self, positions: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """cos and sin for every layer: the same ones, unless layers have frequencies of their own."""
        freqs, factor = self._rope
        if freqs.dim() == 1:
            yield from repeat(rotations(freqs, positions, factor, self.dtype), self.config.num_layers)
        else:
            yield from (rotations(row, positions, factor, self.dtype) for row in freqs)

    def _positions(self, batch: int, tokens: int, attention_mask: Tensor | None) -> Tensor:
        """(batch, tokens), -1 for padding."""
        if attention_mask is None:
            return torch.arange(tokens, device=self.device).expand(batch, tokens)
        valid = read_mask(attention_mask, batch, tokens, self.device)
        return positions_of(torch.zeros(batch, dtype=torch.long, device=self.device), valid)

    def _check(self, input_ids: Tensor, cache: "KVCache | None") -> None:
        check_ids(input_ids)
        if self.device.type == "meta":
            raise InputError("the model is on 'meta', which holds no numbers: load its weights first")
        if input_ids.device != self.device:
            raise InputError(f"input_ids is on {input_ids.device} and the model on {self.device}: move one")
        low, high = input_ids.aminmax()
        if low < 0 or high >= self.config.vocab_size:
            wrong = int(low) if low < 0 else int(high)
            raise InputError(f"token id {wrong}: expected 0 to {self.config.vocab_size - 1}")
        if cache is not None and not hasattr(cache, "begin"):
            raise InputError(f"cache is a {type(cache).__name__}: expected a kvcourse.KVCache or None")
        if cache is not None and cache.config != self.config:
            raise InputError(
                "the cache was made for a model of another config: make it with KVCache(model.config, …)"
            )
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

    With kv_lora_rank it is an MLA model, of as many kv heads as heads; dims that are not given are head_dim.

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
    if config.get("kv_lora_rank") is not None:
        num_kv_heads = num_heads
        for name in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"):
            config.setdefault(name, head_dim)
    config.setdefault("intermediate_size", 2 * read_count("hidden_size", hidden_size))
    model = Decoder(
        ModelConfig(
            num_layers=num_layers, num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim,
            vocab_size=vocab_size, **config,
        )
    )  # fmt: skip
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in chain(model.named_parameters(), model.named_buffers()):
        spread = 0.2 if tensor.dim() == 1 else tensor.shape[-1] ** -0.5
        values = torch.randn(tensor.shape, generator=generator, dtype=torch.float64) * spread
        tensor.data = values + 1 if "norm" in name else values
    model.tie_weights()
    return model.to(device=device, dtype=dtype).eval().requires_grad_(False)
