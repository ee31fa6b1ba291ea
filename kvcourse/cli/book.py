"""`kvcourse book`: check the manifest, execute notebooks, build the pages, export for Jupyter Book."""

import sys
from pathlib import Path


def add_parser(subparsers) -> None:
    """Add `kvcourse book` and its actions."""
    p = subparsers.add_parser("book", help="check, execute, build or export the book")
    actions = p.add_subparsers(dest="action", metavar="ACTION", required=True)

    check = actions.add_parser("check", help="check book.toml against the notebooks and pages")
    check.set_defaults(run=run_check)

    execute = actions.add_parser(
        "execute",
        help="run notebooks and store their outputs",
        description="Run the notebooks whose code changed since their outputs were stored.",
    )
    execute.add_argument("notebooks", nargs="*", type=Path, metavar="NOTEBOOK", help="default: every chapter")
    which = execute.add_mutually_exclusive_group()
    which.add_argument("--changed", action="store_true", help="run those whose code changed (the default)")
    which.add_argument("--all", action="store_true", help="run them even if nothing changed")
    execute.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="write the executed copies there and leave the notebooks as they are; run those that it lacks",
    )
    execute.set_defaults(run=run_execute)

    build = actions.add_parser(
        "build",
        help="build the pages",
        description="Build the pages from the stored outputs of the notebooks. Solutions are left out.",
    )
    build.add_argument("--out", type=Path, metavar="DIR", help="where the pages go (default _build/html)")
    build.add_argument(
        "--executed", type=Path, metavar="DIR", help="take the notebooks from `book execute --out DIR`"
    )
    build.add_argument(
        "--with-solutions",
        action="store_true",
        help="for instructors (default folder _build/html-with-solutions)",
    )
    assets = build.add_mutually_exclusive_group()
    assets.add_argument("--offline", action="store_true", help="fail if pages cannot be made to work offline")
    assets.add_argument("--cdn", action="store_true", help="pages load MathJax and widgets from a CDN")
    build.set_defaults(run=run_build)

    export = actions.add_parser("export", help="write the book's source for Jupyter Book 1 or 2")
    export.add_argument("format", choices=("jb1", "myst"), help="jb1: Jupyter Book 1; myst: Jupyter Book 2")
    export.add_argument("--out", type=Path, metavar="DIR", help="default _build/FORMAT")
    export.set_defaults(run=run_export)


def run_check(args) -> None:
    """Check the manifest, then print what it holds."""
    from kvcourse.course.manifest import read_manifest

    manifest = read_manifest()
    minutes = sum(chapter.minutes for chapter in manifest.chapters)
    print(
        f"{len(manifest.chapters)} chapters, {len(manifest.files)} pages, {minutes} minutes, {manifest.points} points"
    )


def run_execute(args) -> None:
    """Execute the notebooks whose code changed, or those named."""
    from kvcourse.course import execute
    from kvcourse.course.manifest import read_manifest
    from kvcourse.errors import InputError

    paths = [path.resolve() for path in args.notebooks]
    root = None
    if args.out or not paths:
        manifest = read_manifest()
        root = manifest.root
        paths = paths or [root / chapter.file for chapter in manifest.chapters]
    for path in paths:
        if args.out and not path.is_relative_to(root):
            raise InputError(
                f"{path.name} is outside the project: --out keeps the project's paths, leave it out"
            )
        target = args.out / path.relative_to(root) if args.out else path
        if not args.all and execute.is_current(target, path):
            print(f"{path.name}: unchanged")
            continue
        seconds = execute.execute_file(path, target)
        print(f"{path.name}: {seconds:.1f} s", flush=True)
        if seconds > execute.MAX_SECONDS:
            print(f"{path.name}: over the {execute.MAX_SECONDS} s that a chapter may take", file=sys.stderr)


def run_build(args) -> None:
    """Build the pages and print where the first one is."""
    from kvcourse.course.build import build_book
    from kvcourse.course.manifest import read_manifest

    manifest = read_manifest()
    print(f"building {len(manifest.files)} pages", flush=True)
    offline = True if args.offline else False if args.cdn else None
    out = build_book(manifest, args.out, args.with_solutions, offline, args.executed)
    print(f"the book: {out.resolve() / 'index.html'}")


def run_export(args) -> None:
    """Write the source for Jupyter Book and print how to build it."""
    from kvcourse.course.export import export_book
    from kvcourse.course.manifest import read_manifest

    manifest = read_manifest()
    out = args.out or manifest.root / "_build" / args.format
    export_book(manifest, args.format, out)
    command = (
        f"jupyter-book build {out}" if args.format == "jb1" else f"cd {out} && jupyter-book build --html"
    )
    print(f"{out}: build it with: {command}")
