"""Batches of rows that differ in length: padding on the left, and a position per row."""

import torch
from torch import Tensor

from kvcourse.errors import InputError


def read_mask(
    attention_mask: Tensor, batch: int, tokens: int, device: torch.device | str | None = None
) -> Tensor:
    """The mask as a boolean (batch, tokens) on `device` (None: where it is), True for tokens.

    Errors: InputError for another shape, values other than 0 and 1, padding that is not on the left, or a row of
    padding only.
    """
    if not isinstance(attention_mask, Tensor) or attention_mask.is_complex() or attention_mask.is_meta:
        what = attention_mask.dtype if isinstance(attention_mask, Tensor) else type(attention_mask).__name__
        raise InputError(f"attention_mask is {what}: expected a tensor of 0 (padding) and 1 (token)")
    attention_mask = attention_mask.to(attention_mask.device if device is None else device)
    if tuple(attention_mask.shape) != (batch, tokens):
        raise InputError(
            f"attention_mask has shape {tuple(attention_mask.shape)}: expected (batch, new tokens) = "
            f"{(batch, tokens)}; it describes the tokens of this call only, a cache remembers the earlier ones"
        )
    valid = attention_mask.bool()
    if (valid != attention_mask).any():
        raise InputError("attention_mask has values other than 0 (padding) and 1 (token)")
    if (valid[:, :-1] & ~valid[:, 1:]).any():
        raise InputError("attention_mask has padding after a token: pad on the left, all zeros first")
    empty = ~valid[:, -1]
    if empty.any():
        raise InputError(
            f"row {int(empty.nonzero()[0])} of attention_mask has no token: give each row at least one"
        )
    return valid


def positions_of(past: Tensor, valid: Tensor) -> Tensor:
    """Position of every new token: past + its index among the row's valid tokens, -1 for padding.

    past: (batch,); valid: (batch, tokens) boolean. Returns (batch, tokens) int64.
    """
    position = past[:, None] + valid.long().cumsum(-1) - 1
    return torch.where(valid, position, -1)
