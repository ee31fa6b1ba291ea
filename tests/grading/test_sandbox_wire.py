"""Bytes that are not a reply are refused, whatever they hold."""

import json
from contextlib import suppress

import numpy as np
import pytest
from frames import BAD_DATA, FLOATS, frame, npz
from hypothesis import given, settings
from hypothesis import strategies as st
from sandboxed import SMALL, program
from test_sandbox_values import no_objects, values

from kvcourse.course.grading.sandbox import Stopped
from kvcourse.course.grading.sandbox.values import Encoder, decode
from kvcourse.course.grading.sandbox.wire import HEADER, MAGIC, BadFrame, TooBig, pack, sizes, unpack

# ---- bytes that a hostile child sends --------------------------------------------------------------


@pytest.mark.parametrize("data", BAD_DATA.values(), ids=BAD_DATA)
def test_bad_arrays_are_refused(data):
    with pytest.raises(BadFrame):
        unpack(b"0", data)


def test_the_bad_arrays_are_bad_for_what_they_say():
    assert len(unpack(b"0", npz(FLOATS))[1]) == 1


BAD_TEXT = {
    "no JSON": b"\xff\xfe",
    "NaN": b"NaN",
    "cut off": b'{"id": 1',
    "deep": b"[" * 10**6,
    "deep objects": b'{"a":' * 10**5,
    "a number of many digits": b"1" * 10**6,
}


@pytest.mark.parametrize("text", BAD_TEXT.values(), ids=BAD_TEXT)
def test_bad_text_is_refused(text):
    with pytest.raises(BadFrame):
        unpack(text, b"")


BAD_STRUCTURES = [
    {}, {"what": 1}, {"tuple": 1}, {"tuple": "ab"}, {"dict": [[1]]}, {"dict": [[[], 1]]}, {"dict": 3}, {"int": 5},
    {"int": "g"}, {"float": "1"}, {"float": []}, {"bytes": 7}, {"bytes": True}, {"bytes": -1}, {"array": "0"},
    {"array": 0.0}, {"dtype": "object"}, {"dtype": []}, {"range": [1, 2, 0]}, {"range": [1, 2]}, {"slice": [1]},
    {"complex": [1, 2]}, {"complex": [1.0]}, {"size": [1.5]}, {"size": ["a"]}, {"scalar": 1}, {"bytes": 1},
    {"list": [], "tuple": []}, {"tensor": 0, "dtype": "float32", "shape": [3]},
    {"tensor": 0, "dtype": "x", "shape": []},
    {"tensor": 0, "dtype": "uint8", "shape": [-2, -4]}, {"tensor": 0, "dtype": "uint8", "shape": "8"},
    {"tensor": 0, "dtype": "uint8", "shape": [8.0]}, {"tensor": 0, "shape": [8]}, {"tensor": 0, "dtype": "uint8"},
    {"tensor": 1, "dtype": "uint8", "shape": [2]}, [{"bytes": 0}, {"bytes": 0}],
    {"tensor": 0, "dtype": "uint8", "shape": [0, 2**62]}, {"range": [0, 10**12, 1]}, {"range": [0, -(2**80), -1]},
]  # fmt: skip


@pytest.mark.parametrize("structure", BAD_STRUCTURES, ids=str)
def test_bad_structures_are_refused(structure):
    with pytest.raises(BadFrame):
        decode(structure, [np.zeros(8, np.uint8), np.zeros(2, np.float32)], no_objects)


def test_keys_that_all_have_one_hash_are_refused():
    """A dict of n such keys takes n**2 steps to build, in the parent."""
    for wrong, count in ((False, 100), (True, 101)):
        pairs = [[{"int": format((2**61 - 1) * i, "x")}, 0] for i in range(count)]
        if wrong:
            with pytest.raises(BadFrame):
                decode({"dict": pairs}, [], no_objects)
        else:
            assert len(decode({"dict": pairs}, [], no_objects)) == count


def test_a_nested_structure_is_refused():
    structure = 1
    for _ in range(500):
        structure = {"tuple": [structure]}
    with pytest.raises(BadFrame):
        decode(structure, [], no_objects)


@pytest.mark.parametrize("text", [2**23 + 1, 2**31])
def test_large_frames_are_refused_before_they_are_read(text):
    with pytest.raises(TooBig):
        sizes(HEADER.pack(MAGIC, text, 0), 2**26)
    with pytest.raises(TooBig):
        sizes(HEADER.pack(MAGIC, 10, text), 2**22)


