"""Names for the contents of blocks: a hash over a block's tokens, all that precedes them, and what else matters.

Two prompts may share a block only if the model would compute the same numbers for it. These depend on all tokens up
to there, so a block's name is a hash over the name of the block before it and its own tokens: a chain, as in vLLM.
They also depend on the adapter in use and on images in place of tokens, and tenants who must not learn of each other
need names of their own. Such extra keys enter the hash with their kind and their lengths, so that an adapter called
"X" is never taken for a salt "X".

The root of a chain is secret unless a seed is given, so that nobody outside can craft two prompts of one name
(CVE-2025-25183). The hash is blake2b with 128 bits.
"""

import hashlib
import secrets
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from kvcourse.counts import one_line, read_count
from kvcourse.errors import InputError

TOKEN_BYTES = 8  # of one token: int64, little-endian
HASH_BYTES = 16
SYMBOL_BYTES = TOKEN_BYTES + HASH_BYTES

# (name of the block before, packed tokens of this block, its encoded extra keys) -> name of this block
HashFunction = Callable[[Any, bytes, bytes], Any]


class ExtraKey(NamedTuple):
    """Something besides the tokens that keys and values depend on. A plain pair (kind, value) stands for all tokens.

    kind: what it is, such as "adapter". value: which one, as bytes: a name, a salt, the `content_key` of an image.
    start, end: the tokens start … end − 1 of the sequence that it concerns; None is "to the end". Blocks outside do
    not depend on it, and a block inside depends on where in the item it begins.
    """

    kind: str
    value: bytes
    start: int = 0
    end: int | None = None


class BlockKey(NamedTuple):
    """An extra key as one block sees it: positions count from the block's first token, `end` at most its last."""

    kind: str
    value: bytes
    version: int
    start: int
    end: int

    def encode(self) -> bytes:
        """Every part with its length, so that no two keys have the same bytes."""
        kind = self.kind.encode()
        lengths = struct.pack("<5q", len(kind), len(self.value), self.version, self.start, self.end)
        return lengths + kind + self.value


@dataclass(frozen=True)
class Chain:
    """The names of all full blocks of a sequence, and what they were made of, so that a block found is verified.

    hashes: one name a block, by the hash function of the index. digests: the same by `block_hash`, which are the same
    names unless the index has a function of its own. packed: all tokens. extras: what each block depends on besides,
    also the last one if it is not full. versions: of the extra keys, at the time.
    """

    block_size: int
    num_tokens: int
    root: bytes
    hashes: tuple[Any, ...]
    digests: tuple[bytes, ...]
    packed: bytes
    extras: tuple[tuple[BlockKey, ...], ...]
    versions: dict[tuple[str, bytes], int]

    def __len__(self) -> int:
        return len(self.hashes)

    def __getitem__(self, i: int) -> Any:
        return self.hashes[i]

    def tokens(self, i: int) -> bytes:
        """The packed tokens of block i; of the last one those that there are."""
        width = self.block_size * TOKEN_BYTES
        return self.packed[i * width : (i + 1) * width]

    def parent(self, i: int) -> bytes:
        """The digest of all that precedes block i."""
        return self.digests[i - 1] if i else self.root


