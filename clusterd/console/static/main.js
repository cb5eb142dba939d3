// The page: what is told goes into the model, and what is shown is written from it.

import { Chart } from "./chart.js";
import { bytes, count, duration, frontier, part, text } from "./format.js";
import { draw } from "./graph.js";
import { Model, counts, quantile } from "./model.js";
import { fill, kept } from "./table.js";

const $ = (id) => document.getElementById(id);
const model = new Model();
const PAGES = ["overview", "dataflows", "publications", "peeks", "config"];
let there = false;
let aheadMs = 0; // this clock before the daemon's
let heard = null;

const now = () => Date.now() - aheadMs;
const by = (...names) => (a, b) => {
  for (const name of names) {
    const order = String(a[name]).localeCompare(String(b[name]), undefined, { numeric: true });
    if (order) return order;
  }
  return 0;
};
const keyOf = (...names) => (row) => names.map((name) => row[name]).join(" ");

// -- what is told

function connect() {
  const events = new EventSource("/events");
  events.addEventListener("state", (event) => {
    const told = JSON.parse(event.data);
    aheadMs = Date.now() - told.now_ms;
    if (told.there) {
      model.begin(told.columns);
      before = null;
      be(true, "");
    } else be(false, `The daemon does not answer: ${told.why}.`);
  });
  events.addEventListener("change", (event) => {
    model.change(JSON.parse(event.data));
    heard = new Date();
    paint();
  });
  events.addEventListener("error", () => {
    be(false, "The daemon is gone, or cannot be reached from here.");
    if (events.readyState === EventSource.CLOSED) setTimeout(connect, 2000);
  });
}

function be(isThere, why) {
  there = isThere;
  document.body.classList.toggle("is-gone", !there);
  $("state").textContent = there ? "live" : "gone";
  $("state").className = there ? "live" : "";
  $("gone").hidden = there;
  const since = heard ? ` What is below is of ${heard.toLocaleTimeString()}.` : "";
  $("gone").textContent = there ? "" : `${why}${since} Trying again.`;
  for (const button of document.querySelectorAll("button")) button.disabled = !there;
}

// -- what is shown

// What the observer runs is pages like this one.
const isOurs = (row) => !row.worker.startsWith("introspection/");

let painting = false;
function paint() {
  if (painting) return;
  painting = true;
  requestAnimationFrame(() => {
    painting = false;
    PAINTERS[page()]();
  });
}

const page = () => (PAGES.includes(location.hash.slice(1)) ? location.hash.slice(1) : "overview");

