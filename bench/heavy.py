"""Keep maintenance busy: hydrate a heavy dataflow again and again.

The dataflow joins a shard with itself on a group column and counts and sums by group, so a hydration is
compiled work and nothing else. `sized` chooses how many rows share a group so that one takes about as long
as asked, by timing one and scaling: the join's output grows with the square of the group.
"""

from __future__ import annotations

import dataclasses
import time

import numpy as np
import psutil

from clusterd.client import Client, Index
from clusterd.launcher import Replica
from controller_proto.expr import ColumnRef
from controller_proto.plan import Aggregate, Join, Plan, Reduce
from shm_arrangements.columns import Column
from shm_arrangements.frontier import Frontier
from shm_arrangements.types import ColumnType
from shm_arrangements.updates import Updates

ROWS = 200_000


def append_pairs(client: Client, shard: str, first: np.ndarray, second: np.ndarray) -> None:
    """Append (bigint, bigint) rows to a new shard, all at time 0; seals it up to 1."""
    client.create_shard(shard, {"a": "bigint", "b": "bigint"})
    columns = tuple(
        Column(ColumnType.INT64, values.astype(np.int64), None, None) for values in (first, second)
    )
    count = len(first)
    updates = Updates(columns, np.zeros(count, np.uint64), np.ones(count, np.int64))
    client.store.shard(shard).append(updates, Frontier.minimum(), Frontier.at(1))


@dataclasses.dataclass
class Heavy:
    """One hydration at a time, back to back; `spans` are (start, end) on CLOCK_MONOTONIC, in seconds."""

    client: Client
    plan: Plan
    key: tuple[int, ...] = (0,)
    as_of: int = 0
    spans: list[tuple[float, float]] = dataclasses.field(default_factory=list)

    def hydrate(self) -> float:
        """Create, wait until it is hydrated, drop. Returns the seconds it took, creation included."""
        start = time.monotonic()
        index: Index = self.client.create_index(self.plan, key=self.key, as_of=self.as_of)
        index.wait(self.as_of, timeout_s=120)
        end = time.monotonic()
        index.drop()
        self.spans.append((start, end))
        return end - start


def self_join(client: Client, shard: str) -> Plan:
    """Pairs of rows of one group, counted and summed by group."""
    joined = Join((client.source(shard), client.source(shard)), ((ColumnRef(0), ColumnRef(2)),))
    return Reduce(joined, (ColumnRef(0),), (Aggregate("count"), Aggregate("sum", ColumnRef(1))))


def sized(client: Client, seconds: float, *, rows: int = ROWS, name: str = "heavy") -> tuple[Heavy, int]:
    """A Heavy whose hydration takes about `seconds`, checked against numpy. Returns it and its group size."""
    group = 40
    for attempt in range(8):
        shard = f"{name}{attempt}"
        keys = np.arange(rows) % max(1, rows // group)
        append_pairs(client, shard, keys, np.arange(rows))
        heavy = Heavy(client, self_join(client, shard))
        if attempt == 0:
            _check(heavy, keys)
        took = min(heavy.hydrate() for _ in range(2))
        if took >= seconds:
            heavy.spans.clear()
            return heavy, group
        group = int(group * min(8.0, 1.15 * seconds / took)) + 1
    raise RuntimeError(f"a hydration of {group} rows a group takes {took:.2f} s, wanted {seconds} s")


def _check(heavy: Heavy, keys: np.ndarray) -> None:
    index = heavy.client.create_index(heavy.plan, key=heavy.key, as_of=heavy.as_of)
    answer = index.peek(at=heavy.as_of)
    sizes = np.bincount(keys)
    sums = np.bincount(keys, weights=np.arange(len(keys), dtype=np.float64))
    expected = {
        (int(k), int(n) * int(n), int(n) * int(s))
        for k, (n, s) in enumerate(zip(sizes, sums, strict=True))
        if n
    }
    found = {(int(a), int(b), int(c)) for a, b, c in answer.rows()}
    if found != expected:
        raise RuntimeError("the heavy dataflow's answer is wrong")
    index.drop()


@dataclasses.dataclass
class CpuShare:
    """Processor time of one process of a replica, as a share of the time that passed."""

    replica: Replica
    name: str

    def __enter__(self) -> CpuShare:
        self._process = psutil.Process(self.replica.pids[self.name])
        self._start = (time.monotonic(), sum(self._process.cpu_times()[:2]))
        return self

    def __exit__(self, *_: object) -> None:
        spent = sum(self._process.cpu_times()[:2]) - self._start[1]
        self.share = spent / (time.monotonic() - self._start[0])
