"""Exact counts of the floating-point operations of a decoder's matrix products, with and without a cache, and of the
bytes that attention reads for them in a decode step.

A multiply-add counts as two operations. Softmax, norms, activations and RoPE are left out: they are a small share,
and every convention counts them differently. Attention counts the full rectangle of queries × keys that a masked
implementation computes, as `torch.utils.flop_counter` does; a kernel that skips what the mask hides does about half
of it in a prefill.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvcourse.attention.config_reader import ConfigReader, config_dict
from kvcourse.attention.families import FAMILIES, layout_of
from kvcourse.attention.layout import LayerLayout
from kvcourse.codecs.formats import dtype_bytes
from kvcourse.config import ModelConfig
from kvcourse.counts import read_count
from kvcourse.errors import InputError

MOST_STEPS = 1 << 20  # of one generation, far above any model's positions: every step is counted by itself


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


def forward(
    config: Any, tokens: int, past: int = 0, logits: int | None = None, absorbed: bool | None = None
) -> Flops:
    """One forward pass of `tokens` new tokens over `past` cached ones, one sequence.

    config: a ModelConfig, or anything that describes a model that our decoder runs. logits: positions that go through
    the output layer; None: all new ones. A sliding layer holds at most window − 1 past tokens. Of experts, those that
    a token is sent to count, and the router. absorbed: form of multi-head latent attention; None: as the cache runs
    it, absorbed for one token and expanded for more. The expanded form makes keys and values of every cached latent
    again.
    Errors: InputError for counts below zero, no token, more logits than tokens, or a model of another family.
    """
    config = _model_config(config)
    tokens, past = read_count("tokens", tokens), read_count("past", past, least=0)
    scored = tokens if logits is None else read_count("logits", logits, least=0, most=tokens)
    pairs = 0
    for layer in range(config.num_layers):
        window = config.window(layer)
        pairs += tokens * (tokens + (past if window is None else min(past, window - 1)))
    weights = sum(_feed_forward(config, layer) for layer in range(config.num_layers))
    if config.is_latent:
        absorbed = tokens == 1 if absorbed is None else absorbed
        weights += config.num_layers * _latent_projections(config)
        attention = pairs * _latent_pair(config, absorbed)
        if not absorbed:
            attention += config.num_layers * past * _expansion(config)
    else:
        queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        weights += config.num_layers * config.hidden_size * (2 * queries + 2 * keys)
        attention = pairs * 2 * 2 * queries
    return Flops(
        linear=2 * tokens * weights,
        attention=attention,
        head=2 * scored * config.hidden_size * config.vocab_size,
    )


def _feed_forward(config: ModelConfig, layer: int) -> int:
    """Weights that one token meets in a layer's feed-forward: all of a dense one, its own experts of a mixture."""
    if not config.has_experts(layer):
        return 3 * config.hidden_size * config.intermediate_size
    experts = config.experts
    width = (experts.num_experts_per_tok + experts.n_shared_experts) * experts.moe_intermediate_size
    return config.hidden_size * (3 * width + experts.n_routed_experts)


def _latent_projections(config: ModelConfig) -> int:
    """Weights that one token meets in an MLA layer.

    kv_b_proj counts once in both forms: it makes keys and values of the token's own latent (expanded), or takes its
    query to the latents and their average back to a value (absorbed).
    """
    hidden, heads, rank = config.hidden_size, config.num_heads, config.q_lora_rank
    queries = heads * config.qk_head_dim
    query_weights = hidden * queries if rank is None else hidden * rank + rank * queries
    down = hidden * (config.kv_lora_rank + config.rope_dim)
    return query_weights + down + _expansion(config) // 2 + heads * config.v_head_dim * hidden


def _expansion(config: ModelConfig) -> int:
    """FLOPs that make the keys and values of all heads from one latent."""
    return 2 * config.kv_lora_rank * config.num_heads * (config.qk_nope_head_dim + config.v_head_dim)


def _latent_pair(config: ModelConfig, absorbed: bool) -> int:
    """FLOPs of one query meeting one cached token in all heads of an MLA layer."""
    key = config.kv_lora_rank + config.rope_dim if absorbed else config.qk_head_dim
    value = config.kv_lora_rank if absorbed else config.v_head_dim
    return 2 * config.num_heads * (key + value)


