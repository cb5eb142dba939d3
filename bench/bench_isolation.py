"""Does a read wait for maintenance? Point peeks at a fixed rate, maintenance idle and then hydrating.

Open loop at 30 % of the closed-loop rate of one client, measured in the same run; the busy side hydrates a
self-join of at least 1 s of compiled work. Within one run, spans of two hydrations and idle spans as long
take turns, so that what else goes on on a shared machine meets both alike; the figure is the median ratio of
five runs. Solo, where one process does both, stands beside it.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from bench.harness import Recorder, percentiles, say
from bench.heavy import CpuShare, Heavy, append_pairs, sized
from bench.openloop import OpenLoop, PeekSocket, capacity
from clusterd.client import Client
from clusterd.launcher import Replica, launch
from controller_proto.response import PeekRows

ROWS = 100_000
FRACTION = 0.3
BAR_RATIO = 1.2
BAR_P99_US = 2_000.0
KEYS = 4_096
SETTLE_S = 0.1


def run(*, smoke: bool = False) -> list[str]:
    """Both modes; returns what missed its bar."""
    recorder = Recorder("isolation", smoke=smoke)
    for mode in ("two-runtime", "solo"):
        with tempfile.TemporaryDirectory() as directory:
            _mode(recorder, mode, Path(directory), smoke=smoke)
    return recorder.failed


def _mode(recorder: Recorder, mode: str, directory: Path, *, smoke: bool) -> None:
    two = mode == "two-runtime"
    runs, seconds, work_s, rows = (1, 1.5, 0.1, 5_000) if smoke else (5, 20.0, 1.0, 200_000)
    config = {"enable_two_runtime_compute": two}
    with launch(config, directory / "data") as replica, Client.connect(replica) as client:
        append_pairs(client, "kv", np.arange(ROWS), np.arange(ROWS) * 7)
        index = client.create_index("kv", key=["a"])
        index.wait(0)
        keys = [(int(k),) for k in np.random.default_rng(1).integers(0, ROWS, KEYS)]
        check(replica.address, index.id, keys[:200], "interactive" if two else "solo")
        heavy, group = sized(client, work_s, rows=rows)
        say(f"{mode}: a hydration joins {rows} rows in groups of {group}")
        peak = capacity(replica.address, index.id, keys, in_flight=1, seconds=min(2.0, seconds), at=0)
        recorder.record(f"{mode} capacity, 1 in flight", peak, "peeks/s")
        worker = "maintenance/0" if two else "solo/0"
        ratios, busy_p99s, idle_p99s = [], [], []
        for number in range(runs):
            load = OpenLoop(
                replica.address, index.id, keys, rate=FRACTION * peak, seconds=seconds,
                file=directory / "latencies", at=0,
            )  # fmt: skip
            try:
                busy, idle, share = _alternate(load, heavy, replica, worker)
                due, latencies, roles = load.join()
            finally:
                load.stop()
            if roles != {"interactive" if two else "solo"}:
                raise RuntimeError(f"answered by {roles}")
            found: dict[str, dict[str, Any]] = {
                state: percentiles(latencies[_within(due, spans)])
                for state, spans in (("idle", idle), ("busy", busy))
            }
            hydrations = [end - start for start, end in heavy.spans]
            for state, figures in found.items():
                recorder.record(
                    f"{mode} {state} p99", figures["p99_us"], "us", run=number,
                    rate_per_s=round(FRACTION * peak),
                    hydrations=len(hydrations), hydration_s=round(statistics.median(hydrations), 2),
                    maintenance_cpu_while_busy=round(share, 3), **figures,
                )  # fmt: skip
            ratios.append(found["busy"]["p99_us"] / found["idle"]["p99_us"])
            busy_p99s.append(found["busy"]["p99_us"])
            idle_p99s.append(found["idle"]["p99_us"])
        spread: dict[str, Any] = {
            "runs": runs,
            "least": round(min(ratios), 3),
            "greatest": round(max(ratios), 3),
        }
        bars: dict[str, float | None] = {
            "ratio": BAR_RATIO if two else None,
            "p99": BAR_P99_US if two else None,
        }
        recorder.record(
            f"{mode} p99 busy / idle", statistics.median(ratios), "ratio", bar=bars["ratio"], **spread
        )
        recorder.record(
            f"{mode} p99 busy, median", statistics.median(busy_p99s), "us", bar=bars["p99"],
            idle_us=statistics.median(idle_p99s), least=min(busy_p99s), greatest=max(busy_p99s),
        )  # fmt: skip


def check(address: str, collection: str, keys: list[tuple[int]], role: str) -> None:
    """Before anything is timed: peeks of `keys` give the right rows, and `role` answers them."""
    connection = PeekSocket(address)
    for (key,) in keys:
        answer = connection.ask(f"check-{key}", collection, 0, (key,))
        if answer.result != PeekRows(((key,), (key * 7,)), (1,)) or answer.served_by != role:
            raise RuntimeError(f"peek of {key}: {answer}")
    connection.socket.close()


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
