"""Mistakes in the exercises of chapter 3."""

from learner import Mutant

# Sizes are different, so that a matrix the wrong way round shows; `factor_error` says how good factors are.
SETUP = """
import torch
def numbers_like(*shape):
    return torch.arange(1.0, 1 + torch.Size(shape).numel(), dtype=torch.float64).view(shape)
def merged(*pairs, queries=1):
    outs, lses = torch.tensor(pairs, dtype=torch.float64).T
    if queries == 2:
        lses = torch.stack([lses, torch.zeros_like(lses)], -1)
    return merge_all(
        outs.view(-1, 1, 1, 1, 1).expand(-1, 1, 1, queries, 1), lses.reshape(-1, 1, 1, queries)
    )
def factor_error(n_out, r, *x):
    w = torch.randn(n_out, len(x), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    x = torch.tensor(x, dtype=torch.float64)
    up, down = best_factors(w, x @ x.T, r)
    return round(((w - up @ down) @ x).square().sum().item(), 6), up.shape[1]
"""

TWO_HEADS = "absorb_output(numbers_like(2, 3, 4), numbers_like(5, 6))"
ONE_HEAD = "absorb_output(numbers_like(1, 3, 4), numbers_like(5, 3))"
TWO_PIECES = "merged((4.0, 1.0), (8.0, 0.5))"
EVEN = "factor_error(4, 2, (1, 0, 0), (0, 1, 0), (0, 0, 1))"
UNEVEN = "factor_error(4, 1, (5, 5, 0, 1), (5, 4, 1, 0), (0, 1, 1, 0))"
V3 = "tokens_to_ridge(128, 512, 64, 989e12, 3.35e12"

