"""Frames and arrays as a hostile child would write them."""

import io
import json
import struct
import zipfile

import numpy as np

from kvcourse.course.grading.sandbox.wire import HEADER, MAGIC


def frame(structure, data=b""):
    text = structure if isinstance(structure, bytes) else json.dumps(structure).encode()
    return HEADER.pack(MAGIC, len(text), len(data)) + text + data


def npz(content=None, name="0.npy", compression=zipfile.ZIP_STORED, **arrays):
    buffer = io.BytesIO()
    if content is None:
        np.savez(buffer, **arrays)
    else:
        with zipfile.ZipFile(buffer, "w", compression) as archive:
            archive.writestr(name, content)
    return buffer.getvalue()


def npy(header, body=b""):
    text = header.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + body


FLOATS = npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }", bytes(8))
BAD_DATA = {
    "no zip": b"x" * 100,
    "short": b"PK",
    "deflated": npz(bytes(2**24), compression=zipfile.ZIP_DEFLATED),
    "other name": npz(FLOATS, name="../../0.npy"),
    "objects": npz(npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }", bytes(8))),
    "unknown type": npz(npy("{'descr': '<f16', 'fortran_order': False, 'shape': (1,), }", bytes(16))),
    "other byte order": npz(npy("{'descr': '>f4', 'fortran_order': False, 'shape': (2,), }", bytes(8))),
    "too large a shape": npz(
        npy("{'descr': '<f4', 'fortran_order': False, 'shape': (10000000000,), }", bytes(8))
    ),
    "too small a shape": npz(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }", bytes(8))),
    "many dimensions": npz(
        npy("{'descr': '<f4', 'fortran_order': False, 'shape': (%s), }" % ("1, " * 40), bytes(4))
    ),
    "negative shape": npz(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (-2,), }", bytes(8))),
    "an expression": npz(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1+1,), }", bytes(8))),
    "nested brackets": npz(npy("(" * 900)),
    "not an array": npz(b"print('hello')"),
    "comment": npz(FLOATS)[:-2] + b"\x05\x00hello",
    "a count that lies": (whole := npz(FLOATS))[:-12] + struct.pack("<HH", 9, 9) + whole[-8:],
    "a directory that lies": whole[:-10] + struct.pack("<I", 2**31) + whole[-6:],
    "bad checksum": whole.replace(bytes(8), bytes(7) + b"x", 1),
}
