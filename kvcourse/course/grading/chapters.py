"""Which chapter a notebook belongs to, and which one of several notebooks of a chapter counts."""

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import PurePosixPath

from kvcourse.course.grading.members import NOTEBOOK_SUFFIXES
from kvcourse.course.grading.program import required_names
from kvcourse.course.grading.untrusted import cells_of, short
from kvcourse.course.manifest import Manifest
from kvcourse.course.notebook import read_notebook

BY_ID, BY_METADATA, BY_FILE, BY_NAME, BY_SOME_IDS = range(5)  # the sooner, the surer
_DEFINITION = re.compile(r"^(?:async[ \t]+)?(?:def|class)[ \t]+(\w+)", re.M)


@dataclass(frozen=True)
class Candidate:
    """A notebook that may be the one of a chapter: how that was seen, its file, its content."""

    chapter: str
    seen: int
    file: str
    notebook: dict
    digest: str


def chapter_stems(manifest: Manifest) -> tuple[str, ...]:
    """The file stems of the chapters in reading order."""
    return tuple(chapter.stem for chapter in manifest.chapters)


def stem_of(file: str) -> str:
    """The file name without what makes it a notebook."""
    name = PurePosixPath(file).name
    suffix = next((s for s in sorted(NOTEBOOK_SUFFIXES, key=len) if name.lower().endswith(s)), "")
    return name[: len(name) - len(suffix)]


def chapters_of(notebook: dict, file: str, manifest: Manifest) -> dict[str, int]:
    """The chapters that a notebook may be of, and how that was seen; empty for one that is not of this course.

    By the exercise ids that its cells carry (most of them are of its chapter; another chapter whose exercises are
    in it too is the last resort for that chapter), else by `metadata.kvcourse.chapter`, else by the file name, else
    by the functions that it defines.
    """
    stems = chapter_stems(manifest)
    owner = {e.id: stem for stem, c in zip(stems, manifest.chapters, strict=True) for e in c.exercises}
    ids = {cell.exercise for cell in cells_of(notebook)} & set(owner)
    if counts := Counter(owner[exercise] for exercise in ids):
        first, *rest = sorted(counts, key=lambda stem: (-counts[stem], stems.index(stem)))
        return {first: BY_ID, **dict.fromkeys(rest, BY_SOME_IDS)}
    said = notebook["metadata"]["kvcourse"].get("chapter")
    if said in stems:
        return {said: BY_METADATA}
    if matches := [stem for stem in stems if stem.lower() == stem_of(file).lower()]:
        return {matches[0]: BY_FILE}
    return _by_names(notebook, manifest)


def _by_names(notebook: dict, manifest: Manifest) -> dict[str, int]:
    # Looked for as text: a submission can have 200 MB of code in which nothing but this is of interest.
    code = (cell.source for cell in cells_of(notebook) if cell.kind == "code")
    defined = {name for source in code for name in _DEFINITION.findall(source)}
    counts: Counter[str] = Counter()
    for stem, chapter in zip(chapter_stems(manifest), manifest.chapters, strict=True):
        course = read_notebook(manifest.root / chapter.file) if chapter.exercises and defined else {}
        for exercise in chapter.exercises if course else ():
            counts[stem] += bool(defined & set(required_names(course, exercise.id)))
    best = max(counts.values(), default=0)
    return {next(stem for stem in counts if counts[stem] == best): BY_NAME} if best else {}


def choose(candidates: list[Candidate]) -> tuple[Candidate | None, str | None]:
    """The one that counts of all candidates for one chapter, and a note if that is not plain.

    Among the surest: the only one; the one named like the chapter, in the fewest folders; the first whose name
    begins like that. Else none, since they may be the work of several learners.
    """
    surest = min(c.seen for c in candidates)
    pool = sorted((c for c in candidates if c.seen == surest), key=lambda c: (c.file.count("/"), c.file))
    chapter = pool[0].chapter
    named = [c for c in pool if stem_of(c.file) == chapter]
    named += [c for c in pool if stem_of(c.file).lower() == chapter.lower() and c not in named]
    named += [c for c in pool if stem_of(c.file).startswith(chapter) and c not in named]
    same = len({c.digest for c in pool}) == 1
    best = named[0] if named else pool[0] if same else None
    plain = [c for c in candidates if c.seen != BY_SOME_IDS]
    if len(plain) < 2 and best:
        return best, None
    files = ", ".join(short(c.file, 40) for c in (plain or pool)[:3]) + (
        ", …" if len(plain or pool) > 3 else ""
    )
    count = f"{len(plain or pool)} notebooks of chapter {chapter} ({files})"
    if best:
        return best, f"{count}: {short(best.file, 40)} was graded"
    return None, (
        f"{count}: none was graded; if they are of several learners, pass them one by one (FOLDER/*),"
        f" else keep one, or name it {chapter}.ipynb"
    )
