"""`kvcourse model`: fetch a model, say where it is and how large, check it, try it, remove it."""

import argparse
import json
import sys
from pathlib import Path

from kvcourse.errors import InputError

_TRY_TOKENS = 24


def add_parser(subparsers) -> None:
    """Register the command."""
    parser = subparsers.add_parser("model", help="fetch, check or remove the weights of a model")
    parser.add_argument(
        "name",
        nargs="?",
        default="smollm2-135m",
        help="built-in name, folder or hub name (default: %(default)s)",
    )
    action = parser.add_mutually_exclusive_group()
    action.add_argument(
        "--verify", action="store_true", help="check every byte, and fetch again what is damaged"
    )
    action.add_argument("--remove", action="store_true", help="delete a built-in model from the disk")
    parser.add_argument(
        "--try", dest="prompt", metavar="PROMPT", help="continue a prompt on the CPU, greedily"
    )
    parser.add_argument("--json", action="store_true", help="print data instead of text")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the command. Errors: InputError for bad input."""
    if args.remove:
        return _remove(args)
    from kvcourse.weights import describe, locate

    repaired = _repair(args.name) if args.verify else None
    folder = locate(args.name)
    report = {"name": args.name, "path": str(folder), **describe(folder)}
    if repaired is not None:
        report["repaired"] = repaired
    if args.prompt is not None:
        report["prompt"], report["continuation"] = args.prompt, _continuation(folder, args.prompt)
    if args.json:
        print(json.dumps(report, indent=2))
    else:
        _show(report)
    return 0


def _remove(args: argparse.Namespace) -> int:
    from kvcourse.weights import remove

    if args.prompt is not None:
        raise InputError("--try and --remove exclude each other; give one of them")
    removed = remove(args.name)
    if args.json:
        print(json.dumps({"name": args.name, "removed": removed}))
    else:
        print(f"removed {args.name}" if removed else f"{args.name} is not on the disk, nothing to remove")
    return 0


def _repair(name: str) -> list[str]:
    """Check a built-in model; fetch it again when a file is damaged. Returns the files that were."""
    from kvcourse.weights import fetch, remove, verify

    fetch(name)
    damaged = verify(name)
    if damaged:
        print(f"damaged: {', '.join(damaged)}; fetching {name} again", file=sys.stderr)
        remove(name)
        fetch(name)
    return damaged


def _continuation(folder: Path, prompt: str) -> str:
    import torch

    from kvcourse.generation import generate
    from kvcourse.weights import load_model

    model, tokenizer = load_model(folder, device="cpu")
    if tokenizer is None:
        raise InputError(f"{folder} has no tokenizer files, so --try cannot read a prompt")
    try:
        prompt.encode()
    except UnicodeEncodeError:
        raise InputError("--try got bytes that are no UTF-8; give text to continue") from None
    tokens = tokenizer.encode(prompt)
    if not tokens:
        raise InputError("--try got an empty prompt; give some text to continue")
    return tokenizer.decode(generate(model, torch.tensor([tokens]), max_new_tokens=_TRY_TOKENS)[0])


def _show(report: dict) -> None:
    print(f"{report['name']} is in {report['path']}")
    print(f"  parameters  {report['parameters']:,} ({', '.join(report['dtypes'])})")
    print(f"  on disk     {report['bytes'] / 1e6:,.1f} MB in {len(report['files'])} files")
    if "repaired" in report:
        repaired = ", ".join(report["repaired"])
        print(
            f"  verified    {f'fetched again because of {repaired}' if repaired else 'every file is whole'}"
        )
    if "prompt" in report:
        print(f"  try         {report['prompt']}{report['continuation']}")
