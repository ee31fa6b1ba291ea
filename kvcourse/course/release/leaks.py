"""Solution lines in files that are meant for learners: the last look before a release is written.

It trusts nothing that made the files. What counts as a solution comes from the course's own notebooks, and so does
what the course gives openly; the files are read as bytes.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kvcourse.course.notebook import tags
from kvcourse.course.release.markers import find_blocks
from kvcourse.course.release.readings import readings, texts
from kvcourse.course.release.student import DROPPED_TAGS
from kvcourse.errors import InputError

SHOWN = 5  # leaks that an error names; the rest are counted

_TOKEN = re.compile(r"\w+|[^\w\s\\]")  # a backslash at the end of a line joins two
_COMMENT = re.compile(r"(?<=\S)\s+#.*$")
_BEFORE_CODE = re.compile(r"^(?:[^\w\s]*\s*\d+\s*[^\w\s]*\s+|(?:>>>|\.\.\.|In\s?\[\d*\]:)\s|[-+*>#|]+)\s*")
_SPANS = re.compile(r"`+([^`\n]+)`+|\"([^\"\n]+)\"|'([^'\n]+)'|\|([^|\n]+)(?=\|)")
_QUOTES = "`'\" \t"
_SAYS_NOTHING = frozenset({"else :", "try :", "finally :", "pass", "break", "continue", "return", "raise"})


@dataclass(frozen=True)
class Leak:
    """A line of a solution that was found. `cell` counts from 0, `line` from 1, both in the course's notebook."""

    file: str
    place: str
    notebook: str
    cell: int
    line: int

    def __str__(self) -> str:
        """Where it is and where it comes from; not the line, for a log may be public."""
        where = f"{self.file}, {self.place}" if self.place else self.file
        return f"{where}: has line {self.line} of cell {self.cell} of {self.notebook}, which is a solution"


def refuse_leaks(notebooks: Mapping[str, dict], files: Mapping[str, bytes]) -> None:
    """Raise InputError if a line of a solution in `notebooks` can be found in `files`. See `find_leaks`."""
    leaks = find_leaks(notebooks, files)
    if leaks:
        shown = "; ".join(map(str, leaks[:SHOWN]))
        more = f"; and {len(leaks) - SHOWN} more" if len(leaks) > SHOWN else ""
        raise InputError(f"nothing was written, since it would show a solution: {shown}{more}")


def find_leaks(notebooks: Mapping[str, dict], files: Mapping[str, bytes]) -> list[Leak]:
    """Every line of a solution that can be found in `files`, in the order of the files.

    `notebooks` are the course's own, with solutions, by file name; `files` are what learners get, by name. A
    solution is what stands between markers, and cells tagged `solution` or `hidden-test`. A line is compared by its
    tokens, so that spaces, line ends, a comment behind it and the kind of quotes do not matter, and in every
    reading of a text: unescaped, without colours and tags, out of base64. A line of code with a few tokens is found
    anywhere; a short one, and one that could be plain words (`return None`), only where it stands by itself: as a
    line, behind the number or mark that a traceback, list or comment puts before it, in quotes, in backticks, or as
    a table's entry. Not looked for: lines that the course gives openly, in code outside solutions (for a line of a
    text cell: in any cell); punctuation alone; and keywords alone such as `else:`. Errors: InputError for
    unbalanced markers.
    """
    secrets: dict[str, tuple[bool, tuple[str, int, int]]] = {}
    given_code, given = _Text(()), _Text(())
    for name, notebook in notebooks.items():
        for index, cell in enumerate(notebook["cells"]):
            is_code = cell["cell_type"] == "code"
            hidden, shown = _divide(cell, name, index)
            for number, line in hidden:
                secrets.setdefault(_normal(line), (is_code, (name, index, number)))
            for text in (given_code, given) if is_code else (given,):
                text.add("\n".join(shown))
    wanted = {
        secret: origin
        for secret, (is_code, origin) in secrets.items()
        if _counts(secret) and not (given_code if is_code else given).has(secret)
    }
    found: dict[Leak, None] = {}
    for file, content in files.items():
        for place, text in texts(file, content):
            read = _Text(readings(text))
            for secret, origin in wanted.items():
                if read.has(secret):
                    found[Leak(file, place, *origin)] = None
    return list(found)


def _divide(cell: dict, name: str, index: int) -> tuple[list[tuple[int, str]], list[str]]:
    """(number, line) of the lines that learners must not see, and the lines that they may. Markers are neither."""
    lines = cell["source"].split("\n")
    if tags(cell) & DROPPED_TAGS:
        return list(enumerate(lines, 1)), []
    try:
        blocks = find_blocks(cell["source"])
    except InputError as error:
        raise InputError(f"{name}: cell {index}: {error}") from error
    hidden = [(n + 1, lines[n]) for block in blocks for n in range(block.first + 1, block.last)]
    marked = {n for block in blocks for n in range(block.first, block.last + 1)}
    return hidden, [line for n, line in enumerate(lines) if n not in marked]


def _normal(text: str) -> str:
    """The tokens of a line with one space between them. Quotes are all alike; a comment behind code goes, and the
    mark of a comment that is the whole line.
    """
    return " ".join(_TOKEN.findall(_COMMENT.sub("", text).strip().lstrip("#").replace('"', "'")))


def _counts(secret: str) -> bool:
    """False for a line that says nothing by itself."""
    return bool(re.search(r"\w", secret)) and secret not in _SAYS_NOTHING


def _is_distinct(secret: str) -> bool:
    """True for a line that does not turn up by chance inside a sentence, a printed list or other code."""
    tokens = secret.split(" ")
    words = [token for token in tokens if token[0].isalpha() or token[0] == "_"]
    is_code = len(words) < len(tokens) or "_" in secret
    long_enough = len(secret) >= 12 and (len(words) >= 2 or len(tokens) >= 6)
    return len(words) >= 5 or (is_code and bool(words) and long_enough)


class _Text:
    """A text made ready to be searched: its tokens in one string, and the pieces that stand by themselves."""

    def __init__(self, versions: Iterable[str]) -> None:
        self.tokens: list[str] = []
        self.pieces: set[str] = set()
        for version in versions:
            self.add(version)

    def add(self, text: str) -> None:
        without_comments = "\n".join(_COMMENT.sub("", line) for line in text.split("\n"))
        for version in {text, without_comments}:
            tokens = _TOKEN.findall(version.replace('"', "'"))
            self.tokens.append(f" {' '.join(tokens)} ")
        for line in text.split("\n"):
            self.pieces |= {_normal(piece) for piece in _pieces(line)}

    def has(self, secret: str) -> bool:
        if secret in self.pieces:
            return True
        return _is_distinct(secret) and any(f" {secret} " in tokens for tokens in self.tokens)


def _pieces(line: str) -> Iterable[str]:
    """A line, the line without what commonly stands before code, and what is quoted in it."""
    yield from (line, line.strip(_QUOTES))
    for match in _SPANS.finditer(line):
        yield from (quoted.strip(_QUOTES) for quoted in match.groups() if quoted)
    while (shorter := _BEFORE_CODE.sub("", line.strip(), count=1)) != line.strip():
        yield shorter
        line = shorter
