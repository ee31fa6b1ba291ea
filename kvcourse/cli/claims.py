"""kvcourse claims: what the article said, what holds, and the numbers, computed anew."""

import argparse


def add_parser(subparsers) -> None:
    """Add `kvcourse claims`."""
    parser = subparsers.add_parser(
        "claims", help="the article's claims, our verdicts and the numbers behind them"
    )
    parser.add_argument("number", nargs="?", type=int, help="one row of the ledger; all rows by default")
    parser.add_argument("--json", action="store_true", help="print data only")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Print all rows of the ledger, or one with its numbers."""
    from kvcourse import claims

    rows = claims.CLAIMS if args.number is None else (claims.get(args.number),)
    if args.json:
        _print_json(rows)
    elif args.number is None:
        _print_table(rows)
    else:
        _print_one(rows[0])


def _print_json(rows) -> None:
    import json

    names = ("number", "said", "verdict", "finding", "source", "status", "command", "chapter")
    data = [{name: getattr(row, name) for name in names} | {"measured": row.measure()} for row in rows]
    print(json.dumps(data, indent=2))


def _print_table(rows) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="The article's claims", show_lines=True)
    for heading in ("#", "the article", "verdict", "what we find"):
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(str(row.number), row.said, row.verdict, row.finding)
    console = Console()
    console.print(table)
    console.print("Numbers and sources of one row: kvcourse claims N", highlight=False)


def _print_one(row) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"Claim {row.number}: {row.verdict}", show_header=False)
    table.add_column(overflow="fold")
    table.add_column(overflow="fold")
    for label, text in (
        ("the article", row.said),
        ("what we find", row.finding),
        ("source", row.source),
        ("status", row.status),
        ("chapter", str(row.chapter)),
    ):
        table.add_row(label, text)
    table.add_section()
    for label, value in row.measure().items():
        table.add_row(label, f"{value:,}" if isinstance(value, int) else str(value))
    Console().print(table)
