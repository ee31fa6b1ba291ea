"""Frames: JSON for the structure, npz for the arrays, never pickle.

Everything that a child sends was written by the learner's code, or may have been: `sizes` and `unpack` take nothing
for granted.
"""

import io
import json
import math
import re
import struct
import zipfile
from typing import Any

import numpy as np

from kvcourse.course.grading.sandbox.limits import MAX_ARRAYS

MAGIC = b"kvg1"
HEADER = struct.Struct(">4sII")  # magic, bytes of JSON, bytes of npz
MAX_JSON = 2**23
NUMPY = {
    np.dtype(name): name
    for name in (
        "bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "float32",
        "float64", "complex64", "complex128",
    )
}  # fmt: skip

# The header of a .npy member, exactly as numpy writes it for these types.
_NPY = re.compile(
    rb"\{'descr': '([<|][a-z][0-9]{1,2})', 'fortran_order': (True|False), 'shape': \(([0-9, ]*)\), \} *\n"
)


class BadFrame(Exception):  # noqa: N818
    """Bytes that are not what `pack` writes, or not within the bounds."""


class TooBig(Exception):  # noqa: N818
    """A value of more than the bytes that one message may have."""


def pack(structure: Any, arrays: list[np.ndarray]) -> bytes:
    """One frame. Errors: TooBig."""
    text = json.dumps(structure, allow_nan=False, separators=(",", ":")).encode()
    if len(text) > MAX_JSON:
        raise TooBig
    data = b""
    if arrays:
        buffer = io.BytesIO()
        np.savez(buffer, allow_pickle=False, **{str(n): array for n, array in enumerate(arrays)})
        data = buffer.getvalue()
    return HEADER.pack(MAGIC, len(text), len(data)) + text + data


def sizes(header: bytes, max_bytes: int) -> tuple[int, int]:
    """The bytes of JSON and of npz that follow a header. Errors: BadFrame, TooBig."""
    magic, text, data = HEADER.unpack(header)
    if magic != MAGIC:
        raise BadFrame
    if text > MAX_JSON or text + data > max_bytes + 2**20:  # the npz format itself needs a little
        raise TooBig
    return text, data


def unpack(text: bytes, data: bytes) -> tuple[Any, list[np.ndarray]]:
    """The structure and arrays of one frame. Errors: BadFrame."""
    try:
        structure = json.loads(text, parse_constant=_refuse, parse_int=_small)
    except (ValueError, RecursionError) as error:
        raise BadFrame from error
    return structure, _arrays(data) if data else []


def _refuse(_: str) -> None:
    raise BadFrame


def _small(digits: str) -> int:
    if len(digits) > 17:
        raise BadFrame
    return int(digits)


def _arrays(data: bytes) -> list[np.ndarray]:
    """The members of an npz, which must be as np.savez writes them: stored, named 0, 1, …, none over another."""
    end = data[-22:]
    if len(end) < 22 or end[:4] != b"PK\x05\x06" or data[-42:-38] == b"PK\x06\x07":
        raise BadFrame
    count, directory = struct.unpack("<HI", end[10:16])
    if count > MAX_ARRAYS or directory > count * 200:
        raise BadFrame
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = archive.infolist()
            plain = all(
                m.compress_type == zipfile.ZIP_STORED and m.file_size == m.compress_size for m in members
            )
            names = [member.filename for member in members]
            fits = sum(member.file_size for member in members) <= len(data)
            if not (plain and fits and names == [f"{n}.npy" for n in range(len(names))]):
                raise BadFrame
            return [_array(archive.read(member)) for member in members]
    except Exception as error:  # whatever zipfile, zlib and numpy raise for damaged bytes
        raise BadFrame from error


def _array(content: bytes) -> np.ndarray:
    if content[:8] != b"\x93NUMPY\x01\x00":
        raise BadFrame
    start = 10 + int.from_bytes(content[8:10], "little")
    header = _NPY.fullmatch(content[10:start])
    if not header:
        raise BadFrame
    dtype = np.dtype(header[1].decode())
    shape = tuple(int(n) for n in header[3].replace(b" ", b"").split(b",") if n)
    body = bytearray(content[start:])  # a copy, which may be written
    if dtype not in NUMPY or len(shape) > 32 or math.prod(shape) * dtype.itemsize != len(body):
        raise BadFrame
    return np.frombuffer(body, dtype).reshape(shape, order="F" if header[2] == b"True" else "C")
