"""Mistakes in the exercises of chapter 1."""

from learner import Mutant

# Keys and values are told apart, and so are rows, heads and tokens.
SETUP = """
import torch
def fused(steps, batch=2, heads=2, dim=3, capacity=4):
    cache, seen = FusedCache(batch, heads, dim, capacity), []
    for step, tokens in enumerate(steps):
        k, v = torch.arange(2.0 * batch * heads * tokens * dim).view(2, batch, heads, tokens, dim) + 1000 * step
        seen += [tuple(x.clone() for x in cache.append(k, v)), cache.length, cache.buffer.shape[3]]
    return seen
def argument_after(document):
    packed_positions(document)
    return document
"""

COMES_BACK = "packed_positions(torch.tensor([[7, 7, 9, 7]]))"
GROWS = "fused([3, 2])"
TWO_DROPS = "scores_with_drops(2, 5, 2)"

MUTANTS = {
    "ex-1-packed-positions": [
        Mutant(
            "a number that comes back goes on",
            "test_a_number_that_comes_back_starts_anew",
            COMES_BACK,
            """
same = document[:, :, None] == document[:, None, :]
return same.long().tril(-1).sum(dim=2)
""",
        ),
        Mutant(
            "rows joined end to end",
            "test_every_row_starts_at_zero",
            "packed_positions(torch.tensor([[1, 2, 2], [2, 2, 3]]))",
            """
flat = document.flatten()
column = torch.arange(len(flat))
starts = torch.ones(len(flat), dtype=torch.bool)
starts[1:] = flat[1:] != flat[:-1]
first = torch.where(starts, column, 0).cummax(dim=0).values
return (column - first).view_as(document)
""",
        ),
        Mutant(
            "the type of the input",
            "test_any_integers_as_numbers",
            "packed_positions(torch.tensor([[7, 7, 9, 7]], dtype=torch.int32))",
            {"return column - first": "return (column - first).to(document.dtype)"},
        ),
        Mutant(
            "32 bits",
            "test_documents_with_different_numbers",
            COMES_BACK,
            {"return column - first": "return (column - first).int()"},
        ),
        Mutant(
            "written into the argument",
            "test_the_argument_stays_as_it_is",
            "argument_after(torch.tensor([[7, 7, 9, 7]]))",
            {"return column - first": "document[:] = column - first\nreturn document.long()"},
        ),
        Mutant(
            "numbered from one",
            "test_documents_with_different_numbers",
            COMES_BACK,
            {"return column - first": "return column - first + 1"},
        ),
        Mutant("numbers only grow", "test_a_number_that_comes_back_starts_anew", COMES_BACK, {"!=": ">"}),
        Mutant(
            "numbers grow by one",
            "test_documents_with_different_numbers",
            "packed_positions(torch.tensor([[1, 1, 3, 3]]))",
            {"document[:, 1:] != document[:, :-1]": "document[:, 1:] - document[:, :-1] == 1"},
        ),
        Mutant(
            "documents of the first row everywhere",
            "test_documents_with_different_numbers",
            "packed_positions(torch.tensor([[1, 1, 2], [1, 2, 2]]))",
            {"document[:, 1:] != document[:, :-1]": "document[:1, 1:] != document[:1, :-1]"},
        ),
        Mutant(
            "no document has the number 0",
            "test_any_integers_as_numbers",
            "packed_positions(torch.tensor([[0, 0, 1]]))",
            """
result = torch.zeros(document.shape, dtype=torch.int64)
for row, numbers in enumerate(document.tolist()):
    previous, position = 0, 0
    for column, number in enumerate(numbers):
        position = position + 1 if number == previous else 0
        result[row, column], previous = position, number
return result
""",
        ),
        Mutant(
            "the position where the document starts",
            "test_documents_with_different_numbers",
            COMES_BACK,
            {"return column - first": "return first"},
        ),
    ],
    "ex-1-fused-append": [
        Mutant("doubles", "test_it_grows_by_half_rounded_down", GROWS, {"capacity * 3 // 2": "capacity * 2"}),
        Mutant(
            "one and a half times, rounded up",
            "test_it_grows_by_half_rounded_down",
            "fused([5, 1], capacity=5)",
            {"capacity * 3 // 2": "(capacity * 3 + 1) // 2"},
        ),
        Mutant(
            "no more than needed",
            "test_it_grows_by_half_rounded_down",
            GROWS,
            {"max(end, capacity * 3 // 2)": "end"},
        ),
        Mutant(
            "one and a half times, needed or not",
            "test_a_long_chunk_gets_just_its_room",
            "fused([9])",
            {"max(end, capacity * 3 // 2)": "capacity * 3 // 2"},
        ),
        Mutant(
            "one and a half times, again and again",
            "test_a_long_chunk_gets_just_its_room",
            "fused([7])",
            {
                "if end > capacity:": "old = capacity\nwhile end > capacity:\n"
                "    capacity = max(capacity + 1, capacity * 3 // 2)\nif capacity > old:",
                "max(end, capacity * 3 // 2)": "capacity",
            },
        ),
        Mutant(
            "one and a half times the length",
            "test_it_grows_by_half_rounded_down",
            "fused([3, 2], capacity=4)",
            {"capacity * 3 // 2": "self.length * 3 // 2"},
        ),
        Mutant(
            "grows when the last slot is used",
            "test_the_last_slot_is_used_before_it_grows",
            "fused([4])",
            {"end > capacity": "end >= capacity"},
        ),
        Mutant(
            "forgets the old entries",
            "test_old_tokens_survive_growth",
            GROWS,
            {"grown[:, :, :, : self.length] = self.buffer[:, :, :, : self.length]": "pass"},
        ),
        Mutant(
            "keeps the old keys only",
            "test_old_tokens_survive_growth",
            GROWS,
            {
                "grown[:, :, :, : self.length] = self.buffer[:, :, :, : self.length]": (
                    "grown[0, :, :, : self.length] = self.buffer[0, :, :, : self.length]"
                )
            },
        ),
        Mutant(
            "keeps the old entries of one row",
            "test_old_tokens_survive_growth",
            GROWS,
            {
                "grown[:, :, :, : self.length] = self.buffer[:, :, :, : self.length]": (
                    "grown[:, 0, :, : self.length] = self.buffer[:, 0, :, : self.length]"
                )
            },
        ),
        Mutant(
            "values before keys",
            "test_tokens_that_fit",
            "fused([1])",
            {"torch.stack((k, v))": "torch.stack((v, k))"},
        ),
        Mutant(
            "counts calls, not tokens",
            "test_tokens_that_fit",
            GROWS,
            {"self.length = end": "self.length += 1"},
        ),
        Mutant(
            "returns empty slots too",
            "test_tokens_that_fit",
            "fused([3])",
            {"self.buffer[0, :, :, :end], self.buffer[1, :, :, :end]": "self.buffer[0], self.buffer[1]"},
        ),
        Mutant(
            "returns the new entries only",
            "test_tokens_that_fit",
            "fused([3, 1])",
            {"return self.buffer[0, :, :, :end], self.buffer[1, :, :, :end]": "return k, v"},
        ),
        Mutant(
            "writes at the end of the array",
            "test_tokens_that_fit",
            "fused([3])",
            {"self.length : end] = torch.stack": "-k.shape[2] :] = torch.stack"},
        ),
        Mutant(
            "grows for one token at most",
            "test_a_long_chunk_gets_just_its_room",
            "fused([3, 5])",
            {"max(end, capacity * 3 // 2)": "max(self.length + 1, capacity * 3 // 2)"},
        ),
    ],
    "ex-1-dropped-cache": [
        Mutant(
            "one pass too many",
            "test_too_few_tokens_for_a_drop",
            "scores_with_drops(3, 1, 10)",
            {"range(1, n)": "range(1, n + 1)"},
        ),
        Mutant(
            "the newest token does not see itself",
            "test_too_few_tokens_for_a_drop",
            "scores_with_drops(3, 3, 10)",
            {"else length": "else length - 1"},
        ),
        Mutant(
            "drops one token late",
            "test_drops_now_and_then",
            TWO_DROPS,
            {"j % m == 0": "j > 1 and (j - 1) % m == 0"},
        ),
        Mutant(
            "drops one token early",
            "test_drops_now_and_then",
            "scores_with_drops(2, 5, 3)",
            {"j % m == 0": "(j + 1) % m == 0"},
        ),
        Mutant(
            "a decode pass after each new prefill",
            "test_a_drop_after_every_token",
            TWO_DROPS,
            {
                "total += length * length if j % m == 0 else length": (
                    "total += length + (length * length if j % m == 0 else 0)"
                )
            },
        ),
        Mutant(
            "masked scores not counted",
            "test_too_few_tokens_for_a_drop",
            "scores_with_drops(3, 1, 1)",
            {"total = p * p": "total = p * (p + 1) // 2", "length * length": "length * (length + 1) // 2"},
        ),
        Mutant(
            "computes only the prompt again",
            "test_a_drop_after_every_token",
            TWO_DROPS,
            {"length * length": "p * p + length"},
        ),
        Mutant(
            "the newest token is not part of the new prefill",
            "test_a_drop_after_every_token",
            TWO_DROPS,
            {"length * length": "(length - 1) ** 2 + length"},
        ),
        Mutant("the cache is dropped once", "test_drops_now_and_then", TWO_DROPS, {"j % m == 0": "j == m"}),
        Mutant(
            "without the first prefill",
            "test_too_few_tokens_for_a_drop",
            "scores_with_drops(3, 1, 1)",
            {"total = p * p": "total = 0"},
        ),
        Mutant(
            "drops counted with the prompt",
            "test_drops_now_and_then",
            "scores_with_drops(3, 5, 4)",
            {"j % m == 0": "length % m == 0"},
        ),
        Mutant(
            "a drop after the last token is paid",
            "test_a_drop_after_the_last_token_costs_nothing",
            "scores_with_drops(2, 4, 2)",
            {"return total": "return total + (p + n) ** 2 * (n % m == 0)"},
        ),
    ],
    "ex-1-empty-share": [
        Mutant(
            "doubles when exactly full",
            "test_a_request_that_just_fits",
            "empty_share([16])",
            {"slots < length": "slots <= length"},
        ),
        Mutant(
            "one cache for all",
            "test_slots_of_all_requests_together",
            "empty_share([8, 33, 20])",
            {"for length in lengths:": "for length in [sum(lengths)]:"},
        ),
        Mutant(
            "the mean of the requests' shares",
            "test_slots_of_all_requests_together",
            "empty_share([8, 33])",
            """
shares = []
for length in lengths:
    slots = first
    while slots < length:
        slots *= 2
    shares.append(1 - length / slots)
return sum(shares) / len(shares)
""",
        ),
        Mutant(
            "the share that is used",
            "test_one_request",
            "empty_share([17])",
            {"return 1 - sum(lengths) / allocated": "return sum(lengths) / allocated"},
        ),
        Mutant(
            "16 slots at first, always",
            "test_another_first_capacity",
            "empty_share([3, 3], 2)",
            {"slots = first": "slots = 16"},
        ),
        Mutant(
            "goes on with the slots of the request before",
            "test_slots_of_all_requests_together",
            "empty_share([33, 8])",
            {"allocated = 0": "allocated, slots = 0, first", "    slots = first\n": ""},
        ),
        Mutant(
            "the next power of two",
            "test_another_first_capacity",
            "empty_share([7], 3)",
            """
allocated = sum(max(first, 1 << (length - 1).bit_length()) for length in lengths)
return 1 - sum(lengths) / allocated
""",
        ),
        Mutant(
            "doubles once at most",
            "test_one_request",
            "empty_share([33])",
            {"while slots < length": "if slots < length"},
        ),
        Mutant(
            "grows by the same step",
            "test_one_request",
            "empty_share([33])",
            {"slots *= 2": "slots += first"},
        ),
        Mutant(
            "all as large as the largest",
            "test_slots_of_all_requests_together",
            "empty_share([8, 33])",
            {"for length in lengths:": "for length in [max(lengths)] * len(lengths):"},
        ),
        Mutant(
            "relative to the tokens",
            "test_one_request",
            "empty_share([17])",
            {"return 1 - sum(lengths) / allocated": "return (allocated - sum(lengths)) / sum(lengths)"},
        ),
    ],
}
