"""Blocks that were moved out of a paged memory, to CPU memory or to disk, and the way back."""

import json
import os
import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from kvcourse.counts import one_line
from kvcourse.errors import InputError
from kvcourse.placement import read_dtype
from kvcourse.storage.block_pool import NULL_BLOCK, blocks_for
from kvcourse.storage.paged import PagedStorage
from kvcourse.storage.paged_memory import PagedMemory
from kvcourse.storage.pages import Pages


@dataclass(frozen=True)
class Offloaded:
    """The blocks of some sequences outside of any pool, each once however many sequences share it.

    seen: tokens of each row. tables: for each kind of layer the table of each row, naming saved blocks from 1 on, or
    0 for the null block. windows: of each kind of layer. dtype: of the tensors that were stored. planes: by name,
    (blocks, heads, block_size, …), on the CPU; None when they are in the safetensors file `path`, marked with `key`.
    """

    seen: tuple[int, ...]
    tables: list[list[list[int]]]
    windows: tuple[int | None, ...]
    dtype: torch.dtype
    planes: dict[str, Tensor] | None = None
    path: Path | None = None
    key: str = ""

    @classmethod
    def open(cls, path: str | Path) -> "Offloaded":
        """What `KVCache.offload(path)` has written, in this process or another.

        Errors: InputError for a file that is missing, damaged or something else.
        """
        path = _read_path(path)
        try:
            with safe_open(path, "pt") as file:
                about = _about(file)
            dtype = read_dtype(getattr(torch, about["dtype"]))
            return cls(
                tuple(about["seen"]),
                about["tables"],
                tuple(about["windows"]),
                dtype,
                path=path,
                key=about["key"],
            )
        except (
            OSError, SafetensorError, LookupError, ValueError, TypeError, AttributeError, RecursionError,
        ) as error:  # fmt: skip
            raise InputError(
                f"{path} holds no offloaded blocks ({type(error).__name__}): give a file that offload() wrote"
            ) from None

    def load(self) -> dict[str, Tensor]:
        """The planes, on the CPU. Errors: InputError for a file that cannot be read any more."""
        if self.planes is not None:
            return self.planes
        try:
            with safe_open(self.path, "pt") as file:
                if _about(file)["key"] == self.key:
                    return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dictionary
        except (OSError, SafetensorError, LookupError, ValueError, TypeError) as error:
            raise InputError(
                f"{self.path} cannot be read: {error}; the blocks are lost unless there is a copy"
            ) from None
        raise InputError(f"{self.path} holds other blocks by now: give each offload() a path of its own")

    @property
    def nbytes(self) -> int:
        """Bytes of the saved planes."""
        return sum(plane.nbytes for plane in self.load().values())


def offload(storage: PagedStorage, seen: Sequence[int], path: str | Path | None) -> Offloaded:
    """Copy all blocks of a storage out; `path` names the file to write, None keeps them in CPU memory.

    Errors: InputError for a storage without tokens, or a file that cannot be written; a file of that name stays.
    """
    if storage.memory.kind is None or not any(seen):
        raise InputError("offload(): there are no tokens to move; run a step first")
    planes, tables = {}, []
    for rows in storage.rows:
        size = storage.memory.block_size  # what an open step has reserved stays
        blocks = [table.blocks[: blocks_for(n, size)] for table, n in zip(rows.tables, seen, strict=True)]
        held = sorted(set().union(*blocks) - {NULL_BLOCK})
        place = {block: i + 1 for i, block in enumerate(held)} | {NULL_BLOCK: NULL_BLOCK}
        tables.append([[place[block] for block in table] for table in blocks])
        for name, pages in rows.group.named_pages():
            planes |= {f"{name}.{plane}": x.cpu() for plane, x in pages.read(held).items()}
    dtype, _ = storage.memory.kind
    windows = tuple(group.window for group in storage.memory.groups)
    if path is None:
        return Offloaded(tuple(seen), tables, windows, dtype, planes)
    about = {
        "seen": seen,
        "tables": tables,
        "windows": windows,
        "dtype": str(dtype).removeprefix("torch."),
        "key": secrets.token_hex(16),
    }
    path = _read_path(path)
    _write(path, planes, {"kvcourse": json.dumps(about)})
    return Offloaded(tuple(seen), tables, windows, dtype, path=path, key=about["key"])


def restore(storage: PagedStorage, saved: Offloaded) -> tuple[int, ...]:
    """Put saved blocks into free ones of a storage whose rows are empty, bit by bit. Returns the tokens of each row.

    Errors: PoolExhausted, or InputError where they do not fit; nothing is put.
    """
    if not isinstance(saved, Offloaded):
        raise InputError(f"restore() got a {type(saved).__name__}: expected what offload() returned")
    _check_fields(saved)
    memory, planes = storage.memory, saved.load()
    if len(saved.seen) != len(storage.rows[0].tables):
        raise InputError(
            f"{len(saved.seen)} saved rows for a cache of {len(storage.rows[0].tables)}: make the cache with "
            f"batch_size={len(saved.seen)}"
        )
    counts = _check(memory, saved, planes)
    unbound = memory.kind is None
    try:
        if unbound:
            memory.prepare(saved.dtype, torch.device("cpu"))
        memory.require(counts)  # in all groups, before one of them forgets a prefix for it
        _put(storage, saved, planes, counts)
    except BaseException:
        if unbound:
            memory.unprepare()
        raise
    return saved.seen


