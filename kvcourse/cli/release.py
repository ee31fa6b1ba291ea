"""`kvcourse release`: student notebooks as a zip, or sources for nbgrader."""

from pathlib import Path


def add_parser(subparsers) -> None:
    """Add `kvcourse release`."""
    p = subparsers.add_parser(
        "release",
        help="make student notebooks to hand out",
        description="Write a zip with student notebooks, without solutions and the outputs that would show them, and"
        " with a README for learners. The same course gives the same bytes. Nothing is written if a line of a"
        " solution can be found in it. (For your own working folder use `kvcourse start`.)",
    )
    p.add_argument(
        "out", type=Path, nargs="?", metavar="OUT.zip", help="the zip to write; a folder is refused"
    )
    p.add_argument(
        "--chapter",
        type=int,
        action="append",
        default=[],
        metavar="N",
        help="only chapter N, counted as in the file names; may be given again",
    )
    p.add_argument(
        "--nbgrader",
        type=Path,
        metavar="COURSE_DIR",
        help="write notebooks WITH solutions to COURSE_DIR/source, for `nbgrader generate_assignment`",
    )
    p.add_argument("--force", action="store_true", help="replace files that exist")
    p.set_defaults(run=run)


def run(args) -> None:
    """Write the zip, the sources for nbgrader, or both, and say what they hold."""
    from kvcourse.course.manifest import choose_chapters, read_manifest
    from kvcourse.course.release.bundle import write_bundle, write_file
    from kvcourse.course.release.nbgrader import source_files
    from kvcourse.errors import InputError

    if args.out is None and args.nbgrader is None:
        raise InputError("say what to write: OUT.zip for learners, or --nbgrader COURSE_DIR")
    manifest = read_manifest()
    chapters = choose_chapters(manifest.chapters, args.chapter)
    sources = source_files(manifest, args.nbgrader, chapters, args.force) if args.nbgrader else {}
    if args.out is not None:
        bundle = write_bundle(manifest, args.out, chapters, args.force)
        exercises = sum(len(chapter.exercises) for chapter in chapters)
        points = sum(chapter.points for chapter in chapters)
        nouns = ("chapter", "exercise", "point", "byte")
        counts = zip((len(chapters), exercises, points, bundle.size), nouns, strict=True)
        print(f"{bundle.path}: " + ", ".join(f"{n:,} {noun}{'s' * (n != 1)}" for n, noun in counts))
        print(f"sha256 {bundle.sha256}")
    for path, content in sources.items():
        write_file(path, content)
        print(f"{path}: with solutions, for nbgrader")
