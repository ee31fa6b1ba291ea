// Rank of the latent -> what is lost and what a token stores, from numbers that were computed before.
import { place, steep } from "./arithmetic.mjs";
import { choice, element, panel, slider, table, whole } from "./panel.mjs";

const [WIDTH, HEIGHT, LEFT, BOTTOM, TOP] = [600, 250, 20, 40, 34];

function number(value) {
  return Math.abs(value) >= 1000 ? whole(value) : String(Number(value.toPrecision(3)));
}

// The values over the ranks as a line, the chosen one as a disc; lowest and highest are written at their dots.
function chart(name, ranks, values, chosen) {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const x = (i) => LEFT + 10 + place(ranks[i], ranks[0], ranks.at(-1)) * (WIDTH - LEFT - 40);
  const y = (i) => HEIGHT - BOTTOM - 8 - place(values[i], low, high) * (HEIGHT - BOTTOM - TOP - 8);
  const said = `${name} over rank ${ranks[0]} to ${ranks.at(-1)}; at rank ${ranks[chosen]} it is ${number(values[chosen])}`;
  const drawing = element("svg", { class: "kv-chart", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": said });
  const line = (points, style) => drawing.append(element("path", { d: `M${points.join("L")}`, style: `fill: none; ${style}` }));
  const write = (at, height, text, anchor) =>
    drawing.append(element("text", { x: at, y: height, "text-anchor": anchor, class: "kv-tick" }, text));
  line([`${LEFT} ${HEIGHT - BOTTOM}`, `${WIDTH} ${HEIGHT - BOTTOM}`], "stroke: var(--kv-line); stroke-width: 2");
  line([`${x(chosen)} ${HEIGHT - BOTTOM}`, `${x(chosen)} ${y(chosen)}`], "stroke: var(--kv-line); stroke-width: 2; stroke-dasharray: 4");
  line(ranks.map((_, i) => `${x(i)} ${y(i)}`), "stroke: var(--kv-mla); stroke-width: 3");
  for (let i = 0; i < ranks.length; i++) {
    const style = i === chosen ? "fill: var(--kv-over)" : "fill: var(--kv-mla)";
    const size = i === chosen ? 16 : 8;
    drawing.append(element("rect", { x: x(i) - size / 2, y: y(i) - size / 2, width: size, height: size, rx: size / 2, style }));
  }
  const end = chosen > ranks.length / 2 ? "end" : "start";
  write(x(chosen) + (end === "end" ? -4 : 4), y(chosen) - 14, number(values[chosen]), end);
  for (const i of new Set([0, chosen, ranks.length - 1])) {
    const crowded = i !== chosen && Math.abs(x(i) - x(chosen)) < 70;
    if (!crowded) write(x(i), HEIGHT - 12, String(ranks[i]), "middle");
  }
  return drawing;
}

function render({ model: widget, el }) {
  const { ranks, names, values, bytes, baseline, better } = widget.get("data");
  const owner = panel(el, "How small can the latent be?");
  const result = element("div", { "aria-live": "polite" });
  const update = () => {
    const at = ranks.indexOf(rank.value());
    const series = Number(shown.value());
    const share = (100 * bytes[at]) / baseline;
    const percent = share < 10 ? share.toPrecision(2) : share.toFixed(0);
    const rows = [
      ["", `rank ${ranks[at]}`, `rank ${ranks.at(-1)}`],
      ["bytes a token", whole(bytes[at]), whole(bytes.at(-1))],
      ...names.map((name, i) => [name, number(values[i][at]), number(values[i].at(-1))]),
    ];
    result.replaceChildren(
      element("p", { class: "kv-say" }, `${names[series]} over the rank (${better} is better${steep(values[series]) ? "; logarithmic" : ""})`),
      chart(names[series], ranks, values[series], at),
      element("p", { class: "kv-say" }, `A token stores ${percent}% of what the model stored before.`),
      table(`Before: ${whole(baseline)} bytes a token`, rows),
    );
  };
  const options = names.map((name, i) => ({ name: String(i), label: name }));
  const rank = slider(owner, "Rank of the latent", ranks, widget.get("start").rank, whole, () => update());
  const shown = choice(owner, "Drawn", options, "0", () => update());
  owner.root.append(element("div", { class: "kv-controls" }, rank.node, shown.node), result);
  update();
}

export default { render };
