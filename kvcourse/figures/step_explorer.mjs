// Generation step by step: which cells of the attention matrix each forward pass computes, and what it costs.
import { work } from "./arithmetic.mjs";
import { element, panel, short, slider, table, tokenCount, whole } from "./panel.mjs";

const CELL = 24;

// Queries (rows) by keys (columns). computed(row) says which rows this pass computes, the masked half included.
function matrix(tokens, total, computed, said) {
  const size = total * CELL + 2;
  const drawing = element("svg", {
    class: "kv-cells", viewBox: `0 0 ${size} ${size}`, role: "img", "aria-label": said,
  });
  for (let row = 0; row < total; row++) {
    for (let column = 0; column < total; column++) {
      const now = row < tokens && computed(row);
      const masked = column > row;
      if (masked && !(now && column < tokens)) continue;
      const [none, kept] = ["fill: none; stroke: var(--kv-line)", "fill: var(--kv-kept)"];
      const fresh = masked ? "fill: none; stroke: var(--kv-new); stroke-dasharray: 3" : "fill: var(--kv-new)";
      const style = now ? fresh : row < tokens ? kept : none;
      drawing.append(
        element("rect", { x: column * CELL + 2, y: row * CELL + 2, width: CELL - 3, height: CELL - 3, rx: 2, style }),
      );
      if (now && !masked) {
        // A dot as well, so that the colour is not the only sign.
        const middle = [column * CELL + CELL / 2 - 1.5, row * CELL + CELL / 2 - 1.5];
        drawing.append(element("rect", { x: middle[0], y: middle[1], width: 4, height: 4, style: "fill: white" }));
      }
    }
  }
  return drawing;
}

function figure(title, drawing) {
  return element("figure", {}, element("figcaption", {}, title), drawing);
}

function ratio(number) {
  return `${number < 100 ? number.toPrecision(3) : whole(number)}×`;
}

function ledger(prompt, steps, cost) {
  const [without, cached] = [work(prompt, steps, false, cost), work(prompt, steps, true, cost)];
  const row = (name, a, b, write) => [name, write(a), write(b), ratio(a / b)];
  return [
    ["", "without", "cached", "ratio"],
    row("K, V rows in this pass", without.last.rows, cached.last.rows, whole),
    row("scores in this pass", without.last.cells, cached.last.cells, short),
    row("scores so far", without.total.cells, cached.total.cells, short),
    row("FLOPs so far", without.total.flops, cached.total.flops, short),
  ];
}

function render({ model: widget, el }) {
  const { prompt, answer, cost, lengths } = widget.get("data");
  const words = [...prompt, ...answer];
  const owner = panel(el, "One forward pass at a time");
  const result = element("div", { "aria-live": "polite" });
  const farther = element("div");
  const passes = Array.from(answer, (_, i) => i);
  const write = (pass) => (pass === 0 ? `1 of ${answer.length}: prefill` : `${pass + 1} of ${answer.length}`);
  const update = () => {
    const pass = step.value();
    const tokens = prompt.length + pass;
    const text = element("p", { class: "kv-say" }, words.slice(0, tokens).join(" "), " → ");
    text.append(element("strong", {}, words[tokens]));
    const last = tokens - 1;
    const said = (count) => `Attention matrix of ${tokens} tokens; this pass computes ${count} of its rows.`;
    const once = pass === 0 ? () => true : (row) => row === last;
    result.replaceChildren(
      text,
      element(
        "div",
        { class: "kv-pair" },
        figure("without a cache", matrix(tokens, words.length - 1, () => true, said(tokens))),
        figure("with a cache", matrix(tokens, words.length - 1, once, said(pass === 0 ? tokens : 1))),
      ),
      table(`After pass ${pass + 1}, ${tokens} tokens`, ledger(prompt.length, pass + 1, cost)),
    );
    back.disabled = pass === 0;
    next.disabled = pass === answer.length - 1;
  };
  const goOn = () => {
    const total = far.value();
    const rows = ledger(prompt.length, total - prompt.length + 1, cost);
    farther.replaceChildren(table(`The same text, ${tokenCount(total)} tokens long`, rows));
  };
  const step = slider(owner, "Forward pass", passes, 0, write, () => update());
  const back = element("button", { type: "button" }, "◀ Back");
  const next = element("button", { type: "button" }, "Next ▶");
  back.addEventListener("click", () => step.move(-1));
  next.addEventListener("click", () => step.move(1));
  const far = slider(owner, "Go on to this many tokens", lengths, 1024, tokenCount, () => goOn());
  const key = element(
    "p",
    { class: "kv-key" },
    element("span", { style: "--swatch: var(--kv-new)" }, "computed in this pass"),
    element("span", { class: "kv-dashed", style: "--swatch: transparent" }, "computed, then masked"),
    element("span", { style: "--swatch: var(--kv-kept)" }, "computed earlier, kept"),
    element("span", { style: "--swatch: transparent" }, "not yet"),
  );
  far.node.classList.add("kv-next");
  owner.root.append(step.node, element("div", { class: "kv-buttons" }, back, next), key, result, far.node, farther);
  update();
  goOn();
}

export default { render };
