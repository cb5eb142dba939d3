// Numbers for people. Each takes null for what is not known.

const DASH = "–";

const scaled = (value, steps) => {
  let [unit, size] = steps[0];
  for (const [next, least] of steps) if (value >= least) [unit, size] = [next, least];
  const shown = value / size;
  const digits = shown >= 100 || size === 1 && Number.isInteger(value) ? 0 : shown >= 10 ? 1 : 2;
  return `${shown.toFixed(digits)}\u00a0${unit}`;
};

export const bytes = (n) =>
  n === null || n === undefined ? DASH : n === 0 ? "0" : scaled(n, [["B", 1], ["KiB", 2 ** 10], ["MiB", 2 ** 20], ["GiB", 2 ** 30]]);

export const duration = (ns) =>
  ns === null || ns === undefined ? DASH : ns <= 0 ? "0"
    : ns >= 120e9 ? clock(ns / 1e9)
    : scaled(ns, [["ns", 1], ["µs", 1e3], ["ms", 1e6], ["s", 1e9]]);

const clock = (s) => {
  const [hours, minutes] = [Math.floor(s / 3600), Math.floor(s / 60) % 60];
  return hours >= 48 ? `${Math.floor(hours / 24)}\u00a0d` : hours ? `${hours}\u00a0h ${minutes}\u00a0min` : `${minutes}\u00a0min`;
};

export const count = (n) =>
  n === null || n === undefined ? DASH : String(n).replace(/\B(?=(\d{3})+(?!\d))/g, "\u202f");

// A frontier or a time of a collection; NULL is the empty frontier.
export const frontier = (t) => (t === null || t === undefined ? "closed" : String(t));

export const part = (x) => (x === null || x === undefined ? DASH : `${Math.round(x * 100)}\u00a0%`);

export const text = (x) => (x === null || x === undefined || x === "" ? DASH : String(x));
