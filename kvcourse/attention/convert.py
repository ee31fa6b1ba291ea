"""A trained model with another kind of attention: fewer kv heads, more of them, or multi-head latent attention.

Fewer heads change the function: Ainslie et al. 2023 (GQA, arXiv 2305.13245), §2.1, pool the heads of a trained model
and then train on for a while. More heads do not: every copy does what the original did. MLA (after TransMLA, Meng et
al. 2025, arXiv 2502.07864) keeps the function at full size and approximates it below.
All return a new model that shares no memory with the old one, ready to run and without gradients.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from kvcourse.attention.calibration import Calibration, calibrate, check_convertible, config_of
from kvcourse.attention.latent_fit import GroupedHeads, fit
from kvcourse.attention.rope import frequencies
from kvcourse.config import ModelConfig
from kvcourse.counts import read_count
from kvcourse.errors import InputError

__all__ = ["METHODS", "Calibration", "calibrate", "fewer_heads", "more_heads", "to_latent"]

METHODS = ("mean", "first", "random")  # GQA, §2.1 and figure 4: best first

_KV_WEIGHTS = (
    "self_attn.k_proj.weight", "self_attn.v_proj.weight", "self_attn.k_proj.bias", "self_attn.v_proj.bias",
)  # fmt: skip


def fewer_heads(model: Any, num_kv_heads: int, method: str = "mean", seed: int = 0) -> Any:
    """A model in which neighbouring kv heads are pooled into one.

    model: a Decoder with kv heads (MHA or GQA). num_kv_heads: a divisor of its number; 1 makes it MQA.
    method: what becomes of each pooled group. "mean": the average of its projections. "first": its first head.
    "random": new normal weights with the spread of the old projection and no bias, the paper's baseline; `seed`
    decides them.

    Biases are pooled as weights are. With qk_norm the pooled key is normed afterwards, by the norm that all heads
    share. Errors: InputError for an MLA model, a number that does not divide, or an unknown method.
    """
    old = _kv_heads(model)
    num_kv_heads = read_count("num_kv_heads", num_kv_heads, most=old)
    if old % num_kv_heads:
        raise InputError(
            f"num_kv_heads={num_kv_heads}: the model has {old}, and pooling makes groups of one size; "
            f"expected one of {', '.join(str(n) for n in range(1, old + 1) if old % n == 0)}"
        )
    if method not in METHODS:
        raise InputError(f"method={method!r}: expected one of {', '.join(METHODS)}")
    generator = torch.Generator().manual_seed(read_count("seed", seed, least=0))

    def pool(heads: Tensor) -> Tensor:
        groups = heads.unflatten(0, (num_kv_heads, -1))  # (new heads, group, head_dim[, hidden])
        if method == "mean":
            return groups.mean(1)
        if method == "first":
            return groups[:, 0]
        is_bias = heads.dim() == 2
        spread = 0.0 if is_bias else heads.double().square().mean().sqrt().item()
        drawn = torch.randn(groups[:, 0].shape, generator=generator, dtype=torch.float64)
        return (drawn * spread).to(heads)

    return _with_kv_heads(model, num_kv_heads, pool)


def more_heads(model: Any, num_kv_heads: int) -> Any:
    """The same function with every kv head copied, as MHA would compute it: exactly equal, only larger.

    model: a Decoder with kv heads. num_kv_heads: a multiple of its number that divides num_heads. Copies stay next to
    each other, because query head h reads kv head h // group_size.

    Errors: InputError for an MLA model, or a number that is no such multiple.
    """
    old = _kv_heads(model)
    num_heads = model.config.num_heads
    num_kv_heads = read_count("num_kv_heads", num_kv_heads, least=old, most=num_heads)
    if num_kv_heads % old or num_heads % num_kv_heads:
        possible = [n for n in range(old, num_heads + 1, old) if num_heads % n == 0]
        raise InputError(
            f"num_kv_heads={num_kv_heads}: expected a multiple of the model's {old} that divides its "
            f"{num_heads} heads: one of {', '.join(map(str, possible))}"
        )
    return _with_kv_heads(model, num_kv_heads, lambda heads: heads.repeat_interleave(num_kv_heads // old, 0))


def to_latent(model: Any, rank: int, rope_dim: int, calibration: Calibration) -> Any:
    """A model with multi-head latent attention that stores rank + rope_dim numbers a token and layer.

    model: a Decoder with kv heads, without biases on q, k and v, qk_norm or sliding windows. rank: width of the
    latent, at most 2 · num_kv_heads · head_dim − rope_dim. rope_dim: width of the shared rotary key, even, at most
    num_kv_heads · head_dim. At both limits the function is the same, and nothing is saved. calibration: of this
    model, by `calibrate`.

    How rotary pairs and latent are chosen: kvcourse/attention/latent_fit.py. The new config has latent_norm=False,
    since an RMSNorm would lose the length of the latent, and explicit rope_frequencies for every layer.
    Errors: InputError for such a model, sizes out of range, or the calibration of a model of another shape.
    """
    config = check_convertible(model)
    widest = config.num_kv_heads * config.head_dim
    rope_dim = read_count("rope_dim", rope_dim, least=2, most=widest)
    if rope_dim % 2:
        raise InputError(f"rope_dim={rope_dim} is odd: rotary embeddings turn pairs of numbers")
    rank = read_count("rank", rank, most=2 * widest - rope_dim)
    _check_calibration(config, calibration)

    angles, factor = frequencies(config, model.device)
    scale = factor * factor * ((config.head_dim + rope_dim) / config.head_dim) ** 0.5
    state, rope_frequencies = model.state_dict(), []
    for i in range(config.num_layers):
        name = f"layers.{i}.self_attn"
        weight = {p: state.pop(f"{name}.{p}_proj.weight").double().cpu() for p in "qkv"}
        w_q, w_k, w_v = (weight[p].unflatten(0, (-1, config.head_dim)) for p in "qkv")
        w_o = (
            state[f"{name}.o_proj.weight"].double().cpu().unflatten(1, (-1, config.head_dim)).transpose(0, 1)
        )
        heads = GroupedHeads(w_q, w_k, w_v, w_o)
        try:
            latent = fit(heads, angles.double().cpu(), calibration.layers[i], rank, rope_dim)
        except torch.linalg.LinAlgError:
            raise InputError(
                f"layer {i}: its projections or its calibration are NaN, infinite or zero: give a trained model, "
                "and a calibration that `calibrate` made of it"
            ) from None
        new = {
            # MLA divides scores by the root of D + rope_dim, the heads did by that of D.
            "q_proj": torch.cat((latent.w_nope, latent.w_rope), 1).flatten(0, 1) * scale,
            "kv_a_proj_with_mqa": torch.cat((latent.w_down, latent.w_key)),
            "kv_b_proj": torch.cat((latent.w_uk, latent.w_uv), 1).flatten(0, 1),
        }
        state |= {f"{name}.{key}.weight": w.to(model.device, model.dtype) for key, w in new.items()}
        rope_frequencies.append(tuple(latent.frequencies.tolist()))
    latent_config = replace(
        config, num_kv_heads=config.num_heads, kv_lora_rank=rank, qk_nope_head_dim=config.head_dim,
        qk_rope_head_dim=rope_dim, v_head_dim=config.head_dim, latent_norm=False, rope_scaling=None,
        sliding_window=None, rope_frequencies=tuple(rope_frequencies),
    )  # fmt: skip
    return rebuild(model, latent_config, state)


def _check_calibration(config: ModelConfig, calibration: Any) -> None:
    if not isinstance(calibration, Calibration):
        raise InputError(
            f"calibration is a {type(calibration).__name__}: expected what calibrate(model, ids) returns"
        )
    expected = (config.hidden_size, config.hidden_size), (config.num_heads, config.head_dim // 2)
    shapes = {(tuple(layer.keys.shape), tuple(layer.turning.shape)) for layer in calibration.layers}
    if len(calibration.layers) != config.num_layers or shapes != {expected}:
        raise InputError("the calibration is of a model of another shape: run calibrate on this model")


def rebuild(model: Any, config: ModelConfig, state: dict[str, Tensor]) -> Any:
    """A model of the same class with another config and other weights; the tokenizer is carried over.

    state: every tensor by name, tied ones included. They become the new model's own memory.
    """
    with torch.device("meta"):
        new = type(model)(config)
    new.load_state_dict({name: tensor.detach().clone() for name, tensor in state.items()}, assign=True)
    new.tie_weights()
    new.tokenizer = model.tokenizer
    return new.eval().requires_grad_(False)


def _kv_heads(model: Any) -> int:
    if config_of(model).is_latent:
        raise InputError("this model has multi-head latent attention, which has no kv heads to pool or copy")
    return model.config.num_kv_heads


def _with_kv_heads(model: Any, num_kv_heads: int, change: Callable[[Tensor], Tensor]) -> Any:
    """`change` maps (kv heads, head_dim, hidden), or (kv heads, head_dim) of a bias, to the new number of heads."""
    state = model.state_dict()
    for name, tensor in state.items():
        if name.endswith(_KV_WEIGHTS):
            heads = tensor.detach().unflatten(0, (model.config.num_kv_heads, -1))
            state[name] = change(heads).flatten(0, 1)
    return rebuild(model, replace(model.config, num_kv_heads=num_kv_heads), state)
