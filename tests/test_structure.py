"""The package is light to import, works without its optional parts, and its dependencies point one way."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MAX_LINES = 300

# DESIGN: kernels <- axes <- cache <- model <- evaluate, bench <- course, cli. A module imports from its own
# level or from a lower one, also inside functions.
LEVELS = [
    {"kernels"},
    {"counts", "errors", "paths", "placement", "rope_scaling", "units"},
    {
        "config", "hf_config", "plan", "norm", "feed_forward", "experts", "attention", "storage", "codecs",
        "eviction", "step",
    },
    {"cache", "sequences", "attend", "flops", "memory", "parameters"},
    {"model", "generation", "weights", "hf", "engine", "export"},
    {"text", "passkey", "evaluate", "bench", "claims", "results", "training"},
    {"figures", "course"},
    {"cli"},
]  # fmt: skip
LEVEL_OF = {name: level for level, names in enumerate(LEVELS) for name in names}


def sources():
    """(import name, path) of every module of the package."""
    for top, prefix in (("kvcourse", ""), ("kernels", "kernels.")):
        for path in sorted((ROOT / top).rglob("*.py")):
            name = prefix + ".".join(path.relative_to(ROOT / top).with_suffix("").parts)
            yield re.sub(r"(^|\.)__init__$", "", name), path


MODULES = [pytest.param(name, path, id=name) for name, path in sources() if name]


def imports_of(path):
    """Every module that a file imports, anywhere in it; relative ones by their full name."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if node.level:
                package = path.relative_to(ROOT).parts[: -node.level]
                prefix = ("kvcourse", *package) if package[0] == "kernels" else package
                module = ".".join([*prefix, *filter(None, [node.module])])
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def imported_at_once(path):
    """The modules that a file imports when it is imported itself: those outside of functions."""
    found, waiting = set(), [ast.parse(path.read_text("utf-8"))]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module)
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            waiting += ast.iter_child_nodes(node)
    return found


def run_python(code, **environment):
    """Run code in a new interpreter of this environment, warnings and all."""
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


# ---- direction of dependencies ---------------------------------------------------------------------


@pytest.mark.parametrize(("name", "path"), MODULES)
def test_dependencies_point_one_way(name, path):
    own = LEVEL_OF[name.split(".")[0]]
    above = {
        imported
        for imported in imports_of(path)
        if imported.startswith("kvcourse.") and LEVEL_OF.get(imported.split(".")[1], -1) > own
    }
    assert above == set()


@pytest.mark.parametrize(("name", "path"), [m for m in MODULES if m.values[0].startswith("kernels")])
def test_kernels_import_nothing_of_the_package(name, path):
    ours = {imported for imported in imports_of(path) if imported.split(".")[0] == "kvcourse"}
    assert {imported for imported in ours if not imported.startswith("kvcourse.kernels")} == set()


def test_every_module_has_a_level():
    assert {param.values[0].split(".")[0] for param in MODULES} <= set(LEVEL_OF)


def test_no_import_cycles():
    """Modules import each other at the top level without a circle, whichever is imported first."""
    names = ["kvcourse" + (f".{param.values[0]}" if param.values[0] else "") for param in MODULES]
    code = f"""
import importlib, sys
failed = []
for name in {[name for name in names if "triton" not in name]!r}:
    for loaded in [key for key in sys.modules if key.split(".")[0] == "kvcourse"]:
        del sys.modules[loaded]
    try:
        importlib.import_module(name)
    except ImportError as error:
        failed.append(f"{{name}}: {{error}}")
print(failed)
"""
    done = run_python(code)
    assert (done.stdout.strip(), done.returncode) == ("[]", 0), done.stdout + done.stderr


# ---- what may be absent, and what must not be loaded -----------------------------------------------

BLOCKED = """
import sys
for name in ("triton", "numba", "matplotlib", "anywidget", "ipywidgets", "IPython", "nbformat", "sphinx", "gguf"):
    sys.modules[name] = None
"""


