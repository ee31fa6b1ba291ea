"""Execution stores outputs that are the same every time, and never spoils a file."""

import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from toy_book import write

from kvcourse.cli import main
from kvcourse.course.execute import execute_file, is_stale, normalise
from kvcourse.course.notebook import read_notebook, source_hash
from kvcourse.errors import InputError


def test_running_twice_gives_the_same_bytes(project):
    path = project / "notebooks/00_first.ipynb"
    assert is_stale(read_notebook(path))
    execute_file(path)
    first = path.read_bytes()
    notebook = read_notebook(path)
    assert not is_stale(notebook)
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == [1, 2]
    assert code[0]["outputs"][0]["text"] == "one\ntwo\n"
    assert code[0]["outputs"][1]["data"]["text/plain"] == "42"
    state = notebook["metadata"]["widgets"]["application/vnd.jupyter.widget-state+json"]["state"]
    assert all(model.startswith(source_hash(notebook)) for model in state)
    view = code[1]["outputs"][0]["data"]["application/vnd.jupyter.widget-view+json"]
    assert state[view["model_id"]]["state"]["n"] == 7
    execute_file(path)
    assert path.read_bytes() == first


def test_only_a_change_of_code_makes_outputs_stale():
    notebook = normalise(new_notebook(cells=[new_markdown_cell("a"), new_code_cell("b")]))
    notebook["cells"][0]["source"] = "other prose"
    assert not is_stale(notebook)
    notebook["cells"][1]["source"] = "other code"
    assert is_stale(notebook)


def test_what_differs_between_runs_is_taken_out():
    cell = new_code_cell("x", execution_count=17, metadata={"execution": {"iopub.execute_input": "now"}})
    cell["outputs"] = [
        new_output("stream", name="stdout", text="a"),
        new_output("stream", name="stdout", text="b"),
        new_output("stream", name="stderr", text="c"),
        new_output("execute_result", data={"text/plain": "1"}, execution_count=17),
    ]
    metadata = {
        "language_info": {"name": "python", "version": "3.11.7"},
        "kernelspec": {"display_name": "My environment", "language": "python", "name": "my-env"},
    }
    notebook = new_notebook(cells=[cell], metadata=metadata)
    done = normalise(notebook)
    outputs = done["cells"][0]["outputs"]
    assert [(out["output_type"], out.get("text")) for out in outputs] == [
        ("stream", "ab"), ("stream", "c"), ("execute_result", None),
    ]  # fmt: skip
    assert outputs[2]["execution_count"] == done["cells"][0]["execution_count"] == 1
    assert "execution" not in done["cells"][0]["metadata"]
    assert "version" not in done["metadata"]["language_info"]
    assert done["metadata"]["kernelspec"]["name"] == "python3"
    assert normalise(done) == done


def test_a_failing_cell_leaves_the_file_alone(tmp_path):
    path = write(
        tmp_path / "bad.ipynb", [new_markdown_cell("# Bad"), new_code_cell("1"), new_code_cell("1 / 0")]
    )
    before = path.read_bytes()
    with pytest.raises(InputError, match=r"^bad\.ipynb: cell 2 raised ZeroDivisionError: division by zero$"):
        execute_file(path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["bad.ipynb"]


def test_a_kernel_that_dies_is_one_clear_line(tmp_path):
    path = write(tmp_path / "dies.ipynb", [new_code_cell("import os\nos._exit(1)")])
    before = path.read_bytes()
    with pytest.raises(InputError, match=r"^dies\.ipynb: the kernel died"):
        execute_file(path)
    assert path.read_bytes() == before


def test_an_expected_error_is_stored(tmp_path):
    path = write(tmp_path / "meant.ipynb", [new_code_cell("1 / 0", metadata={"tags": ["raises-exception"]})])
    execute_file(path)
    assert read_notebook(path)["cells"][0]["outputs"][0]["ename"] == "ZeroDivisionError"


def test_the_kernel_runs_where_the_notebook_is(tmp_path):
    path = write(tmp_path / "here.ipynb", [new_code_cell("import os\nos.listdir()")])
    execute_file(path)
    assert read_notebook(path)["cells"][0]["outputs"][0]["data"]["text/plain"] == "['here.ipynb']"


def test_the_command_runs_only_what_changed(project, monkeypatch, capsys):
    monkeypatch.chdir(project)
    ran = []
    monkeypatch.setattr(
        "kvcourse.course.execute.execute_file", lambda path, target: ran.append(path.name) or 61.0
    )
    monkeypatch.setattr(
        "kvcourse.course.execute.is_stale", lambda notebook: notebook["cells"][0]["source"] != "# Second"
    )
    assert main(["book", "execute"]) == 0
    assert ran == ["00_first.ipynb"]
    printed = capsys.readouterr()
    assert printed.out == "00_first.ipynb: 61.0 s\n01_second.ipynb: unchanged\n"
    assert printed.err == "00_first.ipynb: over the 60 s that a chapter may take\n"
    assert main(["book", "execute", "--all", "notebooks/01_second.ipynb"]) == 0
    assert ran == ["00_first.ipynb", "01_second.ipynb"]


def test_copies_elsewhere_leave_the_notebooks_alone(project, monkeypatch, capsys):
    """`book execute --out` runs what the folder lacks or holds for other code, and nothing twice."""
    monkeypatch.chdir(project)
    path = project / "notebooks/00_first.ipynb"
    before, out = path.read_bytes(), project / "_build/executed"
    assert main(["book", "execute", "--out", str(out), str(path)]) == 0
    copy = out / "notebooks/00_first.ipynb"
    assert path.read_bytes() == before
    assert not is_stale(read_notebook(copy))
    assert main(["book", "execute", "--out", str(out), str(path)]) == 0
    assert "00_first.ipynb: unchanged" in capsys.readouterr().out
    write(path, [new_markdown_cell("# First"), new_code_cell("print('more')")])
    assert main(["book", "execute", "--out", str(out), str(path)]) == 0
    assert read_notebook(copy)["cells"][-1]["outputs"][0]["text"] == "more\n"


def test_a_notebook_outside_the_project_has_no_place_in_out(project, tmp_path_factory, monkeypatch, capsys):
    monkeypatch.chdir(project)
    stranger = tmp_path_factory.mktemp("elsewhere") / "x.ipynb"
    stranger.write_bytes((project / "notebooks/00_first.ipynb").read_bytes())
    assert main(["book", "execute", "--out", str(project / "_build/executed"), str(stranger)]) == 2
    assert "x.ipynb is outside the project" in capsys.readouterr().err
