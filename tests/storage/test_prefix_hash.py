"""Names of blocks: what makes two of them equal, what keeps them apart, and what cannot be read."""

import hashlib
import itertools
import struct
from array import array
from collections import deque

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import MANY

from kvcourse.errors import InputError
from kvcourse.storage.block_pool import BlockPool
from kvcourse.storage.prefix_hash import (
    SYMBOL_BYTES,
    BlockKey,
    ExtraKey,
    common_symbols,
    content_key,
    pack_tokens,
    read_extra_keys,
    symbols,
)
from kvcourse.storage.prefix_index import PrefixIndex


def index(seed=b"seed", block_size=4, **options):
    return PrefixIndex(BlockPool(16, block_size), seed=seed, **options)


def names(tokens, extra_keys=(), **options):
    return index(**options).chain(tokens, extra_keys).hashes


# ---- chains ----------------------------------------------------------------------------------------


def test_names_are_blake2b_over_parent_tokens_and_extra_keys():
    """The format, spelled out: what is stored under these names must be found by a later version."""
    tokens = [5, 0, 2**40, 7, 1, 2, 3, 4, 9]
    key = ExtraKey("adapter", b"A\0", 2, 6)

    def encoded(start, end):
        return struct.pack("<5q", 7, 2, 0, start, end) + b"adapter" + b"A\0"

    parent = hashlib.blake2b(b"root of a chain" + b"seed", digest_size=16).digest()
    wanted = []
    for i, extras in enumerate((encoded(2, 4), encoded(-2, 2))):
        packed = struct.pack("<4q", *tokens[4 * i : 4 * i + 4])
        data = parent + struct.pack("<q", 32) + packed + extras
        parent = hashlib.blake2b(data, digest_size=16).digest()
        wanted.append(parent)
    assert names(tokens, [key]) == tuple(wanted)


