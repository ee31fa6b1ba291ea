"""Right answers to the exercises of chapter 3 in other words than the course's."""

from learner import Variant

VARIANTS = {
    "ex-3-absorb-output": [
        Variant(
            "a loop over the heads",
            """
heads, value, rank = w_uv.shape
parts = []
for head in range(heads):
    columns = w_o[:, head * value : (head + 1) * value]
    parts.append(columns @ w_uv[head])
return torch.cat(parts, dim=1)
""",
        ),
        Variant(
            "one product with a block matrix",
            "return w_o @ torch.block_diag(*w_uv)",
        ),
        Variant(
            "numpy, with a helper",
            "return torch.from_numpy(joined(w_uv.numpy(), w_o.numpy()))",
            """
import numpy as np


def joined(w_uv, w_o):
    pieces = np.split(w_o, len(w_uv), axis=1)
    return np.concatenate([piece @ one for piece, one in zip(pieces, w_uv)], axis=1)
""",
        ),
    ],
    "ex-3-merge-states": [
        Variant(
            "logsumexp, and softmax of what is there",
            """
lse = lses.logsumexp(dim=0)
weights = (lses - lse).exp().nan_to_num(0.0)
outs = torch.where(lses[..., None] > -torch.inf, outs, torch.zeros_like(outs))
return (weights.unsqueeze(-1) * outs).sum(0), lse
""",
        ),
        Variant(
            "one state after the other",
            """
out, lse = torch.zeros_like(outs[0]), torch.full_like(lses[0], -torch.inf)
for new, new_lse in zip(outs, lses):
    out, lse = two_states(out, lse, new, new_lse)
return [out, lse]
""",
            """
def two_states(a, lse_a, b, lse_b):
    lse = torch.logaddexp(lse_a, lse_b)
    total = torch.zeros_like(a)
    for out, part in ((a, lse_a), (b, lse_b)):
        seen = part != -torch.inf
        weight = torch.where(seen, (part - lse).exp(), 0.0)
        total = total + torch.where(seen[..., None], weight[..., None] * out, 0.0)
    return total, lse
""",
        ),
        Variant(
            "query by query, in plain Python",
            """
out, lse = torch.zeros_like(outs[0]), torch.empty_like(lses[0])
for b in range(lse.shape[0]):
    for h in range(lse.shape[1]):
        for t in range(lse.shape[2]):
            here = [k for k in range(len(lses)) if lses[k, b, h, t] != -torch.inf]
            if not here:
                lse[b, h, t] = -torch.inf
                continue
            most = max(lses[k, b, h, t].item() for k in here)
            weights = [math.exp(lses[k, b, h, t].item() - most) for k in here]
            lse[b, h, t] = most + math.log(sum(weights))
            out[b, h, t] = sum(w * outs[k, b, h, t] for w, k in zip(weights, here)) / sum(weights)
return out, lse
""",
            "import math",
        ),
    ],
    "ex-3-ridge-tokens": [
        Variant(
            "a quotient, rounded up",
            """
one_token = 2 * heads * (rank + rope + rank) / ((rank + rope) * value_bytes)
return max(1, math.ceil(peak / bandwidth / one_token))
""",
            "import math",
        ),
        Variant(
            "times of both, doubling and halving",
            """
def bound_by_memory(tokens):
    work = batch * tokens * heads * (4 * rank + 2 * rope) / peak
    reading = batch * (rank + rope) * value_bytes / bandwidth
    return work < reading
high = 1
while bound_by_memory(high):
    high *= 2
low = high // 2
while high - low > 1:
    middle = (low + high) // 2
    low, high = (middle, high) if bound_by_memory(middle) else (low, middle)
return high
""",
        ),
        Variant(
            "fractions",
            """
need = Fraction(peak) / Fraction(bandwidth)
have = Fraction(2 * heads * (2 * rank + rope), (rank + rope) * value_bytes)
return max(1, -((-need / have) // 1))
""",
            "from fractions import Fraction",
        ),
    ],
    "ex-3-best-factors": [
        Variant(
            "singular vectors of w times a root of the moment",
            """
values, vectors = torch.linalg.eigh(moment)
root = vectors * values.clamp(min=0).sqrt()
u, _, _ = torch.linalg.svd(w @ root)
return u[:, :r], u[:, :r].T @ w
""",
        ),
        Variant(
            "numpy, another scale in the factors",
            """
outputs = (w @ moment @ w.T).numpy()
values, vectors = np.linalg.eigh((outputs + outputs.T) / 2)
best = np.argsort(values)[::-1][:r]
up = torch.from_numpy(vectors[:, best].copy())
return 3.0 * up, up.T @ w / 3.0
""",
            "import numpy as np",
        ),
        Variant(
            "the whole matrix projected, then read off in the directions",
            """
u, s, _ = torch.linalg.svd(w @ moment @ w.mT)
keep = u[:, :r]
projected = keep @ keep.T @ w
return keep, torch.linalg.lstsq(keep, projected).solution
""",
        ),
    ],
}
