"""Every notebook keeps every rule of hygiene.py, and every rule finds the fault it is for."""

import re
from pathlib import Path

import nbformat
import pytest
from hygiene import BEGIN, END, RULES, SECTIONS
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from kvcourse.course.execute import is_stale
from kvcourse.course.manifest import read_manifest

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
MAX_FILE_BYTES = 3_000_000


def read(path):
    """A notebook as it lies on disk, without nbformat's repairs on validation."""
    return nbformat.read(path, as_version=4)


def test_there_are_notebooks():
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_notebook_keeps_rule(path, rule):
    assert rule(read(path)) == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_small(path):
    assert path.stat().st_size < MAX_FILE_BYTES


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_only_the_first_notebook_has_no_sections(path):
    builds = read(path).metadata.get("kvcourse", {}).get("builds")
    assert (builds is None) == path.stem.startswith("00_")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_are_those_of_the_sources(path):
    assert not is_stale(read(path)), "run `kvcourse book execute` and commit the outputs"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_exercises_equal_book_toml(path):
    chapters = {Path(chapter.file).name: chapter for chapter in read_manifest(ROOT).chapters}
    cells = [cell for cell in read(path).cells if "exercise" in cell.metadata.get("tags", [])]
    found = [(cell.metadata.kvcourse.id, cell.metadata.kvcourse.points) for cell in cells]
    assert found == [(exercise.id, exercise.points) for exercise in chapters[path.name].exercises]


# ---- the rules themselves: a sound notebook, and one fault a case ----------------------------------


def code(source, *outputs, tags=(), **facts):
    metadata = {"tags": list(tags)} | ({"kvcourse": facts} if facts else {})
    return new_code_cell(source, outputs=list(outputs), metadata=metadata)


def picture(alt="a falling line"):
    data = {"image/png": "iVBORw0KGgo=", "text/plain": "figure"}
    return new_output("display_data", data=data, metadata={"image/png": {"alt": alt}})


def exercise(name):
    return code(f"def {name}():\n    {BEGIN}\n    return 1\n    {END}", tags=["exercise"], id=name, points=2)


def numbered(cells):
    """A notebook of these cells, with execution counts 1..n."""
    nb = new_notebook(cells=cells)
    nb.metadata = nbformat.from_dict(
        {
            "kernelspec": {"name": "python3", "display_name": "Python 3"},
            "kvcourse": {"builds": ["kvcourse.cache"]},
        }
    )
    for count, cell in enumerate((c for c in cells if c.cell_type == "code"), start=1):
        cell.execution_count = count
    return nb


def sound():
    """A notebook that keeps every rule."""
    view = new_output("display_data", data={"application/vnd.jupyter.widget-view+json": {"model_id": "1"}})
    bodies = {
        "Build": [code("import math\nimport kvcourse as kv")],
        "Check": [code("1 / 0", new_output("error", ename="E", evalue="e"), tags=["raises-exception"])],
        "Measure": [
            code("fast = 1.5", tags=["nbval-ignore-output"]),
            code("assert fast > 1", picture(), picture(), view),
        ],
        "Exercises": [exercise("a"), exercise("b"), exercise("c")],
        "From notebook to package": [code("from kvcourse.cache import KVCache")],
    }
    cells = [new_markdown_cell("# A title")]
    for number, section in enumerate(SECTIONS, start=1):
        cells += [new_markdown_cell(f"## {number}. {section}\n\nSome words."), *bodies.get(section, [])]
    return numbered(cells)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_sound_notebook_keeps_rule(rule):
    assert rule(sound()) == []


def at(nb, pattern):
    """The first cell whose source matches."""
    return next(cell for cell in nb.cells if re.search(pattern, cell.source))


def set_source(pattern, source):
    return lambda nb: at(nb, pattern).update(source=source)


def set_tags(pattern, *tags):
    return lambda nb: at(nb, pattern).metadata.update(tags=list(tags))


def add_output(output):
    return lambda nb: at(nb, "import math").outputs.append(output)


