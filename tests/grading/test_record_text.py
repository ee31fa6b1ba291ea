"""Names and messages that somebody typed: safe as file names and on a terminal."""

import re
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from record_strategies import NAMES
from strategies import MANY

from kvcourse.course.grading.plain_text import file_name, one_line, printable

# From Microsoft's "Naming Files, Paths, and Namespaces".
RESERVED = re.compile(r"(?i)^(con|prn|aux|nul|com[0-9¹²³]|lpt[0-9¹²³])(\.|$)")
FORBIDDEN = set('<>:"/\\|?*') | {chr(code) for code in range(32)}


@MANY
@given(NAMES)
@example("")
@example(".")
@example("..")
@example("../../x")
@example("con")
@example("Con.txt")
@example("x" * 300)
@example("-rf")
@example("\udc80")
@example("a.")
@example(" a ")
def test_file_names_are_safe_everywhere(name):
    safe = file_name(name)
    assert safe
    assert not set(safe) & FORBIDDEN
    assert not RESERVED.match(safe)
    assert safe[0] not in ".- "
    assert safe[-1] not in ". "
    assert len(f".{safe}.json.xxxxxxxx".encode()) < 200
    assert unicodedata.is_normalized("NFC", safe)


@MANY
@given(NAMES, NAMES)
@example("a/b", "a_b")
@example("a:b", "a/b")
@example("x" * 300, "x" * 301)
@example("e\u0301", "\xe9")
def test_two_names_never_share_a_file(one, other):
    assert (file_name(one) == file_name(other)) == (one == other)


@pytest.mark.parametrize(
    "name", ["ada", "Lovelace, Ada", "José Ñandú", "李雷", "s_12345.final (2)", "a+b=c@d"]
)
def test_ordinary_names_stay_as_they_are(name):
    assert file_name(name) == name


@MANY
@given(NAMES)
@example("\x1b]0;title\x07")
@example("a\u202eb\u2066c")
@example("\x9b31m")
def test_nothing_that_steers_a_terminal_is_left(text):
    for shown, kept in ((printable(text), "\n\t"), (one_line(text), "")):
        steering = {c for c in shown if unicodedata.category(c).startswith("C")}
        assert steering <= {*kept, "\u200c", "\u200d"}
        shown.encode()  # no lone surrogate
    assert "\n" not in one_line(text)


@MANY
@given(st.text(st.characters(categories=["L", "N", "P", "S"]), max_size=20))
def test_plain_text_stays_as_it_is(text):
    assert printable(text) == text == one_line(text)
