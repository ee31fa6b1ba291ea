// Query heads, kv heads, head dim, context, requests -> bytes of the cache and FLOPs per byte, beside MHA, MQA and MLA.
import { decodeCost, divisors, floor } from "./arithmetic.mjs";
import { element, panel, short, slider, table, tokenCount, whole } from "./panel.mjs";

const HEADS = [1, 2, 4, 6, 8, 9, 12, 16, 24, 32, 40, 48, 64, 71, 96, 128];
const DIMS = [32, 64, 80, 96, 128, 192, 256];
const CONTEXTS = Array.from({ length: 12 }, (_, power) => 512 * 2 ** power);
const REQUESTS = Array.from({ length: 11 }, (_, power) => 2 ** power);

// The values of a slider, with the one that it starts at among them.
function including(values, start) {
  return [...new Set([...values, start])].sort((a, b) => a - b);
}

function meter(share, color) {
  const drawing = element("svg", { class: "kv-meter", viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" });
  drawing.append(element("rect", { x: 0, y: 0, width: Math.max(0.5, 100 * share), height: 10, style: `fill: ${color}` }));
  return drawing;
}

function ratio(number) {
  return number < 100 ? String(Number(number.toPrecision(3))) : whole(number);
}

function milliseconds(seconds) {
  return `${Number((1000 * seconds).toPrecision(2)).toLocaleString("en-US")}\u00a0ms`;
}

function kindName(heads, kvHeads) {
  if (kvHeads === heads) return heads === 1 ? "one head" : "MHA";
  return kvHeads === 1 ? "MQA" : `GQA, groups of ${heads / kvHeads}`;
}

function verdict(name, cost, machine) {
  const { seconds, bound } = floor(cost, machine);
  const ridge = machine.peak / machine.bandwidth;
  const read = `Attention reads ${short(cost.bytes, "B")} in a decode step: at least ${milliseconds(seconds)} on ${machine.card}. `;
  const does = `${ratio(cost.intensity)} FLOPs per byte, and the card can do ${ratio(ridge)}: `;
  const share = Number(((100 * cost.intensity) / ridge).toPrecision(2));
  const waits = bound === "memory" ? `memory decides, at most ${share}% of the arithmetic is used.` : "arithmetic decides.";
  return `${name}. ${read}${does}${waits}`;
}

function render({ model: widget, el }) {
  const { layers, rank, rope, machine } = widget.get("data");
  const start = widget.get("start");
  const owner = panel(el, "How many kv heads?");
  const result = element("div", { "aria-live": "polite" });
  const place = element("div");
  let groups = null;
  const update = () => {
    const [heads, kvHeads, headDim] = [query.value(), groups.value(), dim.value()];
    const kinds = [
      ["MHA", { heads, kvHeads: heads, headDim, layers }, "var(--kv-over)"],
      [`yours, ${kvHeads} kv`, { heads, kvHeads, headDim, layers }, "var(--kv-cache)"],
      ["MQA", { heads, kvHeads: 1, headDim, layers }, "var(--kv-mqa)"],
      [`MLA ${rank}+${rope}`, { heads, rank, rope, layers }, "var(--kv-mla)"],
    ].map(([name, kind, color]) => [name, decodeCost(kind, length.value(), requests.value()), color]);
    const most = Math.max(...kinds.map(([, cost]) => cost.bytes));
    const rows = kinds.map(([name, cost, color]) => [
      name, meter(cost.bytes / most, color), whole(2 * cost.values * layers), short(cost.bytes, "B"), ratio(cost.intensity),
    ]);
    const bytes = table(`${layers} layers, bf16`, [["", "", "bytes a token", "cache", "FLOPs per byte"], ...rows]);
    bytes.classList.add("kv-kinds");
    const said = verdict(kindName(heads, kvHeads), kinds[1][1], machine);
    result.replaceChildren(bytes, element("p", { class: "kv-say" }, said));
  };
  // The divisors change with the query heads, so this slider is made anew.
  const regroup = (wanted) => {
    groups = slider(owner, "kv heads", divisors(query.value()), wanted, whole, update);
    place.replaceChildren(groups.node);
  };
  const query = slider(owner, "Query heads", including(HEADS, start.heads), start.heads, whole, () => (regroup(groups.value()), update()));
  const dim = slider(owner, "Head dim", including(DIMS, start.head_dim), start.head_dim, whole, () => update());
  const length = slider(owner, "Context (tokens a request)", including(CONTEXTS, start.context), start.context, tokenCount, () => update());
  const requests = slider(owner, "Requests at once", including(REQUESTS, start.batch), start.batch, whole, () => update());
  regroup(start.kv_heads);
  owner.root.append(
    element("div", { class: "kv-controls" }, query.node, place, dim.node, length.node, requests.node), result,
  );
  update();
}

export default { render };
