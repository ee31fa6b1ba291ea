"""Paths as users write them."""

from pathlib import Path

from kvcourse.errors import InputError


def user_path(text: str | Path) -> Path:
    """The path, with `~` resolved. Errors: InputError for the home folder of nobody."""
    try:
        return Path(text).expanduser()
    except TypeError:
        raise InputError(f"{text!r} is no path: expected text or a pathlib.Path") from None
    except RuntimeError:
        raise InputError(f"{text}: there is no such home folder; write the path without ~") from None
