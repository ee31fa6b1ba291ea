"""Measurements that take too long for a notebook, kept with the command, the machine and the versions that made them.

Each is the JSON that a benchmark writes: `kvcourse bench uptrain --json uptrain.json` makes `read("uptrain")` anew.
"""

import json
from functools import cache
from importlib import resources
from typing import Any

from kvcourse.errors import InputError


def names() -> tuple[str, ...]:
    """What can be read."""
    folder = resources.files(__name__)
    return tuple(
        sorted(entry.name.removesuffix(".json") for entry in folder.iterdir() if entry.name.endswith(".json"))
    )


def read(name: str) -> dict[str, Any]:
    """One result, as the benchmark's `to_json` wrote it; a new dict every time.

    Errors: InputError for a name that is not in `names()`.
    """
    if name not in names():
        raise InputError(f"result {name!r}: expected one of {', '.join(names())}")
    return json.loads(_text(name))


@cache
def _text(name: str) -> str:
    return resources.files(__name__).joinpath(f"{name}.json").read_text("utf-8")
