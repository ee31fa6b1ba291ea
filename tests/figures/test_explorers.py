"""The explorers: their JavaScript computes what the Python package computes, and they can be saved in a page."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

import kvcourse.figures
from kvcourse import flops, memory
from kvcourse.attention.known_models import KNOWN
from kvcourse.errors import InputError
from kvcourse.figures import explorers
from kvcourse.figures.alt_text import WIDGET_VIEW, AltText

NODE = shutil.which("node")
needs_node = pytest.mark.skipif(NODE is None, reason="needs node to run the explorers' JavaScript")
CONTEXTS = (1, 4, 127, 128, 129, 1023, 1024, 4096, 5000, 131_072, 1_048_576)


def run_javascript(expression: str, data):
    """Value of a JavaScript expression over the names of arithmetic.mjs and `data`."""
    module = Path(kvcourse.figures.__path__[0], "arithmetic.mjs").resolve().as_uri()
    script = (
        f"import * as kv from {json.dumps(module)};"
        "let text = ''; for await (const chunk of process.stdin) text += chunk;"
        f"const data = JSON.parse(text); console.log(JSON.stringify({expression}));"
    )
    done = subprocess.run(
        [NODE, "--input-type=module", "--eval", script],
        input=json.dumps(data), capture_output=True, text=True, encoding="utf-8", check=True, timeout=60,
    )  # fmt: skip
    return json.loads(done.stdout)


@needs_node
@pytest.mark.parametrize("codec", explorers.CODECS)
def test_cache_bytes_equal_the_memory_arithmetic(codec):
    data = {
        "models": [explorers.model_data(name) for name in KNOWN],
        "codec": explorers.codec_data(codec),
        "contexts": CONTEXTS,
    }
    got = run_javascript(
        "data.models.map(m => data.contexts.map(n => kv.cacheBytes(m, data.codec, n, 3)))", data
    )
    assert got == [[memory.bytes_at(name, n, 3, codec=codec) for n in CONTEXTS] for name in KNOWN]


@needs_node
@pytest.mark.parametrize("codec", explorers.CODECS)
def test_token_bytes_equal_the_memory_arithmetic(codec):
    data = {"models": [explorers.model_data(name) for name in KNOWN], "codec": explorers.codec_data(codec)}
    got = run_javascript(
        "data.models.map(m => [kv.tokenBytes(m, data.codec), kv.tokenBytes(m, data.codec, 2 ** 40)])", data
    )
    assert got == [
        [memory.bytes_per_token(name, codec=codec), memory.bytes_per_token_beyond_windows(name, codec=codec)]
        for name in KNOWN
    ]


def test_known_sizes():
    """Llama-3-8B at 131,072 tokens in bf16: 2 × 32 layers × 8 heads × 128 × 2 bytes each."""
    text = explorers.MemoryExplorer(model="llama-3-8b", context=131_072).text
    assert f"{2 * 32 * 8 * 128 * 2 * 131_072:,} bytes, 21.5% of 80 GB" in text


@needs_node
@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("model", ["smollm2-135m", "qwen3-0.6b"])
def test_flops_equal_the_counts_of_the_package(model, cached):
    sizes = [(1, 1), (1, 40), (4, 5), (100, 1), (4, 600)]
    got = run_javascript(
        f"data.sizes.map(([p, s]) => kv.work(p, s, {json.dumps(cached)}, data.cost).total.flops)",
        {"sizes": sizes, "cost": explorers.cost_data(model)},
    )
    assert got == [flops.generation(model, steps, prompt, cached=cached).total for prompt, steps in sizes]


@needs_node
@pytest.mark.parametrize("cached", [False, True])
def test_rows_and_scores_counted_one_by_one(cached):
    """Oracle: every (pass, query, key) that is computed, the masked half included, in nested loops."""
    sizes = [(prompt, steps) for prompt in (1, 2, 7) for steps in (1, 2, 9)]
    got = run_javascript(
        f"data.sizes.map(([p, s]) => kv.work(p, s, {json.dumps(cached)}, data.cost))",
        {"sizes": sizes, "cost": explorers.cost_data("smollm2-135m")},
    )
    for (prompt, steps), counted in zip(sizes, got, strict=True):
        cells, rows, done = 0, 0, set()
        for tokens in range(prompt, prompt + steps):
            new = [query for query in range(tokens) if not (cached and query in done)]
            done.update(new)
            rows += len(new)
            cells += sum(1 for _ in new for _ in range(tokens))
        assert (counted["total"]["rows"], counted["total"]["cells"]) == (rows, cells)
        assert (counted["last"]["rows"], counted["last"]["cells"]) == (len(new), len(new) * tokens)


@pytest.fixture(params=[explorers.MemoryExplorer, explorers.StepExplorer])
def explorer(request):
    return request.param()


def test_the_saved_state_is_small_and_carries_its_code(explorer):
    state = explorer.get_state()
    assert len(json.dumps(state, default=str)) < 100_000
    assert "export default { render }" in state["_esm"]
    assert "import " not in state["_esm"].replace("important", "")  # a page opened from disk fetches nothing
    assert ".kv-panel" in state["_css"]


@needs_node
@pytest.mark.parametrize("name", ["memory_explorer.mjs", "step_explorer.mjs"])
def test_the_bundle_is_valid_javascript(name, tmp_path):
    path = tmp_path / "bundle.mjs"
    path.write_text(explorers.bundle(name), encoding="utf-8")
    subprocess.run([NODE, "--check", path], check=True, timeout=60)


def test_ids_count_instead_of_being_random():
    first, second = explorers.StepExplorer(), explorers.StepExplorer()
    assert first.model_id != second.model_id
    number = explorers.Explorer._numbers["StepExplorer"]
    assert second.model_id == explorers._stable_id(f"StepExplorer {number}")
    assert second.layout.model_id == explorers._stable_id(f"StepExplorer {number} layout")


def test_there_is_a_text_where_no_script_runs(explorer):
    shown, metadata = explorer._repr_mimebundle_()
    assert shown["text/plain"] == explorer.text == metadata[WIDGET_VIEW]["fallback"]
    assert WIDGET_VIEW in shown


def test_the_book_shows_the_text_without_script():
    class Renderer:
        def render_widget_view(self, data):
            return ["view"]

    class Output:
        mime_type = WIDGET_VIEW
        output_metadata = {WIDGET_VIEW: {"fallback": "2 < 3 bytes"}}  # noqa: RUF012

    view, text = AltText.handle_mime(Renderer(), Output(), False)
    assert view == "view"
    assert text.astext() == "<noscript><p>2 &lt; 3 bytes</p></noscript>"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: explorers.MemoryExplorer(codec="int3"), "codec 'int3' is not in this explorer"),
        (lambda: explorers.MemoryExplorer(model="gpt-9"), "model 'gpt-9' is not in this explorer"),
        (lambda: explorers.MemoryExplorer(models=["gpt-9"]), "gpt-9"),
        (lambda: explorers.StepExplorer(answer=()), "new_tokens=0: expected a whole number of at least 1"),
        (lambda: explorers.StepExplorer(config="mistral-7b-v0.1"), "has sliding layers"),
    ],
)
def test_bad_input_says_what_was_expected(make, message):
    with pytest.raises(InputError, match=message):
        make()
