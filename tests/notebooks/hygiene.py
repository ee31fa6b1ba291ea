"""Rules that nbval cannot check. Each takes a notebook and returns its faults, one line each."""

import ast
import json
import re
import socket

import nbformat
from imports import modules_used, parse

KNOWN_TAGS = {
    *("exercise", "solution", "hint", "public-test", "hidden-test"),
    *("raises-exception", "nbval-ignore-output", "remove-input", "hide-input", "parameters", "gpu"),
}
SECTIONS = [
    *("What you will build", "Predict", "Build", "Check", "Measure", "Break it", "Exercises"),
    *("From notebook to package", "Verdict"),
]
MAX_LINES, USUAL_LINES = 25, 15
MAX_WORDS = 160
MAX_WIDGET_BYTES = 2_000_000
MACHINE = re.compile(r"/(?:home|Users|root|tmp|work|mnt|var)/|[A-Z]:\\\\|site-packages|\.venv|file://")
BEGIN, END = "### BEGIN SOLUTION", "### END SOLUTION"


def code_cells(nb):
    """The code cells, in order."""
    return [cell for cell in nb.cells if cell.cell_type == "code"]


def tags(cell):
    """The tags of a cell."""
    return cell.metadata.get("tags", [])


def is_chapter(nb):
    """Whether the notebook teaches a technique and so has the nine sections; 00 does not."""
    return nb.metadata.get("kvcourse", {}).get("builds") is not None


def valid(nb):
    """The notebook is valid nbformat and runs on the plain `python3` kernel."""
    try:
        nbformat.validate(nb)
    except nbformat.ValidationError as error:
        return [str(error).splitlines()[0]]
    name = nb.metadata.get("kernelspec", {}).get("name")
    return [] if name == "python3" else [f"kernel {name!r}, expected 'python3'"]


def executed_in_order(nb):
    """Execution counts are 1..n: run top to bottom, once. nbval does not compare cells without a count."""
    counts = [cell.execution_count for cell in code_cells(nb)]
    return [] if counts == list(range(1, len(counts) + 1)) else [f"execution counts {counts}"]


def no_empty_cells(nb):
    """Every cell says something."""
    return [f"cell {i} is empty" for i, cell in enumerate(nb.cells) if not cell.source.strip()]


def known_tags(nb):
    """A misspelt tag would be ignored without a word."""
    return [
        f"cell {i}: unknown tag {t!r}" for i, c in enumerate(nb.cells) for t in tags(c) if t not in KNOWN_TAGS
    ]


def errors_are_meant(nb):
    """Errors stand only in cells tagged raises-exception, and each such cell has stored its own."""
    faults = []
    for cell in code_cells(nb):
        errors = [output for output in cell.outputs if output.output_type == "error"]
        if "raises-exception" in tags(cell) and len(errors) != 1:
            faults.append(f"cell [{cell.execution_count}] is to raise, stored {len(errors)} errors")
        elif "raises-exception" not in tags(cell) and errors:
            faults.append(f"cell [{cell.execution_count}] stored an error: {errors[0].ename}")
    return faults


def no_stderr(nb):
    """Warnings and progress bars differ from machine to machine."""
    return [
        f"cell [{cell.execution_count}] wrote to stderr: {output.text[:60]!r}"
        for cell in code_cells(nb)
        for output in cell.outputs
        if output.output_type == "stream" and output.name == "stderr"
    ]


def no_machine(nb):
    """No path and no host name of the machine that ran the notebook."""
    host = socket.gethostname()
    faults = []
    for place, text in _texts(nb):
        found = MACHINE.search(text)
        if found:
            faults.append(f"{place} has a path: …{text[max(found.start() - 20, 0) : found.end() + 20]}…")
        if len(host) > 3 and host != "localhost" and host in text:
            faults.append(f"{place} names the host {host}")
    return faults


def _texts(nb):
    """(place, text) of every source and output, images left out: base64 can spell anything."""
    for i, cell in enumerate(nb.cells):
        yield f"cell {i}", cell.source
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if data:
                texts = [value for mime, value in data.items() if not mime.startswith("image/")]
            else:
                texts = [output.get(key, "") for key in ("text", "ename", "evalue", "traceback")]
            yield f"output of cell {i}", json.dumps(texts, ensure_ascii=False)
    yield "the metadata", json.dumps(nb.metadata, ensure_ascii=False)


def short_cells(nb):
    """One idea a cell: never over 25 lines, and at most one cell in five over 15."""
    lengths = {cell.execution_count: len(cell.source.splitlines()) for cell in code_cells(nb)}
    faults = [f"cell [{n}] has {length} lines" for n, length in lengths.items() if length > MAX_LINES]
    long = [n for n, length in lengths.items() if length > USUAL_LINES]
    if len(long) > len(lengths) / 5:
        faults.append(f"{len(long)} of {len(lengths)} cells have over {USUAL_LINES} lines: {long}")
    return faults


def short_prose(nb):
    """At most 160 words between two code cells; folded hints and solutions do not count."""
    faults, words, start = [], 0, 0
    for i, cell in enumerate([*nb.cells, None]):
        if cell is not None and cell.cell_type == "markdown":
            if not {"hint", "solution"} & set(tags(cell)):
                words += _count_words(cell.source)
            continue
        if words > MAX_WORDS:
            faults.append(f"cells {start} to {i - 1} have {words} words in a row")
        words, start = 0, i + 1
    return faults


def _count_words(markdown):
    """Words of prose: code blocks, formulas, links' addresses and tables left out."""
    text = re.sub(r"```.*?```|\$\$.*?\$\$|<[^>]+>|\]\([^)]*\)", " ", markdown, flags=re.S)
    text = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("|"))
    return len(re.findall(r"\w[\w'’.,-]*", text))


def sections_in_order(nb):
    """A chapter has the nine sections as its level-2 headings, in order."""
    found = [heading for _, heading in headings(nb)]
    return [] if not is_chapter(nb) or found == SECTIONS else [f"sections {found}, expected {SECTIONS}"]


def headings(nb):
    """(cell index, text) of each level-2 heading, without its number."""
    return [
        (i, re.sub(r"^[\d.)\s]+", "", line[3:]).strip())
        for i, cell in enumerate(nb.cells)
        if cell.cell_type == "markdown"
        for line in cell.source.splitlines()
        if line.startswith("## ")
    ]


def images_have_alt(nb):
    """Every image has alternative text: in the output's metadata, or in the Markdown."""
    faults = []
    for cell in code_cells(nb):
        for output in cell.outputs:
            for mime in output.get("data", {}):
                if mime.startswith("image/") and not output.metadata.get(mime, {}).get("alt", "").strip():
                    faults.append(f"a figure of cell [{cell.execution_count}] has no alternative text")
    for i, cell in enumerate(nb.cells):
        if cell.cell_type == "markdown":
            faults += [
                f"cell {i}: image without alternative text" for _ in re.findall(r"!\[\s*\]\(", cell.source)
            ]
            for image in re.findall(r"<img[^>]*>", cell.source):
                if not re.search(r"""alt=["'][^"']+""", image):
                    faults.append(f"cell {i}: image without alternative text")
    return faults


def shows_enough(nb):
    """A chapter has two figures or more, an explorer, and three to five exercises."""
    if not is_chapter(nb):
        return []
    mimes = [mime for cell in code_cells(nb) for output in cell.outputs for mime in output.get("data", {})]
    figures = sum(mime.startswith("image/") for mime in mimes)
    explorers = mimes.count("application/vnd.jupyter.widget-view+json")
    exercises = sum("exercise" in tags(cell) for cell in nb.cells)
    faults = [] if figures >= 2 else [f"{figures} figures, expected at least 2"]
    faults += [] if explorers else ["no explorer widget"]
    return faults if 3 <= exercises <= 5 else [*faults, f"{exercises} exercises, expected 3 to 5"]


def builds_it_itself(nb):
    """What a chapter builds (metadata.kvcourse.builds) is imported only in "From notebook to package"."""
    if not is_chapter(nb):
        return []
    builds = nb.metadata.kvcourse.builds
    if not builds:
        return ["metadata.kvcourse.builds is empty: name the modules that the chapter builds"]
    later = [i for i, heading in headings(nb) if heading == "From notebook to package"]
    early = nb.cells[: later[0]] if later else nb.cells
    return [
        f"cell [{cell.execution_count}] uses {module} before it is built"
        for cell in early
        if cell.cell_type == "code"
        for module in sorted(modules_used(cell.source))
        if any(module == built or module.startswith(built + ".") for built in builds)
    ]


def ignored_output_is_asserted(nb):
    """A cell whose output nbval ignores has an assertion in it or in the next code cell."""
    cells = code_cells(nb)
    return [
        f"cell [{cell.execution_count}] is tagged nbval-ignore-output and nothing near it can fail"
        for cell, after in zip(cells, [*cells[1:], None], strict=True)
        if "nbval-ignore-output" in tags(cell) and not (_asserts(cell) or (after and _asserts(after)))
    ]


def _asserts(cell):
    return any(isinstance(node, ast.Assert) for node in ast.walk(parse(cell.source)))


def solutions_are_marked(nb):
    """BEGIN and END SOLUTION alternate, and stand in cells tagged exercise or solution."""
    faults = []
    for i, cell in enumerate(nb.cells):
        marks = [line.strip() for line in cell.source.splitlines() if line.strip().startswith((BEGIN, END))]
        kinds = [BEGIN if mark.startswith(BEGIN) else END for mark in marks]
        if kinds != [BEGIN, END] * (len(kinds) // 2):
            faults.append(f"cell {i}: solution markers {kinds}")
        if kinds and not {"exercise", "solution"} & set(tags(cell)):
            faults.append(f"cell {i}: solution markers in a cell without the tag exercise")
    return faults


def exercises_are_complete(nb):
    """Every exercise has an id, points and a marked solution; ids are different."""
    faults, ids = [], []
    for i, cell in enumerate(nb.cells):
        if "exercise" not in tags(cell):
            continue
        facts = cell.metadata.get("kvcourse", {})
        if not isinstance(facts.get("id"), str) or not isinstance(facts.get("points"), int):
            faults.append(f"cell {i}: metadata.kvcourse is {dict(facts)}, expected id and points")
        ids.append(facts.get("id"))
        if cell.cell_type == "code" and BEGIN not in cell.source:
            faults.append(f"cell {i}: exercise without a marked solution")
    return faults if len(ids) == len(set(ids)) else [*faults, f"exercise ids {ids}"]


def small_widgets(nb):
    """Widget states travel with every copy of the notebook."""
    size = len(json.dumps(nb.metadata.get("widgets", {})))
    return [] if size <= MAX_WIDGET_BYTES else [f"{size:,} bytes of widget state"]


RULES = [
    *(
        valid,
        executed_in_order,
        no_empty_cells,
        known_tags,
        errors_are_meant,
        no_stderr,
        no_machine,
        short_cells,
    ),
    *(
        short_prose,
        sections_in_order,
        images_have_alt,
        shows_enough,
        builds_it_itself,
        ignored_output_is_asserted,
    ),
    *(solutions_are_marked, exercises_are_complete, small_widgets),
]
