"""Every line of every solution is found wherever it is put; what the course says openly is not called a leak."""

import base64
import html
import json
from pathlib import Path

import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from pygments import highlight
from pygments.formatters import HtmlFormatter, Terminal256Formatter
from pygments.lexers import PythonLexer
from toy_book import SOLUTION, edit

from kvcourse.course.manifest import read_manifest
from kvcourse.course.notebook import dump_notebook, read_notebook
from kvcourse.course.release.leaks import find_leaks, refuse_leaks
from kvcourse.course.release.student import WIDGET_STATE, student_copy
from kvcourse.course.source import write_source
from kvcourse.errors import InputError

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = {path.name: read_notebook(path) for path in sorted((ROOT / "notebooks").glob("*.ipynb"))}


def hidden_lines(notebooks):
    """(notebook, cell, line number, line) of all lines between markers, less those that stand open in code too."""
    hidden, given = [], set()
    for name, notebook in notebooks.items():
        for index, cell in enumerate(notebook["cells"]):
            inside = False
            for number, line in enumerate(cell["source"].splitlines(), 1):
                if "### BEGIN SOLUTION" in line or "### END SOLUTION" in line:
                    inside = "BEGIN" in line
                elif inside:
                    hidden.append((name, index, number, line))
                elif cell["cell_type"] == "code":
                    given.add(line.strip())
    return [entry for entry in hidden if entry[3].strip() not in given | {"", ")"}]


HIDDEN = hidden_lines(NOTEBOOKS)


def colours(line):
    """As IPython shows a line of the learner's own cell in a traceback."""
    return highlight(line, PythonLexer(), Terminal256Formatter()).rstrip("\n")


def output(data):
    return new_code_cell("1", outputs=[new_output("display_data", data=data)])


def failed(*traceback):
    return new_code_cell("1", outputs=[new_output("error", ename="E", evalue="", traceback=list(traceback))])


def printed(text):
    return new_code_cell("1", outputs=[new_output("stream", name="stdout", text=text)])


PLACES = {
    "output": lambda line: printed(f"first\n{line}\nlast\n"),
    "repr": lambda line: output({"text/plain": repr(f"def f():\n{line}\n")}),
    "html": lambda line: output({"text/html": highlight(line, PythonLexer(), HtmlFormatter())}),
    "html in a frame": lambda line: output({
        "text/html": f'<iframe srcdoc="{html.escape(f"<p>Use <code>{html.escape(line.strip())}</code> here</p>")}">'
    }),
    "traceback": lambda line: failed("Cell In[3], line 2, in f(x)", f"----> 2 {colours(line)}"),
    "frame of a traceback": lambda line: failed(f"      1 def f():\n      2 {colours(line)}\n      3 pass"),
    "another cell": lambda line: new_code_cell(f"def f():\n    {line.replace(' = ', '=')}  # like this"),
    "a string": lambda line: new_code_cell(f"exec({line.strip()!r})"),
    "a comment": lambda line: new_code_cell(f"x = 1\n# {line.strip()}"),
    "markdown": lambda line: new_markdown_cell(f"The answer is `{line.strip()}`, of course."),
    "markdown code": lambda line: new_markdown_cell(f"So:\n\n```python\n{line}\n```\n"),
    "list": lambda line: new_markdown_cell(f"Do\n\n1. {line.strip()}\n"),
    "metadata": lambda line: new_code_cell("1", metadata={"kvcourse": {"hint": line.strip()}}),
    "metadata key": lambda line: new_code_cell("1", metadata={"notes": {line.strip(): True}}),
    "attachment": lambda line: new_markdown_cell(
        "![](attachment:a.txt)",
        attachments={"a.txt": {"text/plain": base64.b64encode(f"a\n{line}\nb".encode()).decode()}},
    ),
    "svg in a data link": lambda line: new_markdown_cell(
        f"![](data:image/svg+xml;base64,{base64.b64encode(f'<svg><text>{html.escape(line)}</text></svg>'.encode()).decode()})"
    ),
}  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
def test_each_line_of_each_solution_is_found(place):
    assert len(HIDDEN) > 30
    files = {}
    for n, (*_, line) in enumerate(HIDDEN):
        notebook = new_notebook(cells=[new_markdown_cell("Text."), PLACES[place](line)])
        files[f"{n}.ipynb"] = dump_notebook(notebook).encode()
    found = find_leaks(NOTEBOOKS, files)
    seen = {(leak.file, leak.notebook, leak.cell, leak.line) for leak in found if "cell 1" in leak.place}
    missed = [e for n, e in enumerate(HIDDEN) if (f"{n}.ipynb", *e[:3]) not in seen]
    assert missed == []


