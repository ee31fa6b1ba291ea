"""Multi-head latent attention written down from DeepSeek-V2 (arXiv 2405.04434, §2.1 and appendix C), in float64.

A whole model, without a cache: every key and value of every head is made, one head and one query at a time. Its
arguments plant the faults of the M cases.
"""

import torch

EPS_OF_LATENTS = 1e-6  # of the norms on latents in DeepSeek's own code, whatever the other norms have


def latent_logits(model, ids, scale=None, rotate_keys=True, rope_first=False, table=None):
    """Logits (1, tokens, vocab) of a dense model for ids (1, tokens), from its config and its weights alone.

    scale: of the scores; (nope + rope) ** -0.5 by default. rotate_keys: False leaves the shared key as it is.
    rope_first: takes the rotary key from the front of the down-projection. table: makes the angles for a rotary
    part of that size.
    """
    config, weights = model.config, model.state_dict()
    x = weights["embed_tokens.weight"][ids[0]]  # (tokens, hidden)
    scale = scale or (config.qk_nope_head_dim + config.qk_rope_head_dim) ** -0.5
    for layer in range(config.num_layers):
        w = {
            name.removeprefix(f"layers.{layer}."): value
            for name, value in weights.items()
            if name.startswith(f"layers.{layer}.")
        }
        normed = rms_norm(x, w["input_layernorm.weight"], config.rms_norm_eps)
        attended = latent_attention(config, w, normed, scale, rotate_keys, rope_first, table)
        x = x + attended @ w["self_attn.o_proj.weight"].T
        normed = rms_norm(x, w["post_attention_layernorm.weight"], config.rms_norm_eps)
        gate, up = normed @ w["mlp.gate_proj.weight"].T, normed @ w["mlp.up_proj.weight"].T
        x = x + (gate / (1 + torch.exp(-gate)) * up) @ w["mlp.down_proj.weight"].T
    return (rms_norm(x, weights["norm.weight"], config.rms_norm_eps) @ weights["lm_head.weight"].T)[None]


def latent_attention(config, w, x, scale, rotate_keys, rope_first, table):
    """x: (tokens, hidden), normed. Returns (tokens, num_heads * v_head_dim)."""
    length, rank = len(x), config.kv_lora_rank
    nope, rope, value = config.qk_nope_head_dim, config.qk_rope_head_dim, config.v_head_dim
    positions = torch.arange(length)

    def turned(pairs):
        return rotate_pairs(pairs, positions, config.rope_theta, config.rope_interleave, table)

    if config.q_lora_rank is None:
        queries = x @ w["self_attn.q_proj.weight"].T
    else:
        small = x @ w["self_attn.q_a_proj.weight"].T
        small = rms_norm(small, w["self_attn.q_a_layernorm.weight"], EPS_OF_LATENTS)
        queries = small @ w["self_attn.q_b_proj.weight"].T
    queries = queries.view(length, config.num_heads, nope + rope)
    down = x @ w["self_attn.kv_a_proj_with_mqa.weight"].T  # (tokens, rank + rope)
    latent, shared = (down[:, rope:], down[:, :rope]) if rope_first else (down[:, :rank], down[:, rank:])
    latent = rms_norm(latent, w["self_attn.kv_a_layernorm.weight"], EPS_OF_LATENTS)
    shared = turned(shared) if rotate_keys else shared
    made = (latent @ w["self_attn.kv_b_proj.weight"].T).view(length, config.num_heads, nope + value)
    out = torch.zeros(length, config.num_heads, value, dtype=x.dtype)
    for head in range(config.num_heads):
        query, query_turned = queries[:, head, :nope], turned(queries[:, head, nope:])
        for t in range(length):
            scores = made[: t + 1, head, :nope] @ query[t] + shared[: t + 1] @ query_turned[t]
            powers = torch.exp(scale * (scores - scores.max()))
            out[t, head] = powers @ made[: t + 1, head, nope:] / powers.sum()
    return out.flatten(1)


def rms_norm(x, weight, eps):
    """x: (tokens, size)."""
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight


def rotate_pairs(x, positions, theta, interleave=False, table=None):
    """Turn the pairs of x (tokens, size) by position × theta^(-2 i / size); out come first all firsts, then seconds.

    Pairs are (0, 1), (2, 3), … when interleave, else (0, size / 2), (1, size / 2 + 1), … Angles are float32, as
    models are trained with.
    """
    half = x.shape[1] // 2
    first, second = (x[:, 0::2], x[:, 1::2]) if interleave else (x[:, :half], x[:, half:])
    steps = 2 * torch.arange(half).float() / (table or x.shape[1])
    angles = positions[:, None].float() * (1 / theta**steps)  # (tokens, half)
    cos, sin = angles.cos().double(), angles.sin().double()
    return torch.cat((first * cos - second * sin, first * sin + second * cos), 1)
