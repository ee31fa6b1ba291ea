"""Rotary position embeddings (Su et al. 2021, RoFormer, §3.4) and the scalings that stretch them.

Frequencies and angles are float32 whatever the model computes in: checkpoints are trained and served that way,
and at position 100,000 float64 would move an angle by up to a hundredth of a radian. They never change while a
sequence grows, because cached keys were turned with them.
"""

import math

import torch
from torch import Tensor

from kvcourse.config import ModelConfig


def frequencies(config: ModelConfig, device: torch.device | str = "cpu") -> tuple[Tensor, float]:
    """Angle per position of each pair of numbers, and the factor on cos and sin (1 except YaRN, LongRoPE).

    Returns: (rope_dim / 2,) float32 in radians per token, rope_dim being head_dim or MLA's qk_rope_head_dim; or
    (num_layers, rope_dim / 2) where the config gives each layer its own `rope_frequencies`; and a float.

    Scalings: "linear" (positions divided), "dynamic" (NTK: a larger base; the identity up to
    max_position_embeddings, which is all this decoder runs), "llama3" (Llama 3.1: only slow pairs are stretched),
    "yarn" (Peng et al. 2023, §3.4), "longrope" (Ding et al. 2024: factors per pair; the long set, when
    max_position_embeddings exceeds the trained length).
    """
    if config.rope_frequencies is not None:
        return torch.tensor(config.rope_frequencies, dtype=torch.float32, device=device), 1.0
    half = torch.arange(0, config.rope_dim, 2, dtype=torch.float32, device=device) / config.rope_dim
    plain = 1.0 / config.rope_theta**half  # (rope_dim / 2,)
    scaling = config.rope_scaling
    if not scaling:
        return plain, 1.0
    kind = scaling["rope_type"]
    if kind == "linear":
        return plain / scaling["factor"], 1.0
    if kind == "dynamic":
        return plain, 1.0
    if kind == "llama3":
        return _llama3(plain, scaling), 1.0
    if kind == "yarn":
        return _yarn(config, plain, scaling)
    return _longrope(config, half, scaling)


def _llama3(plain: Tensor, scaling: dict) -> Tensor:
    """Pairs that turn often within the trained length stay, slow ones are stretched, a ramp lies between."""
    length, low, high = (
        scaling["original_max_position_embeddings"], scaling["low_freq_factor"], scaling["high_freq_factor"],
    )  # fmt: skip
    wavelength = 2 * math.pi / plain  # (rope_dim / 2,)
    keep = ((length / wavelength - low) / (high - low)).clamp(0, 1)
    return plain * keep + plain / scaling["factor"] * (1 - keep)


def _yarn(config: ModelConfig, plain: Tensor, scaling: dict) -> tuple[Tensor, float]:
    """ "NTK by parts": a ramp over pair indices between beta_fast and beta_slow turns in the trained length."""
    trained = scaling["original_max_position_embeddings"]
    factor = scaling.get("factor") or config.max_position_embeddings / trained

    def pair_that_turns(times: float) -> float:
        return config.rope_dim * math.log(trained / (times * 2 * math.pi)) / (2 * math.log(config.rope_theta))

    low = pair_that_turns(scaling.get("beta_fast") or 32)
    high = pair_that_turns(scaling.get("beta_slow") or 1)
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, config.rope_dim - 1)
    index = torch.arange(config.rope_dim // 2, dtype=torch.float32, device=plain.device)
    stretch = ((index - low) / ((high - low) or 0.001)).clamp(0, 1)  # 0.001: a step instead of 0/0

    def magnitude(mscale: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0

    attention_factor = scaling.get("attention_factor")
    if attention_factor is None:
        mscale, all_dim = scaling.get("mscale"), scaling.get("mscale_all_dim")
        attention_factor = magnitude(mscale) / magnitude(all_dim) if mscale and all_dim else magnitude(1)
    return plain * (1 - stretch) + plain / factor * stretch, float(attention_factor)


def _longrope(config: ModelConfig, half: Tensor, scaling: dict) -> tuple[Tensor, float]:
    trained = scaling["original_max_position_embeddings"]
    factor = scaling.get("factor") or config.max_position_embeddings / trained
    which = "long_factor" if config.max_position_embeddings > trained else "short_factor"
    stretch = torch.tensor(scaling[which], dtype=torch.float32, device=half.device)
    attention_factor = scaling.get("attention_factor")
    if attention_factor is None:
        attention_factor = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(trained))
    return 1.0 / (stretch * config.rope_theta**half), float(attention_factor)


def rotations(freqs: Tensor, positions: Tensor, factor: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """cos and sin for each position, ready for `rotate`.

    freqs: (rope_dim / 2,); positions: (batch, tokens). Returns two (batch, 1, tokens, rope_dim) tensors.
    """
    angles = positions[:, None, :, None].float() * freqs  # (batch, 1, tokens, rope_dim / 2)
    angles = torch.cat((angles, angles), dim=-1)
    return (angles.cos() * factor).to(dtype), (angles.sin() * factor).to(dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor, interleave: bool = False) -> Tensor:
    """Turn the pairs (x[i], x[i + rope_dim / 2]): the half-split order of Hugging Face checkpoints.

    interleave: the pairs of x are (x[0], x[1]), (x[2], x[3]), … as in DeepSeek's checkpoints. They come out in
    half-split order; queries and keys are reordered alike, so scores do not notice.
    x: (batch, heads, tokens, rope_dim).
    """
    if interleave:
        x = x.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin
