"""Mistakes in the exercises of chapter 0."""

from learner import Mutant

TWO_REQUESTS = "share_saved(100, [50, 20])"
SMALL_CARD = "longest_context(1000, 100, 16, 10, 2)"
EXACTLY_TWO = "requests_until_equal(100, 10, [5, 5, 5])"
NEVER = "requests_until_equal(1000, 10, [5, 5])"

MUTANTS = {
    "ex-0-shared-prompt": [
        Mutant(
            "the share that is left",
            "test_requests_of_equal_length",
            TWO_REQUESTS,
            {"1 - shared / separate": "shared / separate"},
        ),
        Mutant(
            "a prompt for each request",
            "test_requests_of_equal_length",
            TWO_REQUESTS,
            {"shared = system + sum(own)": "shared = system * len(own) + sum(own)"},
        ),
        Mutant(
            "own tokens are not stored",
            "test_requests_of_equal_length",
            TWO_REQUESTS,
            {"shared = system + sum(own)": "shared = system"},
        ),
        Mutant(
            "the one prompt is not stored",
            "test_the_first_request_saves_nothing",
            TWO_REQUESTS,
            {"shared = system + sum(own)": "shared = sum(own)"},
        ),
        Mutant(
            "all requests like the first",
            "test_long_requests_weigh_more_than_short_ones",
            TWO_REQUESTS,
            "n = len(own)\nreturn 1 - (system + n * own[0]) / (n * (system + own[0]))",
        ),
        Mutant(
            "the mean of the requests' shares",
            "test_long_requests_weigh_more_than_short_ones",
            TWO_REQUESTS,
            """
n = len(own)
return sum(system / (system + tokens) for tokens in own) / n * (n - 1) / n
""",
        ),
        Mutant(
            "requests without own tokens do not count",
            "test_requests_without_tokens_of_their_own",
            "share_saved(100, [0, 5])",
            {"for tokens in own)": "for tokens in own if tokens) or system"},
        ),
        Mutant(
            "relative to the shared cache",
            "test_requests_of_equal_length",
            TWO_REQUESTS,
            {"1 - shared / separate": "(separate - shared) / shared"},
        ),
        Mutant(
            "rounded to whole percents",
            "test_long_requests_weigh_more_than_short_ones",
            "share_saved(3, [1, 2])",
            {"1 - shared / separate": "round(1 - shared / separate, 2)"},
        ),
        Mutant(
            "equal lengths stored once",
            "test_requests_of_equal_length",
            "share_saved(100, [50, 50, 20])",
            {"sum(own)": "sum(set(own))"},
        ),
    ],
    "ex-0-longest-context": [
        Mutant(
            "weights rounded down",
            "test_weights_take_whole_bytes_in_all",
            "longest_context(1000, 101, 4, 95, 1)",
            {"-(-parameters * bits // 8)": "parameters * bits // 8"},
        ),
        Mutant(
            "every parameter rounded up to bytes",
            "test_weights_take_whole_bytes_in_all",
            "longest_context(1000, 100, 4, 10, 2)",
            {"-(-parameters * bits // 8)": "parameters * -(-bits // 8)"},
        ),
        Mutant(
            "whole bytes of a parameter",
            "test_weights_take_whole_bytes_in_all",
            "longest_context(1000, 100, 12, 10, 2)",
            {"-(-parameters * bits // 8)": "parameters * (bits // 8)"},
        ),
        Mutant(
            "always one more byte of weights",
            "test_weights_take_whole_bytes_in_all",
            SMALL_CARD,
            {"-(-parameters * bits // 8)": "parameters * bits // 8 + 1"},
        ),
        Mutant(
            "weights rounded by a float",
            "test_sizes_beyond_the_digits_of_a_float",
            "longest_context(2**70, 2**60 + 1, 8, 1, 1)",
            {"-(-parameters * bits // 8)": "__import__('math').ceil(parameters * bits / 8)"},
        ),
        Mutant(
            "negative when the weights do not fit",
            "test_weights_that_do_not_fit_leave_nothing",
            "longest_context(100, 100, 16, 1, 1)",
            {"max(card_bytes - weight_bytes, 0)": "card_bytes - weight_bytes"},
        ),
        Mutant(
            "None when the weights do not fit",
            "test_weights_that_do_not_fit_leave_nothing",
            "longest_context(100, 100, 16, 1, 1)",
            {"return room": "if card_bytes < weight_bytes:\n    return None\nreturn room"},
        ),
        Mutant(
            "divides with /",
            "test_sizes_beyond_the_digits_of_a_float",
            "longest_context(2**62 + 4, 1, 8, 1, 1)",
            {"room // (token_bytes * requests)": "int(room / (token_bytes * requests))"},
        ),
        Mutant(
            "one request",
            "test_room_is_shared_by_all_requests",
            SMALL_CARD,
            {"token_bytes * requests": "token_bytes"},
        ),
        Mutant(
            "weights for each request",
            "test_room_is_shared_by_all_requests",
            SMALL_CARD,
            {"card_bytes - weight_bytes": "card_bytes - weight_bytes * requests"},
        ),
        Mutant(
            "rounded up to a whole token",
            "test_room_is_shared_by_all_requests",
            "longest_context(1000, 100, 16, 300, 2)",
            {"room // (token_bytes * requests)": "-(-room // (token_bytes * requests))"},
        ),
    ],
    "ex-0-equal-reads": [
        Mutant(
            "more than, not at least",
            "test_as_many_bytes_are_enough",
            EXACTLY_TWO,
            {"read >= weight_bytes": "read > weight_bytes"},
        ),
        Mutant(
            "the index of the request",
            "test_requests_of_different_lengths",
            EXACTLY_TWO,
            {"start=1": "start=0"},
        ),
        Mutant(
            "longest requests first",
            "test_requests_join_in_the_order_of_the_list",
            "requests_until_equal(100, 10, [1, 2, 10])",
            {"enumerate(lengths,": "enumerate(sorted(lengths, reverse=True),"},
        ),
        Mutant(
            "shortest requests first",
            "test_requests_join_in_the_order_of_the_list",
            "requests_until_equal(100, 10, [10, 2, 1])",
            {"enumerate(lengths,": "enumerate(sorted(lengths),"},
        ),
        Mutant(
            "all requests when it does not happen",
            "test_none_when_it_never_happens",
            NEVER,
            {"return None": "return len(lengths)"},
        ),
        Mutant(
            "0 when it does not happen", "test_none_when_it_never_happens", NEVER, {"return None": "return 0"}
        ),
        Mutant(
            "each request alone",
            "test_requests_of_different_lengths",
            EXACTLY_TWO,
            {"read += tokens": "read = tokens"},
        ),
        Mutant(
            "all requests like the first",
            "test_requests_of_different_lengths",
            "requests_until_equal(100, 10, [1, 9, 5])",
            {"read += tokens * token_bytes": "read += lengths[0] * token_bytes"},
        ),
        Mutant(
            "a batch as long as its longest request",
            "test_requests_of_different_lengths",
            "requests_until_equal(100, 10, [1, 5, 4, 9])",
            {"read += tokens * token_bytes": "read = max(lengths[:count]) * count * token_bytes"},
        ),
        Mutant(
            "weights read for each request",
            "test_requests_of_different_lengths",
            "requests_until_equal(100, 10, [5, 5, 30])",
            {"read >= weight_bytes": "read >= weight_bytes * count"},
        ),
        Mutant(
            "whole tokens instead of bytes",
            "test_as_many_bytes_are_enough",
            "requests_until_equal(101, 10, [5, 5, 5])",
            {"tokens * token_bytes": "tokens", "read >= weight_bytes": "read >= weight_bytes // token_bytes"},
        ),
        Mutant(
            "asked before the request joins",
            "test_the_first_request_can_be_enough",
            "requests_until_equal(100, 10, [5, 5])",
            """
read = 0
for count, tokens in enumerate(lengths, start=1):
    if read >= weight_bytes:
        return count
    read += tokens * token_bytes
return None
""",
        ),
    ],
}
