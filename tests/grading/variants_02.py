"""Right answers to the exercises of chapter 2 in other words than the course's."""

from learner import Variant

VARIANTS = {
    "ex-2-grouped-decode": [
        Variant(
            "a loop over rows and kv heads, on the filled slots alone",
            """
out = torch.zeros(*q.shape[:2], v.shape[-1])
group = q.shape[1] // k.shape[1]
for row, length in enumerate(lengths.tolist()):
    for head in range(k.shape[1]):
        if length:
            mine = slice(head * group, (head + 1) * group)
            scores = q[row, mine] @ k[row, head, :length].T / q.shape[-1] ** 0.5
            out[row, mine] = scores.softmax(-1) @ v[row, head, :length]
return out
""",
        ),
        Variant(
            "one query head after the other",
            """
group = q.shape[1] // k.shape[1]
there = torch.arange(k.shape[2])[None] < lengths[:, None]
heads = [one(q[:, h], k[:, h // group], v[:, h // group], there) for h in range(q.shape[1])]
return torch.stack(heads, 1)
""",
            """
def one(q, k, v, there):
    scores = (k @ q[:, :, None])[..., 0] / q.shape[-1] ** 0.5
    largest = scores.masked_fill(~there, -1e30).max(1, keepdim=True).values
    weights = (scores - largest).exp().masked_fill(~there, 0)
    total = weights.sum(1, keepdim=True)
    weights = weights / total.masked_fill(total == 0, 1)
    return (weights[:, None] @ v.masked_fill(~there[..., None], 0))[:, 0]
""",
        ),
        Variant(
            "torch's own attention, a group's queries as rows",
            """
B, H, D = q.shape
there = (torch.arange(k.shape[2]) < lengths[:, None])[:, None, None]
clean_k, clean_v = (x.masked_fill(~there.transpose(2, 3), 0) for x in (k, v))
out = F.scaled_dot_product_attention(q.unflatten(1, (k.shape[1], -1)), clean_k, clean_v, there)
return out.nan_to_num(0).flatten(1, 2)
""",
            "import torch.nn.functional as F",
        ),
    ],
    "ex-2-norm-pool": [
        Variant(
            "a loop over groups and heads",
            """
heads = list(weight.split(head_dim))
size = len(heads) // keep
pooled = []
for first in range(0, len(heads), size):
    group = heads[first : first + size]
    norms = [float(head.square().sum().sqrt()) for head in group]
    total = sum(norms)
    pooled.append(sum(head * (norm / total if total else 0.0) for head, norm in zip(group, norms)))
return torch.cat(pooled)
""",
        ),
        Variant(
            "einsum, and linalg's norm",
            """
hidden = weight.size(1)
blocks = weight.reshape(keep, -1, head_dim, hidden)
norms = torch.linalg.matrix_norm(blocks)
shares = torch.nan_to_num(norms / norms.sum(1, keepdim=True))
return torch.einsum("gs,gsdh->gdh", shares, blocks).reshape(keep * head_dim, hidden)
""",
        ),
    ],
    "ex-2-cache-per-gpu": [
        Variant(
            "first and last kv head of each GPU",
            """
group, share = heads // kv_heads, heads // gpus
spans = [((g + 1) * share - 1) // group - g * share // group + 1 for g in range(gpus)]
return 2 * layers * head_dim * number * max(spans)
""",
        ),
        Variant(
            "the heads of all GPUs as a table",
            """
table = (torch.arange(heads) // (heads // kv_heads)).view(gpus, -1)
counts = [row.unique().numel() for row in table]
return layers * 2 * max(counts) * head_dim * number
""",
        ),
    ],
    "ex-2-kv-head-budget": [
        Variant(
            "from the most to the least",
            """
for groups in range(1, heads + 1):
    if heads % groups == 0 and 2 * layers * (heads // groups) * head_dim * number <= budget:
        return heads // groups
return None
""",
        ),
        Variant(
            "room in whole heads, then the largest divisor in it",
            """
room = min(heads, budget // (layers * 2 * head_dim * number))
while room > 0 and heads % room:
    room -= 1
return room or None
""",
        ),
        Variant(
            "max over a comprehension",
            """
cost = 2 * head_dim * layers * number
return max((d for d in range(1, heads + 1) if not heads % d and d * cost <= budget), default=None)
""",
        ),
    ],
}
