"""`kvcourse regrade`: come to a score again from its record."""

import argparse
from pathlib import Path


def add_parser(subparsers) -> None:
    """Add `kvcourse regrade`."""
    p = subparsers.add_parser(
        "regrade",
        help="reproduce a score from its record",
        description="Grade a submission again with the seed of its record and compare every outcome."
        " The submission and the tests must be those of the record.",
    )
    p.add_argument("record", type=Path, metavar="RECORD", help="a file of records/ in a folder of grades")
    p.add_argument("--submission", type=Path, metavar="PATH", help="where the submission is now")
    p.add_argument("--hidden", type=Path, metavar="DIR", help="the hidden tests that it was graded with")
    p.add_argument(
        "--course",
        type=Path,
        metavar="DIR",
        help="folder of the course (default: found from here, then from the package)",
    )
    p.add_argument("--json", action="store_true", help="print data only")
    p.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Grade again; exit code 1 if an outcome differs or the grader broke."""
    import json
    import sys

    from kvcourse.course.grading.pytest_run import GraderError
    from kvcourse.course.grading.references import find_course
    from kvcourse.course.grading.regrade import regrade

    try:
        result = regrade(find_course(args.course), args.record, args.submission, args.hidden)
    except GraderError as error:
        print(f"kvcourse regrade: the grader broke: {error}", file=sys.stderr)
        return 1
    then, now, differences = result.then, result.now, result.differences
    if args.json:
        scores = {"then": then.earned, "now": now.earned, "points": then.points}
        data = {"reproduced": not differences, "differences": differences, "versions": result.versions}
        print(json.dumps(scores | data, indent=2))
        return 1 if differences else 0
    for line in result.versions:
        print(f"version: {line}")
    for line in differences:
        print(line)
    if differences:
        print(f"not reproduced: {then.earned} of {then.points} points then, {now.earned} of {now.points} now")
        return 1
    print(f"reproduced: {now.earned} of {now.points} points")
    return 0