@settings(max_examples=300)
@given(value=values, where=st.integers(0, 10**6), byte=st.integers(0, 255), cut=st.booleans())
def test_damaged_frames_give_a_value_or_are_refused(value, where, byte, cut):
    encoder = Encoder(no_objects, 2**24)
    text = json.dumps(encoder.encode(value)).encode()
    data = pack(0, encoder.arrays)[HEADER.size + 1 :]
    whole = bytearray(text + data)
    where %= len(whole)
    whole = whole[:where] if cut else whole[:where] + bytes([byte]) + whole[where + 1 :]
    with suppress(BadFrame):
        decode(*unpack(bytes(whole[: len(text)]), bytes(whole[len(text) :])), lambda code: code)


# ---- forged replies --------------------------------------------------------------------------------

# The number of the request that is answered: the program runs by the first one, its name is asked for by the second.
GOOD = frame({"id": 3, "value": 9})
WRONG_CONTENT = {
    "another number": frame({"id": 77, "value": 9}),
    "more fields": frame({"id": 3, "value": 9, "error": None}),
    "not an object": frame([3, 9]),
    "an odd error": frame({"id": 3, "error": {"kind": 1, "message": "", "where": ""}}),
    "an odd object": frame({"id": 3, "value": {"object": "0", "type": "x"}}),
    "an odd stop": frame({"id": 3, "stopped": "passed"}),
    "a stop of no kind": frame({"id": 3, "stopped": []}),
    "bad arrays": frame({"id": 3, "value": {"array": 0}}, BAD_DATA["objects"]),
    "a bomb": frame({"id": 3, "value": {"array": 0}}, BAD_DATA["deflated"]),
    "deep": frame(b"[" * 10**6),
}
FORGERIES = {
    "garbage": b"all tests passed\n" * 10,
    "one byte": b"x",
    "two replies": GOOD + GOOD,
    "reply and a byte": GOOD + b"x",
    "a header alone, of 4 GiB": HEADER.pack(MAGIC, 10, 2**32 - 1),
}
WRITE = """
import os, threading
def write(data):
    while data: data = data[os.write(4, data):]
"""


def reason_of(sandbox, source, *arguments, uses):
    """Why a session stopped, within some uses of `attempt`; None if it did not."""
    with sandbox.session(program(source), SMALL) as session:
        try:
            for _ in range(uses):
                session.names.attempt(*arguments)
        except Stopped as stopped:
            return stopped.reason
    return None


@pytest.mark.parametrize("data", FORGERIES.values(), ids=FORGERIES)
def test_a_forged_reply_ends_the_session(any_sandbox, data):
    # What comes after a whole reply is seen at the next use at the latest.
    reason = reason_of(any_sandbox, WRITE + "def attempt(data): write(data); return 1", data, uses=2)
    assert reason in ("sent something that is not a reply", "sent back more than 64.0 MiB")


@pytest.mark.parametrize("data", WRONG_CONTENT.values(), ids=WRONG_CONTENT)
def test_a_forged_reply_is_refused_for_what_it_says(sandbox, data):
    # No other byte comes behind it.
    source = WRITE + "import time\ndef attempt(data): write(data); time.sleep(60)"
    assert reason_of(sandbox, source, data, uses=1) == "sent something that is not a reply"


def test_a_forged_reply_of_the_right_form_is_a_value(sandbox):
    """The test above refuses what it says it does: this one differs in nothing but the content."""
    with sandbox.session(program(WRITE + "def attempt(data): write(data); os._exit(0)"), SMALL) as session:
        assert session.names.attempt(GOOD) == 9


def test_bytes_between_two_requests_end_the_session(sandbox):
    source = WRITE + "threading.Timer(0.05, write, [b'x' * 100]).start()\ndef attempt(): return 1"
    assert reason_of(sandbox, source, uses=10**5) == "sent something that is not a reply"


@pytest.mark.parametrize("numbers", ["3", "4", "3, 4", "0, 1, 2, 3, 4"])
def test_a_program_that_closes_its_pipes(any_sandbox, numbers):
    source = f"import os\ndef attempt():\n  for n in ({numbers},): os.close(n)\n  return 1"
    assert reason_of(any_sandbox, source, uses=3) == "ended by itself (exit code 1)"
