"""Do reads by key, and other views, wait for scans? And what does ordering the rows of a hot key cost?

A scan goes through a whole index and computes on each row, so that one takes seconds, and gives a few rows.
Three clients scan without a pause while a fourth peeks at a fixed rate; then one scans while a view is kept.
"""

from __future__ import annotations

import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from bench.arrangements.common import require
from bench.harness import percentiles, say
from bench.heavy import append_pairs
from bench.isolation.common import FACTOR, SEED, Bench, check_peeks, pairs, replica, some_keys
from bench.openloop import OpenLoop
from clusterd.client import Client, Index
from clusterd.launcher import Replica
from controller_proto.expr import ColumnRef
from controller_proto.plan import Aggregate, Reduce

BAR_P99_US = {2: 5_000.0, 1: 20_000.0}
BAR_LAG_MS = 20.0
BAR_HOT_MS = 20.0
SCANNERS = 3
RATE_PER_S = 200.0
HOT_READS = 250
_PREDICATE = "ln(exp(sin(#1::double precision))) > 0.9999999"
_TICK = tuple((k, 1) for k in range(10))


class _Scan:
    """Scans of an index by one client, one at a time."""

    def __init__(self, replica: Replica, index: Index, wanted: int | None = None) -> None:
        self.client = Client.connect(replica, reader=True)
        self._index = self.client.index(index.id)
        self._wanted = wanted
        self._uuid = ""
        self.count = 0

    def start(self) -> None:
        self._uuid = self.client.start_peek(self._index, at=0, where=[_PREDICATE], select=["a"])

    def finish(self) -> int:
        """Wait for it; how many rows it gave."""
        found = len(self.client.await_peek(self._uuid, timeout_s=120)["a"])
        require(self._wanted is None or found == self._wanted, "rows of the scan")
        self.count += 1
        return found

    def timed(self) -> tuple[float, int]:
        start = time.monotonic()
        self.start()
        found = self.finish()
        return time.monotonic() - start, found


def _large(client: Client, started: Replica, seconds: float) -> tuple[Index, int, float]:
    """An index of which one scan takes about `seconds`, how many rows that gives, and what it takes."""
    rows = 20_000
    for attempt in range(6):
        shard = f"large{attempt}"
        index = pairs(client, shard, rows)
        scan = _Scan(started, index)
        took, found = min(scan.timed() for _ in range(2))
        scan.client.close()
        values = FACTOR * np.arange(rows, dtype=np.float64)
        require(found == int((np.log(np.exp(np.sin(values))) > 0.9999999).sum()), "rows of the scan")
        if took >= 0.8 * seconds:
            return index, found, took
        index.drop()
        rows = int(rows * min(10.0, 1.1 * seconds / took)) + 1
    raise RuntimeError(f"a scan of {rows} rows takes {took:.2f} s, wanted {seconds} s")


def beside_scans(bench: Bench) -> None:
    """Point peeks while three clients scan, with two interactive workers and with one."""
    for workers in (2, 1):
        with replica("two-runtime", interactive_workers=workers) as (started, client), ExitStack() as stack:
            index, keys = pairs(client), some_keys()
            check_peeks(started.address, index.id, keys[:200], "interactive")
            large, found, took = _large(client, started, bench.sizes.scan_s)
            say(f"M = {workers}: a scan alone takes {took:.2f} s")
            scans = [_Scan(started, large, found) for _ in range(SCANNERS)]
            for scan in scans:
                stack.callback(scan.client.close)
            p99s = [
                _peeks_beside(bench, started, index, keys, scans, workers, run)
                for run in range(bench.sizes.runs)
            ]
            bench.median(f"M = {workers}, peeks beside {SCANNERS} scans, p99", p99s, "us",
                         bar=BAR_P99_US[workers], scan_alone_s=round(took, 2))  # fmt: skip


