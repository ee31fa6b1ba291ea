"""The explorers of heads and ranks: their JavaScript counts what the package counts, and shows it."""

import html
import json
import re
import shutil
import subprocess

import numpy as np
import pytest
from test_explorers import needs_node, run_javascript

from kvcourse import flops
from kvcourse.errors import InputError
from kvcourse.figures import attention_explorers, comparisons, explorers
from kvcourse.figures.alt_text import WIDGET_VIEW

RANKS, SIZES = [8, 32, 64], [4800, 7680, 11520]
SERIES = {"perplexity": [900.0, 60.0, 12.5], "error of the keys": [0.9, 0.4, 0.0]}


CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium to move the sliders")
SLIDERS = """
const control = (label) =>
  document.getElementById([...document.querySelectorAll("label")].find((l) => l.textContent === label).htmlFor);
const move = (label, wanted) => {
  const input = control(label);
  const written = () => document.querySelector(`output[for="${input.id}"]`).textContent;
  for (let place = 0; place <= input.max; place++) {
    input.value = place;
    input.dispatchEvent(new Event("input"));
    if (written() === wanted) return;
  }
  throw new Error(`${label} cannot be ${wanted}`);
};
const row = (name) => {
  const found = [...document.querySelectorAll("tr")].find((tr) => tr.cells[0].textContent.startsWith(name));
  return [...found.cells].map((cell) => cell.textContent).filter((text) => text);
};
"""


def evaluate(explorer, folder, *steps):
    """Values of JavaScript expressions, one after another, in a page that shows the explorer's panel."""
    traits = json.dumps({"data": explorer.data, "start": explorer.start})
    code = explorer._esm.replace("export default", "const panelOf =")
    script = f"{code}\nconst traits = {traits}; const el = document.getElementById('panel');"
    script += f"panelOf.render({{ model: {{ get: (name) => traits[name] }}, el }});{SLIDERS}"
    script += f"document.getElementById('values').textContent = JSON.stringify([{', '.join(steps)}]);"
    page = folder / "panel.html"
    head = "<meta charset='utf-8'><div id='panel'></div><pre id='values'></pre>"
    page.write_text(f"{head}<script type='module'>{script}</script>", "utf-8")
    flags = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={folder / 'profile'}",
        "--dump-dom",
    ]
    done = subprocess.run(
        [CHROMIUM, *flags, page.as_uri()], capture_output=True, text=True, check=True, timeout=120
    )
    values = re.search("<pre id=.values.>(.*?)</pre>", done.stdout, re.S)[1]
    return json.loads(html.unescape(values))


def rank_explorer(ranks=RANKS, series=SERIES, sizes=SIZES, before=46_080, **rest):
    return attention_explorers.RankExplorer(ranks, series, sizes, before, **rest)


def heads_shape(layers, heads, kv_heads, head_dim):
    return {
        "model_type": "llama", "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "head_dim": head_dim,
    }  # fmt: skip


# ---- arithmetic ------------------------------------------------------------------------------------


@needs_node
def test_costs_of_heads_equal_the_counts_of_the_package():
    cases = [(32, 32, 8, 128), (30, 9, 3, 64), (32, 71, 1, 64), (1, 1, 1, 2), (61, 128, 128, 192)]
    got = run_javascript(
        "data.map(([layers, heads, kvHeads, headDim]) =>"
        " [1, 8192].map(n => kv.decodeCost({ layers, heads, kvHeads, headDim }, n, 3)))",
        cases,
    )
    for case, costs in zip(cases, got, strict=True):
        for context, cost in zip((1, 8192), costs, strict=True):
            expected = flops.decode_attention(heads_shape(*case), context, 3)
            assert (cost["flops"], cost["bytes"]) == (expected.flops, expected.bytes)
            assert cost["intensity"] == expected.intensity


