// A pool of blocks, step by step or played: blocks, tables and counts come computed; this file only draws them.
import { element, panel, slider, table, whole } from "./panel.mjs";

const [WIDTH, COLUMNS, BOX, PITCH] = [600, 8, 46, 98];
const PLAY_MS = 1400;

// The look of shared blocks: lines in the colour of the page over the colours of the sequences.
function hatch(id) {
  const lines = element("path", { d: "M-2 2L2 -2M0 10L10 0M8 12L12 8", style: "stroke: white; stroke-width: 1.6" });
  return element("pattern", { id, width: 10, height: 10, patternUnits: "userSpaceOnUse" }, lines);
}

function rectangle(x, y, width, height, style) {
  return element("rect", { x, y, width, height, style });
}

// The names on a block and where they stand: one each, or how many sequences share it.
function names(owners, x, width) {
  const fit = owners.reduce((letters, name) => letters + name.length, 0) <= 3;
  if (!fit && owners.length > 1) return [[x + width / 2, `×${owners.length}`, owners[0]]];
  return owners.map((name, i) => [x + ((i + 0.5) * width) / owners.length, name, name]);
}

function slots(x, y, width, filled, size) {
  const part = width / size;
  return Array.from({ length: size }, (_, i) =>
    rectangle(x + i * part + 0.5, y, part - 2, 10, `fill: ${i < filled ? "var(--kv-ink)" : "none"}; stroke: var(--kv-ink); stroke-width: 1`),
  );
}

function block(number, [owners, filled, cached], touched, data, pattern) {
  const pitch = (WIDTH + 8) / COLUMNS;
  const [x, y, width] = [(number % COLUMNS) * pitch, Math.floor(number / COLUMNS) * PITCH + 24, pitch - 8];
  const parts = [element("text", { x: x + width / 2, y: y - 5, "text-anchor": "middle", class: "kv-tick" }, String(number))];
  const part = width / Math.max(1, owners.length);
  owners.forEach((name, i) => parts.push(rectangle(x + i * part, y, part, BOX, `fill: ${data.colors[name][0]}`)));
  if (owners.length > 1) parts.push(rectangle(x, y, width, BOX, `fill: url(#${pattern})`));
  const dashes = cached ? "; stroke-dasharray: 6 4" : "";
  const fill = cached || number === 0 ? "var(--kv-pale)" : "none";
  const edge = touched ? "stroke: var(--kv-over); stroke-width: 5" : "stroke: var(--kv-ink); stroke-width: 1.5";
  parts.push(rectangle(x, y, width, BOX, `fill: ${owners.length ? "none" : fill}; ${edge}${dashes}`));
  for (const [at, text, name] of names(owners, x, width)) {
    const [ground, ink] = data.colors[name];
    const style = `fill: ${ink}; stroke: ${ground}; stroke-width: 7; paint-order: stroke; font-weight: 700`;
    parts.push(element("text", { x: at, y: y + BOX / 2 + 7, "text-anchor": "middle", class: "kv-tick", style }, text));
  }
  if (number === 0) parts.push(element("text", { x: x + width / 2, y: y + BOX / 2 + 6, "text-anchor": "middle", class: "kv-tick" }, "null"));
  else parts.push(...slots(x, y + BOX + 4, width, filled, data.block_size));
  return element("g", {}, ...parts);
}

function pool(frame, data, pattern, said) {
  const rows = Math.ceil(frame.blocks.length / COLUMNS);
  const drawing = element("svg", { viewBox: `-3 0 ${WIDTH + 6} ${rows * PITCH - 8}`, role: "img", "aria-label": said });
  drawing.append(hatch(pattern));
  frame.blocks.forEach((content, i) => drawing.append(block(i, content, frame.touched.includes(i), data, pattern)));
  return drawing;
}

