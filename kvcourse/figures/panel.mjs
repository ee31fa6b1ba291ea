// Parts of a control panel: native inputs, so keyboard and screen readers work without more.

export function element(tag, attributes = {}, ...children) {
  const svg = ["svg", "rect", "g", "text", "line", "title", "pattern", "path"].includes(tag);
  const node = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

export function panel(el, title) {
  const prefix = `kv-${Math.random().toString(36).slice(2, 10)}`; // a page may hold several panels
  const heading = element("div", { class: "kv-title", id: `${prefix}-title` }, title);
  const root = element("section", { class: "kv-panel", "aria-labelledby": heading.id }, heading);
  el.replaceChildren(root);
  let controls = 0;
  return { root, nextId: () => `${prefix}-${(controls += 1)}` };
}

// A labelled slider over `values`; `format` writes the value. Returns {node, value()}.
export function slider(owner, label, values, start, format, onChange) {
  const id = owner.nextId();
  const nearest = values.reduce((best, v, i) => (Math.abs(v - start) < Math.abs(values[best] - start) ? i : best), 0);
  const input = element("input", { type: "range", id, min: 0, max: values.length - 1, step: 1 });
  input.value = nearest;
  const shown = element("output", { for: id });
  const write = () => {
    shown.textContent = format(values[input.value]);
    input.setAttribute("aria-valuetext", shown.textContent);
  };
  input.addEventListener("input", () => (write(), onChange()));
  write();
  const node = element("div", { class: "kv-control" }, element("label", { for: id }, label), shown, input);
  return {
    node,
    input,
    value: () => values[input.value],
    move: (by) => {
      input.value = Number(input.value) + by;
      write();
      onChange();
    },
  };
}

// A labelled list of choices [{name, label}]. Returns {node, value()}, the name that is chosen.
export function choice(owner, label, options, start, onChange) {
  const id = owner.nextId();
  const input = element("select", { id });
  for (const option of options) input.append(element("option", { value: option.name }, option.label));
  input.value = start;
  input.addEventListener("change", onChange);
  const node = element("div", { class: "kv-control" }, element("label", { for: id }, label), input);
  return { node, value: () => input.value };
}

// A table from rows of texts, the first row being the header and the first cell of each row its name.
export function table(caption, rows) {
  const body = rows.map((cells, i) =>
    element("tr", {}, ...cells.map((text, j) => {
      if (i === 0) return element("th", { scope: "col" }, text);
      return j === 0 ? element("th", { scope: "row" }, text) : element("td", {}, text);
    })),
  );
  return element("table", { class: "kv-table" }, element("caption", {}, caption), ...body);
}

export function whole(number) {
  return Math.round(number).toLocaleString("en-US");
}

// Large numbers in few letters: 1.23 k, M, G, T, P (powers of 1,000).
export function short(number, unit = "") {
  const powers = ["", "k", "M", "G", "T", "P", "E"];
  let power = 0;
  while (Math.abs(number) >= 999.5 && power < powers.length - 1) {
    number /= 1000;
    power += 1;
  }
  const digits = power === 0 ? String(Math.round(number)) : number.toPrecision(3);
  return `${digits}\u00a0${powers[power]}${unit}`.trim(); // the space does not break
}

// Tokens in powers of two: 512, 4k, 1M (k = 1,024).
export function tokenCount(tokens) {
  if (tokens >= 1048576) return `${tokens / 1048576}M`;
  return tokens >= 1024 ? `${tokens / 1024}k` : String(tokens);
}
