"""Mistakes in the exercises of chapter 2."""

from learner import Mutant

# Every head, row and slot has its own numbers. Results are rounded: the order of a sum is nobody's mistake.
SETUP = """
import torch
def decoded(heads, kv_heads, lengths, value_dim=3, garbage=0.0):
    generator = torch.Generator().manual_seed(0)
    rows = len(lengths)
    q = torch.randn(rows, heads, 3, generator=generator)
    k = torch.randn(rows, kv_heads, 4, 3, generator=generator)
    v = torch.randn(rows, kv_heads, 4, value_dim, generator=generator)
    for row, length in enumerate(lengths):
        k[row, :, length:] = v[row, :, length:] = garbage
    return [str(x) for x in grouped_decode(q, k, v, torch.tensor(lengths)).round(decimals=3).unbind()]
def pooled(norms, keep, dtype=torch.float64):
    heads = torch.randn(len(norms), 2, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    heads *= (torch.tensor(norms, dtype=torch.float64) / heads.flatten(1).norm(dim=1))[:, None, None]
    weight = heads.flatten(0, 1).to(dtype)
    pooled = norm_pool(weight, 2, keep)
    return pooled.dtype == dtype, tuple(pooled.shape), pooled.double().round(decimals=4), weight
"""

MAPPED = "decoded(4, 2, [4, 4])"
RAGGED = "decoded(4, 2, [1, 3, 4])"
GARBAGE = "decoded(4, 2, [2, 4], garbage=float('nan'))"
EMPTY = "decoded(4, 2, [2, 0])"
NORMS = "pooled([1.0, 3.0, 2.0, 5.0], 2)"
EVEN = "bytes_per_gpu(3, 8, 4, 16, 2)"
COPIES = "bytes_per_gpu(3, 8, 2, 16, 4)"
CUT = "bytes_per_gpu(3, 12, 4, 16, 6)"
BETWEEN = "most_kv_heads(2, 12, 16, 128 * 5)"

