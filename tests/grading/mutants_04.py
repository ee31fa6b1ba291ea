"""Mistakes in the exercises of chapter 4."""

from learner import Mutant

# Hashes are of no interest: which of them are equal is. `alike` numbers them in the order in which they come.
SETUP = """
def alike(*calls):
    seen, rows = {}, []
    for call in calls:
        rows.append([seen.setdefault(name, len(seen)) for name in tenant_chain(*call)])
    return rows
"""

FULL = "blocks_held(8, [3, 1], 4)"
TAIL = "blocks_held(10, [1, 3, 5], 4)"
UNWRITTEN = "blocks_held(10, [0, 0, 5], 4)"
APART = "swap_out([[1, 2], [5, 3], [4, 6]], 2)"
SHARED = "swap_out([[1, 2], [3, 7, 4], [3, 7, 5]], 2)"
NULLS = "swap_out([[1, 2], [0, 3], [0, 4]], 2)"
OLDEST = "swap_out([[1, 2], [3]], 2)"
PARTIAL = "alike(([1, 2, 3], 2, 'a'))"
PARENTS = "alike(([1, 2, 3, 4], 2, 'a'), ([1, 9, 3, 4], 2, 'a'))"
TENANTS = "alike(([1, 2, 3, 4], 2, 'a'), ([1, 2, 3, 4], 2, 'b'))"
PUBLIC = "alike(([1, 2, 3, 4], 2, 'a', 3), ([1, 2, 3, 4], 2, 'b', 3))"
BEHIND = "free_behind([5, 2, 7], 12, 6, 4)"
EDGE = "free_behind([5, 2, 7], 12, 5, 4)"
NULL_BEHIND = "free_behind([0, 2, 7], 12, 5, 4)"