def generation(config: Any, new_tokens: int, prompt: int = 1, cached: bool = True) -> Flops:
    """Generate `new_tokens` tokens after a prompt of `prompt` tokens, one position scored a step.

    cached: the prompt once, then one token a step. Otherwise every step runs all tokens so far again.
    """
    config = _model_config(config)
    new_tokens = read_count("new_tokens", new_tokens, most=MOST_STEPS)
    prompt = read_count("prompt", prompt)
    form = None if cached else False
    total = forward(config, prompt, logits=1, absorbed=form)
    for length in range(prompt + 1, prompt + new_tokens):
        tokens, past = (1, length - 1) if cached else (length, 0)
        total += forward(config, tokens, past, logits=1, absorbed=form)
    return total


def _model_config(config: Any) -> ModelConfig:
    return config if isinstance(config, ModelConfig) else ModelConfig.from_hf(config_dict(config))


@dataclass(frozen=True)
class AttentionCost:
    """flops: operations, a multiply-add being two. bytes: moved between memory and the chip."""

    flops: int
    bytes: int

    @property
    def intensity(self) -> float:
        """FLOPs per byte. A machine is bound by memory below its peak FLOP/s ÷ bytes/s (Williams et al. 2009)."""
        return self.flops / self.bytes


def decode_attention(config: Any, context: int, batch: int = 1, dtype: Any = "bf16") -> AttentionCost:
    """Attention of one decode step over the cache, all layers; the absorbed form for MLA.

    Projections, the same for every context, are left out, and so are the bytes of queries and outputs; every cached
    value is read once. The ratio is that of a perfect kernel over a long context.

    config: anything that `kvcourse.memory` takes, of a model with keys and values per head or with MLA.
    context: tokens that the step sees in each of the `batch` sequences, the new one included; a sliding layer sees
    its window.
    Errors: InputError for counts below 1, and for layers that keep something else (fixed states, index keys,
    compressed entries).
    """
    context, batch = read_count("context", context), read_count("batch", batch)
    heads, operations, values = _numbers(config, ("num_attention_heads",))[0], 0, 0
    for layer, times in Counter(layout_of(config)).items():
        key, value = _read_dims(layer)
        entries = layer.fields[0].entries(context)
        operations += times * entries * 2 * heads * (key + value)
        values += times * entries * sum(field.values for field in layer.fields)
    return AttentionCost(batch * operations, batch * values * dtype_bytes(dtype))


def expanded_attention(config: Any, context: int, batch: int = 1, dtype: Any = "bf16") -> AttentionCost:
    """The same step of MLA done the plain way: keys and values of all heads are made from the whole cache.

    bytes: latents and rotary keys read, keys and values written and read again; the rotary key is not copied.
    Errors: as in `decode_attention`; InputError for a model without MLA.
    """
    context, batch = read_count("context", context), read_count("batch", batch)
    names = ("num_attention_heads", "qk_nope_head_dim", "v_head_dim")
    layout = layout_of(config)
    for layer in set(layout):
        if [field.name for field in layer.fields] != ["latent", "rope"]:
            raise InputError("there is nothing to expand: expected a model with multi-head latent attention")
    heads, nope, value = _numbers(config, names)
    rank, rope = (field.values for field in layout[0].fields)
    made = heads * (nope + value)  # of one token
    operations = 2 * rank * made + 2 * heads * (nope + rope + value)
    moved = rank + rope + 2 * made
    tokens = batch * context * len(layout)
    return AttentionCost(tokens * operations, tokens * moved * dtype_bytes(dtype))


def _read_dims(layer: LayerLayout) -> tuple[int, int]:
    """Width of what a query is multiplied with, and of what its weights sum, for one cached token of a layer."""
    shapes = {field.name: field.shape[-1] for field in layer.fields}
    if set(shapes) == {"k", "v"}:
        return shapes["k"], shapes["v"]
    if set(shapes) == {"latent", "rope"}:
        return shapes["latent"] + shapes["rope"], shapes["latent"]
    kept = ", ".join(shapes) or "a fixed state"
    raise InputError(f"a layer of this model keeps {kept}: expected keys and values per head, or MLA")


def _numbers(config: Any, names: tuple[str, ...]) -> list[int]:
    """Fields of a config by their Hugging Face names."""
    if isinstance(config, ModelConfig):
        return [getattr(config, "num_heads" if name == "num_attention_heads" else name) for name in names]
    raw = config_dict(config)
    nested = raw.get("text_config")
    inner = nested if isinstance(nested, Mapping) else raw
    kind = inner.get("model_type") or raw.get("model_type")
    given = {name: value for name, value in inner.items() if value is not None}
    reader = ConfigReader(FAMILIES[kind].defaults | given, kind, names)
    return [reader.num_heads if name == "num_attention_heads" else reader.number(name) for name in names]
