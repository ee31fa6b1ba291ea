"""What a learner handed in: a notebook, a folder of notebooks, or a zip of them."""

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from kvcourse.course.grading.archive import MAGIC, members_of
from kvcourse.course.grading.chapters import Candidate, chapter_stems, chapters_of, choose, stem_of
from kvcourse.course.grading.members import (
    Budget,
    Member,
    Refused,
    is_ignored,
    is_notebook,
    is_zip,
    kind_of,
    open_file,
    read_member,
    same_spelling,
    walk,
)
from kvcourse.course.grading.untrusted import NotANotebook, parse_notebook, short
from kvcourse.course.manifest import Manifest
from kvcourse.errors import InputError

ARCHIVES = (".zip", ".tar", ".gz", ".tgz", ".7z", ".rar")  # only zips are opened; the others get a note
MAX_NOTES = 20
MAX_NAME = 100
# Of a copy: "-Copy1", " (1)", " - Copy (2)", " copy 2", and ".1a2b3c4d" of `kvcourse start --refresh`.
_COPY = re.compile(r"(?: ?-? ?copy ?\d*| ?\(\d+\)|\.[0-9a-f]{8})*", re.I)


@dataclass(frozen=True)
class Submission:
    """The notebooks of one learner, by chapter (the stem of its file), and a line for all that is odd.

    `digest` is a sha256 over the content that counts: the same for a folder and for a zip of it.
    """

    name: str
    path: Path
    digest: str
    notebooks: dict[str, dict]
    notes: tuple[str, ...]


def find_submissions(
    paths: list[Path], stems: Collection[str], whole: bool = False
) -> list[tuple[str, Path]]:
    """(name, path) of each submission, sorted by name. `stems` are those of the course's chapters.

    A file is a submission, and so is a folder that holds a notebook. A folder that holds none, but folders or
    archives, is a folder of submissions: each of its entries is one, files of any kind too. So is a folder that is
    given alone and holds several notebooks or archives or folders, if none of its notebooks is named like a chapter,
    as a learner's are. With `whole`, every path is one submission. Two of the same name get the name of their folder
    in front. A path that is a symbolic link is followed; links in a folder are not, when they are read.
    Errors: InputError if a path is missing or cannot be read, if a folder may be a learner's or a class's, or if
    nothing is found.
    """
    found: dict[str, Path] = {}
    for given in map(Path, paths):
        path = given.resolve() if given.is_symlink() else given
        if not os.path.exists(path):  # Path.exists raises where a folder may not be searched
            raise InputError(f"{given}: no such file or folder; give notebooks, zips or folders of them")
        one = whole or not path.is_dir()
        for entry in [path] if one else _entries(path, stems, len(paths) == 1):
            found.setdefault(_place(entry), entry)
    if not found:
        where = ", ".join(map(str, paths)) or "no path given"
        raise InputError(f"no submission found ({short(where)}); give notebooks, zips or folders of them")
    return sorted(zip(_names(list(found.values())), found.values(), strict=True))


def read_submission(path: Path, manifest: Manifest, name: str | None = None) -> Submission:
    """Read what lies at `path`; content of any kind gives a submission, with a note a line for what is odd.

    The notebooks are cleaned: sources, tags and exercise ids of known types, no outputs. Files are read up to
    limits, links are not followed, zips are not extracted to disk.
    """
    path = Path(path)
    files = [_read(member, manifest) for member in _members(path)]
    files = _without_common_folder(files)
    notes = [f"{short(file.name or path.name)} {note}" for file in files for note in file.notes]
    claims = [Candidate(c, how, f.name, f.notebook, f.digest) for f in files for c, how in f.chapters.items()]
    notebooks = {}
    for stem in chapter_stems(manifest):
        if candidates := [claim for claim in claims if claim.chapter == stem]:
            best, note = choose(candidates)
            notebooks |= {stem: best.notebook} if best else {}
            notes += [note] if note else []
    if not files:
        notes.append(f"{short(path.name)} holds no notebook; hand in the .ipynb files")
    if len(notes) > MAX_NOTES:
        notes[MAX_NOTES - 1 :] = [f"and {len(notes) - MAX_NOTES + 1} more of such notes"]
    content = json.dumps([(same_spelling(file.name), file.digest) for file in files])
    digest = hashlib.sha256(content.encode()).hexdigest()
    return Submission(name or _names([path])[0], path, digest, notebooks, tuple(notes))


# ---- which paths are submissions -------------------------------------------------------------------


def _place(path: Path) -> str:
    """The same for all spellings of a path. A link in a folder is a place of its own, since it is not followed."""
    if os.path.islink(path):
        return os.path.join(os.path.realpath(path.parent), path.name)
    return os.path.realpath(path)


def _entries(folder: Path, stems: Collection[str], alone: bool) -> list[Path]:
    """The submissions in a folder that was given, which may be one itself."""
    try:
        found = sorted(entry for entry in folder.iterdir() if not is_ignored(entry.name))
    except OSError as error:
        raise InputError(f"{folder} cannot be read ({error.strerror})") from error
    notebooks = [entry for entry in found if is_notebook(entry.name) and not entry.is_dir()]
    below = [entry for entry in found if entry.is_dir() or entry.name.lower().endswith(ARCHIVES)]
    if not notebooks:
        return found if below else [] if alone else [folder]
    if not alone or len(notebooks) + len(below) == 1:
        return [folder]
    of_a_learner = [n for n in notebooks if any(_is_named_like(n.name, stem) for stem in stems)]
    if not of_a_learner:
        return found
    of_others = [
        entry
        for entry in below
        if not entry.is_dir() or any(_is_work(path.relative_to(entry)) for path in entry.rglob("*"))
    ]
    if of_others:
        mine, other = short(of_a_learner[0].name, 40), short(of_others[0].name, 40)
        raise InputError(
            f"{folder} holds {mine}, as the folder of one learner does, and {other}, as a folder of submissions"
            f" does: give {folder}/* if each is a submission; if they are of one learner, move {other} away"
        )
    return [folder]


