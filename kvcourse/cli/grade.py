"""`kvcourse grade`: grade a folder of submissions."""

import argparse
from pathlib import Path

STAGES = ("open", "due", "published")


def add_parser(subparsers) -> None:
    """Add `kvcourse grade`."""
    p = subparsers.add_parser(
        "grade",
        help="grade submissions: notebooks, folders of notebooks or zips",
        description="Grade submissions into a folder: a record, an HTML report and a Gradescope result each, and"
        " gradebook.csv. Run it again after an interrupt: what is graded already is kept.",
    )
    p.add_argument(
        "submissions", nargs="+", type=Path, metavar="SUBMISSION", help="a notebook, a folder or a zip"
    )
    p.add_argument(
        "--hidden", type=Path, metavar="DIR", help="tests that students do not see, instead of the package's"
    )
    p.add_argument(
        "--chapter",
        type=int,
        action="append",
        default=[],
        metavar="N",
        help="grade only chapter N, counted as in the file names; may be given again",
    )
    p.add_argument(
        "--out",
        type=Path,
        default=Path("grades"),
        metavar="DIR",
        help="folder of the grades (default: grades)",
    )
    p.add_argument("--seed", type=_natural, metavar="N", help="seed of the inputs (default: drawn, and kept)")
    p.add_argument("--jobs", type=_positive, metavar="N", help="processes at a time (default: one a core)")
    p.add_argument("--fresh", action="store_true", help="grade all again, also what is graded already")
    p.add_argument(
        "--show",
        choices=STAGES,
        default="open",
        help="tests that reports show: those visible while the work is open (default), also those after the due"
        " date, also those after publishing; hidden ones never",
    )
    p.add_argument(
        "--gradescope", type=Path, metavar="FILE", help="write the results.json of one submission there too"
    )
    p.add_argument(
        "--course",
        type=Path,
        metavar="DIR",
        help="folder of the course (default: found from here, then from the package)",
    )
    p.add_argument("--json", action="store_true", help="print data only")
    p.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Grade, print the scores and say what broke, if something did."""
    import sys

    from kvcourse.course.grading.batch import grade_batch
    from kvcourse.course.grading.pytest_run import GraderError
    from kvcourse.course.grading.references import find_course

    try:
        batch = grade_batch(
            find_course(args.course),
            args.submissions,
            args.out,
            hidden=args.hidden,
            chapters=args.chapter,
            seed=args.seed,
            jobs=args.jobs,
            fresh=args.fresh,
            stage=args.show,
            gradescope=args.gradescope,
        )
    except GraderError as error:
        print(f"kvcourse grade: the grader broke: {error}", file=sys.stderr)
        print("What was graded before that is kept; run the same command again to go on.", file=sys.stderr)
        return 1
    if args.json:
        _print_json(batch)
    else:
        _print_scores(batch)
    for line in batch.troubles:
        print(f"kvcourse grade: {line}", file=sys.stderr)
    return 1 if batch.troubles else 0


def _print_scores(batch) -> None:
    from rich.console import Console
    from rich.text import Text

    from kvcourse.course.grading.table import print_table

    console = Console()
    print_table(batch.records, console, str(batch.grades.gradebook))
    count = len(batch.records)
    line = f"{count} submission{'s' if count != 1 else ''} in {batch.grades.folder}, seed {batch.grades.seed}"
    line += f"; {batch.kept} graded before" if batch.kept else ""
    line += f"; {batch.others} more of earlier runs in the gradebook" if batch.others else ""
    console.print(Text(line), soft_wrap=True)


def _print_json(batch) -> None:
    import json

    from kvcourse.course.grading.gradebook import notes_of

    submissions = [
        {
            "name": record.name,
            "path": record.path,
            "earned": record.earned,
            "points": record.points,
            "exercises": {e.id: {"earned": e.earned, "points": e.points} for e in record.exercises},
            "notes": notes_of(record),
        }
        for record in batch.records
    ]
    data = {"out": str(batch.grades.folder), "seed": batch.grades.seed, "kept": batch.kept}
    print(json.dumps(data | {"submissions": submissions, "troubles": batch.troubles}, indent=2))


def _positive(text: str) -> int:
    value = _natural(text)
    if value == 0:
        raise argparse.ArgumentTypeError("expected at least 1")
    return value


def _natural(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 on")
    return int(text)
