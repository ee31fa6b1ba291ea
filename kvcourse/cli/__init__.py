"""The `kvcourse` command. Each subcommand is a module of this package with `add_parser` and `run`."""

import argparse
import importlib
import os
import sys

from kvcourse.errors import InputError

COMMANDS = ("model", "memory", "bench", "claims", "start", "book")


class _Parser(argparse.ArgumentParser):
    """argparse prints the whole usage before an error; one clear line is easier to read."""

    def error(self, message: str) -> None:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def build_parser() -> argparse.ArgumentParser:
    """The parser with every subcommand."""
    parser = _Parser(prog="kvcourse", description="The KV-cache course, its package and its tools.")
    parser.add_argument("--version", action="version", version=_version())
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name in COMMANDS:
        importlib.import_module(f"kvcourse.cli.{name}").add_parser(subparsers)
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run one command. Returns the exit code: 0, 2 for bad input, 130 when interrupted."""
    args = build_parser().parse_args(argv)
    try:
        return args.run(args) or 0
    except InputError as error:
        print(f"kvcourse {args.command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"kvcourse {args.command}: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader (head, a pager) has left; point stdout at nothing so that the exit flush stays quiet.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _version() -> str:
    from kvcourse import __version__

    return f"kvcourse {__version__}"