@needs_node
@pytest.mark.parametrize(
    ("name", "heads", "layers"), [("deepseek-v3", 128, 61), ("deepseek-v2-lite", 16, 27)]
)
def test_costs_of_mla_equal_the_counts_of_the_package(name, heads, layers):
    kind = {"heads": heads, "layers": layers, "rank": 512, "rope": 64}
    cost = run_javascript("kv.decodeCost(data, 4096, 2)", kind)
    expected = flops.decode_attention(name, 4096, 2)
    assert (cost["flops"], cost["bytes"], cost["values"]) == (expected.flops, expected.bytes, 576)


@needs_node
def test_the_slower_of_memory_and_arithmetic_decides():
    machine = {"peak": 100, "bandwidth": 10}
    costs = [{"flops": 50, "bytes": 20}, {"flops": 500, "bytes": 20}, {"flops": 200, "bytes": 20}]
    got = run_javascript(
        "data.costs.map(c => kv.floor(c, data.machine))", {"costs": costs, "machine": machine}
    )
    assert [(g["seconds"], g["bound"]) for g in got] == [(2, "memory"), (5, "arithmetic"), (2, "memory")]
    assert comparisons.ridge(100, 10) == 10  # the last one lies on it


@needs_node
def test_kv_heads_are_the_divisors_of_the_query_heads():
    heads = [1, 2, 9, 12, 71, 128]
    got = run_javascript("data.map(kv.divisors)", heads)
    assert got == [[kv for kv in range(1, n + 1) if n % kv == 0] for n in heads]


@needs_node
def test_places_on_a_scale():
    cases = [(5, 0, 10), (0, 0, 10), (10, 1, 100), (3, 3, 3), (29, 1, 29), (15, 1, 29)]
    got = run_javascript("data.map(c => kv.place(...c))", cases)
    assert got == pytest.approx([0.5, 0, 0.5, 0.5, 1, 0.5])


# ---- error of the best approximation ---------------------------------------------------------------


def test_error_of_rank_is_that_of_the_cut_decomposition():
    matrix = np.random.default_rng(0).normal(size=(12, 7))
    u, s, vt = np.linalg.svd(matrix, full_matrices=False)
    ranks = range(8)
    expected = [np.linalg.norm(matrix - (u[:, :r] * s[:r]) @ vt[:r]) / np.linalg.norm(matrix) for r in ranks]
    assert attention_explorers.error_of_rank(s, ranks) == pytest.approx(expected, abs=1e-12)


def test_error_of_rank_of_tiny_and_huge_values():
    for scale in (1e-200, 1e200):
        got = attention_explorers.error_of_rank([4 * scale, 3 * scale], [0, 1, 2])
        assert got == pytest.approx([1, 0.6, 0])


@pytest.mark.parametrize(
    ("values", "ranks", "message"),
    [
        ([], [1], "falling order"),
        ([1, 2], [1], "falling order"),
        ([1, -1], [1], "falling order"),
        ([0, 0], [1], "falling order"),
        ([float("nan"), 1], [1], "falling order"),
        ([2, 1], [3], "rank 3: expected 0 to 2"),
    ],
)
def test_error_of_rank_refuses(values, ranks, message):
    with pytest.raises(InputError, match=message):
        attention_explorers.error_of_rank(values, ranks)


# ---- panels ----------------------------------------------------------------------------------------


@pytest.fixture(params=["heads", "rank"])
def explorer(request):
    return attention_explorers.HeadsExplorer() if request.param == "heads" else rank_explorer()


def test_the_saved_state_is_small_and_carries_its_code(explorer):
    state = explorer.get_state()
    assert len(json.dumps(state, default=str)) < 100_000
    assert "export default { render }" in state["_esm"]
    assert "import " not in state["_esm"].replace("important", "")


@needs_node
@pytest.mark.parametrize("name", ["heads_explorer.mjs", "rank_explorer.mjs"])
def test_the_bundle_is_valid_javascript(name, tmp_path):
    path = tmp_path / "bundle.mjs"
    path.write_text(explorers.bundle(name), encoding="utf-8")
    subprocess.run([shutil.which("node"), "--check", path], check=True, timeout=60)


