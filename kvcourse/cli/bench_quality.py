"""`kvcourse bench attention-quality | uptrain`: the benchmarks that train."""

import argparse
import shutil
from pathlib import Path
from typing import Any

from kvcourse.cli.bench import add_common, finish, given, number, prepare


def add_parsers(benchmarks: Any) -> None:
    """Add the two benchmarks."""
    quality = benchmarks.add_parser(
        "attention-quality", help="small models with MHA, GQA, MQA and MLA, trained side by side"
    )
    quality.add_argument(
        "--setting", default="full", choices=("full", "quick"), help="sizes and budget (default: %(default)s)"
    )
    quality.add_argument("--seeds", type=number, help="trainings of each model (default: the setting's)")
    quality.set_defaults(run=run_attention_quality)
    uptrain = benchmarks.add_parser(
        "uptrain", help="a real model converted to MQA and MLA, perplexity before and after some training"
    )
    uptrain.add_argument(
        "--model", default="smollm2-135m", help="name, folder or hub name (default: %(default)s)"
    )
    uptrain.add_argument("--context", type=number, help="tokens of a window (default: 256)")
    uptrain.add_argument("--batch", type=number, help="windows a step (default: 1)")
    uptrain.add_argument("--learning-rate", type=float, help="largest learning rate")
    uptrain.set_defaults(run=run_uptrain)
    for parser in (quality, uptrain):
        parser.add_argument("--steps", type=number, help="weight updates of each model")
        parser.add_argument(
            "--folder", help="where unfinished trainings are kept (default: in the package's cache folder)"
        )
        parser.add_argument(
            "--bf16",
            action="store_true",
            help="let float32 matrix products use bfloat16 inside, where the processor has it: faster, not the same",
        )
        add_common(parser)


def run_attention_quality(args: argparse.Namespace) -> int:
    """Run the comparison of attention kinds, print its table, write its JSON."""
    from kvcourse.bench.attention_quality import run

    common = _prepare(args)
    folder = _folder(args, "attention-quality")
    report = run(args.setting, steps=args.steps, seeds=args.seeds, folder=folder, **common)
    return _finish(args, report, folder)


def run_uptrain(args: argparse.Namespace) -> int:
    """Run the conversions, print their tables, write their JSON."""
    from dataclasses import replace

    from kvcourse import load_model
    from kvcourse.bench.uptrain import RECIPE, run

    common = _prepare(args)
    names = ("steps", "batch", "context", "learning_rate")
    recipe = replace(RECIPE, **given(**{name: getattr(args, name) for name in names}))
    recipe = replace(recipe, warmup=min(recipe.warmup, recipe.steps // 4))
    model, _ = load_model(args.model, device="cpu")
    folder = _folder(args, "uptrain")
    return _finish(args, run(model, recipe=recipe, folder=folder, **common), folder)


def _prepare(args: argparse.Namespace) -> dict[str, Any]:
    import torch

    if args.bf16:
        torch.set_float32_matmul_precision("medium")
    return prepare(args)


def _folder(args: argparse.Namespace, name: str) -> Path:
    from kvcourse.weights import home

    return home() / "trainings" / name if args.folder is None else Path(args.folder)


def _finish(args: argparse.Namespace, report: Any, folder: Path) -> int:
    """Show the report; then the trainings have served their purpose, unless the caller named their folder."""
    code = finish(report, args.json)
    if args.folder is None:
        shutil.rmtree(folder, ignore_errors=True)
    return code