def _is_work(path: Path) -> bool:
    """Whether a path below a folder could be of what a learner hands in: no copy that Jupyter or a system keeps."""
    return (is_notebook(path.name) or is_zip(path.name)) and not any(map(is_ignored, path.parts))


def _is_named_like(file: str, stem: str) -> bool:
    """Whether a file is called like a chapter, or like a copy that a system, a browser or `--refresh` makes of it."""
    name = stem_of(file)
    return name.lower().startswith(stem.lower()) and bool(_COPY.fullmatch(name[len(stem) :]))


def _names(paths: list[Path]) -> list[str]:
    """A printable name for each path: its own, with as many of its folders in front as make it the only one.

    Two of one folder, `ada.zip` and `ada.ipynb`, keep what tells them apart.
    """
    own = [_own_name(path) for path in paths]
    keys = [(os.path.dirname(_place(path)), name.casefold()) for path, name in zip(paths, own, strict=True)]
    twins = Counter(keys)
    parts = [
        (*path.absolute().parts[1:-1], path.name if twins[key] > 1 else name)
        for path, name, key in zip(paths, own, keys, strict=True)
    ]
    names = [""] * len(paths)
    clashing, depth = list(range(len(paths))), 0
    while clashing and depth < max(map(len, parts)):
        depth += 1
        for i in clashing:
            names[i] = short("-".join(parts[i][-depth:]), MAX_NAME)
        counts = Counter(name.casefold() for name in names)
        clashing = [i for i in clashing if counts[names[i].casefold()] > 1]
    for number, i in enumerate(clashing, 1):
        names[i] = f"{short(names[i], MAX_NAME - 8)}-{number}"
    return names


def _own_name(path: Path) -> str:
    if is_notebook(path.name) and not path.is_dir():
        return stem_of(path.name)
    return path.stem if path.name.lower().endswith(ARCHIVES) else path.name or "submission"


# ---- reading one of them ---------------------------------------------------------------------------


@dataclass(frozen=True)
class _File:
    """A notebook file after reading: its chapters and how each was seen; no notebook if it could not be read."""

    name: str
    digest: str
    notebook: dict
    chapters: dict[str, int]
    notes: tuple[str, ...]


def _members(path: Path) -> Iterator[Member]:
    """The notebook files of a submission; a problem of the whole is a member without a name."""
    budget = Budget()
    try:
        kind = kind_of(path)
        if kind is None:
            yield from _file(path, path.name, budget)
        elif kind != "a folder":
            yield Member("", problem=f"is {kind}: not read; give a notebook, a folder or a zip")
        else:
            for name, file, problem in walk(path, budget):
                if problem:
                    yield Member(name, problem=problem)
                elif is_notebook(name):
                    yield read_member(file, name, budget)
                elif is_zip(name):
                    yield from _file(file, name, budget)
                elif file.is_symlink() and file.is_dir():
                    yield Member(name, problem="is a symbolic link: not followed")
    except Refused as refusal:
        yield Member("", problem=str(refusal))


def _file(path: Path, name: str, budget: Budget) -> Iterator[Member]:
    """A notebook, or the members of a zip, below the name of the zip."""
    try:
        with open_file(path) as file:
            zipped = file.read(4) in MAGIC or is_zip(name)
            for member in members_of(file, budget) if zipped else ():
                yield Member(f"{name}/{member.name}", member.data, member.problem)
    except Refused as refusal:
        yield Member(name, problem=str(refusal))
        return
    except OSError as error:
        yield Member(name, problem=f"cannot be read ({error.strerror})")
        return
    if not zipped:
        yield read_member(path, name, budget)


def _read(member: Member, manifest: Manifest) -> _File:
    if member.problem is not None:
        return _File(member.name, member.problem, {}, {}, (member.problem,))
    digest = hashlib.sha256(member.data).hexdigest()
    try:
        notebook, notes = parse_notebook(member.data)
    except NotANotebook as error:
        fault = (
            str(error)
            if is_notebook(member.name)
            else "is neither a notebook nor a zip; hand in .ipynb or .zip"
        )
        return _File(member.name, digest, {}, {}, (fault,))
    chapters = chapters_of(notebook, member.name, manifest)
    if not chapters:
        notes = (*notes, "holds none of the course's exercises; is it of another course?")
    return _File(member.name, digest, notebook, chapters, notes)


def _without_common_folder(files: list[_File]) -> list[_File]:
    """The files, sorted, with names below the one folder or zip that holds them all: packing changes nothing."""
    folders = [file.name.split("/")[:-1] for file in files if file.name]
    common = 0
    while folders and all(len(f) > common and f[common] == folders[0][common] for f in folders):
        common += 1
    below = [replace(file, name="/".join(file.name.split("/")[common:])) for file in files]
    return sorted(below, key=lambda file: same_spelling(file.name))
