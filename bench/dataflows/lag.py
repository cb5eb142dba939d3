"""How late are other views while one dataflow hydrates? A real replica without a second runtime, one worker.

A small view gets 10 rows, again and again, each time as soon as the last are in it; lag is from the end of
the append until the view is sealed beyond it, as a process attached to the view sees it. Meanwhile the worker
hydrates a dataflow of 10 M rows, in chunks between which it turns to the small one. The same without the
hydration stands beside it.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from bench.arrangements.common import require
from bench.dataflows.common import SEED, Bench
from bench.harness import percentiles
from bench.heavy import append_pairs
from clusterd.client import Client, Index
from clusterd.launcher import launch
from controller_proto.expr import ColumnRef
from controller_proto.plan import Aggregate, Join, Plan, Reduce
from shm_arrangements.attach import Attached

BAR_LAG_MS = 100.0
_IDLE_TICKS = 100
_SMALL_ROWS = 1000
_TICK = tuple((k, 1) for k in range(10))
_HYDRATION_S = 120.0


def _sums(source: Plan) -> Plan:
    return Reduce(source, (ColumnRef(0),), (Aggregate("count"), Aggregate("sum", ColumnRef(1))))


class _Small:
    """The view that is kept up to date meanwhile."""

    def __init__(self, client: Client) -> None:
        self._client = client
        append_pairs(client, "small", np.arange(_SMALL_ROWS), np.arange(_SMALL_ROWS))
        self.index: Index = client.create_index(_sums(client.source("small")), key=(0,), as_of=0)
        self.index.wait(0)
        self.attached: Attached = self.index.attach()
        self.ticks = 0

    def tick(self) -> float:
        """Seconds from the append of a few rows until they are in the view."""
        at = self._client.write("small", _TICK)
        start = time.perf_counter()
        self.attached.wait(at, _HYDRATION_S)
        self.ticks += 1
        return time.perf_counter() - start

    def require_right(self) -> None:
        wanted = {k: (1, k) for k in range(_SMALL_ROWS)}
        for k, one in _TICK:
            wanted[k] = 1 + self.ticks, k + one * self.ticks
        found = {k: (n, int(s)) for k, n, s in self.index.peek().rows()}
        require(found == wanted, "the view that was kept meanwhile")


def lag(bench: Bench) -> None:
    """Another view's lag while 10 M rows hydrate: counted and summed by key, and joined."""
    rows = 10 * bench.sizes.rows
    keys = max(rows // 10, 10)
    rng = np.random.default_rng(SEED)
    with (
        tempfile.TemporaryDirectory() as directory,
        launch({"enable_two_runtime_compute": False}, Path(directory) / "data") as replica,
        Client.connect(replica) as client,
    ):
        first, second = rng.integers(0, keys, rows), rng.integers(0, 1000, rows)
        append_pairs(client, "big", first, second)
        append_pairs(client, "names", np.arange(keys), np.arange(keys) * 7)
        small = _Small(client)
        _record(bench, "idle", [small.tick() for _ in range(_IDLE_TICKS)], None, rows=_SMALL_ROWS)
        joined = Join((client.source("big"), client.source("names")), ((ColumnRef(0), ColumnRef(2)),))
        for what, plan in (("count and sum", _sums(client.source("big"))), ("join", joined)):
            start = time.perf_counter()
            index = client.create_index(plan, key=(0,), as_of=0)
            taken: list[float] = []
            while not taken or not _is_hydrated(client, index):
                taken.append(small.tick())
            hydration_s = time.perf_counter() - start
            _require_hydrated(index, what, first, second)
            _record(bench, f"during {what}", taken, BAR_LAG_MS, rows=rows, hydration_s=round(hydration_s, 2))
            index.drop()
        small.require_right()


def _is_hydrated(client: Client, index: Index) -> bool:
    client.pump()
    frontier = index.frontier
    return frontier is not None and (not frontier or frontier[0] > 0)


def _require_hydrated(index: Index, what: str, first: np.ndarray, second: np.ndarray) -> None:
    """A few keys: the whole is what the other cases compare."""
    for key in (int(first[0]), int(first[-1])):
        mine = second[first == key]
        found = index.peek(at=0, keys=[key]).rows()
        wanted: list[tuple[int, ...]]
        if what == "join":
            wanted = sorted((key, int(v), key, 7 * key) for v in mine)
        else:
            wanted = [(key, len(mine), int(mine.sum()))]
        require(sorted(tuple(map(int, row)) for row in found) == wanted, f"{what} of key {key}")


def _record(bench: Bench, what: str, taken: list[float], bar: float | None, **more: Any) -> None:
    found = percentiles(taken)
    bench.recorder.record(f"lag, {what}, p50", found["p50_us"] / 1e3, "ms", **more, **found)
    bench.recorder.record(f"lag, {what}, greatest", found["max_us"] / 1e3, "ms", bar=bar, **more, **found)
