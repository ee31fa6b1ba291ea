"""Sequences of tokens in a storage, and the steps in which they grow."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from kvcourse.attention.padding import positions_of, read_mask
from kvcourse.config import ModelConfig
from kvcourse.counts import MOST, one_line, read_count
from kvcourse.errors import InputError
from kvcourse.placement import name_device
from kvcourse.plan import Plan, plan_or_default
from kvcourse.step import Step
from kvcourse.storage.base import Storage
from kvcourse.storage.choice import make_storage
from kvcourse.storage.offload import Offloaded, offload, restore
from kvcourse.storage.paged import PagedStorage
from kvcourse.storage.paged_memory import PagedMemory
from kvcourse.storage.prefix_sharing import publish, reuse

MOST_ROWS = 1 << 20  # a cache keeps numbers per row in Python
MOST_TOKENS = 1 << 28  # of a step, which has a position for each


class Sequences:
    """The rows of a cache: how many tokens each has, where they lie, and the step that is under way.

    config, plan, batch_size, memory: as in KVCache.
    """

    def __init__(
        self,
        config: ModelConfig,
        plan: Plan | None = None,
        batch_size: int = 1,
        memory: PagedMemory | None = None,
    ) -> None:
        if plan is None and isinstance(memory, PagedMemory):
            plan = Plan(storage="paged", block_size=memory.block_size, codec=memory.codec.format.name)
        plan = plan_or_default(plan)
        batch_size = read_count("batch_size", batch_size, most=MOST_ROWS)
        plan.require_runnable()
        self.config, self.plan, self.batch_size = config, plan, batch_size
        self._storage = make_storage(config, plan, batch_size, memory)
        self._seen = (0,) * batch_size
        self._step: Step | None = None

    @property
    def seen(self) -> tuple[int, ...]:
        """Tokens that each row has seen so far: the position of its next token."""
        return self._seen

    @property
    def lengths(self) -> tuple[int, ...]:
        """Tokens kept per row, that is visible to some layer: all, unless every layer has a window."""
        windows = [store.window for store in self._storage.layers]
        return self._seen if None in windows else tuple(min(seen, max(windows)) for seen in self._seen)

    @property
    def capacity(self) -> int:
        """Slots allocated for the longest row in the largest layer. At least the tokens it holds, usually more."""
        return self._storage.capacity

    @property
    def nbytes(self) -> int:
        """Bytes allocated for all layers and rows: of the arrays, or of the blocks that the rows hold.

        A block that several rows or caches share counts once in each cache.
        """
        return self._storage.nbytes

    @property
    def memory(self) -> PagedMemory | None:
        """The memory that holds the blocks, of a paged cache."""
        return self._storage.memory if isinstance(self._storage, PagedStorage) else None

    def begin(
        self, num_tokens: int, attention_mask: Tensor | None = None, device: torch.device | str = "cpu"
    ) -> Tensor:
        """Start a step of `num_tokens` tokens per row and return their positions.

        attention_mask: (batch, num_tokens), 1 for tokens and 0 for padding, padding on the left; None: no padding.
        device: of the positions, that of the keys to come.
        Returns (batch, num_tokens) int64, the position of each token in its own row, -1 for padding.
        Errors: InputError for another shape, padding that is not on the left, a row of padding only, or no device.
        """
        num_tokens, device = read_count("tokens of a step", num_tokens, most=MOST_TOKENS), name_device(device)
        self._settle()
        if attention_mask is None:
            new = (num_tokens,) * self.batch_size
            offsets = torch.arange(num_tokens, device=device)
            positions = torch.tensor(self._seen, device=device)[:, None] + offsets
        else:
            valid = read_mask(attention_mask, self.batch_size, num_tokens, device)
            new = tuple(valid.sum(-1).tolist())
            positions = positions_of(torch.tensor(self._seen, device=device), valid)
        self._step = Step(self._seen, new, num_tokens, positions, announced=True)
        return positions

    def require_room(self, totals: Sequence[int]) -> None:
        """See whether every row can grow to so many tokens, before the first of many steps.

        Errors: InputError for more than the plan's capacity holds; PoolExhausted where too few blocks are free now.
        """
        if len(totals) != self.batch_size:
            raise InputError(f"require_room() got {len(totals)} rows: expected {self.batch_size}")
        self._storage.require_room([read_count("tokens of a row", total, least=0) for total in totals])

    def commit(self) -> None:
        """End the step that `begin` started: from now on its tokens count.

        Errors: InputError when a layer has not attended yet.
        """
        step = self._step
        if step is None or step.next_layer < len(self._storage.layers):
            done = 0 if step is None else step.next_layer
            raise InputError(
                f"commit() after {done} of {len(self._storage.layers)} layers: begin() a step, attend with every one"
            )
        step.committing = True
        self._settle()

    def rollback(self) -> None:
        """Drop the step that `begin` started: nothing of it counts. The next `begin` does this too.

        A step whose commit was interrupted is finished instead: it has begun to take the place of what was there.
        """
        self._settle()
        self._step = None
        self._storage.trim()

    def _settle(self) -> None:
        """Finish the commit that is under way, or that was interrupted; doing it twice changes nothing."""
        step = self._step
        if step is not None and step.committing:
            self._storage.commit(step)
            self._seen, self._step = step.total, None
            self._storage.trim()

    def crop(self, n: int) -> None:
        """Keep the first n tokens of every row (n ≥ 0), or drop the last -n (n < 0). Allocated memory stays.

        Errors: InputError when a row would have to grow, or when a sliding layer has already overwritten
        what the window needs: it can go back at most `plan.block_size` tokens past a full ring.
        """
        n = read_count("crop: n", n, least=-MOST)  # a snapshot, also of a tensor that changes later
        self._settle()
        kept = tuple(n if n >= 0 else max(0, length + n) for length in self._seen)
        for row, (now, then) in enumerate(zip(self._seen, kept, strict=True)):
            if then > now:
                raise InputError(f"crop({n}): row {row} has {now} tokens; crop can only shorten")
        self._storage.crop(self._seen, kept)
        self._seen, self._step = kept, None
        self._storage.trim()

    def fork(self) -> Self:
        """An independent copy: what one of the two writes, the other never sees. Pages are shared until then.

        A step that is under way stays with this cache. `copy.copy` and `copy.deepcopy` do the same.
        """
        self._settle()
        return self._of(self._storage.select(range(self.batch_size)), self._seen)

    def __copy__(self) -> Self:  # two caches of one table would write into each other's blocks
        return self.fork()

    def __deepcopy__(self, memo: dict) -> Self:  # in the same memory, which is made for many
        return self.fork()

    def select(self, rows: Sequence[int]) -> Self:
        """A cache of these rows, in this order, independent of this one; a row may be repeated (beam search).

        Errors: InputError for no row, or a row that does not exist.
        """
        rows = [
            read_count("row", row, least=0, most=self.batch_size - 1)
            for row in _listed(rows, "select", "rows")
        ]
        self._settle()
        return self._of(self._storage.select(rows), tuple(self._seen[row] for row in rows))

    @classmethod
    def cat(cls, caches: Sequence[Self]) -> Self:
        """One cache of all rows of several caches of one model and plan. The rows move: those caches are empty then.

        Errors: InputError for no cache, caches of several models, plans or memories, or one in the middle of a step.
        """
        caches = _listed(caches, "cat", "caches")
        for cache in caches:
            if not isinstance(cache, cls):
                raise InputError(f"cat() got a {type(cache).__name__}: expected a list of caches")
        first = caches[0]
        for cache in caches:
            if (cache.config, cache.plan) != (first.config, first.plan):
                raise InputError("cat(): caches of different models or plans: expected one for all")
            if caches.count(cache) > 1:
                raise InputError("cat(): a cache is given twice: fork() it first")
            cache._settle()
            if cache._step is not None and cache._step.is_under_way:
                raise InputError("cat(): a cache is in the middle of a step: commit() or rollback() it first")
        joined = first._of(
            first._storage.join([cache._storage for cache in caches[1:]]),
            sum((cache._seen for cache in caches), ()),
        )
        for cache in caches:
            cache._seen, cache._step = (0,) * cache.batch_size, None
        for cache in caches:
            cache._storage.reset()
        return joined

    def reset(self) -> None:
        """Forget every token. Arrays stay allocated; blocks go back to the pool."""
        self._seen, self._step = (0,) * self.batch_size, None
        self._storage.reset()

    def reuse(
        self, tokens: Sequence[Sequence[int]] | Tensor, extra_keys: Sequence[Any] = ()
    ) -> tuple[int, ...]:
        """Let fresh rows begin with the prefixes that `publish` has made findable; compute the rest of each prompt.

        tokens: of each row, the whole prompt. extra_keys: what else the stored numbers depend on, as (kind, bytes),
        for example ("adapter", b"…"); prefixes of other keys are not found.
        Returns how many tokens each row has now: at most all but one, whose logits start the answer.
        Errors: InputError for a cache without pages, rows that have tokens already, or what are no tokens or keys.
        """
        storage = self._paged("reuse")
        self._seen, self._step = reuse(storage, self._seen, tokens, extra_keys), None
        return self._seen

    def publish(self, tokens: Sequence[Sequence[int]] | Tensor, extra_keys: Sequence[Any] = ()) -> None:
        """Make the full blocks of these rows findable for `reuse`; after the rows are gone, until they are needed.

        tokens: of each row, those that it has seen, at least. extra_keys: as in `reuse`.
        Errors: InputError for a cache without pages, fewer tokens than a row has, or what are no tokens or keys.
        """
        publish(self._paged("publish"), self._seen, tokens, extra_keys)

    def offload(self, path: str | Path | None = None) -> Offloaded:
        """Move all blocks out, to CPU memory or into a safetensors file; `restore` brings them back, bit by bit.

        The rows are empty afterwards. Errors: InputError for a cache without pages, or a file that cannot be written;
        nothing is moved then.
        """
        saved = offload(self._paged("offload"), self._seen, path)
        self.reset()
        return saved

    def restore(self, saved: Offloaded) -> None:
        """Bring back what `offload` moved out: into this cache, or another of the same model and number of rows.

        Errors: PoolExhausted, or InputError for a cache that has tokens or that they do not fit; nothing changes.
        """
        storage = self._paged("restore")
        if any(self._seen):
            raise InputError(
                f"restore(): this cache holds {self._seen} tokens; reset() it, or make a new one"
            )
        self._seen, self._step = restore(storage, saved), None

    def _paged(self, method: str) -> PagedStorage:
        if not isinstance(self._storage, PagedStorage):
            raise InputError(f"{method}() works on blocks: make the cache with Plan(storage='paged')")
        self._settle()
        return self._storage

    def _of(self, storage: Storage, seen: tuple[int, ...]) -> Self:
        """A cache like this one on another storage."""
        other = object.__new__(type(self))
        other.config, other.plan, other.batch_size = self.config, self.plan, len(seen)
        other._storage, other._seen, other._step = storage, seen, None
        return other


def _listed(values: Any, method: str, what: str) -> list:
    """What a method of caches got as a list. Errors: InputError when it is none, or empty."""
    try:
        listed = list(values)
    except TypeError:
        listed = []
    if not listed:
        raise InputError(f"{method}({one_line(values):.80}): expected a list of {what}, at least one")
    return listed