def _put(storage: PagedStorage, saved: Offloaded, planes: dict[str, Tensor], counts: Sequence[int]) -> None:
    """Fill `counts` free blocks of each group and let the rows have them, or let the rows be empty."""
    memory = storage.memory
    storage.reset()  # blocks of a step that was interrupted
    taken: list[list[int]] = []
    try:
        for group, count in zip(memory.groups, counts, strict=True):
            taken.append([NULL_BLOCK, *group.pool.allocate(count)])
        for rows, tables, blocks in zip(storage.rows, saved.tables, taken, strict=True):
            for name, pages in rows.group.named_pages():
                pages.fill(blocks[1:], {plane: planes[f"{name}.{plane}"] for plane in pages.planes})
            for table, places, length in zip(rows.tables, tables, saved.seen, strict=True):
                table.adopt(rows.group.pool.fork([blocks[place] for place in places]), length)
    except BaseException:
        storage.reset()
        raise
    finally:  # the tables that were filled hold them
        for group, blocks in zip(memory.groups, taken, strict=False):
            group.pool.free(blocks)


def _check_fields(saved: Offloaded) -> None:
    """Errors: InputError for fields of other types than those that `offload` and `open` give."""
    planes = {} if saved.planes is None else saved.planes
    wrong = {
        "seen": not isinstance(saved.seen, tuple),
        "dtype": not isinstance(saved.dtype, torch.dtype) or not saved.dtype.is_floating_point,
        "planes": not isinstance(planes, dict) or not all(isinstance(x, Tensor) for x in planes.values()),
    }
    for name, is_wrong in wrong.items():
        if is_wrong:
            raise InputError(
                f"restore(): {name}={one_line(getattr(saved, name)):.80} of these blocks is damaged: give what "
                "offload() returned, or Offloaded.open() its file again"
            )


def _check(memory: PagedMemory, saved: Offloaded, planes: dict[str, Tensor]) -> list[int]:
    """How many blocks each group needs. Errors: InputError unless tables and planes fit each other and the memory."""
    dtype, size = saved.dtype if memory.kind is None else memory.kind[0], memory.block_size
    counts = []
    expected = {}
    for group in memory.groups:
        fields = [(layer, field) for layer in group.layers for field in memory.layout[layer].fields]
        example = {
            f"{layer}.{field.name}.{name}": plane
            for layer, field in fields
            for name, plane in Pages(field, memory.codec, 1, size, dtype, torch.device("cpu")).planes.items()
        }
        counts.append(
            max((planes[n].shape[0] for n in example if n in planes and planes[n].dim()), default=0)
        )
        expected |= {name: ((counts[-1], *x.shape[1:]), x.dtype) for name, x in example.items()}
    windows = tuple(group.window for group in memory.groups)
    found = {name: (tuple(x.shape), x.dtype) for name, x in planes.items()}
    if (saved.windows, saved.dtype) != (windows, dtype) or found != expected:
        raise InputError(
            "these blocks do not fit this memory: restore them into one of the same model, block_size, dtype, codec"
        )
    try:
        fit = len(saved.tables) == len(windows) and all(
            _fits(table, length, window, size, count)
            for window, tables, count in zip(windows, saved.tables, counts, strict=True)
            for length, table in zip(saved.seen, tables, strict=True)
        )
    except (TypeError, ValueError):  # no lists; another number of rows
        fit = False
    if not fit:
        raise InputError("the tables of these blocks are damaged: give what offload() returned or wrote")
    return counts


def _fits(table: Any, length: Any, window: int | None, block_size: int, count: int) -> bool:
    """Whether this is a table of `length` tokens in blocks 1 … count, null at most behind the window."""
    if type(length) is not int or length < 0 or not all(type(place) is int for place in table):
        return False
    seen = (
        0 if window is None else max(0, length + 1 - window) // block_size
    )  # by the next query, from here on
    held = [place for place in table if place != NULL_BLOCK]
    return (
        len(table) == blocks_for(length, block_size)
        and table == [NULL_BLOCK] * (len(table) - len(held)) + held
        and len(table) - len(held) <= seen
        and len(set(held)) == len(held)
        and all(0 < place <= count for place in held)
    )


def _about(file: Any) -> dict[str, Any]:
    """What `offload` wrote beside the planes of a file."""
    return json.loads((file.metadata() or {})["kvcourse"])


def _read_path(path: Any) -> Path:
    """Where a file lies, whatever the working folder is later. Errors: InputError for what cannot name one."""
    try:
        found = Path(path).absolute()
        if found.name and b"\0" not in os.fsencode(found):
            return found
    except (TypeError, ValueError):
        pass
    raise InputError(f"path={one_line(path):.80}: expected the name of a file")


def _write(path: Path, planes: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Write a file whole or not at all: beside its place first, then moved there."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        if path.exists() and not path.is_file():
            raise OSError("it is there and no file")
        save_file(planes, part, metadata)
        part.replace(path)
    except (OSError, SafetensorError) as error:
        raise InputError(f"{path} cannot be written: {error}; nothing was moved") from None
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)
