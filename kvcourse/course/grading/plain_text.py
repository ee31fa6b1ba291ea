"""Text of unknown origin made safe to show: student names, messages and file names are what somebody typed."""

import hashlib
import re
import unicodedata

MAX_NAME_BYTES = 120  # below the 255 of file systems, with room for suffixes and temporary names

# Names that Windows keeps for devices, with or without a suffix.
_DEVICES = frozenset(
    ["con", "prn", "aux", "nul", *(f"{kind}{n}" for kind in ("com", "lpt") for n in "0123456789¹²³")]
)
_JOINERS = "\u200c\u200d"  # part of the spelling in Persian, Hindi and others


def printable(text: str, keep: str = "\n\t") -> str:
    r"""The text with every character that steers a terminal or hides in one written as \x1b, \u202e, ….

    Control characters, direction overrides, lone surrogates and private or unassigned code points go; those in
    `keep` stay.
    """
    keep += _JOINERS
    return "".join(c if c in keep or unicodedata.category(c)[0] != "C" else _escape(c) for c in text)


def one_line(text: str) -> str:
    """The same on one line: line ends and runs of blanks become one blank."""
    return printable(re.sub(r"\s+", " ", text).strip(), keep="")


def file_name(name: str) -> str:
    """A file name, without suffix, for a submission's name: safe on every system, and another for another name.

    Letters and digits of any script stay. What cannot stay becomes `_`, and a hash of the whole name is added, so
    that two names never share a file.
    """
    kept = re.sub(r"[^\w.,@+=() -]", "_", unicodedata.normalize("NFC", name))
    kept = printable(kept.strip(" ."), keep="").replace("\\", "_")
    safe = kept == name and not _is_device(kept) and len(kept.encode()) <= MAX_NAME_BYTES
    if safe and kept and not kept.startswith("-"):
        return kept
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    short = kept.encode()[: MAX_NAME_BYTES - 20].decode("utf-8", "ignore").strip(" .-")
    return f"{'_' if _is_device(short) else ''}{short or 'submission'}-{digest}"


def _is_device(name: str) -> bool:
    return name.split(".")[0].strip().casefold() in _DEVICES


def _escape(char: str) -> str:
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
