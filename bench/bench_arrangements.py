"""How fast and how lean is an arrangement: loaded, changed, read, left alone?

One process, no daemon. Records are (u64 key, u64 value), diff 1, keys random. Rates are told beside S(N), the
rows/s of numpy's stable argsort on N random u64 measured right before (bench/arrangements/common.py). Each
case checks its answer against numpy first.
"""

from __future__ import annotations

from bench.arrangements import loads, reads, sql, updates
from bench.arrangements.common import FULL_ROWS, Bench, Sizes
from bench.harness import Recorder, run_cases
from shm_arrangements.kernels.warm import warm

SMOKE_ROWS = 20_000
SMOKE_CHURNED = 100
RUNS = 3
CHURNED = 1000

CASES = {
    "fill": loads.fill,
    "arrange": loads.arrange,
    "text": loads.text,
    "batches": updates.batches_onto,
    "ticks": updates.ticks,
    "idle": updates.idle,
    "lookups": reads.lookups,
    "consecutive": reads.consecutive,
    "scans": reads.scans,
    "churn": updates.churn,
    "sql": sql.small,
}


def run(*, smoke: bool = False, rows: int | None = None, only: str = "") -> list[str]:
    """The cases with `only` in their name, at `rows` records; returns what missed its bar or failed."""
    full = rows is None and not smoke
    recorder = Recorder("arrangements", smoke=smoke, keep=full)
    sizes = Sizes(rows or FULL_ROWS, RUNS, CHURNED)
    bench = Bench(recorder, Sizes(SMOKE_ROWS, 1, SMOKE_CHURNED) if smoke else sizes)
    warm()
    return run_cases(recorder, CASES, bench, only)