def make_chain(
    packed: bytes,
    keys: Sequence[ExtraKey],
    versions: dict[tuple[str, bytes], int],
    block_size: int,
    root: bytes,
    hash_fn: HashFunction | None = None,
) -> Chain:
    """Hash all full blocks of a sequence. O(tokens), and O(blocks · keys)."""
    num_tokens = len(packed) // TOKEN_BYTES
    extras = tuple(
        block_keys(keys, versions, start, block_size) for start in range(0, num_tokens, block_size)
    )
    width = block_size * TOKEN_BYTES
    name, digest = root, root
    hashes, digests = [], []
    for i in range(num_tokens // block_size):
        tokens = packed[i * width : (i + 1) * width]
        encoded = b"".join(key.encode() for key in extras[i])
        digest = block_hash(digest, tokens, encoded)
        name = digest if hash_fn is None else hash_fn(name, tokens, encoded)
        digests.append(digest)
        hashes.append(name)
    return Chain(block_size, num_tokens, root, tuple(hashes), tuple(digests), packed, extras, versions)


def block_hash(parent: bytes, tokens: bytes, extras: bytes) -> bytes:
    """The name of a block: blake2b-128 of the name before it, its packed tokens and its encoded extra keys."""
    return _digest(parent + struct.pack("<q", len(tokens)) + tokens + extras)


def make_root(seed: bytes | None) -> bytes:
    """What stands before the first block: random for None, else made of the seed."""
    if seed is None:
        return secrets.token_bytes(HASH_BYTES)
    if not isinstance(seed, bytes):
        raise InputError(f"seed={one_line(seed)}: expected bytes, or None for a random root")
    return _digest(b"root of a chain" + seed)


def block_keys(
    keys: Sequence[ExtraKey], versions: dict[tuple[str, bytes], int], first: int, block_size: int
) -> tuple[BlockKey, ...]:
    """What the block of the tokens first … first + block_size − 1 depends on, in an order of its own."""
    found: dict[tuple[str, bytes, int, int], int] = {}
    for kind, value, start, end in keys:
        last = block_size if end is None else min(end - first, block_size)
        if start - first < block_size and last > 0:
            key = kind, value, versions[kind, value], start - first
            found[key] = max(last, found.get(key, 0))
    return tuple(sorted(BlockKey(*key, last) for key, last in found.items()))


def symbols(packed: bytes, keys: Sequence[BlockKey]) -> bytes:
    """A block's tokens, each followed by a digest of the extra keys that concern it (zeros for none).

    Two prompts agree on a token, given that they agree on all before, exactly if its symbols are equal: the longest
    common prefix of two such strings is what they share.
    """
    num_tokens = len(packed) // TOKEN_BYTES
    edges = {min(max(edge, 0), num_tokens) for key in keys for edge in (key.start, key.end)}
    found = []
    for first, end in pairwise(sorted({0, num_tokens} | edges)):
        # Where an item ends makes no difference to the tokens before its end.
        concerned = {key._replace(end=0) for key in keys if key.start <= first < key.end}
        mark = (
            _digest(b"".join(key.encode() for key in sorted(concerned))) if concerned else bytes(HASH_BYTES)
        )
        for i in range(first, end):
            found += packed[i * TOKEN_BYTES : (i + 1) * TOKEN_BYTES], mark
    return b"".join(found)


def common_symbols(a: bytes, b: bytes) -> int:
    """How many symbols two strings have in common at their beginning."""
    length = min(len(a), len(b))
    # The lowest bit in which the two differ as little-endian numbers lies in the first byte in which they differ.
    difference = int.from_bytes(a[:length], "little") ^ int.from_bytes(b[:length], "little")
    same_bits = (difference & -difference).bit_length() - 1 if difference else 8 * length
    return same_bits // (8 * SYMBOL_BYTES)


def pack_tokens(tokens: Any) -> bytes:
    """Tokens as int64, little-endian. tokens: a sequence of whole numbers ≥ 0; an array or a tensor of one dimension.

    Errors: InputError for anything else, also for bools.
    """
    try:
        listed = tokens.tolist() if hasattr(tokens, "tolist") else tokens
    except RuntimeError as error:  # torch's, for a tensor without numbers
        reason = str(error).partition("\n")[0]
        raise InputError(f"tokens are a {type(tokens).__name__} that cannot be read: {reason:.80}") from None
    if isinstance(listed, str) or not isinstance(listed, Sequence):
        raise InputError(
            f"tokens={one_line(tokens):.80}: expected a sequence of token numbers of one dimension"
        )
    if not set(map(type, listed)) <= {int}:
        listed = [read_count(f"token {i}", token, least=0) for i, token in enumerate(listed)]
    if listed and min(listed) < 0:
        i = next(i for i, token in enumerate(listed) if token < 0)
        raise InputError(f"token {i}={listed[i]}: expected a whole number of at least 0; leave padding out")
    try:
        return struct.pack(f"<{len(listed)}q", *listed)
    except struct.error:
        raise InputError(f"token {max(listed)}: expected a number below 2^63") from None


def read_extra_keys(extra_keys: Iterable[Any]) -> tuple[ExtraKey, ...]:
    """Extra keys as callers give them, checked. Errors: InputError that names the key which does not fit."""
    try:
        listed = None if isinstance(extra_keys, str | bytes | ExtraKey) else list(extra_keys)
    except TypeError:
        listed = None
    if listed is None:
        raise InputError(f"extra_keys={one_line(extra_keys)}: expected a sequence of (kind, value) pairs")
    return tuple(map(_read_key, listed))


def _read_key(key: Any) -> ExtraKey:
    if not isinstance(key, tuple | list) or not 2 <= len(key) <= 4:
        raise InputError(
            f"extra key {one_line(key)}: expected (kind, value) or ExtraKey(kind, value, start, end)"
        )
    kind, value, start, end = ExtraKey(*key)
    read_tag(kind, value)
    start = read_count("start of an extra key", start, least=0)
    end = None if end is None else read_count("end of an extra key", end, least=start + 1)
    return ExtraKey(kind, value, start, end)


def read_tag(kind: Any, value: Any) -> tuple[str, bytes]:
    """The kind and the value of an extra key, checked."""
    if not isinstance(kind, str) or not kind:
        raise InputError(f"extra key of kind {one_line(kind)}: expected a name such as 'adapter'")
    if not isinstance(value, bytes):
        raise InputError(
            f"extra key {kind!r}: value {one_line(value)}: expected bytes; encode a name, or use content_key"
        )
    return kind, value


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=HASH_BYTES).digest()


