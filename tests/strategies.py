"""Hypothesis strategies that the tests share.

Every test here is deterministic: examples come from a fixed seed and no database of failures is kept.
"""

from hypothesis import settings
from hypothesis import strategies as st

FEW = settings(max_examples=12, deadline=None, derandomize=True, database=None)
MANY = settings(max_examples=40, deadline=None, derandomize=True, database=None)

# What a model can differ in as far as its cache is concerned: keyword arguments of `kvcourse.tiny_model`.
# Dimensions are not powers of two; a token leaves heads (MHA, GQA, MQA) or a latent and a rotary key (MLA).
CACHE_VARIANTS = {
    "mha": {"num_heads": 3, "num_kv_heads": 3, "head_dim": 6},
    "gqa": {"num_heads": 6, "num_kv_heads": 2, "head_dim": 10},
    "mqa": {"num_heads": 5, "num_kv_heads": 1, "head_dim": 2},
    "qk_norm": {"num_heads": 4, "num_kv_heads": 2, "head_dim": 6, "qk_norm": True, "attention_bias": True},
    "window_1": {"sliding_window": 1, "layer_types": ("sliding_attention",) * 2},
    "window_4": {"sliding_window": 4, "layer_types": ("sliding_attention",) * 2},
    "window_then_full": {"sliding_window": 3, "layer_types": ("sliding_attention", "full_attention")},
    "full_then_window": {"sliding_window": 7, "layer_types": ("full_attention", "sliding_attention")},
    "mla": {"num_heads": 3, "head_dim": 6, "kv_lora_rank": 10},
    "mla_unequal_dims": {
        "num_heads": 5,
        "kv_lora_rank": 7,
        "q_lora_rank": 9,
        "qk_nope_head_dim": 3,
        "qk_rope_head_dim": 4,
        "v_head_dim": 5,
        "rope_interleave": True,
    },
    "mla_own_frequencies": {
        "num_heads": 2,
        "kv_lora_rank": 12,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 4,
        "v_head_dim": 8,
        "latent_norm": False,
        "rope_frequencies": ((1.0, 0.3), (0.2, 0.01)),
    },
}


def splits(total):
    """Lists of positive chunk sizes that add up to `total`."""
    if total == 1:
        return st.just([1])
    cuts = st.sets(st.integers(1, total - 1)).map(sorted)
    return cuts.map(lambda c: [b - a for a, b in zip([0, *c], [*c, total], strict=True)])


def ragged_calls(max_rows=3, max_calls=4, max_tokens=6):
    """A list of calls; each call lists how many new tokens every row of the batch gets (at least 1)."""
    return st.integers(1, max_rows).flatmap(
        lambda rows: st.lists(
            st.lists(st.integers(1, max_tokens), min_size=rows, max_size=rows), min_size=1, max_size=max_calls
        )
    )


def head_counts():
    """(num_heads, num_kv_heads) with every group size from MHA to MQA."""
    return st.tuples(st.integers(1, 3), st.integers(1, 4)).map(lambda t: (t[0] * t[1], t[0]))


def windows(max_window=12):
    """A sliding window in tokens (the query included), or None for full attention."""
    return st.one_of(st.none(), st.integers(1, max_window))


def cache_variants():
    """Names of `CACHE_VARIANTS`."""
    return st.sampled_from(sorted(CACHE_VARIANTS))


def seeds():
    """Seeds of the random numbers of one example."""
    return st.integers(0, 2**16)