// Blocks in use and cached after each step up to this one, as bars from the left; a line marks all blocks.
function history(frames, step) {
  const total = frames[0].blocks.length - 1;
  const wide = WIDTH / frames.length;
  const last = frames[step];
  const said = `Blocks over the steps: ${last.used} of ${total} in use and ${last.cached} cached after step ${step}`;
  const drawing = element("svg", { viewBox: `-3 -3 ${WIDTH + 6} 86`, role: "img", "aria-label": said });
  frames.slice(0, step + 1).forEach(({ used, cached }, i) => {
    const [low, high] = [(80 * used) / total, (80 * cached) / total];
    drawing.append(rectangle(i * wide, 80 - low, wide - 1, low, "fill: var(--kv-cache)"));
    drawing.append(rectangle(i * wide, 80 - low - high, wide - 1, high, "fill: var(--kv-pale); stroke: var(--kv-ink); stroke-width: 0.7; stroke-dasharray: 3 2"));
  });
  drawing.append(rectangle(0, 0, WIDTH, 80, "fill: none; stroke: var(--kv-line); stroke-width: 1.5"));
  const caption = element("figcaption", {}, `In use and cached after each step, of ${total} blocks`);
  return element("figure", { class: "kv-history" }, caption, drawing);
}

function counters(frame, size) {
  const { used, cached, clean, stored, utilisation } = frame;
  const share = used ? `, ${(100 * utilisation).toFixed(0)}%` : "";
  const counts = element("strong", {}, `In use ${used}, cached ${cached}, free ${clean}.`);
  const slots = ` ${whole(stored)} tokens in the ${whole(used * size)} slots of blocks in use${share}.`;
  return element("p", { class: "kv-say" }, counts, slots);
}

function tables(frame) {
  const rows = frame.tables.map(([name, blocks, length]) => [name, blocks.join(" "), whole(length)]);
  const listed = table("Block tables", [["sequence", "blocks, in order", "tokens"], ...rows]);
  listed.classList.add("kv-tables");
  return listed;
}

function render({ model: widget, el }) {
  const data = widget.get("data");
  const { frames } = data;
  const owner = panel(el, "A pool of blocks");
  const pattern = owner.nextId();
  const said = element("p", { class: "kv-say kv-said", "aria-live": "polite" });
  const drawn = element("div");
  const below = element("div");
  let timer = null;
  const update = () => {
    const at = step.value();
    const frame = frames[at];
    said.textContent = frame.said;
    const summary = `Pool after step ${at}: ${frame.used} blocks in use, ${frame.cached} cached, ${frame.clean} free.`;
    drawn.replaceChildren(pool(frame, data, pattern, summary), counters(frame, data.block_size));
    below.replaceChildren(history(frames, at), tables(frame));
    back.disabled = at === 0;
    next.disabled = at === frames.length - 1;
    if (next.disabled) pause();
  };
  const pause = () => {
    clearInterval(timer);
    timer = null;
    play.textContent = "▶ Play";
    said.setAttribute("aria-live", "polite");
  };
  const start = () => {
    if (next.disabled) step.move(1 - frames.length);
    timer = setInterval(() => step.move(1), PLAY_MS);
    play.textContent = "❚❚ Pause";
    said.setAttribute("aria-live", "off"); // a sentence every second would never end
  };
  const write = (at) => `${at} of ${frames.length - 1}`;
  const step = slider(owner, "Step", frames.map((_, i) => i), widget.get("start").step, write, () => update());
  const back = element("button", { type: "button" }, "◀ Back");
  const next = element("button", { type: "button" }, "Next ▶");
  const play = element("button", { type: "button" }, "▶ Play");
  back.addEventListener("click", () => (pause(), step.move(-1)));
  next.addEventListener("click", () => (pause(), step.move(1)));
  play.addEventListener("click", () => (timer === null ? start() : pause()));
  const key = element(
    "p",
    { class: "kv-key" },
    element("span", { class: "kv-lettered", style: "--swatch: var(--kv-cache)" }, "held by the sequence of that letter"),
    element("span", { class: "kv-hatched" }, "shared"),
    element("span", { class: "kv-dashes", style: "--swatch: var(--kv-pale)" }, "cached: free, still found by its prefix"),
    element("span", { style: "--swatch: transparent" }, "free"),
    element("span", { class: "kv-touched", style: "--swatch: transparent" }, "changed in this step"),
  );
  const buttons = element("div", { class: "kv-buttons" }, back, next, play);
  owner.root.append(step.node, buttons, said, drawn, key, below);
  update();
  return () => clearInterval(timer);
}

export default { render };
