"""Run notebooks from top to bottom and keep their outputs in a form that gives small diffs."""

import copy
import json
import os
import re
import sys
import time
from pathlib import Path

from kvcourse.course.notebook import dump_notebook, read_notebook, source_hash, write_text
from kvcourse.course.release.student import WIDGET_STATE, WIDGET_VIEW
from kvcourse.errors import InputError

MAX_SECONDS = 60  # what a chapter may take on two cores; more is reported
CELL_TIMEOUT = 600
LANGUAGE_INFO = {"name": "python", "file_extension": ".py", "pygments_lexer": "ipython3"}
KERNELSPEC = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}


def is_stale(notebook: dict) -> bool:
    """True if a code cell changed since the outputs were stored."""
    return notebook["metadata"].get("kvcourse", {}).get("source_hash") != source_hash(notebook)


def is_current(executed: Path, path: Path) -> bool:
    """True if `executed` holds the outputs of the code that the notebook at `path` has now."""
    if not executed.is_file():
        return False
    stored = read_notebook(executed)
    return not is_stale(stored) and source_hash(stored) == source_hash(read_notebook(path))


def execute_file(path: Path, target: Path | None = None) -> float:
    """Execute one notebook and write it to `target`, by default back. Returns the seconds it took.

    Written whole and only if every cell ran. Errors: InputError if a cell fails (a cell tagged `raises-exception`
    may): the target is then as it was.
    """
    notebook = read_notebook(path)
    started = time.perf_counter()
    executed = run_cells(notebook, path.name, path.parent)
    seconds = time.perf_counter() - started
    write_text(target or path, dump_notebook(normalise(executed)))
    return seconds


def run_cells(notebook: dict, name: str, folder: Path) -> dict:
    """Run a copy of `notebook` in a fresh kernel of this environment, in `folder`, with a progress bar."""
    os.environ["JUPYTER_PREFER_ENV_PATH"] = "1"  # this environment's kernel, not one in the home folder
    # Threads that wait for each other sleep. Spinning, they make a notebook several times slower where another
    # program has a core, and hardly faster where none has.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
    from tqdm import tqdm

    notebook = copy.deepcopy(notebook)
    total = sum(cell["cell_type"] == "code" for cell in notebook["cells"])
    with tqdm(total=total, desc=name, unit="cell", file=sys.stderr, leave=False, disable=None) as bar:
        client = NotebookClient(
            notebook,
            timeout=CELL_TIMEOUT,
            kernel_name="python3",
            resources={"metadata": {"path": str(folder)}},
            store_widget_state=True,
            record_timing=False,
            extra_arguments=["--IPKernelApp.log_level=40"],  # no advice about transports for each kernel
            on_cell_executed=lambda **_: bar.update(),
        )
        try:
            client.execute()
        except CellExecutionError as error:
            raise InputError(f"{name}: {_where(notebook)} raised {error.ename}: {error.evalue}") from error
        except CellTimeoutError as error:
            raise InputError(f"{name}: {_where(notebook)} ran over {CELL_TIMEOUT} s") from error
        except (DeadKernelError, AssertionError) as error:  # nbclient 0.11 fails in its own clean-up then
            raise InputError(f"{name}: the kernel died; is there enough memory?") from error
    return notebook


def normalise(notebook: dict) -> dict:
    """Take out what changes from run to run or machine to machine though the results are the same.

    Execution counts become 1…n, pieces of one stream are joined, timing and versions of the interpreter go, and
    widgets get ids made from the sources instead of random ones. Notes the hash of the sources.
    """
    notebook = copy.deepcopy(notebook)
    digest = source_hash(notebook)
    count = 0
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code":
            continue
        count += 1
        cell["execution_count"] = count
        cell["metadata"].pop("execution", None)
        cell["outputs"] = _join_streams(cell["outputs"])
        for output in cell["outputs"]:
            if output["output_type"] == "execute_result":
                output["execution_count"] = count
            if WIDGET_VIEW in output.get("data", {}):  # its text is a repr with an address
                text = output["data"].get("text/plain", "")
                output["data"]["text/plain"] = re.sub(r" at 0x[0-9a-f]+", "", text)
    metadata = notebook["metadata"]
    metadata["kernelspec"], metadata["language_info"] = dict(KERNELSPEC), dict(LANGUAGE_INFO)
    metadata["kvcourse"] = {**metadata.get("kvcourse", {}), "source_hash": digest}
    if not metadata.get("widgets", {}).get(WIDGET_STATE, {}).get("state"):
        metadata.pop("widgets", None)
        return notebook
    return _rename_widgets(notebook, digest)


def _join_streams(outputs: list[dict]) -> list[dict]:
    """A kernel cuts printed text at moments of its own choosing; what was one stream becomes one output."""
    joined: list[dict] = []
    for output in outputs:
        last = joined[-1] if joined else {}
        if output["output_type"] == "stream" == last.get("output_type") and output["name"] == last["name"]:
            last["text"] += output["text"]
        else:
            joined.append(output)
    return joined


def _rename_widgets(notebook: dict, digest: str) -> dict:
    """Number the widgets in the order of their creation, under the hash of the sources."""
    state = notebook["metadata"]["widgets"][WIDGET_STATE]["state"]
    names = {old: f"{digest}{index:016x}" for index, old in enumerate(state)}
    pattern = re.compile("|".join(map(re.escape, names)))
    return json.loads(pattern.sub(lambda match: names[match[0]], json.dumps(notebook)))


def _where(notebook: dict) -> str:
    """The cell that failed: the last one that was started, by its position among all cells."""
    started = [i for i, cell in enumerate(notebook["cells"]) if cell.get("execution_count")]
    return f"cell {started[-1] if started else 0}"
