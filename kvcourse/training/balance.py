"""The same function with weights of even size, so that one learning rate suits all of them."""

from typing import Any

import torch
from torch import Tensor

from kvcourse.errors import InputError


@torch.no_grad()
def balance(model: Any) -> Any:
    """Scale the two factors of every latent and rotary dimension alike, in place, and return the model.

    A latent c may be c · s when its up-projection is divided by s, and a rotary key when its query is; a low-rank fit
    leaves factors that differ a thousandfold. AdamW moves every weight by about the learning rate whatever its size,
    so the small factor would be overwritten while the large one stands still. Afterwards the rows of
    kv_a_proj_with_mqa have the root mean square of what they are multiplied with.

    model: as `to_latent` makes it: latents without norms, plain queries, half-split rotary pairs, no biases on them.
    Errors: InputError for any other, whose function this would change.
    """
    config = model.config
    if not config.is_latent or config.latent_norm:
        raise InputError(
            "balance: expected a model from to_latent; norms and kv heads fix the size of their input"
        )
    if config.q_lora_rank is not None or config.rope_interleave or config.attention_bias:
        raise InputError(
            "balance: expected a model from to_latent, without q_lora_rank, rope_interleave and attention_bias"
        )
    rank, half = config.kv_lora_rank, config.rope_dim // 2
    for layer in model.layers:
        attention = layer.self_attn
        down, up = attention.kv_a_proj_with_mqa.weight, attention.kv_b_proj.weight
        heads = attention.q_proj.weight.unflatten(0, (config.num_heads, -1))  # (H, D_n + D_r, hidden), a view
        scale = _even(down[:rank], up.mT)  # (R,)
        down[:rank] *= scale[:, None]
        up /= scale
        # The two numbers of a rotary pair are turned into each other: they share one scale.
        key = down[rank:].unflatten(0, (2, half))  # (2, D_r / 2, hidden), a view
        query = heads[:, config.qk_nope_head_dim :].unflatten(1, (2, half))  # (H, 2, D_r / 2, hidden), a view
        scale = _even(key.transpose(0, 1).flatten(1), query.movedim(2, 0).flatten(1))  # (D_r / 2,)
        key *= scale[:, None]
        query /= scale[:, None]
    return model


def _even(rows: Tensor, others: Tensor) -> Tensor:
    """What to multiply each of `rows` by, and divide the same of `others` by, for equal root mean squares.

    Rows without any energy on either side stay as they are.
    """
    sizes, wanted = (each.square().mean(1).sqrt() for each in (rows, others))
    return torch.where((sizes > 0) & (wanted > 0), (wanted / sizes).sqrt(), 1.0)
