"""`kvcourse bench cache | heads | mla`: the benchmarks that time."""

import argparse
from typing import Any

from kvcourse.cli.bench import add_common, finish, given, number, numbers, prepare


def add_parsers(benchmarks: Any) -> None:
    """Add the three benchmarks."""
    cache = benchmarks.add_parser(
        "cache", help="decode step and its KV part on KVCache, transformers' DynamicCache and the floor"
    )
    heads = benchmarks.add_parser(
        "heads", help="decode step and its KV part of one model with many, few and one kv head, and as MLA"
    )
    mla = benchmarks.add_parser(
        "mla", help="decode attention over latents: our kernel, absorbed and expanded in torch, and the floor"
    )
    for parser, run in ((cache, run_cache), (heads, run_heads), (mla, run_mla)):
        if parser is not mla:
            parser.add_argument(
                "--model", default="smollm2-135m", help="name, folder or hub name (default: %(default)s)"
            )
        parser.add_argument("--contexts", type=numbers, metavar="N,N", help="tokens in the cache")
        parser.add_argument("--batch", type=numbers, metavar="N,N", help="sequences")
        parser.add_argument("--repeats", type=number, help="measured rounds")
        parser.add_argument("--device", default="cpu", help="cpu or cuda (default: %(default)s)")
        parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16", "float16"))
        add_common(parser)
        parser.set_defaults(run=run)


def run_cache(args: argparse.Namespace) -> int:
    """Run the cache benchmark, print its table, write its JSON."""
    from kvcourse.bench.cache import run

    options = _options(args)
    return finish(run(_model(args), **options), args.json)


def run_heads(args: argparse.Namespace) -> int:
    """Run the benchmark of kv heads, print its table, write its JSON."""
    from kvcourse.bench.heads import run

    options = _options(args)
    return finish(run(_model(args), **options), args.json)


def run_mla(args: argparse.Namespace) -> int:
    """Run the benchmark of MLA decode, print its table, write its JSON."""
    import torch

    from kvcourse.bench.mla import run

    options = _options(args)
    return finish(run(device=args.device, dtype=getattr(torch, args.dtype), **options), args.json)


def _options(args: argparse.Namespace) -> dict[str, Any]:
    """Arguments that all three take, once the machine is seen to be able to run them."""
    import torch

    from kvcourse.errors import InputError
    from kvcourse.placement import read_device

    common = prepare(args)
    if args.device.startswith("cuda") and not torch.cuda.is_available():
        raise InputError(f"--device {args.device}: torch sees no CUDA device here; use --device cpu")
    read_device(args.device)
    return given(contexts=args.contexts, batches=args.batch, repeats=args.repeats) | common


def _model(args: argparse.Namespace) -> Any:
    import torch

    from kvcourse import load_model

    model, _ = load_model(args.model, device=args.device, dtype=getattr(torch, args.dtype))
    return model
