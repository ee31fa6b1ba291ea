"""kvcourse memory: what a model's KV cache costs, and what fits on a GPU."""

import argparse


def add_parser(subparsers) -> None:
    """Add `kvcourse memory`."""
    parser = subparsers.add_parser(
        "memory",
        help="exact KV-cache bytes of any model, and what fits on a GPU",
        description="Exact bytes of the KV cache. Sizes: GB is 10^9 bytes, GiB is 2^30. Contexts: 128k is 131,072.",
    )
    parser.add_argument(
        "model", nargs="?", help="a built-in name, a config.json or its folder, or a hub name"
    )
    parser.add_argument("--list", action="store_true", help="the built-in models")
    parser.add_argument(
        "--context", default="4096", metavar="TOKENS", help="tokens of one request (default 4096)"
    )
    parser.add_argument("--batch", type=int, default=1, metavar="N", help="requests at once (default 1)")
    parser.add_argument("--codec", metavar="NAME", help="auto (default), int8, fp8, int4, int4-g64, int2, …")
    parser.add_argument("--dtype", default="bf16", help="the model's number type (default bf16)")
    parser.add_argument(
        "--storage",
        metavar="NAME",
        help="contiguous or paged: round up as it allocates; by default nothing is rounded",
    )
    parser.add_argument(
        "--block-size",
        type=int,
        default=16,
        metavar="TOKENS",
        help="tokens in a block of that storage (default 16)",
    )
    parser.add_argument("--gpu", metavar="SIZE", help="memory to fit into, for example 80GB")
    parser.add_argument(
        "--weights", metavar="SIZE", help="weights beside the cache: bytes (140GB) or parameters (70B)"
    )
    parser.add_argument("--json", action="store_true", help="print data only")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Print the sizes for one model, or the built-in models."""
    from kvcourse.errors import InputError

    if args.list:
        data = _known()
    elif args.model is None:
        raise InputError(
            "no model given: name one (kvcourse memory --list), or give a path to its config.json"
        )
    else:
        data = _sizes(args)
    if args.json:
        import json

        print(json.dumps(data, indent=2))
    elif args.list:
        _print_known(data)
    else:
        _print_sizes(data)


def _known() -> list[dict]:
    from kvcourse import memory
    from kvcourse.attention.known_models import KNOWN

    return [
        {
            "name": name,
            "title": model.title,
            "bytes_per_token": memory.bytes_per_token(model.config),
            "bytes_per_token_beyond_windows": memory.bytes_per_token_beyond_windows(model.config),
            "source": model.hub,
            "note": model.note,
        }
        for name, model in KNOWN.items()
    ]


def _sizes(args: argparse.Namespace) -> dict:
    from dataclasses import asdict

    from kvcourse import memory
    from kvcourse.attention.config_reader import config_dict
    from kvcourse.plan import Plan

    plan = None
    if args.storage is not None:
        plan = Plan(storage=args.storage, codec=args.codec or "auto", block_size=args.block_size)
    config = config_dict(args.model)
    context = memory.parse_tokens(args.context)
    options = {"plan": plan, "dtype": args.dtype, "codec": args.codec}
    request = memory.bytes_at(config, context, **options)
    data = {
        "model": args.model,
        "context": context,
        "batch": args.batch,
        "dtype": args.dtype,
        "codec": args.codec or "auto",
        "storage": args.storage,
        "block_size": args.block_size if args.storage else None,
        "bytes_per_token": memory.bytes_per_token(config, **options),
        "bytes_per_token_beyond_windows": memory.bytes_per_token_beyond_windows(config, **options),
        "bytes_per_request": request,
        "bytes_total": memory.bytes_at(config, context, args.batch, **options),
    }
    weights = _weights(args, config)
    if weights is not None:
        crossover = memory.crossover_tokens(config, weight_bytes=weights, **options)
        data |= {"weight_bytes": weights, "crossover_tokens": crossover}
    if args.gpu is not None:
        fit = memory.fits(config, args.gpu, context, weight_bytes=weights, **options)
        data |= {"gpu_share": data["bytes_total"] / fit.gpu_bytes, "fits": asdict(fit)}
    return data


def _weights(args: argparse.Namespace, config: dict) -> int | None:
    """Bytes of the weights as given, or as counted when they are needed for --gpu; None when nobody asked."""
    from kvcourse import memory, units
    from kvcourse.errors import InputError

    if args.weights is None:
        return None if args.gpu is None else memory.weight_size(config, args.dtype)
    unit = args.weights.strip().lstrip("0123456789.,_ ").lower()
    try:
        if unit in ("k", "m", "b", "t"):
            parameters = units.parse_parameters(args.weights)
            return memory.weight_size(config, args.dtype, parameters=parameters)
        return units.parse_bytes(args.weights)
    except InputError:
        raise InputError(
            f"--weights {args.weights!r}: expected bytes such as 140GB, or parameters such as 70B"
        ) from None


def _print_known(models: list[dict]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="Built-in models, bytes of one token in bf16")
    table.add_column("name", no_wrap=True)
    table.add_column("model", overflow="fold")
    table.add_column("per token", justify="right")
    table.add_column("beyond windows", justify="right")
    table.add_column("note", overflow="fold")
    for model in models:
        table.add_row(
            model["name"],
            model["title"],
            f"{model['bytes_per_token']:,}",
            f"{model['bytes_per_token_beyond_windows']:,}",
            model["note"],
        )
    Console().print(table)


def _print_sizes(data: dict) -> None:
    from rich.console import Console
    from rich.table import Table

    from kvcourse.units import humanize

    def size(nbytes: int) -> str:
        return f"{humanize(nbytes)}  ({nbytes:,} bytes)"

    storage = "" if data["storage"] is None else f", {data['storage']}, blocks of {data['block_size']}"
    number = data["dtype"] if data["codec"] == "auto" else data["codec"]
    table = Table(title=f"{data['model']}: KV cache in {number}{storage}", show_header=False)
    table.add_column()
    table.add_column(overflow="fold")
    table.add_row("one token", size(data["bytes_per_token"]))
    if data["bytes_per_token_beyond_windows"] != data["bytes_per_token"]:
        table.add_row("one token, windows full", size(data["bytes_per_token_beyond_windows"]))
    table.add_row(f"one request of {data['context']:,} tokens", size(data["bytes_per_request"]))
    if data["batch"] > 1:
        table.add_row(f"{data['batch']} such requests", size(data["bytes_total"]))
    if "weight_bytes" in data:
        crossover = data["crossover_tokens"]
        table.add_section()
        table.add_row("weights", size(data["weight_bytes"]))
        table.add_row(
            "as many bytes in the cache at", "never" if crossover is None else f"{crossover:,} tokens"
        )
    if "fits" in data:
        fit = data["fits"]
        longest = "not limited by memory" if fit["longest"] is None else f"{fit['longest']:,} tokens"
        table.add_section()
        table.add_row("GPU", size(fit["gpu_bytes"]))
        table.add_row("share of it that the cache takes", f"{100 * data['gpu_share']:.1f} %")
        table.add_row("kept for activations", size(fit["reserved_bytes"]))
        table.add_row("room for the cache", size(fit["room_bytes"]))
        table.add_row("requests of this length that fit", f"{fit['requests']:,}")
        table.add_row("tokens in all", f"{fit['tokens']:,}")
        table.add_row("longest single request", longest)
    Console().print(table)
