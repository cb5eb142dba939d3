"""What a round costs beside its rows: many times in one, a small tick through several operators, a recursion.

Many times: the same rows hydrate a view, all at one time or at 1,000 random ones, in turn; the bar is for
views that give about as many rows either way. Where each group changes at each time, the output itself is
many times larger, and the figure is told without a bar. The times are drawn from a seed of their own: with
that of the rows they would hang together with the keys.
"""

from __future__ import annotations

import dataclasses
import gc
from typing import Any

import numpy as np

from bench.arrangements.common import require
from bench.dataflows import reachability
from bench.dataflows.common import SEED, Bench, consolidated, gathered
from bench.dataflows.maintained import DISTINCT, JOIN, SUMS, Course, Work
from bench.dataflows.worker import Changes, Ints, Shard, Worker
from bench.harness import percentiles
from shm_arrangements.read import scan_at
from shm_arrangements.updates import Updates

TIMES = 1000
_FEW_KEYS = dataclasses.replace(SUMS, name="count and sum, 100 groups", rows_a_key=10_000)
_SEED_OF_TIMES = SEED + 1000
_BAR_TIMES = 1.5
_BAR_TICK_MS = 1.5
_BAR_INITIAL_S = 2.0
_BAR_EDGE_MS = 2.0
_TICK_ROWS = 10
_TICKS = 300
_WARM_TICKS = 20


def times(bench: Bench) -> None:
    """1,000 distinct times in one hydration, against one."""
    rows = bench.sizes.rows
    for work, bar in ((DISTINCT, _BAR_TIMES), (JOIN, _BAR_TIMES), (_FEW_KEYS, None), (SUMS, None)):
        at = np.random.default_rng(_SEED_OF_TIMES).integers(0, TIMES, rows).astype(np.uint64)
        _check_times(work, rows, at)
        ratios, outputs = [], [0, 0]
        for _ in range(bench.sizes.runs):
            seconds = []
            for number, spread_over in enumerate((None, at)):
                with Worker() as worker:
                    course = Course(work, worker, rows, 0, np.random.default_rng(SEED), index=False)
                    gc.collect()
                    seconds.append(course.load(times=spread_over, steps=TIMES))
                    assert course.view.probe is not None
                    outputs[number] = course.view.probe.rows
            ratios.append(seconds[1] / seconds[0])
        bench.median(
            f"{work.name}, {TIMES:,} times / one time", ratios, "ratio", bar=bar, rows=rows,
            rows_out_of_one_time=outputs[0], rows_out=outputs[1],
        )  # fmt: skip


