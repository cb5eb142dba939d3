"""How fast are views kept: loaded, changed, recursive, of many times, beside a hydration; and in Pathway?

One worker. All but the last two questions are asked of dataflows in this process, rendered and scheduled as a
replica does it (bench/dataflows/worker.py); lag is that of a real replica, and Pathway has a process and an
environment of its own (`make bench-dataflows` makes it). Rates are told beside S, the rows/s of numpy's
stable argsort on 1 M random u64 measured right before. Each case checks its answer first; a case that
fails is told as missed, and the next goes on.
"""

from __future__ import annotations

from bench.dataflows import lag, maintained, peers, rounds
from bench.dataflows.common import FULL_ROWS, Bench, Sizes
from bench.harness import Recorder, run_cases
from clusterd.operators.kernels.warm import warm

SMOKE = Sizes(5_000, runs=1, batches=5, larger=2)

CASES = {
    "sums": maintained.sums,
    "join": maintained.join,
    "distinct": maintained.distinct,
    "top": maintained.top,
    "top-large": maintained.top_large,
    "recursion": rounds.recursion,
    "times": rounds.times,
    "tick": rounds.tick,
    "lag": lag.lag,
    "pathway": peers.pathway,
}


def run(*, smoke: bool = False, rows: int | None = None, only: str = "") -> list[str]:
    """The cases with `only` in their name, at `rows` records; returns what missed its bar or failed."""
    full = rows is None and not smoke
    recorder = Recorder("dataflows", smoke=smoke, keep=full)
    bench = Bench(recorder, SMOKE if smoke else Sizes(rows or FULL_ROWS, runs=3, batches=100, larger=10))
    warm()
    return run_cases(recorder, CASES, bench, only)
