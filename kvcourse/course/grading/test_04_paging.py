"""Tests of the exercises of chapter 4, run against one submission after the other."""

import pytest

from kvcourse.course.grading import expect

DRAWS = 4


def whole(rng, low, high):
    """A whole number from low to high, both included, as a plain int."""
    return int(rng.integers(low, high, endpoint=True))


def numbers(rng, count, low=1, high=9):
    """A list of whole numbers."""
    return [whole(rng, low, high) for _ in range(count)]


@pytest.mark.exercise("ex-4-parallel-samples")
class TestParallelSamples:
    """blocks_held(prompt, answers, block_size)"""

    @pytest.mark.points(
        0.5,
        hint="Full blocks of the prompt stand in all tables, and are held once. What does each answer add?",
    )
    def test_full_blocks_are_shared(self, student, reference, rng):
        for _ in range(DRAWS):
            size, blocks = whole(rng, 2, 16), whole(rng, 1, 6)
            for answers in (numbers(rng, 1), numbers(rng, whole(rng, 2, 5), 1, 40), [size, 2 * size, 1]):
                expect.agree(student.blocks_held, reference.blocks_held, blocks * size, answers, size)

    @pytest.mark.points(
        0.75, hint="Whoever writes into a shared block gets a copy first; the last one left need not copy."
    )
    def test_the_last_block_of_the_prompt_is_copied(self, student, reference, rng):
        for _ in range(DRAWS):
            size = whole(rng, 3, 16)
            prompt = whole(rng, 0, 4) * size + whole(rng, 1, size - 1)
            rest = size - prompt % size  # tokens until that block is full
            for answers in ([rest], [rest, rest + 1, 1], numbers(rng, whole(rng, 2, 5), 1, 40)):
                expect.agree(student.blocks_held, reference.blocks_held, prompt, answers, size)

    @pytest.mark.points(
        0.5, hint="Answers without a token copied nothing. Which block of the prompt do they keep, if any?"
    )
    def test_answers_that_wrote_nothing(self, student, reference, rng):
        for _ in range(DRAWS):
            size = whole(rng, 3, 9)
            prompt = whole(rng, 1, 4) * size
            for tokens in (prompt, prompt + whole(rng, 1, size - 1)):
                for answers in ([0], [0, 0, 0], [0, *numbers(rng, 2)], [*numbers(rng, 2), 0, 0]):
                    expect.agree(student.blocks_held, reference.blocks_held, tokens, answers, size)

    @pytest.mark.points(0.25, hint="With one slot in a block, no block is ever half full.")
    def test_blocks_of_one_slot(self, student, reference, rng):
        for _ in range(DRAWS):
            answers = numbers(rng, whole(rng, 1, 4), 0, 9)
            expect.agree(student.blocks_held, reference.blocks_held, whole(rng, 1, 20), answers, 1)


def own_tables(rng, count):
    """Tables of different blocks, in no order."""
    sizes = numbers(rng, count, 1, 4)
    blocks = (1 + rng.permutation(sum(sizes))).tolist()
    return [[blocks.pop() for _ in range(size)] for size in sizes]


def same_choice(student, reference, tables, need):
    """Both must choose the same victims and blocks; the student may return a list as well as a tuple."""
    expected = reference.swap_out([list(table) for table in tables], need)
    got, what = student.swap_out(tables, need), expect.call("swap_out", tables, need)
    if expected is None:
        expect.equal(got, None, what=what)
        return
    parts = expect.parts(got, 2, what=what)
    for name, mine, theirs in zip(("victims", "blocks"), parts, expected, strict=True):
        expect.equal(mine, theirs, what=f"{name} of {what}")


