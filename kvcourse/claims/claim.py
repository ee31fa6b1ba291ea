"""One row of the ledger."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Claim:
    """One row.

    said: the article's claim in our words. verdict: what holds, in a few words. finding: the measurement in one
    sentence. source: the primary source. status: how we know it ("seen": read in the source itself; "computed":
    exact arithmetic here; "second-hand": read about, not read). measure: computes the numbers, as {label: value}.
    command: reproduces it. chapter: where the course explains it.
    """

    number: int
    said: str
    verdict: str
    finding: str
    source: str
    status: str
    measure: Callable[[], dict[str, Any]]
    command: str
    chapter: int
