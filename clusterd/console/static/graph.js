// The graph of a dataflow, in layers from its inputs down: an edge goes to a lower layer, but for those that
// close a cycle (recursion). Within a layer nodes stand near what feeds them (barycenters, a few sweeps).

import { element } from "./chart.js";
import { bytes, count, duration, part } from "./format.js";

const [WIDTH, HEIGHT, GAP_X, GAP_Y, MARGIN] = [188, 62, 22, 40, 8];

export function layers(ids, edges) {
  const out = new Map(ids.map((id) => [id, []]));
  for (const [from, to] of edges) if (out.has(from) && out.has(to) && from !== to) out.get(from).push(to);
  const order = [];
  const state = new Map();
  const forward = new Map(ids.map((id) => [id, []]));
  for (const root of ids) {
    if (state.has(root)) continue;
    const stack = [[root, 0]];
    state.set(root, "open");
    while (stack.length) {
      const top = stack.at(-1);
      const next = out.get(top[0])[top[1]++];
      if (next === undefined) {
        state.set(top[0], "done");
        order.push(top[0]);
        stack.pop();
      } else if (state.get(next) !== "open") {
        forward.get(top[0]).push(next);
        if (!state.has(next)) {
          state.set(next, "open");
          stack.push([next, 0]);
        }
      }
    }
  }
  const depth = new Map(ids.map((id) => [id, 0]));
  for (const id of order.reverse())
    for (const to of forward.get(id)) depth.set(to, Math.max(depth.get(to), depth.get(id) + 1));
  // What feeds one thing only stands right above it, not at the top.
  for (const id of [...order].reverse()) {
    const below = forward.get(id).map((to) => depth.get(to));
    if (below.length) depth.set(id, Math.min(...below) - 1);
  }
  const found = [];
  for (const id of ids) (found[depth.get(id)] ??= []).push(id);
  const rows = found.filter(Boolean);
  for (let sweep = 0; sweep < 6; sweep++) settle(rows, edges, sweep % 2 === 0);
  return rows;
}

function settle(rows, edges, down) {
  const place = new Map(rows.flatMap((row) => row.map((id, i) => [id, i - (row.length - 1) / 2])));
  for (const row of down ? rows : [...rows].reverse()) {
    const wish = new Map(row.map((id) => {
      const near = edges.filter(([from, to]) => (down ? to : from) === id).map(([from, to]) => place.get(down ? from : to));
      const known = near.filter((x) => x !== undefined);
      return [id, known.length ? known.reduce((sum, x) => sum + x, 0) / known.length : place.get(id)];
    }));
    row.sort((a, b) => wish.get(a) - wish.get(b));
    row.forEach((id, i) => place.set(id, i - (row.length - 1) / 2));
  }
}

// nodes: [{id, name, elapsed, bytes, rows, working}]; edges: [[from, to]].
export function draw(svg, nodes, edges) {
  const rows = layers(nodes.map((node) => node.id), edges);
  const widest = Math.max(1, ...rows.map((row) => row.length));
  const width = 2 * MARGIN + widest * (WIDTH + GAP_X) - GAP_X;
  const at = new Map();
  rows.forEach((row, depth) => {
    const left = (width - row.length * (WIDTH + GAP_X) + GAP_X) / 2;
    row.forEach((id, i) => at.set(id, [left + i * (WIDTH + GAP_X), MARGIN + depth * (HEIGHT + GAP_Y)]));
  });
  const total = nodes.reduce((sum, node) => sum + node.elapsed, 0);
  const drawn = edges.filter(([from, to]) => at.has(from) && at.has(to)).map(([from, to]) => edge(at.get(from), at.get(to)));
  for (const node of nodes) drawn.push(box(node, at.get(node.id), total));
  const height = 2 * MARGIN + rows.length * (HEIGHT + GAP_Y) - GAP_Y;
  svg.setAttribute("width", width);
  svg.setAttribute("height", Math.max(0, height));
  svg.replaceChildren(...drawn);
}

function edge([x1, y1], [x2, y2]) {
  const [ax, ay, bx, by] = [x1 + WIDTH / 2, y1 + HEIGHT, x2 + WIDTH / 2, y2];
  const bend = Math.max(GAP_Y / 2, Math.abs(by - ay) / 2);
  const back = by < ay;
  const d = back
    ? `M${x1 + WIDTH} ${y1 + HEIGHT / 2}C${x1 + WIDTH + 40} ${y1 + HEIGHT / 2} ${x2 + WIDTH + 40} ${y2 + HEIGHT / 2} ${x2 + WIDTH} ${y2 + HEIGHT / 2}`
    : `M${ax} ${ay}C${ax} ${ay + bend} ${bx} ${by - bend} ${bx} ${by - 5}`;
  const group = element("g", { class: back ? "edge back" : "edge" });
  const [tip, dx, dy] = back ? [[x2 + WIDTH, y2 + HEIGHT / 2], 5, 4] : [[bx, by], 4, 5];
  const head = back
    ? `M${tip[0]} ${tip[1]}l${dx} ${-dy}v${2 * dy}z`
    : `M${tip[0]} ${tip[1]}l${-dx} ${-dy}h${2 * dx}z`;
  group.append(element("path", { d, class: "way" }), element("path", { d: head, class: "head" }));
  return group;
}

function box(node, [x, y], total) {
  const share = total ? node.elapsed / total : 0;
  const group = element("g", { class: node.working ? "node working" : "node", transform: `translate(${x} ${y})` });
  group.append(
    element("title", {}, `${node.id} ${node.name}`),
    element("rect", { width: WIDTH, height: HEIGHT, rx: 6, class: "box" }),
    element("rect", { x: 1, y: HEIGHT - 5, width: Math.max(0, (WIDTH - 2) * share), height: 4, rx: 2, class: "share" }),
    element("text", { x: 10, y: 18, class: "name" }, short(node.name, 26)),
    element("text", { x: 10, y: 35 }, `${duration(node.elapsed)}${share >= 0.01 ? ` · ${part(share)}` : ""}${node.working ? " · at work" : ""}`),
    element("text", { x: 10, y: 51 }, `${node.bytes ? `${bytes(node.bytes)} · ` : ""}${count(node.rows)} rows out`),
  );
  return group;
}

const short = (text, limit) => (text.length > limit ? `${text.slice(0, limit - 1)}…` : text);