def _check_times(work: Work, rows: int, at: np.ndarray) -> None:
    """At the end it is what one time gives; half way it is what the rows until then give."""
    with Worker() as worker:
        course = Course(work, worker, rows, 0, np.random.default_rng(SEED), index=False)
        assert course.view.probe is not None
        kept: list[Updates] = []
        course.view.probe.kept = kept
        course.load(times=at, steps=TIMES)
    live = course.facts.live
    for until in (TIMES // 2, TIMES - 1):
        found = gathered([block.filter(block.times <= until) for block in kept])
        wanted = work.answer(tuple(column[at <= until] for column in live))
        same = zip((*found[0], found[1]), (*wanted[0], wanted[1]), strict=True)
        require(all(np.array_equal(a, b) for a, b in same), f"{work.name} at time {until}")


_PIPELINE = """
import source=u1 shard=facts upper=1
import source=u2 shard=names upper=1
build id=u9
  TopK group_by=[#1] order_by=[#2 desc] limit=1000
    Reduce group_by=[#0, #2] aggregates=[sum(#1)]
      Distinct project=[#0, #1, #3]
        Join on=(#0 = #2)
          Project (#0, #2)
            Map (#1 * 2)
              Filter #1 >= 10
                Get u1
          Get u2
export kind=index index=u10 on=u9 key=[0]
"""


def tick(bench: Bench) -> None:
    """10 rows through filter and map, join, distinct, reduce and top-k, into an index."""
    rows, keys = bench.sizes.rows // 10, max(bench.sizes.rows // 100, 10)
    rng = np.random.default_rng(SEED)
    k, v = rng.integers(0, keys, rows), rng.integers(0, 1000, rows)
    group = np.arange(keys) % max(keys // 100, 1)
    with Worker() as worker:
        shards = {"facts": Shard(("k", "v")), "names": Shard(("k", "g"))}
        view = worker.add(_PIPELINE, shards, index=True)
        shards["facts"].append(((k, v), np.ones(rows, np.int64)))
        shards["names"].append(((np.arange(keys), group), np.ones(keys, np.int64)))
        worker.run()
        before, taken = dict(view.costs()), []
        for number in range(_WARM_TICKS + _TICKS):
            if number == _WARM_TICKS:
                before, touched = dict(view.costs()), view.touched
            changes, (k, v) = _ten(k, v, keys, rng)
            shards["names"].advance()
            shards["facts"].append(changes)
            taken.append(worker.run())
        taken = taken[_WARM_TICKS:]
        touched = view.touched - touched
        costs = {name: round(1e3 * (s - before[name]) / _TICKS, 4) for name, s in view.costs()[:4]}
        _check_pipeline(view.index_writer, _WARM_TICKS + _TICKS, k, v, group)
    found = percentiles(taken)
    more: dict[str, Any] = {"rows": rows, "tick_rows": _TICK_ROWS, **found}
    bench.recorder.record(
        f"tick of {_TICK_ROWS} rows through five operators, p50", found["p50_us"] / 1e3, "ms",
        bar=_BAR_TICK_MS, touched_a_tick=round(touched / _TICKS, 1), mean_costs_ms=costs, **more,
    )  # fmt: skip


def _ten(k: Ints, v: Ints, keys: int, rng: np.random.Generator) -> tuple[Changes, tuple[Ints, Ints]]:
    """Two rows less, eight more; and the rows that are there then."""
    gone = rng.choice(len(k), 2, replace=False)
    new = rng.integers(0, keys, _TICK_ROWS - 2), rng.integers(0, 1000, _TICK_ROWS - 2)
    diffs = np.repeat(np.array([-1, 1], np.int64), (2, _TICK_ROWS - 2))
    columns = tuple(np.concatenate((old[gone], more)) for old, more in zip((k, v), new, strict=True))
    left = tuple(np.concatenate((np.delete(old, gone), more)) for old, more in zip((k, v), new, strict=True))
    return (columns, diffs), (left[0], left[1])


def _check_pipeline(index: Any, at: int, k: Ints, v: Ints, group: Ints) -> None:
    (k, v), _ = consolidated((k, v), np.ones(len(k), np.int64))
    kept = v >= 10
    sums = np.bincount(k[kept], weights=2 * v[kept], minlength=len(group)).astype(np.int64)
    there = np.flatnonzero(np.bincount(k[kept], minlength=len(group)))
    columns, counts = scan_at(index.oks.reader().batches(), at, schema=index.oks.schema)
    order = np.argsort(columns[0].values)
    found = columns[2].plain().values[order]
    require(bool((counts == 1).all()), "each key once")
    require(np.array_equal(columns[0].values[order], there), "the keys that have rows")
    require(np.array_equal(found[:, 0].view(np.int64), sums[there]), "the sums of keys")


def recursion(bench: Bench) -> None:
    """Nodes reached from a root: at first, and when one edge changes."""
    rows, larger = bench.sizes.rows, bench.sizes.larger
    ticks = max(bench.sizes.batches, 20)
    found = [reachability.run(rows, 2 * rows, ticks=ticks) for _ in range(bench.sizes.runs)]
    more = {name: round(value, 3) for name, value in found[-1].items()}
    initial = [run["initial_s"] for run in found]
    one = [run["tick_p50_ms"] for run in found]
    bench.median("reachability, initial", initial, "s", bar=_BAR_INITIAL_S, **more)
    bench.median("reachability, one edge, p50", one, "ms", bar=_BAR_EDGE_MS, **more)
    few = max(rows // larger, 100)
    for what, grown, before in (
        ("state", found[-1], reachability.run(few, 2 * few, ticks=ticks)),
        ("change", reachability.run(rows, 2 * rows, ticks=ticks, changed=larger), found[-1]),
    ):
        # The mean: what an edge changes differs by far from edge to edge.
        bench.recorder.record(
            f"reachability, cost of a change at {larger} x the {what}",
            grown["tick_mean_ms"] / before["tick_mean_ms"], "ratio", nodes=grown["nodes"],
            changed=grown["changed"], mean_ms=round(grown["tick_mean_ms"], 3),
            touched_a_tick=grown["touched_per_tick"], touched_a_tick_before=before["touched_per_tick"],
        )  # fmt: skip
