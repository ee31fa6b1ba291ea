// Model, context, requests and codec -> bytes of the cache, and what is left of a card next to the weights.
import { cacheBytes, tokenBytes } from "./arithmetic.mjs";
import { choice, element, panel, short, slider, table, tokenCount, whole } from "./panel.mjs";

const CONTEXTS = [];
for (let power = 7; power < 20; power++) CONTEXTS.push(2 ** power, 1.5 * 2 ** power);
CONTEXTS.push(2 ** 20);
const REQUESTS = Array.from({ length: 11 }, (_, power) => 2 ** power);

// Weights, cache and free memory as one bar; what does not fit reaches past the end of the card.
function bar(weights, cache, card) {
  const used = weights + cache;
  const scale = 600 / Math.max(card, used);
  const parts = [
    [0, weights * scale, "var(--kv-weights)"],
    [weights * scale, cache * scale, used > card ? "var(--kv-over)" : "var(--kv-cache)"],
  ];
  const said = `weights ${short(weights, "B")}, cache ${short(cache, "B")}, card ${short(card, "B")}`;
  const drawing = element("svg", {
    class: "kv-bar", viewBox: "0 0 604 44", preserveAspectRatio: "none", role: "img", "aria-label": `Bar: ${said}`,
  });
  for (const [x, width, fill] of parts) {
    drawing.append(element("rect", { x: x + 2, y: 6, width, height: 32, style: `fill: ${fill}` }));
  }
  drawing.append(
    element("rect", {
      x: 2, y: 2, width: card * scale, height: 40,
      style: "fill: none; stroke: var(--kv-ink); stroke-width: 2; vector-effect: non-scaling-stroke",
    }),
  );
  return drawing;
}

function key(entries) {
  const spans = entries.map(([color, text]) => element("span", { style: `--swatch: ${color}` }, text));
  return element("p", { class: "kv-key" }, ...spans);
}

function verdict(model, weights, cache, request, card) {
  const free = card - weights;
  if (weights > card) return "The weights alone do not fit on this card.";
  const sentence = `The cache takes ${((100 * cache) / card).toFixed(1)}% of the card. `;
  const fits = Math.floor(free / request);
  const more = fits === 1 ? "1 request of this length fits" : `${whole(fits)} requests of this length fit`;
  const counted = model.weight_bytes !== null;
  const beside = counted ? "next to the weights" : "if the weights took nothing (they are not counted here)";
  return `${sentence}${more} ${beside}.`;
}

function render({ model: widget, el }) {
  const data = widget.get("data");
  const start = widget.get("start");
  const owner = panel(el, "How large is the KV cache?");
  const models = data.models.map((m, i) => ({ name: String(i), label: m.title }));
  const codecs = data.codecs.map((c, i) => ({ name: String(i), label: c.label }));
  const result = element("div", { "aria-live": "polite" });
  const update = () => {
    const model = data.models[picked.value()];
    const codec = data.codecs[written.value()];
    const [context, batch] = [length.value(), requests.value()];
    const weights = model.weight_bytes ?? 0;
    const request = cacheBytes(model, codec, context);
    const cache = cacheBytes(model, codec, context, batch);
    const token = tokenBytes(model, codec);
    const growing = tokenBytes(model, codec, context);
    const over = weights + cache > data.card_bytes;
    const rows = [
      ["", "exact", "about"],
      ["one token, all layers", whole(token), short(token, "B")],
      [`one request, ${tokenCount(context)} tokens`, whole(request), short(request, "B")],
    ];
    if (growing !== token) rows.splice(2, 0, ["in layers that still grow", whole(growing), short(growing, "B")]);
    if (batch > 1) rows.push([`${whole(batch)} requests`, whole(cache), short(cache, "B")]);
    if (model.weight_bytes !== null) rows.push(["weights, bf16", whole(weights), short(weights, "B")]);
    const bytes = table("Bytes of the cache", rows);
    bytes.classList.add("kv-bytes");
    result.replaceChildren(
      bar(weights, cache, data.card_bytes),
      key([
        ["var(--kv-weights)", "weights"],
        over ? ["var(--kv-over)", "KV cache: does not fit"] : ["var(--kv-cache)", "KV cache"],
        ["transparent", `card, ${short(data.card_bytes, "B")}`],
      ]),
      element("p", { class: "kv-say" }, verdict(model, weights, cache, request, data.card_bytes)),
      bytes,
    );
  };
  const picked = choice(owner, "Model", models, String(start.model), update);
  const written = choice(owner, "Codec", codecs, String(start.codec), update);
  const length = slider(owner, "Context (tokens a request)", CONTEXTS, start.context, tokenCount, update);
  const requests = slider(owner, "Requests at once", REQUESTS, start.batch, whole, update);
  const controls = [picked, written, length, requests].map((control) => control.node);
  owner.root.append(element("div", { class: "kv-controls" }, ...controls), result);
  update();
}

export default { render };
