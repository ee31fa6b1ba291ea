"""What a conversion must know about the text that a model reads: second moments, and how far heads look back."""

import sys
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from kvcourse.attention.rope import frequencies, rotate
from kvcourse.config import ModelConfig
from kvcourse.errors import InputError


@dataclass(frozen=True)
class LayerMoments:
    """Means over a text for one layer, float64. x is what its attention reads.

    queries: (hidden, hidden), the mean of x xᵀ over tokens.
    keys: (hidden, hidden), the mean of x xᵀ over pairs of a query and a key, x being the key's, each pair weighted by
    its attention in all heads. A text's first token, to which many heads attend when nothing else fits, counts
    as it should.
    turning: (num_heads, head_dim / 2) complex, the mean of exp(i · frequency · distance) over such pairs, weighted
    by the attention of each head. Its magnitude is 1 for a rotary pair that hardly turns over the distances that
    the head looks across, and near 0 for one that turns many times.
    """

    queries: Tensor
    keys: Tensor
    turning: Tensor


@dataclass(frozen=True)
class Calibration:
    """layers: the moments of each layer. tokens: how many were read."""

    layers: tuple[LayerMoments, ...]
    tokens: int


@torch.no_grad()
def calibrate(model: Any, ids: Tensor) -> Calibration:
    """Run a text through a model with kv heads and collect what `to_latent` needs.

    model: a Decoder with kv heads (MHA, GQA or MQA). ids: (batch, tokens) token ids; every row is a text of its
    own. A few thousand tokens in rows of at least some hundred are enough for the real model.

    Errors: InputError for ids that the model refuses, an MLA model, or one with qk_norm, attention biases or
    sliding windows.
    """
    config = check_convertible(model)
    if not isinstance(ids, Tensor) or ids.dim() != 2 or ids.numel() == 0:
        raise InputError("ids: expected a tensor of token ids (batch, tokens) with at least one token")
    sums = [_Sums(config, frequencies(config, model.device)[0]) for _ in model.layers]
    hooks = [
        layer.self_attn.register_forward_pre_hook(layer_sums.add)
        for layer, layer_sums in zip(model.layers, sums, strict=True)
    ]
    try:
        for row in tqdm(ids, desc="calibrating", delay=2, leave=False, file=sys.stderr, disable=None):
            model(row[None], last_only=True)
    finally:
        for hook in hooks:
            hook.remove()
    return Calibration(tuple(layer_sums.means(ids.numel()) for layer_sums in sums), ids.numel())


class _Sums:
    """What one layer adds up, fed by a hook before its forward."""

    def __init__(self, config: ModelConfig, angles: Tensor) -> None:
        hidden, heads, pairs = config.hidden_size, config.num_heads, config.head_dim // 2
        self.head_dim, self.group_size, self.angles = config.head_dim, config.group_size, angles.double()
        self.queries = torch.zeros(hidden, hidden, dtype=torch.float64)
        self.keys = torch.zeros(hidden, hidden, dtype=torch.float64)
        self.turning = torch.zeros(heads, pairs, dtype=torch.complex128)

    def add(self, layer: Any, inputs: tuple) -> None:
        """inputs: of the layer's forward, x (1, tokens, hidden) and the cos and sin of its positions first."""
        (x,), turn = inputs[0], inputs[1]
        attention = self._attention(layer, x, turn)  # (H, T, T)
        received = attention.sum((0, 1)).double()  # (T,)
        phase = torch.arange(len(x), device=x.device)[:, None] * self.angles  # (T, D / 2)
        cos, sin = phase.cos().to(x), phase.sin().to(x)
        # The mean of exp(i a) exp(−i b), a of the query's position and b of the key's.
        key_cos, key_sin = attention @ cos, attention @ sin  # (H, T, D / 2)
        real = (cos * key_cos + sin * key_sin).double().sum(1)
        imag = (sin * key_cos - cos * key_sin).double().sum(1)
        self.turning += torch.complex(real, imag).cpu()
        x = x.double()
        self.queries += (x.mT @ x).cpu()
        self.keys += (x.mT * received @ x).cpu()

    def means(self, tokens: int) -> LayerMoments:
        """Every query of every head gives an attention of 1 in all."""
        pairs = tokens * len(self.turning)
        return LayerMoments(self.queries / tokens, self.keys / pairs, self.turning / tokens)

    def _attention(self, layer: Any, x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
        """softmax of the scores of every head, (num_heads, tokens, tokens)."""

        def heads(projection: Any) -> Tensor:
            return rotate(projection(x).unflatten(-1, (-1, self.head_dim)).transpose(0, 1), *turn)[0]

        q, k = heads(layer.q_proj), heads(layer.k_proj).repeat_interleave(self.group_size, 0)  # (H, T, D)
        later = torch.ones(len(x), len(x), dtype=torch.bool, device=x.device).triu(1)
        scores = q @ k.mT * self.head_dim**-0.5
        return scores.masked_fill(later, -torch.inf).softmax(-1)


def config_of(model: Any) -> ModelConfig:
    """The model's config. Errors: InputError for anything that is no Decoder."""
    config = getattr(model, "config", None)
    if not isinstance(config, ModelConfig):
        raise InputError(f"model is a {type(model).__name__}: expected what load_model or tiny_model gives")
    return config


def check_convertible(model: Any) -> ModelConfig:
    """The config of a model whose keys and values are linear in a layer's input, and visible to all queries.

    Errors: InputError for any other model, with the reason.
    """
    config = config_of(model)
    if config.is_latent:
        raise InputError("this model has multi-head latent attention already: give one with kv heads")
    if config.qk_norm:
        raise InputError(
            "this model norms every head's keys (qk_norm): the normed keys are no linear map of a shared latent, "
            "so it cannot become MLA"
        )
    if config.attention_bias:
        raise InputError(
            "this model has biases on q, k and v (attention_bias), and MLA has none on its queries"
        )
    if any(config.window(layer) is not None for layer in range(config.num_layers)):
        raise InputError("this model has sliding windows, which our MLA layers have not")
    return config