def test_there_is_a_text_where_no_script_runs(explorer):
    shown, metadata = explorer._repr_mimebundle_()
    assert shown["text/plain"] == explorer.text == metadata[WIDGET_VIEW]["fallback"]


def test_texts_say_the_numbers_of_the_start():
    heads = attention_explorers.HeadsExplorer(9, 3, 64, layers=30, context=1000).text
    assert f"reads {30 * 2 * 3 * 64 * 2 * 1000:,} bytes and does 3 FLOPs per byte; H200 can do 206" in heads
    assert (
        "Rank 32: perplexity 60, error of the keys 0.4; 7,680 bytes per token, 17% of 46,080"
        in rank_explorer().text
    )
    assert "Rank 64: perplexity 12.5" in rank_explorer(rank=64).text


@needs_browser
def test_the_panel_of_heads_follows_its_sliders(tmp_path):
    """From 14 heads in 2 groups, a start that no list holds, to 9 heads: their divisors are offered, and counted."""
    explorer = attention_explorers.HeadsExplorer(14, 2, 64, layers=30, context=700, batch=3)
    moves = ("move('Query heads', '9')", "move('kv heads', '3')", "move('Head dim', '128')")
    first, most, *_, last, mla = evaluate(
        explorer, tmp_path, "row('yours')", "control('kv heads').max", *moves, "control('kv heads').max",
        "row('yours')", "row('MLA')",
    )  # fmt: skip
    assert first == ["yours, 2 kv", "15,360", "32.3\u00a0MB", "7"]
    assert most == "3"  # the last of four divisors: 1, 2, 7, 14
    cost = flops.decode_attention(heads_shape(30, 9, 3, 128), 700, 3)
    assert last == ["yours, 3 kv", f"{cost.bytes // 2100:,}", f"{cost.bytes / 1e6:.1f}\u00a0MB", "3"]
    assert mla[0::3] == ["MLA 512+64", f"{9 * 1088 / 576:.3g}"]


@needs_browser
def test_the_panel_of_ranks_follows_its_slider(tmp_path):
    before, _, after, text = evaluate(
        rank_explorer(), tmp_path, "row('perplexity')", "move('Rank of the latent', '64')", "row('perplexity')",
        "document.body.innerText",
    )  # fmt: skip
    assert (before, after) == (["perplexity", "60", "12.5"], ["perplexity", "12.5", "12.5"])
    assert "A token stores 25% of what the model stored before." in text


def test_numpy_numbers_are_taken():
    explorer = rank_explorer(
        np.array(RANKS), {"a": np.array([3.0, 2, 1], np.float32)}, np.array(SIZES), np.int64(9)
    )
    assert json.loads(json.dumps(explorer.data))["values"] == [[3, 2, 1]]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: attention_explorers.HeadsExplorer(heads=0), "heads=0"),
        (lambda: attention_explorers.HeadsExplorer(heads=9, kv_heads=2), "divide the query heads"),
        (lambda: attention_explorers.HeadsExplorer(context=0), "context=0"),
        (lambda: attention_explorers.HeadsExplorer(layers=0), "num_hidden_layers=0"),
        (lambda: attention_explorers.HeadsExplorer(rank=0), "rank=0"),
        (lambda: attention_explorers.HeadsExplorer(peak=0), "peak=0"),
        (lambda: rank_explorer([8]), "two or more increasing"),
        (lambda: rank_explorer([8, 8, 64]), "two or more increasing"),
        (lambda: rank_explorer(sizes=[1, 2]), "bytes_per_token has 2 numbers for 3 ranks"),
        (lambda: rank_explorer(series={"a": [1, 2, float("inf")]}), "a has 3 numbers"),
        (lambda: rank_explorer(series={}), "0 series"),
        (lambda: rank_explorer(before=0), "baseline_bytes=0"),
        (lambda: rank_explorer(better="more"), "'more'"),
        (lambda: rank_explorer(rank=7), "rank=7"),
    ],
)
def test_bad_input_says_what_was_expected(make, message):
    with pytest.raises(InputError, match=message):
        make()
