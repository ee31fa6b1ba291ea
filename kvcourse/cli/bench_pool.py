"""`kvcourse bench pool`: the benchmark of the block pool."""

import argparse
from typing import Any

from kvcourse.cli.bench import add_common, finish, given, number, numbers, prepare


def add_parsers(benchmarks: Any) -> None:
    """Add the benchmark."""
    pool = benchmarks.add_parser(
        "pool", help="a block given out or taken back, in small pools and in large ones"
    )
    pool.add_argument(
        "--blocks", type=numbers, metavar="N,N", help="blocks in the pool (default: 1000,100000)"
    )
    pool.add_argument("--repeats", type=number, help="measured rounds")
    add_common(pool)
    pool.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the benchmark, print its table, write its JSON."""
    from kvcourse.bench import pool

    return finish(pool.run(**given(blocks=args.blocks, repeats=args.repeats), **prepare(args)), args.json)