def test_core_works_without_triton_numba_and_the_course():
    code = """
import torch
import kvcourse as kv
model = kv.tiny_model(num_layers=2, num_heads=4, num_kv_heads=2, head_dim=16, vocab_size=64, seed=0)
ids = torch.arange(12)[None]
cache = kv.KVCache(model.config, kv.Plan(), batch_size=1)
print(kv.generate(model, ids, max_new_tokens=4, cache=cache).shape, cache.nbytes > 0, kv.memory.__name__)
"""
    done = run_python(BLOCKED + code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["torch.Size([1,", "4])", "True", "kvcourse.memory"]


def test_import_is_light():
    done = run_python("import kvcourse, sys; print(*sorted({name.split('.')[0] for name in sys.modules}))")
    heavy = {"torch", "numpy", "transformers", "numba", "triton", "matplotlib", "IPython", "sphinx", "rich"}
    assert done.returncode == 0, done.stderr
    assert heavy & set(done.stdout.split()) == set()


def test_command_line_loads_torch_only_when_it_computes():
    code = """
import sys
from kvcourse.cli import build_parser
build_parser().format_help()
print("torch" in sys.modules, "transformers" in sys.modules, "matplotlib" in sys.modules)
"""
    done = run_python(code)
    assert done.stdout.split() == ["False", "False", "False"], done.stderr


def test_import_says_nothing():
    done = run_python("import kvcourse; kvcourse.KVCache; kvcourse.load_model", PYTHONWARNINGS="default")
    ours = [line for line in done.stderr.splitlines() if "kvcourse" in line]
    assert (done.returncode, done.stdout, ours) == (0, "", [])


def test_public_names_exist():
    code = "import kvcourse; print([name for name in dir(kvcourse) if not hasattr(kvcourse, name)])"
    done = run_python(code)
    assert done.stdout.strip() == "[]", done.stderr


def test_triton_is_imported_only_by_its_own_files():
    users = {path.name for _, path in sources() if any(i.split(".")[0] == "triton" for i in imports_of(path))}
    assert users <= {"triton.py"}


OF_ONE_SYSTEM = ("fcntl", "msvcrt", "resource")


def test_no_file_locks_of_one_system():
    """Only the sandbox, which runs nowhere else, may import what Windows lacks, and only when it runs."""
    users = {name for name, path in sources() for i in imports_of(path) if i in OF_ONE_SYSTEM}
    assert {name for name in users if not name.startswith("course.grading.sandbox.")} == set()
    eager = {name for name, path in sources() if imported_at_once(path) & set(OF_ONE_SYSTEM)}
    assert eager == set()


# ---- readable files --------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "path"), MODULES)
def test_file_is_short_and_explained(name, path):
    text = path.read_text("utf-8")
    assert len(text.splitlines()) <= MAX_LINES
    assert not text.strip() or ast.get_docstring(ast.parse(text)), "no docstring"


# Every command has the same two functions; kvcourse/cli/__init__.py says what they do.
@pytest.mark.parametrize(("name", "path"), [m for m in MODULES if not m.values[0].startswith("cli.")])
def test_public_things_are_documented(name, path):
    bare = [
        node.name
        for node in ast.parse(path.read_text("utf-8")).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")
        if not ast.get_docstring(node)
    ]
    assert bare == []


@pytest.mark.parametrize(("name", "path"), MODULES)
def test_nothing_is_left_to_do(name, path):
    assert re.findall(r"\b(?:TODO|FIXME|XXX|HACK)\b", path.read_text("utf-8")) == []


def test_a_model_without_numbers_is_built_without_the_compiler():
    """load_model builds on "meta" and must stay under two seconds; torch._dynamo alone takes one to import."""
    code = (
        "import sys, torch, kvcourse as kv\n"
        "config = kv.tiny_model().config\n"
        "with torch.device('meta'): kv.Decoder(config)\n"
        "print('torch._dynamo' in sys.modules)"
    )
    assert run_python(code).stdout.strip() == "False"