MUTANTS = {
    "ex-4-parallel-samples": [
        Mutant(
            "nothing shared",
            "test_full_blocks_are_shared",
            FULL,
            {"shared = prompt // block_size": "shared = 0"},
        ),
        Mutant(
            "always one block more",
            "test_full_blocks_are_shared",
            "blocks_held(8, [4], 4)",
            {"-(-(prompt + answer) // block_size)": "((prompt + answer) // block_size + 1)"},
        ),
        Mutant(
            "the prompt's blocks forgotten",
            "test_full_blocks_are_shared",
            FULL,
            {"blocks = shared": "blocks = 0"},
        ),
        Mutant(
            "answers rounded up on their own",
            "test_the_last_block_of_the_prompt_is_copied",
            TAIL,
            {"-(-(prompt + answer) // block_size) - shared": "-(-answer // block_size)"},
        ),
        Mutant(
            "the half-full block stays shared",
            "test_the_last_block_of_the_prompt_is_copied",
            TAIL,
            {"prompt // block_size": "-(-prompt // block_size)"},
        ),
        Mutant(
            "the original of the copies is held as well",
            "test_the_last_block_of_the_prompt_is_copied",
            TAIL,
            {" and 0 in answers": ""},
        ),
        Mutant(
            "a copy for those who wrote nothing",
            "test_answers_that_wrote_nothing",
            UNWRITTEN,
            {"answer > 0": "True", " and 0 in answers": " and False"},
        ),
        Mutant(
            "the end of the prompt forgotten",
            "test_answers_that_wrote_nothing",
            UNWRITTEN,
            {"blocks += 1": "blocks += 0"},
        ),
        Mutant(
            "a last block where there is none",
            "test_answers_that_wrote_nothing",
            "blocks_held(8, [0, 2], 4)",
            {"prompt % block_size > 0 and ": ""},
        ),
        Mutant(
            "a new block where length % B is 1",
            "test_blocks_of_one_slot",
            "blocks_held(3, [2, 1], 1)",
            """
full, rest = divmod(prompt, block_size)
blocks = full + (rest > 0 and 0 in answers)
for answer in answers:
    blocks += (rest > 0 and answer > 0)
    blocks += sum(n % block_size == 1 for n in range(prompt + 1, prompt + answer + 1))
return blocks
""",
        ),
    ],
    "ex-4-swap-out": [
        Mutant(
            "the oldest first",
            "test_the_youngest_leave_first",
            APART,
            """
victims, freed = [], set()
for i in range(len(tables)):
    if len(freed) < need:
        victims.append(i)
        freed |= set(tables[i])
return (victims, sorted(freed)) if len(victims) < len(tables) else None
""",
        ),
        Mutant(
            "one block too many",
            "test_the_youngest_leave_first",
            APART,
            {"len(freed) < need": "need and len(freed) <= need"},
        ),
        Mutant(
            "victims in the order of the tables",
            "test_the_youngest_leave_first",
            "swap_out([[1, 2], [5, 3], [4, 6]], 3)",
            {"(victims,": "(sorted(victims),"},
        ),
        Mutant(
            "blocks in the order of the tables",
            "test_the_youngest_leave_first",
            "swap_out([[1, 2], [6, 3], [7, 4]], 2)",
            {"sorted(freed)": "[block for victim in victims for block in tables[victim]]"},
        ),
        Mutant(
            "blocks of those who stay come free",
            "test_shared_blocks",
            "swap_out([[1, 2], [2, 3], [2, 4]], 1)",
            {" - staying": ""},
        ),
        Mutant(
            "what two victims share stays",
            "test_shared_blocks",
            SHARED,
            {"tables[:youngest]": "tables[:youngest] + tables[youngest + 1 :]"},
        ),
        Mutant(
            "what two victims share is copied twice",
            "test_shared_blocks",
            SHARED,
            {"sorted(freed)": "sorted(b for v in victims for b in tables[v] if b in freed)"},
        ),
        Mutant(
            "only the oldest is asked",
            "test_shared_blocks",
            SHARED,
            {"tables[:youngest]": "tables[:1]"},
        ),
        Mutant(
            "the null block comes free",
            "test_null_blocks_are_not_blocks",
            NULLS,
            {" - {0}": ""},
        ),
        Mutant(
            "the oldest leaves too",
            "test_the_oldest_stays",
            OLDEST,
            {"youngest > 0": "youngest >= 0"},
        ),
        Mutant(
            "as many as there are",
            "test_the_oldest_stays",
            OLDEST,
            {" if len(freed) >= need else None": ""},
        ),
        Mutant(
            "somebody always leaves",
            "test_nothing_is_needed",
            "swap_out([[1], [2]], 0)",
            {"len(freed) < need": "len(freed) < max(need, 1)"},
        ),
    ],
    "ex-4-tenant-chain": [
        Mutant(
            "a hash of a block that is not full",
            "test_full_blocks_only",
            PARTIAL,
            {"len(tokens) + 1": "len(tokens) + block_size"},
        ),
        Mutant(
            "the last full block left out",
            "test_full_blocks_only",
            "alike(([1, 2, 3, 4], 2, 'a'))",
            {"len(tokens) + 1": "len(tokens)"},
        ),
        Mutant(
            "bytes",
            "test_full_blocks_only",
            "[type(name).__name__ for name in tenant_chain([1, 2], 2, 'a')]",
            {"hexdigest()": "digest()"},
        ),
        Mutant(
            "no parent",
            "test_all_tokens_before_count",
            PARENTS,
            {"(parent, tokens[": "(tokens["},
        ),
        Mutant(
            "the first tokens only",
            "test_all_tokens_before_count",
            PARENTS,
            {"tokens[end - block_size : end]": "tokens[end - block_size]"},
        ),
        Mutant(
            "tokens run together",
            "test_all_tokens_before_count",
            "alike(([1, 23, 4], 3, 'a'), ([12, 3, 4], 3, 'a'))",
            {"tokens[end - block_size : end]": "''.join(map(str, tokens[end - block_size : end]))"},
        ),
        Mutant(
            "an empty name is the public's",
            "test_tenants_are_apart",
            "alike(([1, 2], 2, ''), ([1, 2], 2, 'b', 2))",
            {"salt = [tenant] if end > public else []": "salt = tenant if end > public else ''"},
        ),
        Mutant(
            "a name that is made of a hash",
            "test_tenants_are_apart",
            "alike(([1, 2, 3, 4], 2, 'a'), ([3, 4], 2, 'a' + tenant_chain([1, 2], 2, 'a')[0]))",
            {
                "repr((parent, ": "''.join(salt) + parent + str(",
                " : end], salt))": " : end])",
            },
        ),
        Mutant(
            "no tenant",
            "test_tenants_are_apart",
            TENANTS,
            {"[tenant] if end > public else []": "[]"},
        ),
        Mutant(
            "the tenant in the first block only, the parent forgotten",
            "test_tenants_are_apart",
            TENANTS,
            {
                "[tenant] if end > public else []": "[tenant] if end == block_size else []",
                "(parent, tokens[": "(tokens[:end - block_size], tokens[",
            },
        ),
        Mutant(
            "how long the tenant's name is",
            "test_tenants_are_apart",
            TENANTS,
            {"[tenant]": "[len(tenant)]"},
        ),
        Mutant(
            "tokens and tenant run together",
            "test_tenants_are_apart",
            "alike(([1, 2], 2, '3'), ([1, 23], 2, ''))",
            {
                "repr((parent, tokens[end - block_size : end], salt))": "parent + ', '.join("
                "map(str, tokens[end - block_size : end])) + ''.join(salt)"
            },
        ),
        Mutant(
            "names in small letters",
            "test_tenants_are_apart",
            "alike(([1, 2], 2, 'Ada'), ([1, 2], 2, 'ada'))",
            {"[tenant]": "[tenant.lower()]"},
        ),
        Mutant(
            "nothing is public",
            "test_public_blocks_are_shared",
            PUBLIC,
            {"end > public": "True"},
        ),
        Mutant(
            "a block with one public token is public",
            "test_public_blocks_are_shared",
            PUBLIC,
            {"end > public": "end - block_size >= public"},
        ),
        Mutant(
            "the last public block is not",
            "test_public_blocks_are_shared",
            "alike(([1, 2, 3, 4], 2, 'a', 2), ([1, 2, 3, 4], 2, 'b', 2))",
            {"end > public": "end >= public"},
        ),
    ],
    "ex-4-behind-window": [
        Mutant(
            "a block that is half visible goes",
            "test_whole_blocks_only",
            BEHIND,
            {"first // block_size": "-(-first // block_size)"},
        ),
        Mutant(
            "the table gets shorter",
            "test_whole_blocks_only",
            BEHIND,
            {"[0] * behind + table": "table"},
        ),
        Mutant(
            "the newest blocks go",
            "test_whole_blocks_only",
            BEHIND,
            {"table[:behind]": "table[len(table) - behind :]"},
        ),
        Mutant(
            "one position too early",
            "test_edges_of_the_window",
            EDGE,
            {"num_stored - window + 1": "num_stored - window"},
        ),
        Mutant(
            "one position too late",
            "test_edges_of_the_window",
            BEHIND,
            {"num_stored - window + 1": "num_stored - window + 2"},
        ),
        Mutant(
            "the window in whole blocks",
            "test_edges_of_the_window",
            "free_behind([5, 2, 7], 12, 5, 4)",
            {"first // block_size": "max(0, len(table) - -(-window // block_size))"},
        ),
        Mutant(
            "the null block is given back",
            "test_blocks_are_freed_once",
            NULL_BEHIND,
            {" if block != 0": ""},
        ),
        Mutant(
            "given back again",
            "test_blocks_are_freed_once",
            NULL_BEHIND,
            {"[block for block in table[:behind] if block != 0]": "[b or 1 for b in table[:behind]]"},
        ),
        Mutant(
            "a negative position",
            "test_a_window_longer_than_the_text",
            "free_behind([5, 2, 7], 12, 18, 4)",
            {"max(0, num_stored - window + 1)": "num_stored - window + 1"},
        ),
    ],
}