@pytest.mark.parametrize("place", ["widget", "notebook metadata", "README.md", "course.json"])
def test_each_line_is_found_outside_cells_too(place):
    files = {}
    for n, (*_, line) in enumerate(HIDDEN):
        notebook = new_notebook(cells=[new_markdown_cell("Text.")])
        if place == "widget":
            model = {"state": {"value": json.dumps({"html": f"<pre>{html.escape(line)}</pre>"})}}
            notebook["metadata"]["widgets"] = {WIDGET_STATE: {"state": {"m": model}}}
        if place == "notebook metadata":
            notebook["metadata"]["notes"] = [{"x": line}]
        text = {"README.md": f"# Hints\n\n    {line}\n", "course.json": json.dumps({"a": ["b", line]})}
        files[f"{n}/{place}" if place in text else f"{n}/a.ipynb"] = text.get(
            place, dump_notebook(notebook)
        ).encode()
    found = {(int(leak.file.split("/")[0]), leak.cell, leak.line) for leak in find_leaks(NOTEBOOKS, files)}
    assert [e for n, e in enumerate(HIDDEN) if (n, *e[1:3]) not in found] == []


def test_the_real_student_copies_and_pages_hold_none():
    files = {
        name: dump_notebook(student_copy(nb, keep_widgets=True)).encode() for name, nb in NOTEBOOKS.items()
    }
    files |= {path.name: path.read_bytes() for path in (ROOT / "book").glob("*.md")}
    assert find_leaks(NOTEBOOKS, files) == []


def test_a_notebook_that_was_not_stripped_leaks_every_line():
    for name, notebook in NOTEBOOKS.items():
        found = {
            (leak.cell, leak.line) for leak in find_leaks(NOTEBOOKS, {name: dump_notebook(notebook).encode()})
        }
        assert found >= {entry[1:3] for entry in HIDDEN if entry[0] == name}


@pytest.mark.parametrize(
    "text",
    [
        "If none is found, the functions return None and nothing else.",
        "They return total sums, and return count and mean.",
        "We read = 0 times.",
        "Set read = 0.5 before, and thread = 0 after.",
        "The slots are first filled; while slots remain, allocated memory grows.",
        "The length of a prompt, p + j, is the column.",
        "def f(x):\n    length = p + jump\n    self.length = endpoint\n    return returned",
    ],
)
def test_it_does_not_cry_wolf(text):
    notebook = new_notebook(cells=[new_markdown_cell(text), new_code_cell(text), printed(text)])
    assert find_leaks(NOTEBOOKS, {"a.ipynb": dump_notebook(notebook).encode(), "b.md": text.encode()}) == []


def course(*cells):
    return {"a.ipynb": new_notebook(cells=list(cells))}


def tagged(text, tag, make=new_code_cell):
    return make(text, metadata={"tags": [tag]})


def test_hidden_tests_and_whole_solution_cells_count():
    notebooks = course(
        tagged("assert double(7) == 14", "hidden-test"),
        tagged("Add the number to itself.\n\nTwice", "solution", new_markdown_cell),
        new_code_cell("### BEGIN HIDDEN TESTS\nassert double(8) == 16\n### END HIDDEN TESTS"),
    )
    text = (
        b"assert double(7)==14\n\nHow? Add the number to itself. Or:\n\n* Twice\n\nassert double( 8 ) == 16"
    )
    places = [(leak.cell, leak.line) for leak in find_leaks(notebooks, {"x.md": text})]
    assert places == [(0, 1), (1, 1), (1, 3), (2, 2)]


