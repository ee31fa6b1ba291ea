"""Tiny float64 models and numbers that the cases share, and what counts as equal and as different there."""

import torch
from tiny_models import VOCAB

import kvcourse as kv


def tiny(**fields):
    return kv.tiny_model(vocab_size=VOCAB, dtype=torch.float64, **fields)


def numbers(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def same(a, b):
    return torch.allclose(a, b, rtol=0, atol=1e-10)


def far(a, b):
    """Apart by more than any rounding, so that the fault would be noticed."""
    return (a - b).abs().max() > 1e-3


def step_by_step(model, ids, sizes=None):
    """Logits of all tokens, given to a cache in pieces of these sizes; one by one by default."""
    cache = kv.KVCache(model.config, batch_size=ids.shape[0])
    return torch.cat([model(piece, cache=cache) for piece in ids.split(sizes or 1, 1)], 1)
