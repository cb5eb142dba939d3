"""Load a view, then change it: count and sum, distinct, top 10, join.

A rate counts the rows that go in, up to the moment at which all blocks of the view have come out at its end.
The same with an index at the end, which every reader on the machine sees, is told beside it without a bar:
what an index costs is bench-arrangements'. Each view is first run as a whole and compared with numpy's
answer.

At 10 times the state a change of equal size should cost the same (touched rows say it without the caches of
the processor); 10 times the change should cost ten times as much at most.
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.arrangements.updates import RETRACTED
from bench.dataflows.common import SEED, Bench, Facts, consolidated, gathered, require_same
from bench.dataflows.worker import Changes, Ints, Shard, View, Worker
from bench.harness import percentiles

Answer = tuple[Sequence[Ints], Ints]

_GROWN_BATCHES = 10  # where state or change are larger
_DIM = 7  # the name of key k is k times this


@dataclass(frozen=True)
class Work:
    """A view, its rows and its bars. text: of the plan over u1, the facts, and u2, the names of keys.

    rows_a_key: of the facts; None for a fixed 1,000 keys. values: distinct ones. batch: the part of a batch
    of full size that an update has. updates: bar in S. load: too.
    """

    name: str
    text: str
    answer: Callable[[tuple[Ints, ...]], Answer]
    load: float | None
    updates: float | None = None
    p50_ms: float | None = None
    p99_ms: float | None = None
    rows_a_key: int | None = 10
    values: int = 1000
    batch: float = 1.0
    has_names: bool = False

    def keys(self, rows: int) -> int:
        return max(1, rows // self.rows_a_key) if self.rows_a_key else 1000


def _sums(live: tuple[Ints, ...]) -> Answer:
    k, v = live
    counts = np.bincount(k)
    sums = np.bincount(k, weights=v).astype(np.int64)
    keys = np.flatnonzero(counts)
    return (keys, counts[keys], sums[keys]), np.ones(len(keys), np.int64)


def _distinct(live: tuple[Ints, ...]) -> Answer:
    columns, counts = consolidated(live, np.ones(len(live[0]), np.int64))
    return columns, np.ones_like(counts)


def _top(live: tuple[Ints, ...]) -> Answer:
    k, v = live
    order = np.lexsort((-v, k))
    k, v = k[order], v[order]
    rank = np.arange(len(k)) - np.searchsorted(k, k)
    return consolidated((k[rank < 10], v[rank < 10]), np.ones(int((rank < 10).sum()), np.int64))


def _joined(live: tuple[Ints, ...]) -> Answer:
    k, v = live
    return consolidated((k, v, k * _DIM), np.ones(len(k), np.int64))


_TOP = "TopK group_by=[#0] order_by=[#1 desc] limit=10\n  Get u1"
SUMS = Work(
    "count and sum", "Reduce group_by=[#0] aggregates=[count(*), sum(#1)]\n  Get u1", _sums,
    load=1.5, updates=0.3, p99_ms=10.0,
)  # fmt: skip
JOIN = Work(
    "join", "Project (#0, #1, #3)\n  Join on=(#0 = #2)\n    Get u1\n    Get u2", _joined,
    load=0.8, p50_ms=1.0, batch=0.1, has_names=True,
)  # fmt: skip
DISTINCT = Work("distinct", "Distinct project=[#0, #1]\n  Get u1", _distinct, load=0.7, updates=0.2)
TOP = Work("top 10, small groups", _TOP, _top, load=0.4, updates=0.08, values=1_000_000)
TOP_LARGE = Work(
    "top 10, 1,000 groups", _TOP, _top, load=None, updates=0.04, values=1_000_000, rows_a_key=None
)


class Course:
    """A work's view in a worker, and the rows that go into it."""

    def __init__(
        self, work: Work, worker: Worker, rows: int, room: int, rng: np.random.Generator, *, index: bool
    ) -> None:
        keys = work.keys(rows)
        self.facts = Facts(rows, keys, work.values, room, rng)
        self._worker = worker
        self._shards = {"facts": Shard(("k", "v")), "names": Shard(("k", "name"))}
        self._names: Changes | None = None
        lines = ["import source=u1 shard=facts upper=1"]
        if work.has_names:
            lines.append("import source=u2 shard=names upper=1")
            self._names = (np.arange(keys), np.arange(keys) * _DIM), np.ones(keys, np.int64)
        lines += ["build id=u9", *("  " + line for line in work.text.splitlines())]
        lines.append("export kind=index index=u10 on=u9 key=[0]")
        self.view: View = worker.add("\n".join(lines), self._shards, index=index)

    def load(self, *, times: NDArray[np.uint64] | None = None, steps: int = 1) -> float:
        """Hydrate, rows at these times below `steps`, or all at 0; the seconds it took."""
        if self._names is not None:
            self._shards["names"].append(self._names, steps=steps)
        self._shards["facts"].append(self.facts.load(), times=times, steps=steps)
        return self._worker.run()

    def update(self, changes: Changes) -> float:
        self._shards["names"].advance()
        self._shards["facts"].append(changes)
        return self._worker.run()