@pytest.mark.exercise("ex-4-swap-out")
class TestSwapOut:
    """swap_out(tables, need)"""

    @pytest.mark.points(
        0.75, hint="The last table is the youngest request's. Stop as soon as enough blocks are free."
    )
    def test_the_youngest_leave_first(self, student, reference, rng):
        for _ in range(DRAWS):
            tables = own_tables(rng, whole(rng, 3, 6))
            free = [len(table) for table in tables]
            for count in (1, 2):  # exactly what the youngest hold, and one more or less
                for more in (-1, 0, 1):
                    need = min(sum(free[-count:]) + more, sum(free[1:]))
                    if need > 0:
                        same_choice(student, reference, tables, need)

    @pytest.mark.points(
        1, hint="A block comes free when no table that stays holds it; two victims may have shared it."
    )
    def test_shared_blocks(self, student, reference, rng):
        for _ in range(DRAWS):
            first, a, b, c, d = own_tables(rng, 5)
            shared = [100 + whole(rng, 0, 9), 50]
            for tables in (
                [[*shared, *first], a, [*shared, *b], [*shared, *c]],  # with one that stays
                [first, [*shared, *a], b, [*shared, *c], [*shared, *d]],  # among those that may leave
                [first, shared, shared, a],
            ):
                for need in (1, 2, len(tables[-1]), len(tables[-1]) + 1, len({*tables[-1], *tables[-2]})):
                    same_choice(student, reference, tables, need)

    @pytest.mark.points(0.25, hint="Block 0 stands where a block was freed before: nothing comes free there.")
    def test_null_blocks_are_not_blocks(self, student, reference, rng):
        for _ in range(DRAWS):
            *others, second, last = own_tables(rng, whole(rng, 3, 5))
            for tables in (
                [*others, second, [0, *last]],
                [*others, [0, 0, *second], [0, *last]],
                [[0, *table] for table in (*others, second, last)],
            ):
                for need in (len(last), len(last) + 1, len(last) + len(second) + 1):
                    same_choice(student, reference, tables, need)

    @pytest.mark.points(0.5, hint="If the oldest request could leave as well, no request might ever finish.")
    def test_the_oldest_stays(self, student, reference, rng):
        for _ in range(DRAWS):
            tables = own_tables(rng, whole(rng, 2, 5))
            most = sum(len(table) for table in tables[1:])
            for need in (most, most + 1, most + len(tables[0])):
                same_choice(student, reference, tables, need)
            same_choice(student, reference, tables[:1], 1)

    @pytest.mark.points(0.5, hint="If no block is needed, nobody leaves.")
    def test_nothing_is_needed(self, student, reference, rng):
        for count in (1, 2, 5):
            same_choice(student, reference, own_tables(rng, count), 0)


def hashes(student, tokens, block_size, tenant, public=0):
    """What the student's function returns: a list of texts, or the learner is told."""
    got = student.tenant_chain(list(tokens), block_size, tenant, public)
    if type(got) is not list or any(type(item) is not str for item in got):
        what = expect.call("tenant_chain", list(tokens), block_size, tenant, public)
        raise expect.Unequal(f"{what}: expected a list of texts (str)")
    return got


def compare(student, first, second, equal):
    """Hashes of two calls, block by block: `equal` says which must be the same."""
    one, other = hashes(student, *first), hashes(student, *second)
    calls = " and ".join(expect.call("tenant_chain", *arguments) for arguments in (first, second))
    expect.equal(len(one), len(equal), what=f"number of hashes of {expect.call('tenant_chain', *first)}")
    expect.equal(len(other), len(equal), what=f"number of hashes of {expect.call('tenant_chain', *second)}")
    got = [a == b for a, b in zip(one, other, strict=True)]
    expect.equal(got, equal, what=f"whether the hashes are equal, block by block, of {calls}")