@pytest.mark.parametrize("length", [0, 1, 3, 4, 5, 7, 8, 9])
def test_only_full_blocks_have_names(length):
    chain = index().chain(range(length))
    assert (len(chain), chain.num_tokens) == (length // 4, length)
    assert list(chain) == [chain[i] for i in range(len(chain))] == list(chain.hashes)
    assert all(len(name) == 16 for name in chain)


def test_a_name_depends_on_every_token_before_and_on_none_behind():
    tokens = list(range(12))
    plain = names(tokens)
    for place in range(12):
        changed = names([*tokens[:place], 99, *tokens[place + 1 :]])
        same = [a == b for a, b in zip(plain, changed, strict=True)]
        assert same == [i < place // 4 for i in range(3)]
    assert names([*tokens, 1, 2]) == plain
    assert names(tokens[:9]) == plain[:2]


def test_the_root_is_random_unless_a_seed_is_given():
    """P1: names cannot be predicted, and so no prompt can be made to have another's."""
    tokens = range(8)
    assert len({names(tokens, seed=None)[0] for _ in range(5)}) == 5
    assert names(tokens, seed=b"one") == names(tokens, seed=b"one") != names(tokens, seed=b"two")
    assert index(seed=b"one").chain(tokens) == index(seed=b"one").chain(tokens)
    assert names(tokens, seed=b"") == names(tokens, seed=b"")


def test_equal_tokens_in_blocks_of_another_size_have_other_names():
    assert not set(names(range(16), block_size=4)) & set(names(range(16), block_size=8))


@pytest.mark.parametrize("seed", ["text", 7, bytearray(b"x"), 1.5])
def test_seeds_are_bytes(seed):
    with pytest.raises(InputError, match="expected bytes"):
        index(seed=seed)


KEYS = [
    (),
    [("adapter", b"X")],
    [("salt", b"X")],
    [("adapter", b"Y")],
    [("adapter", b"X"), ("salt", b"X")],
    [("adapter", b"Xs"), ("alt", b"X")],
    [("adapters", b"X")],
    [("adapter", b"")],
    [ExtraKey("adapter", b"X", 1)],
    [ExtraKey("adapter", b"X", 0, 3)],
    [ExtraKey("adapter", b"X", 0, 2), ExtraKey("adapter", b"X", 2, 4)],
]


@pytest.mark.parametrize(("a", "b"), list(itertools.combinations(KEYS, 2)))
def test_other_extra_keys_give_other_names(a, b):
    """P4: a kind and a value are not just joined. P5, P8: whatever the key, it keeps prompts apart."""
    assert not set(names(range(8), a)) & set(names(range(8), b))


def test_extra_keys_are_a_set():
    a, b = ("adapter", b"A"), ("salt", b"S")
    assert names(range(8), [a, b]) == names(range(8), [b, a]) == names(range(8), (b, a, b))
    assert (
        names(range(8), [list(a)]) == names(range(8), [ExtraKey(*a)]) == names(range(8), [ExtraKey(*a, 0, 8)])
    )
    assert names(range(8), iter([a])) == names(range(8), [a])
    shorter, longer = ExtraKey(*a, 1, 3), ExtraKey(*a, 1, 5)
    for keys in ([shorter, longer], [longer, shorter]):
        assert names(range(8), keys) == names(range(8), [longer])


def test_an_image_concerns_only_the_blocks_it_overlaps_and_all_behind_them():
    plain = names(range(20))
    for start, end, first in ((4, 8, 1), (7, 8, 1), (3, 5, 0), (8, 9, 2), (19, 30, 4)):
        changed = names(range(20), [ExtraKey("image", b"1", start, end)])
        assert [a == b for a, b in zip(plain, changed, strict=True)] == [i < first for i in range(5)]
    assert names(range(20), [ExtraKey("image", b"1", 20, 24)]) == plain
    extras = index().chain(range(20), [ExtraKey("image", b"1", 4, 9)]).extras
    assert [bool(keys) for keys in extras] == [False, True, True, False, False]


def test_where_an_image_lies_in_a_block_matters():
    tokens = [7] * 12
    at = {
        (start, start + 5): names(tokens, [ExtraKey("image", b"1", start, start + 5)]) for start in range(4)
    }
    assert len({found[0] for found in at.values()}) == 4
    assert (
        names(tokens, [ExtraKey("image", b"1", 0, 5)])[0] == names(tokens, [ExtraKey("image", b"1", 0, 6)])[0]
    )
    assert (
        names(tokens, [ExtraKey("image", b"1", 0, 5)])[1] != names(tokens, [ExtraKey("image", b"1", 0, 6)])[1]
    )


def test_the_function_that_names_blocks_may_be_another():
    asked = []

    def spell(parent, tokens, extras):
        asked.append((parent, tokens, extras))
        return len(asked)

    chain = index(hash_fn=spell).chain(range(8), [("adapter", b"A")])
    assert tuple(chain) == (1, 2)
    (root, *_), (parent, tokens, extras) = asked
    assert (len(root), parent, tokens) == (16, 1, struct.pack("<4q", 4, 5, 6, 7))
    assert b"adapter" in extras
    assert chain.digests == names(range(8), [("adapter", b"A")])


# ---- tokens ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "as_tokens",
    [
        list,
        tuple,
        deque,
        bytes,
        np.array,
        torch.tensor,
        lambda tokens: range(3, 8),
        lambda tokens: array("i", tokens),
        lambda tokens: np.array(tokens, dtype=np.uint16),
        lambda tokens: np.array(tokens, dtype=">i4"),
        lambda tokens: torch.tensor(tokens, dtype=torch.int32),
        lambda tokens: [np.int64(token) for token in tokens],
        lambda tokens: [torch.tensor(token) for token in tokens],
    ],
)
def test_tokens_of_any_sequence_are_the_same(as_tokens):
    tokens = [3, 4, 5, 6, 7]
    assert pack_tokens(as_tokens(tokens)) == b"".join(token.to_bytes(8, "little") for token in tokens)


def test_no_tokens_are_no_bytes():
    assert pack_tokens([]) == pack_tokens(torch.zeros(0, dtype=torch.int64)) == b""


def test_the_largest_token_is_what_64_bits_hold():
    assert pack_tokens([2**63 - 1]) == b"\xff" * 7 + b"\x7f"
    with pytest.raises(InputError, match=r"below 2\^63"):
        pack_tokens([1, 2**63])


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ([1, -1], "token 1=-1: expected a whole number of at least 0"),
        (np.array([5, -100]), "token 1=-100"),
        ([True, 1], "token 0=True"),
        (torch.tensor([True]), "token 0=True"),
        ([1, 2.0], "token 1=2.0"),
        (np.array([1.0]), "token 0=1.0"),
        (torch.tensor([1.0]), "token 0=1.0"),
        (["a"], "token 0='a'"),
        ([1, None], "token 1=None"),
        ([[1, 2]], r"token 0=\[1, 2\]"),
        (torch.tensor([[1, 2]]), r"token 0=\[1, 2\]"),
        (torch.tensor(1), "one dimension"),
        (np.int64(1), "one dimension"),
        ("text", "tokens='text'"),
        (7, "tokens=7"),
        (None, "tokens=None"),
        ({1, 2}, "expected a sequence"),
        ({1: 2}, "expected a sequence"),
        ((token for token in (1, 2)), "expected a sequence"),
    ],
)
def test_what_is_not_tokens_is_named(tokens, message):
    for read in (pack_tokens, index().chain, index().match, index(token_granular=True).acquire):
        with pytest.raises(InputError, match=message):
            read(tokens)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (("adapter", b"A"), "extra key 'adapter': expected"),
        ("adapter", "expected a sequence of"),
        (b"adapter", "expected a sequence of"),
        (ExtraKey("adapter", b"A"), "expected a sequence of"),
        (None, "extra_keys=None"),
        (5, "extra_keys=5"),
        (np.array(5), "extra_keys=array"),
        ([("adapter",)], "expected .kind, value. or"),
        ([("adapter", b"A", 0, 1, 2)], "expected .kind, value. or"),
        ([b"ab"], "extra key b'ab'"),
        ([("adapter", "A")], "'adapter': value 'A': expected bytes"),
        ([("adapter", None)], "'adapter': value None: expected bytes"),
        ([(b"adapter", b"A")], "kind b'adapter'"),
        ([("", b"A")], "kind ''"),
        ([(None, b"A")], "kind None"),
        ([ExtraKey("image", b"A", -1)], "start of an extra key=-1"),
        ([ExtraKey("image", b"A", 1.5)], "start of an extra key=1.5"),
        ([ExtraKey("image", b"A", None)], "start of an extra key=None"),
        ([ExtraKey("image", b"A", 3, 3)], "end of an extra key=3: expected a whole number of at least 4"),
        ([ExtraKey("image", b"A", 0, True)], "end of an extra key=True"),
    ],
)
def test_what_is_not_extra_keys_is_named(keys, message):
    with pytest.raises(InputError, match=message):
        read_extra_keys(keys)
    with pytest.raises(InputError, match=message):
        index().match([1, 2], keys)


