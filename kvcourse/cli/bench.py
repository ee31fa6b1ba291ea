"""`kvcourse bench`: measure speed on this machine, next to what one would otherwise use."""

import argparse
import sys
from pathlib import Path
from typing import Any


def add_parser(subparsers: Any) -> None:
    """Add `kvcourse bench` and its benchmarks."""
    parser = subparsers.add_parser(
        "bench", help="time this package next to transformers and the hardware's floor"
    )
    parser.set_defaults(run=list_benchmarks)
    benchmarks = parser.add_subparsers(metavar="BENCHMARK")
    cache = benchmarks.add_parser(
        "cache", help="decode step and its KV part on KVCache, transformers' DynamicCache and the floor"
    )
    cache.add_argument(
        "--model", default="smollm2-135m", help="name, folder or hub name (default: %(default)s)"
    )
    cache.add_argument(
        "--contexts", type=_numbers, default=(256, 1024, 4096), help="tokens (default: 256,1024,4096)"
    )
    cache.add_argument("--batch", type=_numbers, default=(1, 8), help="sequences (default: 1,8)")
    cache.add_argument("--repeats", type=_number, default=10, help="measured rounds (default: %(default)s)")
    cache.add_argument("--device", default="cpu", help="cpu or cuda (default: %(default)s)")
    cache.add_argument("--dtype", default="float32", choices=("float32", "bfloat16", "float16"))
    cache.add_argument("--threads", type=_number, help="threads on the CPU (default: torch's choice)")
    cache.add_argument(
        "--json", metavar="FILE", help="also write the result as JSON; - prints it instead of a table"
    )
    cache.set_defaults(run=run_cache)


def list_benchmarks(args: argparse.Namespace) -> int:
    """Print every benchmark and what it measures."""
    from kvcourse.bench import BENCHMARKS

    for name, what in BENCHMARKS.items():
        print(f"kvcourse bench {name:10} {what}")
    return 0


def run_cache(args: argparse.Namespace) -> int:
    """Run the cache benchmark, print its table, write its JSON."""
    import torch
    from rich import print as show

    from kvcourse import load_model
    from kvcourse.bench.cache import run
    from kvcourse.errors import InputError

    check_writable(args.json)
    if args.threads:
        torch.set_num_threads(args.threads)
    if args.device.startswith("cuda") and not torch.cuda.is_available():
        raise InputError(f"--device {args.device}: torch sees no CUDA device here; use --device cpu")
    model, _ = load_model(args.model, device=args.device, dtype=getattr(torch, args.dtype))
    quiet = args.json == "-"
    report = run(model, args.contexts, args.batch, args.repeats, progress=False if quiet else None)
    write_report(report, args.json, show)
    return 0


def write_report(report: Any, target: str | None, show: Any) -> None:
    """A report as a table on standard output and as JSON in a file, or as JSON alone for "-"."""
    if target == "-":
        sys.stdout.write(report.to_json() + "\n")
        return
    show(report)
    if target is not None:
        Path(target).write_text(report.to_json() + "\n", encoding="utf-8")


def check_writable(target: str | None) -> None:
    """Raise InputError now, not after minutes of measuring, when the JSON file cannot be written."""
    from kvcourse.errors import InputError

    if target in (None, "-"):
        return
    try:
        with Path(target).open("a", encoding="utf-8"):
            pass
    except OSError as error:
        raise InputError(f"--json {target}: cannot write it ({error.strerror}); name another file") from None


def _number(text: str) -> int:
    if not text.strip().isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(_number(part) for part in text.split(","))