MUTANTS = {
    "ex-2-grouped-decode": [
        Mutant(
            "heads tiled",
            "test_each_query_head_reads_its_own_kv_head",
            MAPPED,
            {
                "q.view(B, H_kv, H // H_kv, D)": "q.view(B, H // H_kv, H_kv, D).transpose(1, 2)",
                "(weights @ v).reshape": "(weights @ v).transpose(1, 2).reshape",
            },
        ),
        Mutant(
            "the heads of a group in the wrong places",
            "test_each_query_head_reads_its_own_kv_head",
            MAPPED,
            {"(weights @ v).reshape": "(weights @ v).transpose(1, 2).reshape"},
        ),
        Mutant(
            "one kv head for all",
            "test_each_query_head_reads_its_own_kv_head",
            MAPPED,
            {"k.mT": "k[:, :1].mT"},
        ),
        Mutant(
            "no lengths",
            "test_rows_of_different_length",
            RAGGED,
            {"torch.arange(S) < lengths[:, None]": "torch.ones(B, S, dtype=torch.bool)"},
        ),
        Mutant(
            "one slot too many",
            "test_rows_of_different_length",
            RAGGED,
            {"torch.arange(S) < lengths": "torch.arange(S) <= lengths"},
        ),
        Mutant(
            "the longest row's length for all",
            "test_rows_of_different_length",
            RAGGED,
            {"lengths[:, None]": "lengths.max().expand(B)[:, None]"},
        ),
        Mutant(
            "scores of 0 for what is not there",
            "test_rows_of_different_length",
            RAGGED,
            {"masked_fill(~filled, -torch.inf)": "masked_fill(~filled, 0)"},
        ),
        Mutant(
            "hides garbage among the scores only",
            "test_unused_slots_hold_anything",
            GARBAGE,
            {"v = v.masked_fill(~filled.mT, 0)": "pass"},
        ),
        Mutant(
            "adds a mask to garbage",
            "test_unused_slots_hold_anything",
            GARBAGE,
            {"scores.masked_fill(~filled, -torch.inf)": "(scores + torch.where(filled, 0.0, -torch.inf))"},
        ),
        Mutant(
            "a softmax over nothing",
            "test_an_empty_row_gives_zeros",
            EMPTY,
            {"torch.where(filled, scores.softmax(-1), 0)": "scores.softmax(-1)"},
        ),
        Mutant(
            "an empty row sees its first slot",
            "test_an_empty_row_gives_zeros",
            "decoded(4, 2, [2, 0], garbage=1.0)",
            {"lengths[:, None]": "lengths.clamp(min=1)[:, None]"},
        ),
        Mutant(
            "scaled by the width of a value",
            "test_values_of_another_width",
            "decoded(4, 2, [4], value_dim=7)",
            {"D**-0.5": "v.shape[-1] ** -0.5"},
        ),
        Mutant(
            "as wide as a key",
            "test_values_of_another_width",
            "decoded(4, 2, [4], value_dim=6)",
            {"return (weights @ v).reshape(B, H, -1)": "return (weights @ v)[..., :D].reshape(B, H, -1)"},
        ),
        Mutant(
            "not scaled",
            "test_each_query_head_reads_its_own_kv_head",
            MAPPED,
            {" * D**-0.5": ""},
        ),
    ],
    "ex-2-norm-pool": [
        Mutant(
            "the plain mean",
            "test_heads_count_as_much_as_their_norm",
            NORMS,
            {"(share[:, :, None, None] * groups).sum(dim=1)": "groups.mean(dim=1)"},
        ),
        Mutant(
            "squared norms",
            "test_heads_count_as_much_as_their_norm",
            NORMS,
            {"norms / total": "norms**2 / (norms**2).sum(dim=1, keepdim=True).clamp(min=1e-30)"},
        ),
        Mutant(
            "a softmax over the norms",
            "test_heads_count_as_much_as_their_norm",
            NORMS,
            {"norms / total": "norms.softmax(dim=1)"},
        ),
        Mutant(
            "the sum, not divided",
            "test_equal_norms_give_the_mean",
            "pooled([2.0, 2.0], 1)",
            {"norms / total": "norms"},
        ),
        Mutant(
            "divided by the norms of all heads",
            "test_equal_norms_give_the_mean",
            NORMS,
            {"norms.sum(dim=1, keepdim=True)": "norms.sum()"},
        ),
        Mutant(
            "divided by the number of heads as well",
            "test_equal_norms_give_the_mean",
            NORMS,
            {".sum(dim=1).flatten(0, 1)": ".mean(dim=1).flatten(0, 1)"},
        ),
        Mutant(
            "heads that are not neighbours",
            "test_heads_count_as_much_as_their_norm",
            NORMS,
            {
                "weight.view(keep, -1, head_dim, weight.shape[1])": (
                    "weight.view(-1, keep, head_dim, weight.shape[1]).transpose(0, 1)"
                )
            },
        ),
        Mutant(
            "a norm for each row of a head",
            "test_heads_count_as_much_as_their_norm",
            NORMS,
            """
groups = weight.view(keep, -1, head_dim, weight.shape[1])
norms = groups.norm(dim=-1, keepdim=True)
total = norms.sum(dim=1, keepdim=True).clamp(min=1e-300)
return (norms / total * groups).sum(dim=1).flatten(0, 1)
""",
        ),
        Mutant(
            "the larger head counts less",
            "test_heads_count_as_much_as_their_norm",
            NORMS,
            {"share = norms / total": "share = (1 - norms / total) / max(1, norms.shape[1] - 1)"},
        ),
        Mutant(
            "nothing divided by nothing",
            "test_a_group_of_zeros_stays_zero",
            "pooled([0.0, 0.0, 1.0, 2.0], 2)",
            {
                "total = norms.sum(dim=1, keepdim=True).clamp(min=1e-30)": "total = norms.sum(dim=1, keepdim=True)"
            },
        ),
        Mutant(
            "scaled in place",
            "test_the_argument_stays_as_it_is",
            NORMS,
            {"(share[:, :, None, None] * groups)": "groups.mul_(share[:, :, None, None])"},
        ),
        Mutant(
            "always float32",
            "test_equal_norms_give_the_mean",
            NORMS,
            {"groups = weight.view": "groups = weight.float().view"},
        ),
    ],
    "ex-2-cache-per-gpu": [
        Mutant(
            "all kv heads on every GPU",
            "test_every_gpu_has_whole_groups",
            EVEN,
            {"most = max(most, len(read))": "most = kv_heads"},
        ),
        Mutant(
            "query heads counted",
            "test_every_gpu_has_whole_groups",
            EVEN,
            {"most = max(most, len(read))": "most = share"},
        ),
        Mutant(
            "keys only",
            "test_every_gpu_has_whole_groups",
            EVEN,
            {"layers * 2 * most": "layers * most"},
        ),
        Mutant(
            "all GPUs together",
            "test_every_gpu_has_whole_groups",
            EVEN,
            {"most = max(most, len(read))": "most += len(read)"},
        ),
        Mutant(
            "divided, without copies",
            "test_more_gpus_than_kv_heads",
            COPIES,
            "return layers * 2 * kv_heads * head_dim * number // gpus",
        ),
        Mutant(
            "rounded down to nothing",
            "test_more_gpus_than_kv_heads",
            COPIES,
            "return layers * 2 * (kv_heads // gpus) * head_dim * number",
        ),
        Mutant(
            "divided and rounded up",
            "test_groups_that_are_cut",
            CUT,
            "return layers * 2 * -(-kv_heads // gpus) * head_dim * number",
        ),
        Mutant(
            "the first GPU only",
            "test_groups_that_are_cut",
            CUT,
            {"for gpu in range(gpus)": "for gpu in range(1)"},
        ),
        Mutant(
            "heads dealt out like cards",
            "test_every_gpu_has_whole_groups",
            EVEN,
            {"range(gpu * share, (gpu + 1) * share)": "range(gpu, heads, gpus)"},
        ),
        Mutant(
            "the GPU with the fewest",
            "test_groups_that_are_cut",
            "bytes_per_gpu(3, 12, 4, 16, 6)",
            {"most = max(most, len(read))": "most = min(most or len(read), len(read))"},
        ),
        Mutant(
            "two bytes, always",
            "test_numbers_of_any_size",
            "bytes_per_gpu(3, 8, 4, 16, 2, 4)",
            {"head_dim * number": "head_dim * 2"},
        ),
    ],
    "ex-2-kv-head-budget": [
        Mutant(
            "a number that divides nothing",
            "test_a_budget_between_two_divisors",
            BETWEEN,
            {"if heads % kv_heads == 0 and ": "if "},
        ),
        Mutant(
            "powers of two only",
            "test_a_budget_that_is_just_met",
            "most_kv_heads(2, 12, 16, 128 * 3)",
            {"if heads % kv_heads == 0": "if kv_heads & (kv_heads - 1) == 0 and heads % kv_heads == 0"},
        ),
        Mutant(
            "the budget must not be used up",
            "test_a_budget_that_is_just_met",
            "most_kv_heads(2, 12, 16, 128 * 4)",
            {"<= budget": "< budget"},
        ),
        Mutant(
            "the smallest that fits",
            "test_a_budget_that_is_just_met",
            BETWEEN,
            {"best = kv_heads": "best = best or kv_heads"},
        ),
        Mutant(
            "one head is always there",
            "test_too_little_and_more_than_enough",
            "most_kv_heads(2, 12, 16, 10)",
            {"best = None": "best = 1"},
        ),
        Mutant(
            "no heads instead of None",
            "test_too_little_and_more_than_enough",
            "most_kv_heads(2, 12, 16, 10)",
            {"best = None": "best = 0"},
        ),
        Mutant(
            "never as many as query heads",
            "test_too_little_and_more_than_enough",
            "most_kv_heads(2, 12, 16, 10**9)",
            {"range(1, heads + 1)": "range(1, heads)"},
        ),
        Mutant(
            "keys only",
            "test_a_budget_that_is_just_met",
            BETWEEN,
            {"layers * 2 * kv_heads": "layers * kv_heads"},
        ),
        Mutant(
            "halves until it fits",
            "test_a_budget_that_is_just_met",
            "most_kv_heads(2, 12, 16, 128 * 4)",
            """
kv_heads = heads
while kv_heads and layers * 2 * kv_heads * head_dim * number > budget:
    kv_heads //= 2
return kv_heads or None
""",
        ),
        Mutant(
            "two bytes, always",
            "test_numbers_of_any_size",
            "most_kv_heads(2, 12, 16, 640, 1)",
            {"head_dim * number": "head_dim * 2"},
        ),
    ],
}
