"""How many parameters a model has, from its config alone."""

from typing import Any

from kvcourse.attention.config_reader import config_dict
from kvcourse.config import ModelConfig
from kvcourse.errors import InputError
from kvcourse.hf_config import RUNNABLE


def parameter_count(config: Any) -> int:
    """Parameters of a model that the decoder runs, experts included, exactly; a tied head counts once.

    Errors: InputError for other families: give `weight_bytes` or `parameters` there.
    """
    if not isinstance(config, ModelConfig):
        raw = config_dict(config)
        if raw.get("model_type") not in RUNNABLE:
            raise InputError(
                f"cannot count the parameters of a {raw.get('model_type')!r} model (only of "
                f"{', '.join(RUNNABLE)}): give weight_bytes or parameters (--weights on the command line)"
            )
        try:
            config = ModelConfig.from_hf(raw)
        except InputError as error:
            raise InputError(
                f"cannot count the parameters: {error}; or give weight_bytes or parameters (--weights)"
            ) from None
    layers = range(config.num_layers)
    norms = config.num_layers * 2 * config.hidden_size + config.hidden_size
    embeddings = config.vocab_size * config.hidden_size * (1 if config.tie_word_embeddings else 2)
    attention = _latent_parameters(config) if config.is_latent else _head_parameters(config)
    return (
        config.num_layers * attention
        + sum(_feed_forward_parameters(config, layer) for layer in layers)
        + norms
        + embeddings
    )


def _head_parameters(config: ModelConfig) -> int:
    """Of one attention layer with keys and values per head."""
    hidden = config.hidden_size
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    weights = hidden * (queries + 2 * keys) + queries * hidden
    biases = config.attention_bias * (queries + 2 * keys) + config.attention_out_bias * hidden
    return weights + biases + config.qk_norm * 2 * config.head_dim


def _latent_parameters(config: ModelConfig) -> int:
    """Of one MLA layer: down-projections, norms of the latents, up-projections, output."""
    hidden, heads, rank = config.hidden_size, config.num_heads, config.kv_lora_rank
    query_rank = config.q_lora_rank or 0
    queries = heads * config.qk_head_dim * (query_rank or hidden) + hidden * query_rank
    down = hidden * (rank + config.rope_dim)
    up = rank * heads * (config.qk_nope_head_dim + config.v_head_dim)
    out = heads * config.v_head_dim * hidden
    norms = config.latent_norm * (rank + query_rank)
    biases = config.attention_bias * (query_rank + rank + config.rope_dim)
    return queries + down + up + out + norms + biases + config.attention_out_bias * hidden


def _feed_forward_parameters(config: ModelConfig, layer: int) -> int:
    """Of one dense feed-forward; or of all experts, with the router's weights and without its bias, a buffer."""

    def gated(width: int, bias: bool) -> int:
        return 3 * config.hidden_size * width + bias * (2 * width + config.hidden_size)

    if not config.has_experts(layer):
        return gated(config.intermediate_size, config.mlp_bias)
    experts = config.experts
    router = experts.n_routed_experts * config.hidden_size
    routed = experts.n_routed_experts * gated(experts.moe_intermediate_size, False)
    shared = experts.n_shared_experts * experts.moe_intermediate_size
    return router + routed + (gated(shared, config.mlp_bias) if shared else 0)
