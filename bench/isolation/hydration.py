"""Does a read wait for maintenance? Point peeks at a fixed rate, maintenance idle and then hydrating.

Open loop at 30 % of the closed-loop rate of one client, measured in the same run; the busy side hydrates a
self-join of at least 1 s of compiled work. Within one run, spans of two hydrations and idle spans as long
take turns, so that what else goes on on a shared machine meets both alike; the figure is the median ratio of
the runs. Solo, where one process does both, stands beside it.

What is asked is how much maintenance costs readers that have a core. So the bars hold where one is kept for
them (`--read-cores`), on which the peeking client runs too, idle or busy; where the kernel places everything,
readers may take both cores while maintenance is idle, and the same figures are told without the ratio's bar.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from bench.harness import percentiles, say
from bench.heavy import CpuShare, Heavy, sized
from bench.isolation.common import MODES, Bench, check_peeks, held_to, pairs, replica, some_keys
from bench.openloop import OpenLoop, capacity
from clusterd.launcher import Replica

FRACTION = 0.3
BAR_BUSY_RATIO = 1.2
BAR_P99_US = 2_000.0
BAR_P999_US = 3_000.0
SETTLE_S = 0.1


def hydration(bench: Bench) -> None:
    """Point peeks while maintenance hydrates, and while it does not; Solo beside."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) > 1:
        _mode(bench, "two-runtime", cores[-1:])
    else:
        say("one core: none can be kept for reads")
    for mode in MODES:
        _mode(bench, mode, [])


def _mode(bench: Bench, mode: str, kept: list[int]) -> None:
    """kept: the cores of reads; none leaves all to the kernel."""
    two, sizes = mode == "two-runtime", bench.sizes
    role = "interactive" if two else "solo"
    where = f"{mode}, a core kept" if kept else mode
    with (
        replica(mode, read_cores=",".join(map(str, kept))) as (started, client),
        tempfile.TemporaryDirectory() as directory,
    ):
        index, keys = pairs(client), some_keys()
        check_peeks(started.address, index.id, keys[:200], role)
        heavy, group = sized(client, sizes.hydration_s, rows=sizes.hydration_rows)
        say(f"{where}: a hydration joins {sizes.hydration_rows} rows in groups of {group}")
        with held_to(kept):
            peak = capacity(
                started.address, index.id, keys, in_flight=1, seconds=min(2.0, sizes.seconds), at=0
            )
        bench.recorder.record(f"{where}, capacity, 1 in flight", peak, "peeks/s")
        ratios = []
        p99s: dict[str, list[float]] = {"idle": [], "busy": []}
        p999s: list[float] = []
        for number in range(sizes.runs):
            load = OpenLoop(
                started.address, index.id, keys, rate=FRACTION * peak, seconds=sizes.seconds,
                file=Path(directory) / "latencies", at=0, cores=kept,
            )  # fmt: skip
            try:
                busy, idle, share = _alternate(load, heavy, started, "maintenance/0" if two else "solo/0")
                due, latencies, roles = load.join()
            finally:
                load.stop()
            if roles != {role}:
                raise RuntimeError(f"answered by {roles}")
            hydrations = [end - start for start, end in heavy.spans]
            for state, spans in (("idle", idle), ("busy", busy)):
                figures: dict[str, Any] = percentiles(latencies[_within(due, spans)])
                p99s[state].append(figures["p99_us"])
                if state == "busy":
                    p999s.append(figures["p999_us"])
                bench.recorder.record(
                    f"{where}, {state}, p99", figures["p99_us"], "us", run=number,
                    rate_per_s=round(FRACTION * peak),
                    hydrations=len(hydrations), hydration_s=round(statistics.median(hydrations), 2),
                    maintenance_cpu_while_busy=round(share, 3), **figures,
                )  # fmt: skip
            ratios.append(p99s["busy"][-1] / p99s["idle"][-1])
        bench.median(f"{where}, p99 busy / idle", ratios, "ratio", bar=BAR_BUSY_RATIO if kept else None)
        bench.median(
            f"{where}, busy, p99, median", p99s["busy"], "us", bar=BAR_P99_US if two else None,
            idle_us=statistics.median(p99s["idle"]),
        )  # fmt: skip
        bench.median(f"{where}, busy, p99.9, median", p999s, "us", bar=BAR_P999_US if two else None)


Spans = list[tuple[float, float]]


def _alternate(load: OpenLoop, heavy: Heavy, replica: Replica, worker: str) -> tuple[Spans, Spans, float]:
    """Two hydrations, then as long without one, until the load ends.

    Returns the busy and the idle spans (CLOCK_MONOTONIC, s), and maintenance's share of a core while busy.
    """
    heavy.spans.clear()
    busy: Spans = []
    idle: Spans = []
    shares: list[float] = []
    while load.is_running():
        with CpuShare(replica, worker) as cpu:
            start = time.monotonic()
            heavy.hydrate()
            heavy.hydrate()
            end = time.monotonic()
        busy.append((start, end))
        shares.append(cpu.share)
        time.sleep(SETTLE_S)  # the drop of the last one
        idle.append((time.monotonic(), 2 * end - start))
        time.sleep(max(0.0, idle[-1][1] - idle[-1][0]))
    return busy, idle, statistics.median(shares)


def _within(due: np.ndarray, spans: Spans) -> np.ndarray:
    """Which of `due` lie in one of `spans`."""
    found = np.zeros(len(due), dtype=bool)
    for start, end in spans:
        found |= (due >= start) & (due < end)
    return found