def test_only_code_that_is_open_in_the_source_makes_a_line_open():
    """Not the student copy, not an output, not prose; but another cell, spaced in its own way, does."""
    secret = new_code_cell("### BEGIN SOLUTION\ntotal = first + second\n### END SOLUTION")
    leak = dump_notebook(new_notebook(cells=[new_code_cell("total = first + second")])).encode()
    closed = course(secret, new_markdown_cell("`total = first + second`"), printed("total = first + second"))
    assert len(find_leaks(closed, {"x.ipynb": leak})) == 1
    assert (
        find_leaks(course(secret, new_code_cell("if a:\n    total = first+second")), {"x.ipynb": leak}) == []
    )


@pytest.mark.parametrize(
    "written", ["rows['a'] = one(\"b\")", "rows[\"a\"]=one('b')  # why", "rows['a'] =\\\n  one('b')"]
)
def test_quotes_spaces_and_comments_do_not_matter(written):
    secret = new_code_cell("### BEGIN SOLUTION\nrows['a'] = one('b')  # as above\n### END SOLUTION")
    assert len(find_leaks(course(secret), {"x.py": written.encode()})) == 1


def test_blank_lines_punctuation_and_keywords_alone_do_not_count():
    source = "### BEGIN SOLUTION\n\ntry:\n    go(\n    )\nelse:\n    pass\n### END SOLUTION"
    found = find_leaks(course(new_code_cell(source)), {"x.py": b"try:\n    ...\nelse:\n    pass\n)\n\ngo(1)"})
    assert found == []


def test_a_leak_says_where_and_not_what():
    notebooks = course(new_markdown_cell("x"), new_code_cell(SOLUTION))
    copied = dump_notebook(new_notebook(cells=[printed("secret_sum = x + x")])).encode()
    with pytest.raises(InputError) as error:
        refuse_leaks(notebooks, {"b.ipynb": copied})
    assert str(error.value) == (
        "nothing was written, since it would show a solution: b.ipynb, outputs of cell 0: has line 3 of cell 1 of"
        " a.ipynb, which is a solution"
    )
    many = "\n".join(f"answer_{n} = {n} + start" for n in range(9))
    notebooks = course(new_code_cell(f"### BEGIN SOLUTION\n{many}\n### END SOLUTION"))
    with pytest.raises(InputError, match=r"and 4 more$"):
        refuse_leaks(notebooks, {"x.md": many.encode()})


def test_files_that_are_no_text_are_read_too():
    notebooks = course(new_code_cell(SOLUTION))
    line = "secret_sum = x + x"
    for content in (
        b"\x89PNG\x00\xff" + line.encode() + b"\x00\xff",
        line.encode("utf-16"),
        b'{"cells": 3, ' + line.encode(),
    ):
        assert len(find_leaks(notebooks, {"a.ipynb": content})) == 1
    png = base64.b64encode(b"\x89PNG\x00\xfftEXtComment\x00" + line.encode() + b"\xff\x00").decode()
    picture = dump_notebook(new_notebook(cells=[output({"image/png": png})])).encode()
    assert len(find_leaks(notebooks, {"a.ipynb": picture})) == 1


def test_the_public_book_is_searched_and_the_one_for_instructors_is_not(project, tmp_path):
    edit(project / "book/glossary.md", "A vector.", "A vector. `secret_sum = x + x`")
    manifest = read_manifest(project)
    with pytest.raises(InputError, match=r"book/glossary.md: has line 3 of cell 2 of 01_second.ipynb"):
        write_source(manifest, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    write_source(manifest, tmp_path / "out", solutions=True)
    assert (tmp_path / "out/book/glossary.md").is_file()