# ---- parts of blocks -------------------------------------------------------------------------------

SMALL = st.lists(st.sampled_from([0, 0, 0, 1]), max_size=6)
ITEMS = st.lists(
    st.tuples(st.sampled_from("aab"), st.integers(-1, 1), st.integers(1, 7)).map(
        lambda t: BlockKey("image", t[0].encode(), 0, t[1], t[1] + t[2])
    ),
    max_size=3,
)


def spelled(tokens, keys):
    """Each token with the items that lie over it and the place in each: what its keys and values depend on."""
    return [
        (token, {(key.value, i - key.start) for key in keys if key.start <= i < key.end})
        for i, token in enumerate(tokens)
    ]


@settings(MANY, max_examples=300)
@given(SMALL, ITEMS, SMALL, ITEMS)
def test_common_symbols_are_the_common_prefix(tokens, keys, others, other_keys):
    a, b = spelled(tokens, keys), spelled(others, other_keys)
    wanted = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    packed, other = symbols(pack_tokens(tokens), keys), symbols(pack_tokens(others), other_keys)
    assert (len(packed), len(other)) == (SYMBOL_BYTES * len(tokens), SYMBOL_BYTES * len(others))
    assert common_symbols(packed, other) == common_symbols(other, packed) == wanted


def test_common_symbols_differ_by_whole_tokens():
    """Tokens that share their low bytes are different tokens."""
    a, b = ([1, 0x0100 + 5, 3], [1, 5, 3])
    assert common_symbols(symbols(pack_tokens(a), ()), symbols(pack_tokens(b), ())) == 1
    assert common_symbols(symbols(pack_tokens([2**40]), ()), symbols(pack_tokens([0]), ())) == 0