@pytest.mark.exercise("ex-4-tenant-chain")
class TestTenantChain:
    """tenant_chain(tokens, block_size, tenant, public)"""

    @pytest.mark.points(0.5, hint="A block that is not full can still change, so it has no hash yet.")
    def test_full_blocks_only(self, student, rng):
        for size in (1, 2, whole(rng, 3, 8)):
            for count in (0, size - 1, size, 2 * size - 1, 2 * size + 1, 3 * size):
                tokens = numbers(rng, count, 0, 49_151)
                arguments = (tokens, size, "ada", 0)
                compare(student, arguments, arguments, [True] * (count // size))

    @pytest.mark.points(
        0.75, hint="The keys of a token depend on all tokens before it. Does its block's hash?"
    )
    def test_all_tokens_before_count(self, student, rng):
        for _ in range(DRAWS):
            size = whole(rng, 2, 5)
            tokens = numbers(rng, 4 * size, 100, 999)
            at = whole(rng, 0, 3)  # the block that changes
            other = list(tokens)
            other[at * size + whole(rng, 0, size - 1)] += 1
            equal = [block < at for block in range(4)]
            compare(student, (tokens, size, "ada", 0), (other, size, "ada", 0), equal)
            repeated = numbers(rng, size, 100, 999) * 3
            found = hashes(student, repeated, size, "ada")
            expect.equal(len(set(found)), 3, what="different hashes of a block that comes three times")
        compare(student, ([1, 23, 4], 3, "ada", 0), ([12, 3, 4], 3, "ada", 0), [False])

    @pytest.mark.points(
        1,
        hint="From its first own token on, no tenant may find a block of another, whatever both are called.",
    )
    def test_tenants_are_apart(self, student, rng):
        for first, second in (
            *(("ada", "bob"), ("ada", "Ada"), ("a", "aa"), ("", "ada"), ("ada", "ada "), ("ada", "daa")),
            *(("é", "e"), ("1", "11")),
        ):
            size = whole(rng, 1, 5)
            tokens = numbers(rng, 3 * size, 0, 999)
            compare(student, (tokens, size, first, 0), (tokens, size, second, 0), [False] * 3)
        # The end of the tokens and the name must not run together.
        compare(student, ([1, 2], 2, "3", 0), ([1, 23], 2, "", 0), [False])
        compare(student, ([1, 2], 2, ", 3", 0), ([1, 2], 2, "", 0), [False])
        # A name may be empty, and then its blocks are not the public ones; or it may be made of another's hash.
        compare(student, ([1, 2], 2, "", 0), ([1, 2], 2, "ada", 2), [False])
        first, second = hashes(student, [1, 2, 3, 4], 2, "ada")
        for name in (f"ada{first}", f"{first}ada"):
            (found,) = hashes(student, [3, 4], 2, name)
            expect.equal(
                found == second, False, what=f"whether tenant {name!r} finds the second block of 'ada'"
            )

    @pytest.mark.points(
        0.75, hint="A block is public if all of its tokens are. Which block is the first that is not?"
    )
    def test_public_blocks_are_shared(self, student, rng):
        for _ in range(DRAWS):
            size = whole(rng, 2, 6)
            tokens = numbers(rng, 4 * size, 0, 999)
            for public in (size, 2 * size, 2 * size + whole(rng, 1, size - 1), 3 * size - 1, 9 * size):
                equal = [(block + 1) * size <= public for block in range(4)]
                compare(student, (tokens, size, "ada", public), (tokens, size, "bob", public), equal)


@pytest.mark.exercise("ex-4-behind-window")
class TestBehindWindow:
    """free_behind(table, num_stored, window, block_size)"""

    @staticmethod
    def compare(student, reference, *arguments):
        expected = reference.free_behind(*arguments)
        what = expect.call("free_behind", *arguments)
        parts = expect.parts(student.free_behind(*arguments), 2, what=what)
        for name, mine, theirs in zip(("table", "freed"), parts, expected, strict=True):
            expect.equal(mine, theirs, what=f"{name} of {what}")

    @staticmethod
    def table(rng, num_stored, size):
        return (1 + rng.permutation(-(-num_stored // size))).tolist()

    @pytest.mark.points(
        0.75, hint="A block with one visible token stays. Block 0 takes the place of those that go."
    )
    def test_whole_blocks_only(self, student, reference, rng):
        for _ in range(DRAWS):
            size = whole(rng, 2, 8)
            stored, window = whole(rng, 6 * size, 12 * size), whole(rng, size, 4 * size)
            self.compare(student, reference, self.table(rng, stored, size), stored, window, size)

    @pytest.mark.points(
        0.5, hint="The next token gets position num_stored, and it is the last of the `window` that it sees."
    )
    def test_edges_of_the_window(self, student, reference, rng):
        for size in (1, whole(rng, 2, 3), whole(rng, 4, 8)):
            for stored in range(4 * size, 5 * size + 1):
                for window in (1, size, 2 * size, 2 * size + 1):
                    self.compare(student, reference, self.table(rng, stored, size), stored, window, size)

    @pytest.mark.points(0.5, hint="Where the null block stands already, there is nothing to give back.")
    def test_blocks_are_freed_once(self, student, reference, rng):
        for _ in range(DRAWS):
            size, gone = whole(rng, 2, 8), whole(rng, 1, 4)
            stored = whole(rng, 6 * size, 9 * size)
            table = self.table(rng, stored, size)
            table[:gone] = [0] * gone
            for window in (size, 2 * size, stored - gone * size + 1, stored):
                self.compare(student, reference, table, stored, window, size)

    @pytest.mark.points(0.25, hint="While fewer tokens than the window are stored, all of them are visible.")
    def test_a_window_longer_than_the_text(self, student, reference, rng):
        for _ in range(DRAWS):
            size = whole(rng, 1, 8)
            stored = whole(rng, size + 1, size + 20)
            for window in (stored + 1, stored + 2, stored + whole(rng, 3, 9), 1000):
                self.compare(student, reference, self.table(rng, stored, size), stored, window, size)