FAULTS = {
    "kernel": ("valid", lambda nb: nb.metadata.kernelspec.update(name="venv-1")),
    "schema": ("valid", lambda nb: at(nb, "import math").update(outputs=7)),
    "never run": ("executed_in_order", lambda nb: at(nb, "import math").update(execution_count=None)),
    "run twice": ("executed_in_order", lambda nb: at(nb, "import math").update(execution_count=9)),
    "empty": ("no_empty_cells", set_source("import math", " ")),
    "tag": ("known_tags", set_tags("import math", "exercize")),
    "skipped": ("known_tags", set_tags("import math", "nbval-skip")),
    "error": ("errors_are_meant", set_tags("1 / 0")),
    "no error": ("errors_are_meant", lambda nb: at(nb, "1 / 0").update(outputs=[])),
    "stderr": ("no_stderr", add_output(new_output("stream", name="stderr", text="50%|####"))),
    "path in output": ("no_machine", add_output(new_output("stream", name="stdout", text="in /home/ada/kv"))),
    "windows path": ("no_machine", set_source("import math", "open('C:\\\\x')")),
    "path in html": (
        "no_machine",
        add_output(new_output("display_data", data={"text/html": "/tmp/x"})),
    ),
    "very long cell": ("short_cells", set_source("import math", "x = 1\n" * 26)),
    "long cells": (
        "short_cells",
        lambda nb: [c.update(source="x = 1\n" * 16) for c in nb.cells if c.cell_type == "code"],
    ),
    "long prose": ("short_prose", set_source("A title", "# A title\n\n" + "word " * 160)),
    "long end": ("short_prose", set_source("Verdict", "## Verdict\n\n" + "word " * 170)),
    "section order": ("sections_in_order", set_source("Predict", "## Forecast")),
    "no alt": ("images_have_alt", add_output(picture(alt=" "))),
    "no alt in markdown": ("images_have_alt", set_source("A title", "# A title\n![](map.png)")),
    "no alt in html": ("images_have_alt", set_source("A title", "# A title\n<img src='map.png'>")),
    "one figure": ("shows_enough", lambda nb: at(nb, "assert fast").outputs.pop(0)),
    "no explorer": ("shows_enough", lambda nb: at(nb, "assert fast").outputs.pop()),
    "two exercises": ("shows_enough", set_tags("def a", "solution")),
    "imports what it builds": (
        "builds_it_itself",
        set_source("import math", "from kvcourse.cache import KVCache"),
    ),
    "imports the module": ("builds_it_itself", set_source("import math", "import kvcourse.cache")),
    "imports the name": ("builds_it_itself", set_source("import math", "from kvcourse import KVCache")),
    "uses the name": ("builds_it_itself", set_source("import math", "%time\ncache = kv.KVCache(1)")),
    "builds nothing": ("builds_it_itself", lambda nb: nb.metadata.kvcourse.update(builds=[])),
    "no assertion": ("ignored_output_is_asserted", set_source("assert fast", "fast > 1")),
    "no end": ("solutions_are_marked", set_source("def a", f"{BEGIN}\nx = 1")),
    "nested": ("solutions_are_marked", set_source("def a", f"{BEGIN}\n{BEGIN}\n{END}\n{END}")),
    "solution outside": ("solutions_are_marked", set_tags("def a", "hint")),
    "no points": ("exercises_are_complete", lambda nb: at(nb, "def a").metadata.kvcourse.pop("points")),
    "same id": ("exercises_are_complete", lambda nb: at(nb, "def a").metadata.kvcourse.update(id="b")),
    "no solution": ("exercises_are_complete", set_source("def a", "def a():\n    return 1")),
    "huge widgets": ("small_widgets", lambda nb: nb.metadata.update(widgets={"state": "x" * 2_000_001})),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_rule_finds_fault(fault):
    name, plant = FAULTS[fault]
    rule = next(rule for rule in RULES if rule.__name__ == name)
    nb = sound()
    plant(nb)
    assert rule(nb) != []


def test_every_rule_has_a_fault():
    assert {name for name, _ in FAULTS.values()} == {rule.__name__ for rule in RULES}
