"""Right answers to the exercises of chapter 0 in other words than the course's."""

from learner import Variant

VARIANTS = {
    "ex-0-shared-prompt": [
        Variant(
            "what is not stored again", "return system * (len(own) - 1) / (system * len(own) + sum(own))"
        ),
        Variant(
            "a loop and a helper in an earlier cell",
            """
everything = total([system + tokens for tokens in own])
return (everything - total([system]) - total(own)) / everything
""",
            """
def total(numbers):
    result = 0
    for number in numbers:
        result += number
    return result
""",
        ),
        Variant(
            "numpy, and a number of numpy",
            "own = np.asarray(own)\nreturn 1 - (system + own.sum()) / (system + own).sum()",
            "import numpy as np",
        ),
    ],
    "ex-0-longest-context": [
        Variant(
            "two divisions and an early return",
            """
weights = math.ceil(Fraction(parameters * bits, 8))
if weights >= card_bytes:
    return 0
return (card_bytes - weights) // requests // token_bytes
""",
            "import math\nfrom fractions import Fraction",
        ),
        Variant(
            "divmod, and bits all the way",
            """
weights, rest = divmod(parameters * bits, BITS)
if rest:
    weights += 1
room = card_bytes - weights
return room // token_bytes // requests if room > 0 else 0
""",
            "BITS = 8",
        ),
        Variant(
            "a search by halving",
            """
def fits(tokens):
    return 8 * tokens * token_bytes * requests + 8 * ((parameters * bits + 7) // 8) <= 8 * card_bytes

low, high = 0, card_bytes + 1
while high - low > 1:
    middle = (low + high) // 2
    low, high = (middle, high) if fits(middle) else (low, middle)
return low
""",
        ),
    ],
    "ex-0-equal-reads": [
        Variant(
            "running sums",
            """
for index, tokens in enumerate(itertools.accumulate(lengths)):
    if tokens * token_bytes >= weight_bytes:
        return index + 1
""",
            "import itertools",
        ),
        Variant(
            "recursion",
            """
def joined(missing, count):
    if count == len(lengths):
        return None
    missing -= lengths[count] * token_bytes
    return count + 1 if missing <= 0 else joined(missing, count + 1)

return joined(weight_bytes, 0)
""",
        ),
        Variant(
            "every batch summed anew",
            """
counts = range(1, len(lengths) + 1)
enough = (n for n in counts if token_bytes * sum(lengths[:n]) >= weight_bytes)
return next(enough, None)
""",
        ),
    ],
}
