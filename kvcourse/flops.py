"""Exact counts of the floating-point operations of a decoder's matrix products, with and without a cache.

A multiply-add counts as two operations. Softmax, norms, activations and RoPE are left out: they are a small share,
and every convention counts them differently. Attention counts the full rectangle of queries × keys that a masked
implementation computes, as `torch.utils.flop_counter` does; a kernel that skips what the mask hides does about half
of it in a prefill.
"""

from dataclasses import dataclass
from typing import Any

from kvcourse.attention.config_reader import config_dict
from kvcourse.config import ModelConfig
from kvcourse.errors import InputError


@dataclass(frozen=True)
class Flops:
    """Operations by what they grow with.

    linear: projections and feed-forward layers, the same for every token. attention: queries times keys, and
    weights times values. head: the output layer over the vocabulary.
    """

    linear: int
    attention: int
    head: int

    @property
    def total(self) -> int:
        return self.linear + self.attention + self.head

    def __add__(self, other: "Flops") -> "Flops":
        return Flops(self.linear + other.linear, self.attention + other.attention, self.head + other.head)


def forward(config: Any, tokens: int, past: int = 0, logits: int | None = None) -> Flops:
    """One forward pass of `tokens` new tokens over `past` cached ones, one sequence.

    config: a ModelConfig, or anything that describes a dense Llama-family model. logits: positions that go through
    the output layer; None: all new ones. A sliding layer holds at most window − 1 past tokens.
    Errors: InputError for counts below zero, no token, or a model of another family.
    """
    config = _model_config(config)
    if tokens < 1 or past < 0:
        raise InputError(f"tokens={tokens}, past={past}: expected at least one token and no negative past")
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    weights = (
        config.hidden_size * (2 * queries + 2 * keys) + 3 * config.hidden_size * config.intermediate_size
    )
    pairs = 0
    for layer in range(config.num_layers):
        window = config.window(layer)
        pairs += tokens * (tokens + (past if window is None else min(past, window - 1)))
    scored = tokens if logits is None else logits
    return Flops(
        linear=2 * tokens * config.num_layers * weights,
        attention=2 * 2 * queries * pairs,
        head=2 * scored * config.hidden_size * config.vocab_size,
    )


def generation(config: Any, new_tokens: int, prompt: int = 1, cached: bool = True) -> Flops:
    """Generate `new_tokens` tokens after a prompt of `prompt` tokens, one position scored a step.

    cached: the prompt once, then one token a step. Otherwise every step runs all tokens so far again.
    """
    config = _model_config(config)
    if new_tokens < 1 or prompt < 1:
        raise InputError(f"new_tokens={new_tokens}, prompt={prompt}: expected at least one of each")
    total = forward(config, prompt, logits=1)
    for length in range(prompt + 1, prompt + new_tokens):
        total += forward(config, 1, length - 1, logits=1) if cached else forward(config, length, logits=1)
    return total


def _model_config(config: Any) -> ModelConfig:
    return config if isinstance(config, ModelConfig) else ModelConfig.from_hf(config_dict(config))
