"""`kvcourse bench paged`: the benchmark of attention over pages."""

import argparse
from typing import Any

from kvcourse.cli.bench import add_common, finish, given, number, numbers, prepare


def add_parsers(benchmarks: Any) -> None:
    """Add the benchmark."""
    paged = benchmarks.add_parser(
        "paged",
        help="decode attention over pages: our kernel, a contiguous cache, gathered pages, and the floor",
    )
    paged.add_argument(
        "--block-sizes",
        type=numbers,
        metavar="N,N",
        help="tokens of a block (default: 1,2,4, and so on to 256)",
    )
    paged.add_argument("--repeats", type=number, help="measured rounds")
    paged.add_argument("--device", default="cpu", help="cpu or cuda (default: %(default)s)")
    paged.add_argument("--dtype", default="float32", choices=("float32", "bfloat16", "float16"))
    add_common(paged)
    paged.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the benchmark, print its table, write its JSON."""
    import torch

    from kvcourse.bench import paged
    from kvcourse.errors import InputError
    from kvcourse.placement import read_device

    common = prepare(args)
    if args.device.startswith("cuda") and not torch.cuda.is_available():
        raise InputError(f"--device {args.device}: torch sees no CUDA device here; use --device cpu")
    read_device(args.device)
    options = given(block_sizes=args.block_sizes, repeats=args.repeats) | common
    return finish(paged.run(device=args.device, dtype=getattr(torch, args.dtype), **options), args.json)
