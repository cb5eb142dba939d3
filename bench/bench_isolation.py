"""Do reads keep out of the way of maintenance, and of each other; and what does it cost that they can?

Every figure that is held against another is of the same run. Each case checks its answer first; one that
fails is told as missed, and the next goes on. `--quick` is smaller in everything, for a look while
working: nothing is kept of it.
"""

from __future__ import annotations

from bench.harness import Recorder, run_cases
from bench.isolation import attached, hydration, publication, queries, round_trips, scans, ticks
from bench.isolation.common import FULL, QUICK, SMOKE, Bench

CASES = {
    "hydration": hydration.hydration,
    "scans": scans.beside_scans,
    "lag": scans.lag,
    "hot-key": scans.hot_key,
    "queries": queries.queries,
    "round-trips": round_trips.round_trips,
    "lookups": attached.lookups,
    "whole": attached.whole,
    "publication": publication.publication,
    "ticks": ticks.ticks,
}


def run(*, smoke: bool = False, quick: bool = False, only: str = "") -> list[str]:
    """The cases with `only` in their name; returns what missed its bar or failed."""
    recorder = Recorder("isolation", smoke=smoke, keep=not quick)
    bench = Bench(recorder, SMOKE if smoke else QUICK if quick else FULL)
    return run_cases(recorder, CASES, bench, only)