# ---- keys of contents ------------------------------------------------------------------------------


def test_content_keys_hold_shape_and_type():
    """P10: the same bytes of another shape or type are another image."""
    image = np.arange(4500, dtype=np.float32).reshape(30, 150)
    others = [
        image.reshape(150, 30),
        image.reshape(-1),
        image[None],
        image.view(np.int32),
        image.T,
        image.astype(np.float64),
        image + 1,
        image[:-1],
        image.tolist(),
        image.tobytes(),
    ]
    keys = {content_key(content) for content in [image, *others]}
    assert len(keys) == 1 + len(others)
    assert {len(key) for key in keys} == {32}


def test_content_keys_do_not_depend_on_how_the_array_lies():
    image = np.arange(24, dtype=np.float32).reshape(4, 6)
    key = content_key(image)
    for same in (image.copy(), np.asfortranarray(image), image.astype(">f4"), np.repeat(image, 2, 0)[::2]):
        assert content_key(same) == key
    assert content_key(torch.from_numpy(image)) == content_key(torch.from_numpy(image.T.copy()).T) == key
    assert content_key(torch.from_numpy(image).requires_grad_()) == key


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.int8, torch.bool]
)
def test_content_keys_of_tensors_that_numpy_lacks(dtype):
    image = torch.arange(12).reshape(3, 4).to(dtype)
    assert content_key(image) == content_key(image.clone())
    assert content_key(image) != content_key(image.float())
    changed = image.clone()
    changed[1, 2] = 0
    assert content_key(changed) != content_key(image)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ([[1, 2], [3]], [[1], [2, 3]]),
        ([1, [2, 3]], [1, 2, 3]),
        ([[]], []),
        ([1, 2], [12]),
        ([1], [1.0]),
        ([1], [True]),
        ([1], ["1"]),
        (["a", "b"], ["ab"]),
        ([b"a"], ["a"]),
        ([None], []),
        ([np.array([1, 2]), np.array([3])], [np.array([1]), np.array([2, 3])]),
        ([0.1], [0.1 + 2**-56]),
    ],
)
def test_content_keys_of_nested_lists(a, b):
    assert content_key(a) != content_key(b)
    assert content_key(a) == content_key(a) == content_key(tuple(a))


def test_what_has_no_content_key_is_named():
    endless = []
    endless.append(endless)
    for content, message in (
        (endless, "nested too deeply"),
        ({1: 2}, "dict: expected an array"),
        (object(), "object: expected an array"),
        ([{1}], "set: expected an array"),
        (torch.zeros(2, device="meta"), "cannot read the numbers of a Tensor"),
        (np.array([None]), "ndarray: expected an array"),
    ):
        with pytest.raises(InputError, match=message):
            content_key(content)


def test_tensors_without_numbers_are_named():
    for tokens in (torch.ones(3, dtype=torch.int64, device="meta"), torch.eye(3).to_sparse()):
        with pytest.raises(InputError, match="Tensor that cannot be read"):
            pack_tokens(tokens)
