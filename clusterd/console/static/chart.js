// Lines over time, as SVG: a scale from 0 to a round number, and the newest value of each line.

const [SPAN_MS, LEAST_MS] = [5 * 60e3, 60e3];
const NS = "http://www.w3.org/2000/svg";
const [HEIGHT, TOP, BOTTOM, LEFT, RIGHT] = [132, 8, 18, 58, 8];

export function element(tag, attributes, text) {
  const made = document.createElementNS(NS, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

export class Chart {
  #points = [];

  // lines: [{name, key}], drawn from points {t, [key]: value or null}.
  constructor(parent, lines, format, base = 10) {
    this.#make(parent, lines);
    this.lines = lines;
    this.format = format;
    this.base = base;
    new ResizeObserver(() => this.draw()).observe(parent);
  }

  #make(parent, lines) {
    this.legend = document.createElement("p");
    this.legend.className = "legend";
    this.values = lines.map((line, i) => {
      const item = document.createElement("span");
      item.className = `line-${i}`;
      const value = document.createElement("b");
      item.append(`${line.name} `, value);
      this.legend.append(item);
      return value;
    });
    this.svg = element("svg", { role: "img", height: HEIGHT });
    parent.append(this.svg, this.legend);
  }

  add(point) {
    this.#points.push(point);
    while (this.#points[0].t < point.t - SPAN_MS) this.#points.shift();
    this.draw();
  }

  draw() {
    const width = this.svg.parentElement.clientWidth;
    if (!width) return;
    const all = this.lines.flatMap((line) => this.#points.map((point) => point[line.key] ?? 0));
    const top = round(Math.max(1, ...all), this.base);
    const now = this.#points.at(-1)?.t ?? 0;
    const span = Math.max(LEAST_MS, now - (this.#points[0]?.t ?? now));
    const x = (t) => LEFT + (width - LEFT - RIGHT) * (1 - (now - t) / span);
    const y = (value) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / top);
    const drawn = [];
    for (const tick of [0, top / 2, top]) {
      drawn.push(element("line", { x1: LEFT, x2: width - RIGHT, y1: y(tick), y2: y(tick), class: "grid" }));
      drawn.push(element("text", { x: LEFT - 6, y: y(tick) + 4, "text-anchor": "end" }, this.format(tick)));
    }
    const step = span > 150e3 ? 60e3 : 30e3;
    for (let ago = step; ago < span * 0.95; ago += step) drawn.push(element("text", { x: x(now - ago), y: HEIGHT - 3, "text-anchor": "middle" }, `−${ago / 1e3} s`));
    drawn.push(element("text", { x: width - RIGHT, y: HEIGHT - 3, "text-anchor": "end" }, "now"));
    this.lines.forEach((line, i) => {
      const known = this.#points.filter((point) => point[line.key] !== null && point[line.key] !== undefined);
      const d = known.map((point, n) => `${n ? "L" : "M"}${x(point.t).toFixed(1)} ${y(point[line.key]).toFixed(1)}`).join("");
      if (d) drawn.push(element("path", { d, class: `line line-${i}` }));
      const last = known.at(-1);
      if (last) drawn.push(element("circle", { cx: x(last.t), cy: y(last[line.key]), r: 2.5, class: `dot line-${i}` }));
      this.values[i].textContent = last ? this.format(last[line.key]) : "–";
    });
    this.svg.setAttribute("width", width);
    const told = this.lines.map((line, i) => `${line.name} ${this.values[i].textContent}`).join(", ");
    this.svg.setAttribute("aria-label", `over time, up to five minutes; now: ${told}`);
    this.svg.replaceChildren(...drawn);
  }
}

// The next of 1, 2, 5 times a power of the base; of bytes, of two.
function round(value, base) {
  if (base === 2) return 2 ** Math.ceil(Math.log2(value));
  const power = 10 ** Math.floor(Math.log10(value));
  return power * [1, 2, 5, 10].find((step) => step * power >= value);
}
