"""The child's side: runs the learner's program, then answers requests until the parent closes the pipe.

By now the process is confined. Nothing here protects this module from the learner's code, which shares the process:
all that it could gain is to lie about its own values.
"""

import __future__

import linecache
import os
import random
import sys
import types
from collections.abc import Callable
from types import CodeType
from typing import Any, NoReturn

import numpy as np
import torch

from kvcourse.course.grading.sandbox.values import Encoder, NotData, decode
from kvcourse.course.grading.sandbox.wire import HEADER, TooBig, pack, sizes, unpack

MODULE = "__submission__"
_MAX_MESSAGE = 300
_MAX_REQUEST = 2**32 - 1
_ANNOTATIONS = __future__.annotations.compiler_flag


def take_descriptors(requests: int, replies: int, output: int) -> tuple[int, int]:
    """Make the pipes of the session this process's only descriptors. Returns those of requests and replies."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    moved = [os.dup(number) for number in (nothing, output, output, requests, replies)]
    high = [_at_least(number, 16) for number in moved]
    for target, number in enumerate(high):
        os.dup2(number, target, inheritable=False)
    os.closerange(5, os.sysconf("SC_OPEN_MAX") if os.sysconf("SC_OPEN_MAX") < 2**16 else 2**16)
    sys.stdin = open(0, encoding="utf-8", errors="replace")  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", errors="backslashreplace", buffering=1)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1)  # noqa: SIM115
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr
    return 3, 4


def _at_least(number: int, lowest: int) -> int:
    import fcntl

    return fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, lowest)


def serve(requests: int, replies: int, reply_bytes: int) -> NoReturn:
    """Answer requests; never returns."""
    sys.argv = [""]
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 - the learner's code may use it
    torch.manual_seed(0)
    session = _Session(reply_bytes)
    try:
        while frame := _read_frame(requests):
            _write(replies, session.answer(*frame))
    except SystemExit as error:
        status = error.code if type(error.code) is int else 0 if error.code is None else 1
        _leave(status & 0xFF)
    _leave(0)


def _leave(status: int) -> NoReturn:
    try:
        sys.stdout.flush()
    finally:
        os._exit(status)


def _read_frame(descriptor: int) -> tuple[bytes, bytes] | None:
    header = _read(descriptor, HEADER.size)
    if len(header) < HEADER.size:
        return None
    text, data = sizes(header, _MAX_REQUEST)
    return _read(descriptor, text), _read(descriptor, data)


def _read(descriptor: int, size: int) -> bytes:
    parts = []
    while size and (part := os.read(descriptor, min(size, 2**20))):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _write(descriptor: int, frame: bytes) -> None:
    view = memoryview(frame)
    while view:
        view = view[os.write(descriptor, view) :]


class _Session:
    def __init__(self, reply_bytes: int) -> None:
        self.reply_bytes = reply_bytes
        self.objects: list[object] = []
        self.cells: set[str] = set()  # file names of the learner's code in tracebacks
        self.module = types.ModuleType(MODULE)
        sys.modules[MODULE] = self.module

    def answer(self, text: bytes, data: bytes) -> bytes:
        """The frame that answers one request."""
        request, arrays = unpack(text, data)
        number = request["id"]
        encoder = Encoder(self._keep, self.reply_bytes)
        try:
            result = getattr(self, f"_{request['op']}")(request, arrays)
            kept = result if type(result) is _Kept else None
            value = self._keep(kept.value) if kept else encoder.encode(result)
            return pack({"id": number, "value": value}, encoder.arrays)
        except TooBig:
            return pack({"id": number, "stopped": "size"}, [])
        except NotData as error:
            return self._failed(number, "ValueError", f"returned {error}", "")
        except SystemExit:
            raise
        except BaseException as error:
            if _out_of_memory(error):
                return pack({"id": number, "stopped": "memory"}, [])
            return self._failed(number, _name_of(type(error)), _text_of(error), self._where(error))

    def _failed(self, number: int, kind: str, message: str, where: str) -> bytes:
        error = {"kind": kind, "message": message[:_MAX_MESSAGE], "where": where[:_MAX_MESSAGE]}
        return pack({"id": number, "error": error}, [])

    def _keep(self, value: object) -> dict[str, Any]:
        self.objects.append(value)
        return {"object": len(self.objects) - 1, "type": _name_of(type(value))}

    # ---- the requests ------------------------------------------------------------------------------

    def _run(self, request: dict, _: list) -> None:
        namespace = self.module.__dict__
        flags = 0
        pieces = request["pieces"]
        for label, first_line, source in pieces:
            self._show_source(f"<{label}>", first_line, source)
        for label, first_line, source in pieces:
            text = "\n" * (first_line - 1) + source
            code: CodeType = compile(text, f"<{label}>", "exec", flags=flags, dont_inherit=True)
            flags |= code.co_flags & _ANNOTATIONS  # holds for the rest of the file, as in a notebook
            exec(code, namespace)

    def _show_source(self, name: str, first_line: int, source: str) -> None:
        """Let tracebacks cite the learner's lines; pieces of one cell share a name."""
        self.cells.add(name)
        lines = list(linecache.cache.get(name, (0, None, []))[2])
        new = source.splitlines(keepends=True)
        lines += ["\n"] * (first_line - 1 + len(new) - len(lines))
        lines[first_line - 1 : first_line - 1 + len(new)] = new
        linecache.cache[name] = (sum(map(len, lines)), None, lines, name)

    def _name(self, request: dict, _: list) -> object:
        name = request["name"]
        if name not in self.module.__dict__:
            raise NameError(f"{name} is not defined")
        return _Kept(self.module.__dict__[name])

    def _call(self, request: dict, arrays: list) -> object:
        positional, keywords = decode(request["arguments"], arrays, self._find)
        return self.objects[request["target"]](*positional, **keywords)

    def _attribute(self, request: dict, _: list) -> object:
        return getattr(self.objects[request["target"]], request["name"])

    def _item(self, request: dict, arrays: list) -> object:
        return self.objects[request["target"]][decode(request["key"], arrays, self._find)]

    def _length(self, request: dict, _: list) -> int:
        return len(self.objects[request["target"]])

    def _fetch(self, request: dict, _: list) -> object:
        return self.objects[request["target"]]

    def _put(self, request: dict, arrays: list) -> object:
        return _Kept(decode(request["value"], arrays, self._find))

    def _find(self, code: dict) -> object:
        return self.objects[code["remote"]]

    # ---- errors ------------------------------------------------------------------------------------

    def _where(self, error: BaseException) -> str:
        """The innermost line of the learner's own cells, e.g. "line 5 of cell 63: first = …"."""
        place = ("", 0)
        if isinstance(error, SyntaxError) and type(error.filename) is str and error.filename in self.cells:
            place = (error.filename, error.lineno or 0)
        trace = error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code.co_filename in self.cells:
                place = (trace.tb_frame.f_code.co_filename, trace.tb_lineno)
            trace = trace.tb_next
        name, line = place
        source = linecache.getline(name, line).strip() if name else ""
        return f"line {line} of {name[1:-1]}" + (f": {source}" if source else "") if name else ""


class _Kept:
    """A result that stays in the child whatever it is."""

    def __init__(self, value: object) -> None:
        self.value = value


_type_name: Callable[[type], str] = type.__dict__["__name__"].__get__


def _name_of(kind: type) -> str:
    return _type_name(kind)[:100]


def _text_of(error: BaseException) -> str:
    try:
        return str(str(error))
    except SystemExit:
        raise
    except BaseException:
        return "(its message cannot be shown)"


def _out_of_memory(error: BaseException) -> bool:
    return type(error) is MemoryError or (
        type(error) is RuntimeError and "DefaultCPUAllocator" in _text_of(error)
    )