def measure(bench: Bench, work: Work) -> None:
    """Everything there is to say of one work."""
    sizes = bench.sizes
    rows, batch = sizes.rows, max(1, round(sizes.batch * work.batch))
    more: dict[str, Any] = {"rows": rows, "keys": work.keys(rows)}
    each: dict[str, Any] = {**more, "batch_rows": batch, "retracted": RETRACTED}
    _check(work, rows, batch, sizes.batches)
    loads, rates, sorts, taken, touched = [], [], [], [], 0.0
    for run in range(sizes.runs):
        with Worker() as worker:
            room = sizes.batches * batch
            course = Course(work, worker, rows, room, np.random.default_rng(SEED + run), index=False)
            gc.collect()
            sorts.append(bench.sort_rate())
            loads.append(rows / course.load())
            load_costs = _shares(course.view)
            before = course.view.touched
            mine = [course.update(course.facts.batch(batch)) for _ in range(sizes.batches)]
            touched = (course.view.touched - before) / (sizes.batches * batch)
            update_costs = _shares(course.view, load_costs)
            rates.append(batch * len(mine) / sum(mine))
            taken += mine
            more["state_bytes"] = course.view.state_bytes
            more["longest_chunk_ms"] = round(1e3 * worker.scheduler.statistics().longest_chunk_s, 1)
    bench.rates(f"{work.name}, load", loads, sorts, bar=work.load, costs_s=_told(load_costs), **more)
    bench.rates(f"{work.name}, updates", rates, sorts, bar=work.updates, costs_s=_told(update_costs), **each)
    found = percentiles(taken)
    record = bench.recorder.record
    record(f"{work.name}, update p50", found["p50_us"] / 1e3, "ms", bar=work.p50_ms, **each, **found)
    record(f"{work.name}, update p99", found["p99_us"] / 1e3, "ms", bar=work.p99_ms, **each, **found)
    _indexed(bench, work, rows, batch)
    base = statistics.median(taken)
    for what, times_state, times_change in (("state", sizes.larger, 1), ("change", 1, sizes.larger)):
        cost, looked = _grown(work, rows * times_state, batch * times_change)
        record(
            f"{work.name}, cost of a change at {sizes.larger} x the {what}", cost / base, "ratio",
            rows=rows * times_state, batch_rows=batch * times_change, p50_ms=round(1e3 * cost, 3),
            touched_a_row=round(looked, 2), touched_a_row_before=round(touched, 2),
        )  # fmt: skip


def _check(work: Work, rows: int, batch: int, batches: int) -> None:
    """Everything once, its answer compared."""
    with Worker() as worker:
        course = Course(work, worker, rows, batches * batch, np.random.default_rng(SEED), index=False)
        assert course.view.probe is not None
        course.view.probe.kept = []
        course.load()
        for _ in range(batches):
            course.update(course.facts.batch(batch))
        require_same(gathered(course.view.probe.kept), work.answer(course.facts.live), work.name)


def _indexed(bench: Bench, work: Work, rows: int, batch: int) -> None:
    with Worker() as worker:
        room = _GROWN_BATCHES * batch
        course = Course(work, worker, rows, room, np.random.default_rng(SEED), index=True)
        sorted_per_s = bench.sort_rate()
        load_s = course.load()
        mine = [course.update(course.facts.batch(batch)) for _ in range(_GROWN_BATCHES)]
    bench.recorder.record(
        f"{work.name}, into an index, load / S", rows / load_s / sorted_per_s, "ratio", rows=rows
    )
    bench.recorder.record(
        f"{work.name}, into an index, update p50", 1e3 * statistics.median(mine), "ms",
        rows=rows, batch_rows=batch,
    )  # fmt: skip


def _grown(work: Work, rows: int, batch: int) -> tuple[float, float]:
    """The median seconds of an update, and state rows touched by a row of it."""
    with Worker() as worker:
        room = _GROWN_BATCHES * batch
        course = Course(work, worker, rows, room, np.random.default_rng(SEED), index=False)
        course.load()
        before = course.view.touched
        mine = [course.update(course.facts.batch(batch)) for _ in range(_GROWN_BATCHES)]
        return statistics.median(mine), (course.view.touched - before) / (_GROWN_BATCHES * batch)


Shares = dict[str, float]


def _shares(view: View, before: Shares | None = None) -> Shares:
    """Seconds of each node by itself, since `before`."""
    return {name: spent - (before or {}).get(name, 0.0) for name, spent in view.costs()}


def _told(shares: Shares) -> Shares:
    """The three greatest."""
    most = sorted(shares.items(), key=lambda each: -each[1])[:3]
    return {name: round(spent, 4) for name, spent in most}


def sums(bench: Bench) -> None:
    """count(*) and sum by key: load, then batches of updates."""
    measure(bench, SUMS)


def join(bench: Bench) -> None:
    """Rows with the name of their key: load, then small batches."""
    measure(bench, JOIN)


def distinct(bench: Bench) -> None:
    """Each (k, v) once: load, then batches."""
    measure(bench, DISTINCT)


def top(bench: Bench) -> None:
    """The 10 greatest of each of many groups: load, then batches."""
    measure(bench, TOP)


def top_large(bench: Bench) -> None:
    """The 10 greatest of each of 1,000 large groups: batches."""
    measure(bench, TOP_LARGE)
