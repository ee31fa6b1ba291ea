"""Slow and simple implementations that the tests trust: float64, loops, nothing shared with the package."""

import types

import numpy as np
import torch


class DenseRows:
    """Every key and value of every layer and row in Python lists; attention one query at a time.

    `windows` holds one entry a layer: None for full attention, else how many tokens a query sees, itself
    included.
    """

    def __init__(self, batch_size, windows):
        self.windows = list(windows)
        self.keys = [[[] for _ in range(batch_size)] for _ in windows]
        self.values = [[[] for _ in range(batch_size)] for _ in windows]

    def attend(self, layer, row, q, k, v):
        """Append k and v (num_kv_heads, T, D) of one row, then attend with q (num_heads, T, D).

        Returns (num_heads, T, D).
        """
        q, k, v = (torch.as_tensor(x).double().numpy().copy() for x in (q, k, v))
        keys, values = self.keys[layer][row], self.values[layer][row]
        first = len(keys)
        for t in range(k.shape[1]):
            keys.append(k[:, t])
            values.append(v[:, t])
        out = np.zeros(q.shape[:2] + v.shape[2:])
        group = q.shape[0] // k.shape[0]
        # (num_heads, tokens, D): query head h reads kv head h // group
        all_keys = np.stack(keys, axis=1).repeat(group, axis=0)
        all_values = np.stack(values, axis=1).repeat(group, axis=0)
        window = self.windows[layer]
        for t in range(q.shape[1]):
            last = first + t
            start = 0 if window is None else max(0, last - window + 1)
            seen_keys, seen_values = all_keys[:, start : last + 1], all_values[:, start : last + 1]
            scores = np.einsum("hd,hnd->hn", q[:, t], seen_keys) / np.sqrt(q.shape[2])
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            out[:, t] = np.einsum("hn,hnd->hd", weights, seen_values) / weights.sum(axis=1, keepdims=True)
        return out

    def crop(self, keep):
        """Keep the first `keep[row]` tokens of every row."""
        for layers in (self.keys, self.values):
            for rows in layers:
                for row, length in enumerate(keep):
                    del rows[row][length:]

    def copy(self):
        """A copy that shares no list."""
        other = DenseRows(0, self.windows)
        other.keys = [[list(row) for row in rows] for rows in self.keys]
        other.values = [[list(row) for row in rows] for rows in self.values]
        return other


def in_float64(hf_model):
    """The transformers model itself, computing in float64.

    `.double()` is not enough: transformers normalises in float32 whatever the dtype, which leaves errors of about
    1e-6 in the logits, so the norms are replaced. The rotary angles stay as they are, float32: the frequencies
    that a model was trained with are part of the model, and ours must be the same numbers.
    """

    def norm(self, x):
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)

    hf_model = hf_model.double().eval()
    for module in hf_model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = types.MethodType(norm, module)
    return hf_model


def left_padded(rows, pad=0):
    """Rows of token ids as (input_ids, attention_mask), both (batch, longest row), padding first."""
    longest = max(len(row) for row in rows)
    ids = torch.tensor([[pad] * (longest - len(row)) + list(row) for row in rows])
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])
    return ids, mask


def positions_of(mask):
    """Position of every real token of a left-padded batch; padding gets 0."""
    return (mask.cumsum(-1) - 1).clamp(min=0)
