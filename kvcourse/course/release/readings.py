"""What can be read in a file: its texts with the place of each, and each text in every form it may be read in."""

import base64
import binascii
import html
import json
import re
from collections.abc import Iterator
from urllib.parse import unquote

DEPTH = 3  # forms inside forms: JSON in HTML in base64

_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_CODE_TAG = re.compile(r"</?(?:code|kbd|pre|samp|tt)\b[^<>]*>", re.I)
_LINE_TAG = re.compile(r"<(?:br|hr|/?(?:div|h\d|li|p|table|td|th|tr))\b[^<>]*>", re.I)
_TAG = re.compile(r"<[^<>]*>")
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|([ntr\"'\\/]))")
_PLAIN = {"n": "\n", "t": "\t", "r": "\n"}
_BASE64 = re.compile(r"(?:^|;base64,)([A-Za-z0-9+/_-][A-Za-z0-9+/_\s-]{6,}={0,2})\s*(?=$|[\"')<>])")
_PRINTABLE = re.compile(rb"[\x09\x20-\x7e]{6,}")
_PERCENT = re.compile(r"%[0-9a-fA-F]{2}")


def texts(name: str, content: bytes) -> Iterator[tuple[str, str]]:
    """(place, text) of everything that can be read in a file. A notebook's places are its cells."""
    text = _decode(content)
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        yield "", text
        return
    if not name.endswith(".ipynb") or not isinstance(data, dict) or not isinstance(data.get("cells"), list):
        yield from (("", found) for found in _strings(data))
        return
    for index, cell in enumerate(data["cells"]):
        parts = cell.items() if isinstance(cell, dict) else [("content", cell)]
        for part, value in parts:
            place = f"cell {index}" if part == "source" else f"{part} of cell {index}"
            yield from ((place, found) for found in _strings(value))
    for part, value in data.items():
        if part != "cells":
            yield from ((f"{part} of the notebook", found) for found in _strings(value))


def readings(text: str) -> set[str]:
    """The text, and what it says once escapes, colours, tags and base64 are taken away, one inside the other."""
    known, new = {text}, {text}
    for _ in range(DEPTH):
        new = {form for known_text in new for form in _forms(known_text)} - known
        known |= new
    return known


def _strings(value: object) -> Iterator[str]:
    """Every string in a JSON value, keys too. Lists of strings are texts cut into lines, so they are joined."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from _strings(item)
    elif isinstance(value, list):
        if value and all(isinstance(item, str) for item in value):
            yield "".join(value) if all(item.endswith("\n") for item in value[:-1]) else "\n".join(value)
        else:
            for item in value:
                yield from _strings(item)


def _forms(text: str) -> Iterator[str]:
    if "\x1b" in text:
        yield _COLOUR.sub("", text)
    if "<" in text:
        marked = _LINE_TAG.sub("\n", _CODE_TAG.sub("`", text))
        yield from (marked, _TAG.sub("", marked))
    if "&" in text:
        yield html.unescape(text)
    if "\\" in text:
        yield _ESCAPE.sub(_unescape, text)
    if _PERCENT.search(text):
        yield unquote(text)
    for match in _BASE64.finditer(text):
        yield from _from_base64("".join(match[1].split()))


def _unescape(match: re.Match) -> str:
    digits = match[1] or match[2]
    return chr(int(digits, 16)) if digits else _PLAIN.get(match[3], match[3])


def _from_base64(digits: str) -> Iterator[str]:
    padded = digits.rstrip("=").replace("-", "+").replace("_", "/")
    try:
        content = base64.b64decode(padded + "=" * (-len(padded) % 4))
    except binascii.Error:
        return
    yield _decode(content)


def _decode(content: bytes) -> str:
    """The text of a file, or the runs of printable characters of one that is no text, such as an image."""
    for encoding in ("utf-8-sig", "utf-16") if content[:2] in (b"\xff\xfe", b"\xfe\xff") else ("utf-8-sig",):
        try:
            return content.decode(encoding)
        except UnicodeDecodeError:
            continue
    return "\n".join(run.decode("ascii") for run in _PRINTABLE.findall(content))