function turn() {
  for (const name of PAGES) $(name).hidden = name !== page();
  for (const link of document.querySelectorAll("nav a"))
    if (link.hash === `#${page()}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  paint();
}

const bar = (row, cell) => {
  const found = kept(cell, "progress", (made) => (made.max = 1));
  if (row.progress === null) found.removeAttribute("value");
  else found.value = row.progress;
  found.setAttribute("aria-label", `${row.id} is hydrated to ${part(row.progress)}`);
  return found;
};

function overview() {
  const waiting = (row) => (row.status === "hydrated" ? 1 : 0);
  const hydration = model.rows("hydration").filter(isOurs).sort((a, b) => waiting(a) - waiting(b) || by("id")(a, b));
  fill($("hydration"), [
    { head: "Collection", cell: (row) => row.id },
    { head: "Status", cell: (row) => row.status + (row.code ? `: ${row.code}, ${row.message}` : "") },
    { head: "Progress", cell: bar },
    { head: "", number: true, cell: (row) => part(row.progress) },
    { head: "Updates read", number: true, cell: (row) => count(row.rows_done) + (row.rows_expected ? ` of ${count(row.rows_expected)}` : "") },
    { head: "Took", number: true, cell: (row) => (row.began_ms ? duration(((row.hydrated_ms ?? now()) - row.began_ms) * 1e6) : "–") },
    { head: "Worker", cell: (row) => row.worker },
  ], hydration, keyOf("worker", "id", "dataflow"), "No collection is maintained.");
  fill($("processes"), [
    { head: "Process", cell: (row) => row.process },
    { head: "Pid", number: true, cell: (row) => String(row.pid) },
    { head: "Processor time", number: true, cell: (row) => duration(row.cpu_seconds * 1e9) },
    { head: "Memory", number: true, cell: (row) => bytes(row.rss_bytes) },
    { head: "of it shared", number: true, cell: (row) => bytes(row.shared_bytes) },
    { head: "Threads", number: true, cell: (row) => count(row.threads) },
    { head: "Its figures are of", number: true, cell: (row) => age(row.sampled_at_ms) },
  ], model.rows("processes").sort(by("process")), keyOf("process", "pid"), "Nothing is known of any process.");
  fill($("errors"), [
    { head: "Collection", cell: (row) => row.id },
    { head: "Errors", number: true, cell: (row) => count(row.count) },
    { head: "One of them", cell: (row) => row.sample },
    { head: "From time", number: true, cell: (row) => String(row.first) },
    { head: "Last change", number: true, cell: (row) => String(row.last) },
  ], model.rows("errors").sort(by("id")), keyOf("worker", "id"), "There is none.");
}

const age = (ms) => (ms === null ? "–" : now() - ms < 1000 ? "just now" : `${duration((now() - ms) * 1e6)} ago`);

function dataflows() {
  const all = model.rows("dataflows").filter(isOurs).sort(by("worker", "dataflow"));
  const made = new Map();
  for (const row of model.rows("exports")) {
    const key = `${row.worker} ${row.dataflow}`;
    made.set(key, [...(made.get(key) ?? []), row.id]);
  }
  choose($("dataflow"), all.map((row) => {
    const key = `${row.worker} ${row.dataflow}`;
    return [key, `${(made.get(key) ?? [row.name]).sort().join(", ")} (${row.worker}, ${row.state})`];
  }));
  const chosen = all.find((row) => `${row.worker} ${row.dataflow}` === $("dataflow").value);
  const of = (name) => (chosen ? model.rows(name).filter((row) => row.worker === chosen.worker && row.dataflow === chosen.dataflow) : []);
  const held = new Map();
  for (const row of of("arrangement_sizes")) {
    const [records, size] = held.get(row.operator) ?? [0, 0];
    held.set(row.operator, [records + row.records, size + row.bytes]);
  }
  const spent = new Map(of("operator_elapsed").map((row) => [row.operator, row]));
  const operators = of("dataflow_operators").sort(by("operator"));
  $("dataflow-facts").textContent = chosen
    ? `${chosen.name}: ${chosen.state}, computed up to ${frontier(chosen.upper)} from ${chosen.as_of} on, ${count(chosen.rounds)} rounds in ${duration(chosen.elapsed_ns)}${chosen.is_running ? ", at work" : ""}.`
    : "No dataflow runs.";
  draw($("graph"), operators.map((row) => ({
    id: row.operator,
    name: row.name,
    elapsed: spent.get(row.operator)?.elapsed_ns ?? 0,
    rows: spent.get(row.operator)?.rows_out ?? 0,
    bytes: held.get(row.operator)?.[1] ?? 0,
    working: chosen.is_running && chosen.working === row.operator,
  })), of("dataflow_channels").map((row) => [row.source, row.target]));
  fill($("imports"), [
    { head: "Input", cell: (row) => row.id },
    { head: "Kind", cell: (row) => row.kind },
    { head: "Readable up to", number: true, cell: (row) => frontier(row.upper) },
    { head: "The dataflow is at", number: true, cell: (row) => frontier(row.dataflow_upper) },
    { head: "", cell: (row) => (row.holds_back ? "it is waited for" : "") },
  ], of("import_frontiers").sort(by("id")), keyOf("id", "kind"), "It has no inputs.");
  fill($("operators"), [
    { head: "Operator", cell: (row) => row.operator },
    { head: "Kind", cell: (row) => row.name },
    { head: "Time", number: true, cell: (row) => duration(spent.get(row.operator)?.elapsed_ns) },
    { head: "Longest piece", number: true, cell: (row) => duration(spent.get(row.operator)?.longest_ns) },
    { head: "Rows in", number: true, cell: (row) => count(spent.get(row.operator)?.rows_in) },
    { head: "Rows out", number: true, cell: (row) => count(spent.get(row.operator)?.rows_out) },
    { head: "Records kept", number: true, cell: (row) => count(held.get(row.operator)?.[0] ?? 0) },
    { head: "Memory", number: true, cell: (row) => bytes(held.get(row.operator)?.[1] ?? 0) },
  ], operators, keyOf("operator"), "It has no operators.");
}

function choose(select, options) {
  const was = select.value;
  if (JSON.stringify(options) === select.dataset.options) return;
  select.dataset.options = JSON.stringify(options);
  select.replaceChildren(...options.map(([value, label]) => new Option(label, value)));
  if (options.some(([value]) => value === was)) select.value = was;
}

function publications() {
  const readers = model.rows("arrangement_sharing");
  fill($("published"), [
    { head: "Index", cell: (row) => row.id + (row.alias_of ? ` (the memory of ${row.alias_of})` : "") },
    { head: "State", cell: (row) => row.state },
    { head: "Readable from", number: true, cell: (row) => frontier(row.since) },
    { head: "up to", number: true, cell: (row) => frontier(row.upper) },
    { head: "Held back by", cell: (row) => text(row.held_by) },
    { head: "Batches", number: true, cell: (row) => count(row.batches) },
    { head: "Memory", number: true, cell: (row) => bytes(row.bytes) },
    { head: "Superseded segments", number: true, cell: (row) => count(row.superseded) },
    { head: "Readers", number: true, cell: (row) => count(readers.filter((reader) => reader.id === row.id).length) },
    { head: "Peeks that wait", number: true, cell: (row) => count(row.waiting_reads) },
    { head: "Worker", cell: (row) => row.worker },
  ], model.rows("publications").sort(by("id")), keyOf("worker", "id", "incarnation"), "Nothing is published.");
  fill($("readers"), [
    { head: "Index", cell: (row) => row.id },
    { head: "Reader", cell: (row) => row.reader },
    { head: "Pid", number: true, cell: (row) => String(row.pid) },
    { head: "Has mapped", number: true, cell: (row) => bytes(row.pinned_bytes) },
    { head: "Oldest view is of", number: true, cell: (row) => text(row.oldest_time) },
    { head: "since", number: true, cell: (row) => age(row.oldest_ms) },
  ], readers.sort(by("id", "reader")), keyOf("id", "incarnation", "reader"), "Nobody has anything mapped.");
}

const cancel = (row, cell) => kept(cell, "button", (button) => {
  button.type = "button";
  button.textContent = "Cancel";
  button.setAttribute("aria-label", `Cancel peek ${row.uuid} of ${row.id}`);
  button.disabled = !there;
  button.addEventListener("click", async () => {
    button.disabled = true;
    try {
      const answer = await fetch(`/peeks/${row.session}/${encodeURIComponent(row.uuid)}/cancel`, { method: "POST" });
      $("canceled").textContent = `Peek ${row.uuid}: ${(await answer.text()).trim()}.`;
      button.disabled = answer.ok || !there;
    } catch {
      $("canceled").textContent = `Peek ${row.uuid}: the daemon is gone.`;
    }
  });
});

function peeks() {
  fill($("active"), [
    { head: "", cell: cancel },
    { head: "Collection", cell: (row) => row.id },
    { head: "State", cell: (row) => row.state },
    { head: "Waits for", cell: (row) => text(row.waits_for) },
    { head: "At time", number: true, cell: (row) => (row.time === null ? "newest" : String(row.time)) },
    { head: "Since", number: true, cell: (row) => duration((now() - row.began_ms) * 1e6) },
    { head: "Path", cell: (row) => `${row.path}, ${row.lane}` },
    { head: "Rows visited", number: true, cell: (row) => count(row.rows_visited) },
    { head: "Worker", cell: (row) => row.worker },
    { head: "Session", number: true, cell: (row) => String(row.session) },
    { head: "Peek", cell: (row) => row.uuid },
  ], model.rows("peeks_active").sort(by("began_ms", "uuid")), keyOf("session", "uuid"), "No peek waits or runs.");
}

function config() {
  fill($("settings"), [
    { head: "Setting", cell: (row) => row.name },
    { head: "Value", cell: (row) => row.value },
    { head: "", cell: (row) => (row.kind === "setting" ? "set by the controller" : "fixed at start") },
  ], model.rows("config").sort(by("name")), keyOf("name", "kind"), "Nothing is known yet.");
}

const PAINTERS = { overview, dataflows, publications, peeks, config };

// -- over time

const charts = {
  lag: new Chart($("chart-lag"), [{ name: "behind", key: "lag" }], (ms) => duration(ms * 1e6)),
  memory: new Chart($("chart-memory"), [{ name: "private", key: "rss" }, { name: "indexes", key: "indexes" }], bytes, 2),
  latency: new Chart($("chart-latency"), [{ name: "half below", key: "p50" }, { name: "99 of 100 below", key: "p99" }], duration),
};
let before = null;

function sample() {
  if (!there) return;
  const t = Date.now();
  const sum = (rows, name) => rows.reduce((total, row) => total + row[name], 0);
  charts.lag.add({ t, lag: Math.max(0, ...model.rows("staleness").map((row) => row.behind_ms)) });
  const processes = model.rows("processes");
  const indexes = sum(model.rows("publications").filter((row) => !row.alias_of), "bytes");
  charts.memory.add({ t, rss: sum(processes, "rss_bytes") - sum(processes, "shared_bytes"), indexes });
  const now = counts(model.rows("peek_durations_histogram").filter((row) => row.phase === "total"));
  if (before) charts.latency.add({ t, p50: quantile(before, now, 0.5), p99: quantile(before, now, 0.99) });
  before = now;
  paint(); // ages go on, too
}

addEventListener("hashchange", turn);
$("dataflow").addEventListener("change", paint);
turn();
connect();
setInterval(sample, 1000);
