"""Right answers to the exercises of chapter 1 in other words than the course's."""

from learner import Variant

VARIANTS = {
    "ex-1-packed-positions": [
        Variant(
            "two loops",
            """
rows = []
for numbers in document.tolist():
    row = []
    for column, number in enumerate(numbers):
        fresh = column == 0 or number != numbers[column - 1]
        row.append(0 if fresh else row[-1] + 1)
    rows.append(row)
return torch.tensor(rows, dtype=torch.int64).reshape(document.shape)
""",
        ),
        Variant(
            "numpy and itertools",
            """
result = np.zeros(tuple(document.shape), dtype=np.int64)
for row, numbers in enumerate(document.numpy()):
    column = 0
    for _, group in groupby(numbers.tolist()):
        size = len(list(group))
        result[row, column : column + size] = np.arange(size)
        column += size
return torch.from_numpy(result)
""",
            "import numpy as np\nfrom itertools import groupby",
        ),
        Variant(
            "a column after the other, with a helper class",
            """
counter = Counter(document[:, 0]) if document.shape[1] else None
columns = [counter.next(column) for column in document.unbind(1)]
return torch.stack(columns, 1) if columns else document.long()
""",
            """
class Counter:
    def __init__(self, numbers):
        self.numbers, self.position = numbers, torch.full_like(numbers, -1, dtype=torch.long)

    def next(self, numbers):
        self.position = torch.where(numbers == self.numbers, self.position + 1, 0)
        self.numbers = numbers
        return self.position
""",
        ),
    ],
    "ex-1-fused-append": [
        Variant(
            "zeros behind the old array, returned as copies",
            """
tokens = k.size(-2)
capacity = self.buffer.size(-2)
if self.length + tokens > capacity:
    wanted = self.length + tokens
    if wanted < int(1.5 * capacity):
        wanted = int(1.5 * capacity)
    more = torch.zeros(*self.buffer.shape[:3], wanted - capacity, self.buffer.size(-1))
    self.buffer = torch.cat([self.buffer, more], dim=-2)
for kind, new in enumerate((k, v)):
    for token in range(tokens):
        self.buffer[kind, :, :, self.length + token] = new[:, :, token]
self.length += tokens
return self.buffer[0, :, :, : self.length].clone(), self.buffer[1, :, :, : self.length].clone()
""",
        ),
        Variant(
            "pads, writes with narrow, returns with unbind",
            """
old = self.buffer.shape[3]
self.length += k.shape[2]
if self.length > old:
    self.buffer = F.pad(self.buffer, (0, 0, 0, enlarged(old, self.length) - old))
self.buffer.narrow(3, self.length - k.shape[2], k.shape[2]).copy_(torch.stack([k, v]))
return self.buffer[:, :, :, : self.length].unbind(0)
""",
            "import torch.nn.functional as F\n\n\n"
            "def enlarged(old, needed):\n    return max(needed, old + old // 2)",
        ),
    ],
    "ex-1-dropped-cache": [
        Variant(
            "sums of whole stretches",
            """
decoded = sum(range(p + 1, p + n))
again = sum((p + j) * (p + j - 1) for j in range(m, n, m))
return p**2 + decoded + again
""",
        ),
        Variant(
            "recursion on the number of tokens, with a memory",
            "return passes(p, n, m)",
            """
from functools import cache


@cache
def passes(p, n, m):
    if n == 1:
        return p * p
    length = p + n - 1
    return passes(p, n - 1, m) + length * (length if (n - 1) % m == 0 else 1)
""",
        ),
        Variant(
            "plays the server",
            """
text, cached, scores, since = p, 0, 0, 0
for _ in range(n):
    scores += (text - cached) * text
    cached = text
    text += 1
    since += 1
    if since == m:
        cached, since = 0, 0
return scores
""",
        ),
    ],
    "ex-1-empty-share": [
        Variant(
            "a helper that calls itself",
            """
slots = [fitting(length, first) for length in lengths]
return sum(s - length for s, length in zip(slots, lengths)) / sum(slots)
""",
            "def fitting(length, slots):\n    return slots if slots >= length else fitting(length, 2 * slots)",
        ),
        Variant(
            "numpy, and a number of numpy",
            """
lengths = np.array(lengths)
slots = np.full(len(lengths), first)
while (slots < lengths).any():
    slots = np.where(slots < lengths, slots * 2, slots)
return (slots - lengths).sum() / slots.sum()
""",
            "import numpy as np",
        ),
        Variant(
            "powers from the length of the quotient in bits",
            """
total = 0
for length in lengths:
    quotient = -(-length // first)
    total += first * 2 ** (quotient - 1).bit_length()
return float(total - sum(lengths)) / total
""",
        ),
    ],
}
