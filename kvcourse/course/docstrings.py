"""Docstrings as reStructuredText. The package writes them as plain text, which Sphinx would misread in places.

What a docstring may hold: paragraphs; lines `name: text` or `name, name: text` with deeper lines that go on with
the text; bullets; code in single backticks; blocks set off by a blank line and four spaces, shown as they are.
"""

import inspect
import re

_ENTRY = re.compile(r"(?P<names>[a-z_]\w*(?:, [a-z_]\w*)*): (?P<text>.+)")
_BULLET = re.compile(r"[*-] +(?P<text>.+)")
_CODE = re.compile(r"`+([^`\s](?:[^`]*[^`\s])?)`+")
_SPECIAL = re.compile(r"[\\*|`]|(?<=\w)_(?!\w)|:(?=:)")
_MARK = "\0"  # stands for the bullet of a list item until the text is escaped


def setup(app) -> dict:
    """Sphinx extension: rewrite each docstring that autodoc reads."""
    app.connect("autodoc-process-docstring", _process)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _process(app, what, name, obj, options, lines: list[str]) -> None:
    lines[:] = to_rst("\n".join(lines)).splitlines()


def to_rst(docstring: str) -> str:
    """The same text in reStructuredText, valid whatever characters it holds."""
    paragraphs = re.split(r"\n[ \t]*\n", inspect.cleandoc(docstring))
    return "\n\n".join(_paragraph(paragraph.strip("\n")) for paragraph in paragraphs if paragraph.strip())


def _paragraph(paragraph: str) -> str:
    if paragraph.startswith(("    ", ">>>")):
        return "::\n\n" + "\n".join(f"    {line}" for line in paragraph.split("\n"))
    return _escape(_lists(paragraph, _is_list(paragraph)))


def _is_list(paragraph: str) -> bool:
    """Whether all lines from the first `name: text` on are such lines or, indented, go on with one.

    Otherwise a name and a colon at the start of a line are just prose.
    """
    lines = paragraph.split("\n")
    first = next((i for i, line in enumerate(lines) if _ENTRY.fullmatch(line)), len(lines))
    return all(line.startswith(" ") or _ENTRY.fullmatch(line) for line in lines[first:])


def _lists(paragraph: str, entries: bool) -> str:
    """Make items of bullets and, with `entries`, of `name: text`, set off from the prose around, evenly indented."""
    out: list[str] = []
    in_item = False
    for line in paragraph.split("\n"):
        item = _item(line, entries)
        if item is not None:
            out += ([""] if out else []) + [f"{_MARK} {item}"]
            in_item = True
        elif in_item and not line.startswith(" "):
            out += ["", line]
            in_item = False
        else:
            out.append(("  " if in_item else "") + line.strip())
    return "\n".join(out)


def _item(line: str, entries: bool) -> str | None:
    """The text of a list item, or None if the line does not begin one."""
    if match := _BULLET.fullmatch(line):
        return match["text"]
    if entries and (match := _ENTRY.fullmatch(line)):
        return ", ".join(f"`{name}`" for name in match["names"].split(", ")) + f": {match['text']}"
    return None


def _escape(text: str) -> str:
    """Code between backticks as literals; elsewhere, characters that mean something to the parser escaped."""
    pieces = _CODE.split(text)  # prose, code, prose, …
    prose = [_SPECIAL.sub(r"\\\g<0>", piece) for piece in pieces[::2]]
    out = [prose[0]]
    for code, after in zip(pieces[1::2], prose[1:], strict=True):
        # A literal has to stand apart from letters: an escaped space, which is not shown, does that.
        before = "\\ " if out[-1][-1:].isalnum() else ""
        behind = "\\ " if after[:1].isalnum() else ""
        out += [f"{before}``{code}``", behind + after]
    return "".join(out).replace(_MARK, "*")
