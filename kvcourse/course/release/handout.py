"""README.md of a release: what a learner does with it, from installing to handing in."""

from pathlib import PurePosixPath

from kvcourse import __version__
from kvcourse.course.manifest import Manifest

_TEXT = """\
# {title}

{count}, to read, run and solve.

| File | Chapter | Minutes | Exercises | Points |
|---|---|--:|--:|--:|
{rows}

## Install

{package}
You need Python 3.11, 3.12 or 3.13, about 6 GB of disk and, for the first run, a network. In this folder:

```sh
python -m venv .venv
. .venv/bin/activate
{install}
kvcourse model
```

On Windows the second line is `.venv\\Scripts\\activate`. The last line fetches the model, 93 MB, once.

## Open

```sh
jupyter lab
```

Start with {first} and run its cells from the top.

## Solve and check

An exercise is a cell that raises `NotImplementedError` with a hint. Replace that line, run the cell, then run the
test below it: it says which case fails and how. Keep the cells of the exercises and their tests, and the names of the
functions. What is solved so far, in any of the notebooks:

```python
from kvcourse import course

course.progress()
```

If a notebook behaves strangely, restart its kernel and run it from the top.

## Hand in

Save the notebooks and hand in {files}, with {names} unchanged. Outputs do not matter: your code
is run again.
"""


def handout(manifest: Manifest) -> str:
    """The text for a release of the chapters of `manifest`, made with this version of the package."""
    names = [PurePosixPath(chapter.file).name for chapter in manifest.chapters]
    rows = [
        f"| [{name}]({name}) | {chapter.title} | {chapter.minutes} | {len(chapter.exercises)} | {chapter.points} |"
        for name, chapter in zip(names, manifest.chapters, strict=True)
    ]
    several = len(names) > 1
    wheel = f"kvcourse-{__version__}-py3-none-any.whl"
    if manifest.repository_url:
        install = f'pip install "kvcourse[course] @ git+{manifest.repository_url}"'
        package = f"The notebooks were made for version {__version__} of the package `kvcourse`."
    else:
        install = f'pip install "{wheel}[course]"'
        package = f"Whoever gave you the notebooks has the package too: put `{wheel}` in this folder first."
    return _TEXT.format(
        title=manifest.title,
        count=f"{len(names)} chapters as notebooks" if several else "One chapter as a notebook",
        rows="\n".join(rows),
        install=install,
        package=package,
        first=f"`{names[0]}`",
        files="those that you solved" if several else f"`{names[0]}`",
        names="their names" if several else "its name",
    )
