"""`kvcourse start`: a folder with student copies of the notebooks."""

from pathlib import Path

WORDS = {
    "written": "written",
    "kept": "there already, left as it is",
    "current": "there already, from this version of the course",
    "beside": "new version written beside yours",
}


def add_parser(subparsers) -> None:
    """Add `kvcourse start`."""
    p = subparsers.add_parser(
        "start",
        help="make a folder with student copies of the notebooks",
        description="Write student copies of the notebooks into a folder. A file that exists is never changed.",
    )
    p.add_argument("folder", type=Path, metavar="DIR", help="the folder to fill; made if it does not exist")
    p.add_argument(
        "--refresh", action="store_true", help="write newer versions of the notebooks beside yours"
    )
    p.set_defaults(run=run)


def run(args) -> None:
    """Fill the folder and print what happened to each notebook."""
    from kvcourse.course.manifest import read_manifest
    from kvcourse.course.release.working_folder import place_notebooks

    for placed in place_notebooks(read_manifest(), args.folder, args.refresh):
        print(f"{args.folder / placed.name}: {WORDS[placed.action]}")
