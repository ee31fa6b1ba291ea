"""What the reports of all benchmarks share: the look of their tables, their JSON, and a folder for each run."""

import datetime
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from rich.box import SIMPLE_HEAD
from rich.table import Table

from kvcourse.bench import machine


def now() -> str:
    """This moment in UTC, ISO 8601, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def to_json(benchmark: str, date: str, **figures: Any) -> str:
    """Figures of one run with its date, machine, versions, commit and command. No host name and no path."""
    return json.dumps({"benchmark": benchmark, **figures, "date": date, **machine.provenance()}, indent=2)


@dataclass(frozen=True)
class CaseReport:
    """The timed cases of one run of `benchmark`. Its own report prints them; `to_json` adds machine and versions.

    cases: each with a `timing` and a `to_dict`. bandwidth: bytes per second that the floors are counted with.
    """

    cases: tuple[Any, ...]
    device: str
    dtype: str
    bandwidth: float

    benchmark: ClassVar[str]
    settings: ClassVar[dict[str, Any]] = {}  # what all cases have in common

    @property
    def where(self) -> str:
        """What the times were measured with, for a title."""
        return f"{self.dtype} on {self.device}, {self.bandwidth / 1e9:.1f} GB/s read"

    def to_json(self) -> str:
        return to_json(
            self.benchmark,
            self.cases[-1].timing.date,
            device=self.device,
            dtype=self.dtype,
            **self.settings,
            read_bytes_per_second=self.bandwidth,
            cases=[case.to_dict() for case in self.cases],
        )


def table(title: str, headers: Sequence[str], names: int = 0) -> Table:
    """An empty table of numbers; the first `names` columns hold names."""
    empty = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, padding=0)
    for i, header in enumerate(headers):
        empty.add_column(f" {header}", justify="left" if i < names else "right", no_wrap=True)
    return empty


def folder_of(folder: str | Path | None, *name: str) -> Path | None:
    """Where one run of several keeps its state: a folder of that name in `folder`, or None for None."""
    return None if folder is None else Path(folder) / "-".join(name).replace(", ", "-").replace(" ", "-")
