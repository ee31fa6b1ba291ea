"""Explorers of what a token stores: heads to share, and the rank of a latent."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

from kvcourse import flops
from kvcourse.errors import InputError
from kvcourse.figures.explorers import Explorer, bundle

CARD = ("H200", 989e12, 4.8e12)  # name, FLOP/s in bf16, bytes/s


class HeadsExplorer(Explorer):
    """Query heads, kv heads, head dim, context and requests → bytes of the cache and FLOPs per byte that is read.

    MHA, MQA and an MLA of the same query heads stand beside the choice. heads: query heads. kv_heads: a divisor of
    them. layers: of the model. context: tokens a request. batch: requests at once. rank, rope_dim: of the MLA.
    peak: FLOP/s of a card in bf16. bandwidth: bytes/s. card: its name.
    Errors: InputError for a count below 1, heads that kv_heads does not divide, or a card without speed.
    """

    _esm = bundle("heads_explorer.mjs")

    def __init__(
        self, heads=32, kv_heads=8, head_dim=128, layers=32, context=8192, batch=1, rank=512, rope_dim=64,
        peak=CARD[1], bandwidth=CARD[2], card=CARD[0],
    ):  # fmt: skip
        for name, count in (("heads", heads), ("kv_heads", kv_heads), ("rank", rank), ("rope_dim", rope_dim)):
            if isinstance(count, bool) or not isinstance(count, int) or count < 1:
                raise InputError(f"{name}={count!r}: expected a whole number of at least 1")
        if heads % kv_heads:
            raise InputError(
                f"heads={heads}, kv_heads={kv_heads}: expected kv heads that divide the query heads"
            )
        if not 0 < peak < math.inf or not 0 < bandwidth < math.inf:
            raise InputError(f"peak={peak!r}, bandwidth={bandwidth!r}: expected FLOP/s and bytes/s above 0")
        shape = {
            "model_type": "llama", "num_hidden_layers": layers, "num_attention_heads": heads,
            "num_key_value_heads": kv_heads, "head_dim": head_dim,
        }  # fmt: skip
        cost = flops.decode_attention(shape, context, batch)
        text = (
            f"Heads explorer (interactive where JavaScript runs). {heads} query heads, {kv_heads} kv heads of "
            f"{head_dim}, {layers} layers, {context:,} tokens, {batch} at once: a decode step reads "
            f"{cost.bytes:,} bytes and does {cost.intensity:g} FLOPs per byte; {card} can do "
            f"{peak / bandwidth:,.0f}."
        )
        machine = {"card": card, "peak": peak, "bandwidth": bandwidth}
        start = {
            "heads": heads,
            "kv_heads": kv_heads,
            "head_dim": head_dim,
            "context": context,
            "batch": batch,
        }
        data = {"layers": layers, "rank": rank, "rope": rope_dim, "machine": machine}
        super().__init__(text, data=data, start=start)


class RankExplorer(Explorer):
    """Rank of a latent → error and bytes per token, from numbers that the notebook computed.

    ranks: two or more increasing counts. series: {name: one number a rank}; the first is drawn at the start.
    bytes_per_token: one a rank. baseline_bytes: of the model before its conversion. better: "lower" or "higher".
    rank: where the slider starts, by default the middle one.
    Errors: InputError for lists that do not fit together, or numbers that are not finite.
    """

    _esm = bundle("rank_explorer.mjs")

    def __init__(
        self,
        ranks: Sequence[int],
        series: Mapping[str, Sequence[float]],
        bytes_per_token: Sequence[int],
        baseline_bytes: int,
        better: str = "lower",
        rank: int | None = None,
    ):
        ranks, sizes = [int(r) for r in ranks], [int(size) for size in bytes_per_token]
        if len(ranks) < 2 or ranks != sorted(set(ranks)) or ranks[0] < 1:
            raise InputError(f"ranks={ranks}: expected two or more increasing counts of at least 1")
        lists = {"bytes_per_token": sizes} | {
            name: [float(v) for v in values] for name, values in series.items()
        }
        for name, values in lists.items():
            if len(values) != len(ranks) or not all(math.isfinite(value) for value in values):
                raise InputError(
                    f"{name} has {len(values)} numbers for {len(ranks)} ranks: expected a finite one each"
                )
        if not series or baseline_bytes < 1 or better not in ("lower", "higher"):
            raise InputError(
                f"{len(series)} series, baseline_bytes={baseline_bytes!r}, better={better!r}: expected at least one "
                "series, bytes above 0, and 'lower' or 'higher'"
            )
        if rank is not None and rank not in ranks:
            raise InputError(f"rank={rank!r}: expected one of the ranks, {ranks}")
        start = ranks[len(ranks) // 2] if rank is None else rank
        at = ranks.index(start)
        names = list(series)
        said = ", ".join(f"{name} {lists[name][at]:.3g}" for name in names)
        text = (
            f"Rank explorer (interactive where JavaScript runs). Rank {start}: {said}; {sizes[at]:,} bytes per "
            f"token, {sizes[at] / baseline_bytes:.0%} of {baseline_bytes:,} before."
        )
        data = {
            "ranks": ranks, "names": names, "values": [lists[name] for name in names], "bytes": sizes,
            "baseline": int(baseline_bytes), "better": better,
        }  # fmt: skip
        super().__init__(text, data=data, start={"rank": start})


def error_of_rank(singular_values: Sequence[float], ranks: Sequence[int]) -> list[float]:
    """Relative Frobenius error of the best approximation of a matrix by each rank (Eckart and Young 1936).

    singular_values: of the matrix, in falling order. ranks: 0 to their number.
    Errors: InputError for values that rise, are negative or are all zero, or for a rank out of range.
    """
    values = [float(value) for value in singular_values]
    falling = all(a >= b for a, b in pairwise(values))
    if not values or not falling or values[-1] < 0 or not 0 < values[0] < math.inf:
        raise InputError("expected singular values in falling order, none negative and the first above 0")
    outside = [rank for rank in ranks if not 0 <= rank <= len(values)]
    if outside:
        raise InputError(f"rank {outside[0]}: expected 0 to {len(values)}, the number of singular values")
    squares = [(value / values[0]) ** 2 for value in values]  # scaled, so that none under- or overflows
    total = math.fsum(squares)
    return [math.sqrt(math.fsum(squares[rank:]) / total) for rank in ranks]
