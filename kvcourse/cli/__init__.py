"""The `kvcourse` command. Each subcommand is a module of this package with `add_parser` and `run`."""

import argparse
import contextlib
import importlib
import os
import sys

from kvcourse.errors import InputError

COMMANDS = ("model", "memory", "bench", "claims", "start", "release", "grade", "regrade", "book")


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
    """Run one command. Returns the exit code: 0, 2 for bad input or output, 130 when interrupted."""
    if hasattr(sys.stdout, "reconfigure"):  # escape what the terminal's encoding lacks, as stderr does
        sys.stdout.reconfigure(errors="backslashreplace")
    args = build_parser().parse_args(argv)
    try:
        code = args.run(args) or 0
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except InputError as error:
        print(f"kvcourse {args.command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"kvcourse {args.command}: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader (head, a pager) has left
        _drop_output()
        return 0
    except SystemExit as stop:  # rich's answer to the same
        if isinstance(stop.__context__, BrokenPipeError):
            return 0
        raise
    except OSError as error:
        _drop_output()
        where = error.filename or "standard output"
        print(f"kvcourse {args.command}: {where}: {error.strerror or error}", file=sys.stderr)
        return 2


def _drop_output() -> None:
    """Point standard output at nothing: what could not be written would fail once more at exit."""
    with contextlib.suppress(OSError, AttributeError):  # it may have no file, or be closed
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _version() -> str:
    from kvcourse import __version__

    return f"kvcourse {__version__}"