MUTANTS = {
    "ex-3-absorb-output": [
        Mutant(
            "columns of w_o with the heads last",
            "test_every_head_has_its_columns",
            TWO_HEADS,
            {"w_o.unflatten(1, w_uv.shape[:2])": "w_o.unflatten(1, w_uv.shape[:2][::-1]).mT"},
        ),
        Mutant(
            "averages with the heads last",
            "test_every_head_has_its_columns",
            TWO_HEADS,
            {"->ohr": "->orh"},
        ),
        Mutant(
            "one w_uv for all heads",
            "test_every_head_has_its_columns",
            TWO_HEADS,
            {"per_head, w_uv)": "per_head, w_uv[:1].expand_as(w_uv))"},
        ),
        Mutant(
            "heads added up",
            "test_every_head_has_its_columns",
            TWO_HEADS,
            {"ohr": "or"},
        ),
        Mutant(
            "a square w_uv the wrong way round",
            "test_every_head_has_its_columns",
            "absorb_output(numbers_like(2, 3, 3), numbers_like(5, 6))",
            {"per_head, w_uv)": "per_head, w_uv.mT if w_uv.shape[1] == w_uv.shape[2] else w_uv)"},
        ),
        Mutant(
            "the result the wrong way round",
            "test_one_head",
            ONE_HEAD,
            {".flatten(1)": ".flatten(1).T"},
        ),
        Mutant(
            "w_o left out",
            "test_one_head",
            ONE_HEAD,
            "return w_uv.transpose(0, 1).flatten(1)",
        ),
        Mutant(
            "always float32",
            "test_the_dtype_stays",
            ONE_HEAD,
            {"per_head, w_uv)": "per_head.float(), w_uv.float())"},
        ),
    ],
    "ex-3-merge-states": [
        Mutant(
            "all pieces weigh the same",
            "test_pieces_of_one_softmax",
            TWO_PIECES,
            {"(lses - top).exp()": "torch.ones_like(lses)"},
        ),
        Mutant(
            "LSEs as weights",
            "test_pieces_of_one_softmax",
            TWO_PIECES,
            {"(lses - top).exp()": "lses / top"},
        ),
        Mutant(
            "not divided by the sum",
            "test_pieces_of_one_softmax",
            TWO_PIECES,
            {" / total.clamp(min=1e-30)[..., None]": ""},
        ),
        Mutant(
            "the largest LSE as the LSE of all",
            "test_pieces_of_one_softmax",
            TWO_PIECES,
            {"top + total.log()": "top"},
        ),
        Mutant(
            "the first two only",
            "test_pieces_of_one_softmax",
            "merged((4.0, 1.0), (8.0, 0.5), (2.0, 2.0))",
            {"empty = lses": "outs, lses = outs[:2], lses[:2]\nempty = lses"},
        ),
        Mutant(
            "zero times NaN",
            "test_an_empty_piece_does_not_count",
            "merged((4.0, 1.0), (float('nan'), -float('inf')))",
            {"outs.masked_fill(empty[..., None], 0.0)": "outs"},
        ),
        Mutant(
            "a piece counts as empty if one query sees nothing in it",
            "test_an_empty_piece_does_not_count",
            "merge_all(numbers_like(2, 1, 1, 2, 1), torch.tensor([[[[0.0, 0.0]]], [[[-torch.inf, 1.0]]]]).double())",
            {
                "lses == -torch.inf  # (K, B, H, T)": "(lses == -torch.inf).flatten(1).any(1)[:, None, None, None]"
                "\nempty = empty.expand_as(lses)"
            },
        ),
        Mutant(
            "nothing minus nothing",
            "test_no_piece_saw_a_key",
            "merged((0.0, -float('inf')), (0.0, -float('inf')))",
            {"torch.where(top == -torch.inf, 0.0, top)": "top"},
        ),
        Mutant(
            "nothing has an LSE of zero",
            "test_no_piece_saw_a_key",
            "merged((0.0, -float('inf')), (0.0, -float('inf')))",
            {"top + total.log()": "top + total.clamp(min=1e-30).log()"},
        ),
        Mutant(
            "nothing subtracted before exp",
            "test_large_and_small_log_sums",
            "merged((4.0, 9000.0), (8.0, 9000.0))",
            {"lses.amax(dim=0)": "0 * lses[0].nan_to_num()"},
        ),
        Mutant(
            "the largest of all queries subtracted",
            "test_large_and_small_log_sums",
            "merged((4.0, 9000.0), (8.0, 9000.0), queries=2)",
            {"lses.amax(dim=0)": "lses.max().expand(lses.shape[1:])"},
        ),
    ],
    "ex-3-ridge-tokens": [
        Mutant(
            "rounded down",
            "test_one_request",
            f"{V3})",
            "return max(1, int(peak / bandwidth * (rank + rope) * value_bytes / (2 * heads * (2 * rank + rope))))",
        ),
        Mutant(
            "the width of a key twice",
            "test_one_request",
            "tokens_to_ridge(1, 64, 64, 300e12, 1e12)",
            {"2 * rank + rope": "2 * (rank + rope)"},
        ),
        Mutant(
            "a multiply-add counted once",
            "test_one_request",
            f"{V3})",
            {"2 * heads": "heads"},
        ),
        Mutant(
            "one head",
            "test_one_request",
            f"{V3})",
            {"2 * heads * ": "2 * "},
        ),
        Mutant(
            "the batch shares one cache",
            "test_each_request_reads_its_own_cache",
            f"{V3}, 64)",
            {"flops = 2": "flops = batch * 2"},
        ),
        Mutant(
            "each request reads, one computes",
            "test_each_request_reads_its_own_cache",
            f"{V3}, 64)",
            {"* value_bytes": "* value_bytes * batch"},
        ),
        Mutant(
            "always two bytes",
            "test_other_sizes_of_a_number",
            f"{V3}, 1, 1)",
            {"* value_bytes": "* 2"},
        ),
        Mutant(
            "strictly above the limit",
            "test_exactly_at_the_limit",
            "tokens_to_ridge(4, 48, 16, 21.0, 1.0)",
            {"bandwidth < peak": "bandwidth <= peak"},
        ),
    ],
    "ex-3-best-factors": [
        Mutant(
            "the smallest directions",
            "test_an_even_text",
            EVEN,
            {"directions[:, w.shape[0] - r :]": "directions[:, :r]"},
        ),
        Mutant(
            "the first directions of w, in no order",
            "test_an_even_text",
            EVEN,
            "return torch.eye(len(w), r, dtype=w.dtype), w[:r]",
        ),
        Mutant(
            "the best for w without the text",
            "test_an_uneven_text",
            UNEVEN,
            {"outputs = w @ moment @ w.T": "outputs = w @ w.T"},
        ),
        Mutant(
            "only how large each input is",
            "test_an_uneven_text",
            UNEVEN,
            {"w @ moment @ w.T": "w @ moment.diag().diag() @ w.T"},
        ),
        Mutant(
            "the moment instead of its root",
            "test_an_uneven_text",
            UNEVEN,
            {"w @ moment @ w.T": "w @ moment @ moment @ w.T"},
        ),
        Mutant(
            "the inverse of a moment that has none",
            "test_a_text_in_few_directions",
            "factor_error(4, 2, (1, 2, 3), (2, 4, 6), (0, 0, 0))",
            """
root = torch.linalg.cholesky(moment)
u, s, v = torch.linalg.svd(w @ root, full_matrices=False)
return u[:, :r], torch.linalg.solve_triangular(root, s[:r, None] * v[:r], upper=False, left=False)
""",
        ),
        Mutant(
            "one rank too few",
            "test_full_rank_loses_nothing",
            "factor_error(4, 3, (1, 0, 0), (0, 1, 0), (0, 0, 1))",
            {"return up, up.T @ w": "up = up.clone()\nup[:, 0] *= r < 3\nreturn up, up.T @ w"},
        ),
    ],
}
