"""The marker lines in a cell's source: which lines are a solution, or tests that learners do not see."""

import re
from dataclasses import dataclass

from kvcourse.errors import InputError

SOLUTION = "SOLUTION"
HIDDEN_TESTS = "HIDDEN TESTS"

_MARKER = re.compile(
    r"(?P<indent>[ \t]*)### (?P<edge>BEGIN|END) (?P<kind>SOLUTION|HIDDEN TESTS)(?P<rest>[\s:].*)?"
)
_LOOKS_LIKE_ONE = re.compile(r"#[#\s]*(BEGIN|END)[\s_-]*(SOLUTION|HIDDEN[\s_-]*TEST)", re.I)


@dataclass(frozen=True)
class Block:
    """A marked part of a source. `first` and `last` are the marker lines, counted from 0."""

    kind: str
    first: int
    last: int
    indent: str
    hint: str


def find_blocks(source: str) -> list[Block]:
    """The blocks of a source in order: solutions, and hidden tests as nbgrader marks them.

    Errors: InputError for markers that do not pair up, that share a line with code, or that are misspelt, since
    what they should have hidden would be shown.
    """
    blocks: list[Block] = []
    begin: re.Match | None = None
    first = 0
    for number, line in enumerate(source.split("\n")):
        marker = _MARKER.fullmatch(line)
        if marker is None and _LOOKS_LIKE_ONE.search(line):
            raise InputError(_fault(line.strip(), number))
        if marker is None:
            continue
        if marker["edge"] == "BEGIN" and begin is None:
            begin, first = marker, number
        elif marker["edge"] == "END" and begin is not None and marker["kind"] == begin["kind"]:
            hint = (begin["rest"] or "").strip(" :\t\r")
            blocks.append(Block(begin["kind"], first, number, begin["indent"], hint))
            begin = None
        else:
            raise InputError(_fault(line.strip(), number))
    if begin is not None:
        raise InputError(_fault(begin[0].strip(), first))
    return blocks


def replace_blocks(source: str, replacement) -> str:
    """The source with each block replaced by the lines that `replacement(block)` returns."""
    lines = source.split("\n")
    for block in reversed(find_blocks(source)):
        lines[block.first : block.last + 1] = replacement(block)
    return "\n".join(lines)


def _fault(line: str, number: int) -> str:
    kind = HIDDEN_TESTS if "HIDDEN" in line.upper() else SOLUTION
    return (
        f"BEGIN {kind} and END {kind} do not pair up, each on its own line, written ### BEGIN {kind}"
        f" and ### END {kind} (line {number + 1}: {line[:60]!r})"
    )
