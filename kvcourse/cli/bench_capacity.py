"""`kvcourse bench utilisation | concurrency`: the benchmarks of how much memory requests take."""

import argparse
from pathlib import Path
from typing import Any

from kvcourse.cli.bench import add_common, finish, given, number, numbers, prepare


def add_parsers(benchmarks: Any) -> None:
    """Add the two benchmarks."""
    utilisation = benchmarks.add_parser(
        "utilisation", help="how much of the memory holds tokens: reserved arrays and pages, simulated"
    )
    utilisation.add_argument(
        "--trace",
        type=Path,
        metavar="FILE",
        help="requests from a trace: JSON lines as Mooncake's, plain or .gz",
    )
    utilisation.add_argument(
        "--distribution",
        metavar="NAME",
        help="lengths of requests that are drawn: sharegpt (default), alpaca, uniform or fixed",
    )
    utilisation.add_argument(
        "--requests", type=number, metavar="N", help="how many (default: 2000, or all of a trace)"
    )
    utilisation.add_argument("--seed", type=int, help="of the drawing (default: 0)")
    utilisation.add_argument(
        "--rate", type=float, metavar="R", help="requests a second that are drawn; needs --step-ms"
    )
    utilisation.add_argument(
        "--step-ms",
        type=float,
        metavar="MS",
        help="time of a step, so that requests arrive one by one; without it all wait from the start",
    )
    utilisation.add_argument(
        "--blocks", type=numbers, metavar="N,N", help="block sizes in tokens (default: 1,2,4, … 256)"
    )
    utilisation.add_argument(
        "--admission",
        default="watermark",
        choices=("watermark", "whole"),
        help="of pages: while 1%% of the blocks stays free, or only what can grow to its end (default: %(default)s)",
    )
    utilisation.add_argument(
        "--capacity", metavar="TOKENS", help="the memory (default: 15,728, or 8 × a longer --max-length)"
    )
    utilisation.add_argument(
        "--max-length",
        metavar="TOKENS",
        help="of a request (default: 2,048, or more where requests are longer)",
    )
    utilisation.set_defaults(run=run_utilisation)
    concurrency = benchmarks.add_parser(
        "concurrency", help="32 requests on a real model under one memory cap, one array a request and paged"
    )
    concurrency.add_argument(
        "--model", default="smollm2-135m", help="name, folder or hub name (default: %(default)s)"
    )
    concurrency.add_argument("--requests", type=number, metavar="N", help="how many (default: 32)")
    concurrency.add_argument(
        "--rows", type=number, metavar="N", help="arrays that the cap holds (default: 4)"
    )
    concurrency.add_argument(
        "--max-length", type=number, metavar="TOKENS", help="slots of an array (default: 256)"
    )
    concurrency.add_argument("--block-size", type=number, metavar="TOKENS", help="of the pages (default: 16)")
    concurrency.set_defaults(run=run_concurrency)
    for parser in (utilisation, concurrency):
        add_common(parser)


def run_utilisation(args: argparse.Namespace) -> int:
    """Run the simulation, print its table, write its JSON."""
    from kvcourse.bench import allocators, traces, utilisation
    from kvcourse.errors import InputError
    from kvcourse.units import parse_tokens

    common = prepare(args)
    drawn = [name for name in ("distribution", "seed", "rate") if getattr(args, name) is not None]
    if args.trace is not None and drawn:
        raise InputError(
            f"--{drawn[0]} with --trace: a trace has requests of its own; leave one of the two out"
        )
    if args.rate is not None and args.step_ms is None:
        raise InputError("--rate without --step-ms: say how long a step takes, or leave --rate out")
    if args.trace is not None:
        requests = traces.read_trace(args.trace, args.requests)
        source = args.trace.name
    else:
        options = given(name=args.distribution, number=args.requests, seed=args.seed, rate=args.rate)
        requests = traces.draw(**options)
        source = traces.DISTRIBUTIONS[args.distribution or "sharegpt"].source
    whole = args.admission == "whole"
    pages = [allocators.Paged(size, whole=whole) for size in args.blocks or utilisation.BLOCK_SIZES]
    sizes = {"capacity_tokens": args.capacity, "max_length": args.max_length}
    sizes = {name: parse_tokens(value) for name, value in given(**sizes).items()}
    seconds = None if args.step_ms is None else args.step_ms / 1000
    report = utilisation.run(
        requests,
        (*allocators.STATIC, *allocators.BUDDY, *pages),
        step_seconds=seconds,
        source=source,
        **sizes,
        **common,
    )
    return finish(report, args.json)


def run_concurrency(args: argparse.Namespace) -> int:
    """Run both arms, print the tables, write the JSON."""
    from kvcourse import load_model
    from kvcourse.bench import concurrency

    common = prepare(args)
    options = given(rows=args.rows, max_length=args.max_length, block_size=args.block_size)
    drawn = given(number=args.requests, max_length=args.max_length)
    model, _ = load_model(args.model, device="cpu")
    report = concurrency.run(model, concurrency.lengths(**drawn), name=args.model, **options, **common)
    return finish(report, args.json)