def content_key(content: Any) -> bytes:
    """A key for what is not text (an image, an audio clip), made of all of its numbers, its type and its shape.

    content: a numpy array, a tensor, or lists nested in any way that hold numbers, text, bytes and arrays. A list and
    an array of the same numbers have different keys. 256 bits, since nothing secret enters it.

    Errors: InputError for anything else.
    """
    try:
        return hashlib.blake2b(_encode(content), digest_size=32).digest()
    except RecursionError:
        raise InputError("content_key: the lists are nested too deeply, or hold themselves") from None


def _encode(content: Any) -> bytes:
    """Bytes that no other content has: each part with its kind and its length."""
    if isinstance(content, list | tuple):
        kind, data = "list", b"".join(map(_encode, content))
    elif content is None or isinstance(content, bool | int | float | complex | str):
        kind, data = type(content).__name__, repr(content).encode()
    elif isinstance(content, bytes | bytearray | memoryview):
        kind, data = "bytes", bytes(content)
    else:
        array, dtype = _as_array(content)
        kind, data = f"array {dtype} {array.shape}", array.tobytes()
    head = kind.encode()
    return struct.pack("<2q", len(head), len(data)) + head + data


def _as_array(content: Any) -> tuple[np.ndarray, str]:
    """An array in C order and little-endian, and the name of the numbers' type before any conversion."""
    try:
        if hasattr(content, "detach"):  # a tensor
            content = content.detach().cpu()
            name = str(content.dtype).removeprefix("torch.")
            if content.dtype.is_floating_point and content.element_size() < 4:
                content = content.float()  # exact, and numpy has no bfloat16 and no float8
            array = content.numpy()
        else:
            array = np.asarray(content)
            name = array.dtype.name
    except (TypeError, ValueError, RuntimeError, AttributeError) as error:
        raise InputError(
            f"content_key: cannot read the numbers of a {type(content).__name__}: {error}"
        ) from None
    if array.dtype.hasobject:
        raise InputError(
            f"content_key: {type(content).__name__}: expected an array, a tensor or nested lists"
        )
    return array.astype(array.dtype.newbyteorder("<"), copy=False), name
