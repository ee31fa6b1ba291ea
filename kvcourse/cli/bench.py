"""`kvcourse bench`: measure speed and quality on this machine, next to what one would otherwise use."""

import argparse
import os
import sys
from pathlib import Path
from typing import Any

MOST_THREADS = 1024


def add_parser(subparsers: Any) -> None:
    """Add `kvcourse bench` and its benchmarks."""
    from kvcourse.cli import bench_capacity, bench_paged, bench_pool, bench_quality, bench_speed

    parser = subparsers.add_parser(
        "bench",
        help="time this package next to transformers and the hardware's floor; serve requests; train models",
    )
    parser.set_defaults(run=list_benchmarks)
    benchmarks = parser.add_subparsers(metavar="BENCHMARK")
    bench_speed.add_parsers(benchmarks)
    bench_paged.add_parsers(benchmarks)
    bench_pool.add_parsers(benchmarks)
    bench_capacity.add_parsers(benchmarks)
    bench_quality.add_parsers(benchmarks)


def list_benchmarks(args: argparse.Namespace) -> int:
    """Print every benchmark and what it measures."""
    from kvcourse.bench import BENCHMARKS

    for name, what in BENCHMARKS.items():
        print(f"kvcourse bench {name:17} {what}")
    return 0


def add_common(parser: argparse.ArgumentParser) -> None:
    """Options that every benchmark has."""
    parser.add_argument("--threads", type=number, help="threads on the CPU (default: torch's choice)")
    parser.add_argument(
        "--json", metavar="FILE", help="also write the result as JSON; - prints it instead of a table"
    )


def prepare(args: argparse.Namespace) -> dict[str, Any]:
    """What must be right before minutes of measuring begin. Returns the progress option of a benchmark's run."""
    import torch

    from kvcourse.counts import read_count

    check_writable(args.json)
    if args.threads:
        torch.set_num_threads(read_count("--threads", args.threads, most=MOST_THREADS))
    return {"progress": False if args.json == "-" else None}


def finish(report: Any, target: str | None) -> int:
    """A report as a table on standard output and as JSON in a file, or as JSON alone for "-"."""
    from rich import print as show

    if target == "-":
        sys.stdout.write(report.to_json() + "\n")
        return 0
    if target is not None:  # first: the reader of the table may have left
        _replace(Path(target), report.to_json() + "\n")
    show(report)
    return 0


def _replace(path: Path, text: str) -> None:
    """Write a file in one go: what was there stays whole until the new text is."""
    if path.exists() and not path.is_file():  # /dev/stdout and its like
        path.write_text(text, encoding="utf-8")
        return
    path = path.resolve()  # a link stays a link
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        fresh.write_text(text, encoding="utf-8")
        os.replace(fresh, path)
    finally:
        fresh.unlink(missing_ok=True)


def check_writable(target: str | None) -> None:
    """Raise InputError now, not after minutes of measuring, when the JSON file cannot be written."""
    from kvcourse.errors import InputError

    if target in (None, "-"):
        return
    path = Path(target)
    try:
        is_new = not path.exists()
        with path.open("a", encoding="utf-8"):
            pass
        if is_new:  # nothing is left behind when the measuring is interrupted
            path.unlink()
    except OSError as error:
        raise InputError(f"--json {target}: cannot write it ({error.strerror}); name another file") from None


def given(**options: Any) -> dict[str, Any]:
    """The options that are not None: a benchmark's own defaults stand for the others."""
    return {name: value for name, value in options.items() if value is not None}


def number(text: str) -> int:
    """A whole number of at least 1."""
    if not text.strip().isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def numbers(text: str) -> tuple[int, ...]:
    """Whole numbers of at least 1, with commas between them."""
    return tuple(number(part) for part in text.split(","))