def _peeks_beside(
    bench: Bench, started: Replica, index: Index, keys: list[Any], scans: list[_Scan], workers: int, run: int
) -> float:
    before = sum(scan.count for scan in scans)
    with tempfile.TemporaryDirectory() as directory:
        for scan in scans:
            scan.start()
        load = OpenLoop(
            started.address, index.id, keys, rate=RATE_PER_S, seconds=max(bench.sizes.seconds / 2, 1.0),
            file=Path(directory) / "latencies", at=0,
        )  # fmt: skip
        try:
            while load.is_running():
                for scan in scans:  # the first is done first, for they take turns
                    scan.finish()
                    scan.start()
            _, latencies, roles = load.join()
        finally:
            load.stop()
        for scan in scans:
            scan.finish()
    require(roles == {"interactive"}, "who answered")
    figures = percentiles(latencies)
    bench.recorder.record(
        f"M = {workers}, peeks beside {SCANNERS} scans", figures["p99_us"], "us", run=run,
        rate_per_s=RATE_PER_S, scans=sum(scan.count for scan in scans) - before, **figures,
    )  # fmt: skip
    return float(figures["p99_us"])


def lag(bench: Bench) -> None:
    """How late another view is during a scan, beyond what it is when nothing scans."""
    with replica("two-runtime") as (started, client):
        large, found, took = _large(client, started, bench.sizes.scan_s)
        append_pairs(client, "small", np.arange(1000), np.arange(1000))
        sums = Reduce(
            client.source("small"), (ColumnRef(0),), (Aggregate("count"), Aggregate("sum", ColumnRef(1)))
        )
        small = client.create_index(sums, key=(0,), as_of=0)
        small.wait(0)
        scan = _Scan(started, large, found)
        added: list[float] = []
        ticked = 0
        with small.attach() as view:

            def tick() -> float:
                at = client.write("small", _TICK)
                start = time.perf_counter()
                view.wait(at, 60.0)
                return time.perf_counter() - start

            for run in range(bench.sizes.runs):
                lags: dict[str, list[float]] = {"idle": [], "scan": []}
                for state in ("scan", "idle"):
                    if state == "scan":
                        scan.start()
                    end = time.monotonic() + took
                    while time.monotonic() < end:
                        lags[state].append(tick())
                        ticked += 1
                    if state == "scan":
                        scan.finish()
                figures = {state: percentiles(values) for state, values in lags.items()}
                for state, each in figures.items():
                    bench.recorder.record(
                        f"lag of a view, {state}, p99", each["p99_us"] / 1e3, "ms", run=run, **each
                    )
                added.append((figures["scan"]["p99_us"] - figures["idle"]["p99_us"]) / 1e3)
        rows = {int(k): (int(n), int(s)) for k, n, s in small.peek(keys=[0, 500]).rows()}
        require(rows == {0: (1 + ticked, ticked), 500: (1, 500)}, "the view that was kept meanwhile")
        scan.client.close()
        bench.median(
            "lag of a view, added by a scan, p99", added, "ms", bar=BAR_LAG_MS, scan_s=round(took, 2)
        )


def hot_key(bench: Bench) -> None:
    """A key of many rows, ordered, the first one: 250 reads."""
    rows = 50 * bench.sizes.counts
    with replica("two-runtime") as (_, client):
        values = np.random.default_rng(SEED).permutation(rows)
        append_pairs(client, "hot", np.concatenate((np.zeros(rows, np.int64), np.arange(1, rows))),
                     np.concatenate((values, np.arange(1, rows))))  # fmt: skip
        index = client.create_index("hot", key=["a"])
        index.wait(0)
        taken = []
        for _ in range(HOT_READS):
            start = time.perf_counter()
            answer = index.peek(at=0, keys=[0], order_by=["b"], limit=1)
            taken.append(time.perf_counter() - start)
            require(
                answer.rows() == [(0, 0)] and answer.served_by == "interactive", "the least row of the key"
            )
        figures = percentiles(taken)
        bench.recorder.record("hot key, order by and limit 1, greatest", figures["max_us"] / 1e3, "ms",
                              bar=BAR_HOT_MS, rows_of_the_key=rows, **figures)  # fmt: skip
