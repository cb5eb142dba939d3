// The relations as they were told: `rows(name)` gives objects by column.

// What this page reads of each relation. A test holds it to the relations that there are.
export const NEEDS = {
  dataflows: ["worker", "dataflow", "name", "state", "as_of", "upper", "is_running", "working", "rounds", "elapsed_ns"],
  dataflow_operators: ["worker", "dataflow", "operator", "parent", "name"],
  dataflow_channels: ["worker", "dataflow", "source", "target"],
  exports: ["worker", "dataflow", "id", "kind"],
  import_frontiers: ["worker", "dataflow", "id", "kind", "upper", "dataflow_upper", "holds_back"],
  hydration: ["worker", "id", "dataflow", "status", "progress", "rows_done", "rows_expected", "began_ms", "hydrated_ms", "code", "message"],
  arrangement_sizes: ["worker", "dataflow", "operator", "records", "bytes"],
  arrangement_sharing: ["id", "reader", "pid", "pinned_bytes", "oldest_time", "oldest_ms"],
  operator_elapsed: ["worker", "dataflow", "operator", "name", "elapsed_ns", "longest_ns", "rows_in", "rows_out"],
  peeks_active: ["worker", "session", "uuid", "id", "lane", "path", "state", "time", "waits_for", "rows_visited", "began_ms"],
  peek_durations_histogram: ["phase", "below_ns", "count"],
  errors: ["worker", "id", "count", "sample", "first", "last"],
  publications: ["worker", "id", "state", "since", "upper", "held_by", "batches", "bytes", "superseded", "waiting_reads", "alias_of"],
  staleness: ["id", "behind_ms"],
  processes: ["process", "pid", "cpu_seconds", "rss_bytes", "shared_bytes", "threads", "sampled_at_ms"],
  config: ["name", "value", "kind"],
};

export class Model {
  #columns = {};
  #held = new Map();

  // Begin anew: nothing is known but which columns there are.
  begin(columns) {
    this.#columns = columns;
    this.#held.clear();
  }

  change(told) {
    for (const [name, { came, went }] of Object.entries(told)) {
      const held = this.#held.get(name) ?? new Map();
      this.#held.set(name, held);
      for (const row of came) this.#add(held, row, 1);
      for (const row of went) this.#add(held, row, -1);
    }
  }

  #add(held, row, by) {
    const key = JSON.stringify(row);
    const entry = held.get(key) ?? { row, count: 0 };
    entry.count += by;
    if (entry.count) held.set(key, entry);
    else held.delete(key);
  }

  rows(name) {
    const columns = this.#columns[name] ?? [];
    return [...(this.#held.get(name)?.values() ?? [])].map(({ row }) =>
      Object.fromEntries(columns.map((column, i) => [column, row[i]])));
  }
}

// The bound below which the part `q` of what came between two tellings of a histogram is; null if nothing did.
export function quantile(before, now, q) {
  const bounds = [...now.keys()].sort((a, b) => a - b);
  const came = bounds.map((bound) => now.get(bound) - (before.get(bound) ?? 0));
  const total = came.reduce((sum, n) => sum + n, 0);
  if (total <= 0) return null;
  let seen = 0;
  for (const [i, n] of came.entries()) {
    seen += n;
    if (seen >= q * total) return bounds[i];
  }
  return bounds.at(-1);
}

// Counts of a histogram by bound, over all that `rows` tell; what is beyond the last bound counts as twice that.
export function counts(rows) {
  const found = new Map();
  const last = Math.max(0, ...rows.map((row) => row.below_ns ?? 0));
  for (const row of rows) {
    const bound = row.below_ns ?? 2 * last;
    found.set(bound, (found.get(bound) ?? 0) + row.count);
  }
  return found;
}
