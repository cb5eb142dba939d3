"""Changing: batches onto a large arrangement, small ticks, idle ones together, and churn without end.

The owner's whole step is timed: insert, since following one behind, names given back. What a batch is made
of is made beforehand.
"""

from __future__ import annotations

import gc
import itertools
import statistics
import time
import tracemalloc
from collections.abc import Iterator
from typing import Any

import numpy as np

from bench.arrangements.common import (
    PAIRS,
    SEED,
    Bench,
    Words,
    loaded,
    pairs,
    random_words,
    require,
    same_pairs,
    shm_bytes,
    sort_rate,
    trace,
    words_of,
)
from bench.harness import percentiles, say, spread
from shm_arrangements import read
from shm_arrangements.arena import SegmentAllocator
from shm_arrangements.frontier import Frontier
from shm_arrangements.index_writer import IndexWriter, advance_idle
from shm_arrangements.instance import Instance
from shm_arrangements.types import ColumnType
from shm_arrangements.updates import Updates
from shm_arrangements.writer import TraceWriter

BATCHES = 100
RETRACTED = 0.2
BAR_BATCHES = 0.4
BAR_BATCH_MS = 4.0
BAR_TICK_US = 100.0
BAR_IDLE_US = 200.0
BAR_CHURN_MEMORY = 3.0
BAR_CHURN_FLAT = 0.9  # of the first tenth's throughput: what two equal spans differ by on a shared machine
TICK_ROWS = 10
IDLE = 200


def step(writer: TraceWriter, updates: Updates, t: int) -> float:
    """One step of an owner: updates of time t sealed, since to t, names reclaimed; the seconds it took."""
    start = time.perf_counter()
    writer.insert(updates, Frontier.at(t + 1))
    writer.set_compaction(Frontier.at(t))
    writer.reclaim(start)
    return time.perf_counter() - start


class _Rows:
    """Distinct rows that come and go: each batch retracts some that are there and adds others."""

    def __init__(self, n: int, rng: np.random.Generator) -> None:
        self.rng = rng
        self.keys, self.values = random_words(n, rng), random_words(n, rng)

    def batch(self, n: int, t: int) -> Updates:
        """n updates at time t, a share of RETRACTED of them retractions, in random order."""
        gone = self.rng.choice(len(self.keys), round(n * RETRACTED), replace=False, shuffle=False)
        m = n - len(gone)
        keys, values = random_words(m, self.rng), random_words(m, self.rng)
        order = self.rng.permutation(n)
        diffs = np.concatenate((np.full(len(gone), -1), np.ones(m, np.int64)))
        made = pairs(
            np.concatenate((self.keys[gone], keys))[order],
            np.concatenate((self.values[gone], values))[order],
            t, diffs[order],
        )  # fmt: skip
        self.keys[gone], self.values[gone] = keys[: len(gone)], values[: len(gone)]
        self.keys = np.concatenate((self.keys, keys[len(gone) :]))
        self.values = np.concatenate((self.values, values[len(gone) :]))
        return made

    def require_same(self, writer: TraceWriter, t: int) -> None:
        columns, counts = read.scan_at(writer.reader().batches(), t, schema=PAIRS)
        require((counts == 1).all(), "counts")
        k, v = map(words_of, columns)
        require(same_pairs(k, v, self.keys, self.values), "the rows")


def batches_onto(bench: Bench) -> None:
    """100 batches onto 1 M and onto 10 M, merges included."""
    sizes = bench.sizes
    for n in (sizes.small, sizes.rows):
        case = f"{BATCHES} batches onto {n:,}"
        taken: list[float] = []
        rates, ratios, left, chains = [], [], [], []
        for run in range(sizes.runs):
            rows = _Rows(n, np.random.default_rng(SEED + run))
            base = pairs(rows.keys.copy(), rows.values.copy(), 0)
            made = [rows.batch(sizes.batch, t) for t in range(1, BATCHES + 1)]
            sorted_per_s = sort_rate(sizes.small)
            with Instance.create() as held, trace(PAIRS, held) as writer:
                loaded(writer, base)
                del base
                writer.reclaim(time.monotonic())
                mine = [step(writer, updates, t) for t, updates in enumerate(made, 1)]
                chains.append(float(writer.statistics().batches))
                start = time.perf_counter()
                while writer.exert(1 << 20):
                    pass
                left.append((time.perf_counter() - start) * 1e3)
                if run == 0:
                    rows.require_same(writer, BATCHES)
            rates.append(BATCHES * sizes.batch / sum(mine))
            ratios.append(rates[-1] / sorted_per_s)
            taken += mine
        more: dict[str, Any] = {"rows": n, "batch_rows": sizes.batch, "retracted": RETRACTED}
        bench.median(f"{case}, rate", rates, "rows/s", **more)
        bench.median(
            f"{case}, rate / S({sizes.small:,})", ratios, "ratio", bar=BAR_BATCHES, at_most=False, **more
        )
        found = percentiles(taken)
        bench.recorder.record(
            f"{case}, p99", found["p99_us"] / 1e3, "ms", bar=BAR_BATCH_MS, runs=sizes.runs, **more, **found
        )
        bench.median(f"{case}, left to merge", left, "ms", **more)
        bench.median(f"{case}, chain at the end", chains, "batches", **more)


def ticks(bench: Bench) -> None:
    """10 rows a tick onto 1 M: the insertion by itself, and the owner's whole step."""
    n = bench.sizes.small
    count = max(min(2000, n // 20), 100)
    inserted: list[float] = []
    stepped: list[float] = []
    for run in range(bench.sizes.runs):
        rows = _Rows(n, np.random.default_rng(SEED + run))
        base = pairs(rows.keys.copy(), rows.values.copy(), 0)
        made = [rows.batch(TICK_ROWS, t) for t in range(1, count + 1)]
        with Instance.create() as held, trace(PAIRS, held) as writer:
            loaded(writer, base)
            for t, updates in enumerate(made, 1):
                start = time.perf_counter()
                writer.insert(updates, Frontier.at(t + 1))
                inserted.append(time.perf_counter() - start)
                writer.set_compaction(Frontier.at(t))
                writer.reclaim(time.perf_counter())
                stepped.append(time.perf_counter() - start)
            if run == 0:
                rows.require_same(writer, count)
    more: dict[str, Any] = {"rows": n, "tick_rows": TICK_ROWS, "runs": bench.sizes.runs}
    for case, taken, bar in (("insert", inserted, BAR_TICK_US), ("whole step", stepped, None)):
        found = percentiles(taken)
        bench.recorder.record(
            f"tick of 10 rows, {case}, p50", found["p50_us"], "us", bar=bar, **more, **found
        )
        bench.recorder.record(f"tick of 10 rows, {case}, p99", found["p99_us"], "us", **more)


def idle(bench: Bench) -> None:
    """200 indexes in which nothing happens, advanced together."""
    rounds = 50
    rng = np.random.default_rng(SEED)
    no_errors = Updates.empty((ColumnType.TEXT,))
    taken: list[float] = []
    shared: list[float] = []
    private: list[float] = []
    for _ in range(bench.sizes.runs):
        with Instance.create() as held:
            allocator = SegmentAllocator(held.token, 1)
            indexes = [IndexWriter(allocator, id, 1, PAIRS, 0) for id in range(1, IDLE + 1)]
            for index in indexes:
                rows = pairs(random_words(100, rng), random_words(100, rng), 0)
                index.insert(rows, no_errors, Frontier.at(1))
            advance_idle(indexes, Frontier.at(2))
            before = shm_bytes(held.token)
            gc.collect()
            for t in range(3, 3 + rounds):
                start = time.perf_counter()
                advance_idle(indexes, Frontier.at(t))
                taken.append(time.perf_counter() - start)
            shared.append(float(shm_bytes(held.token) - before))
            tracemalloc.start()
            advance_idle(indexes, Frontier.at(3 + rounds))
            kept, _ = tracemalloc.get_traced_memory()
            for t in range(4 + rounds, 4 + 2 * rounds):
                advance_idle(indexes, Frontier.at(t))
            private.append((tracemalloc.get_traced_memory()[0] - kept) / rounds)
            tracemalloc.stop()
            for index in indexes:
                require(index.upper == Frontier.at(3 + 2 * rounds), "the upper")
                index.close()
    found = percentiles(taken)
    more: dict[str, Any] = {"indexes": IDLE, "runs": bench.sizes.runs}
    bench.recorder.record(
        f"{IDLE} idle advanced, p50", found["p50_us"], "us", bar=BAR_IDLE_US, **more, **found
    )
    bench.median(f"{IDLE} idle advanced, shared memory", shared, "bytes", bar=0.0, indexes=IDLE)
    bench.median(f"{IDLE} idle advanced, private memory a time", private, "bytes", bar=IDLE, indexes=IDLE)


def churn(bench: Bench) -> None:
    """Updates without end of a fixed set of keys: memory stays, throughput stays."""
    n, per_tick = bench.sizes.keys, max(bench.sizes.keys // 10, 10)
    count = bench.sizes.churn // per_tick
    rng = np.random.default_rng(SEED)
    keys, values = random_words(n, rng), random_words(n, rng)
    taken = np.empty(count)
    most = 0
    with Instance.create() as held, trace(PAIRS, held) as writer:
        loaded(writer, pairs(keys, values, 0))
        live = writer.statistics().nbytes
        most_chain = 0
        for t, updates in enumerate(_churned(keys, values, rng, per_tick, count), 1):
            taken[t - 1] = step(writer, updates, t)
            most = max(most, shm_bytes(held.token))
            most_chain = max(most_chain, writer.statistics().nbytes)
            if t % (count // 10) == 0:
                say(f"churn: {t * per_tick:,} of {count * per_tick:,} updates")
        columns, counts = read.scan_at(writer.reader().batches(), count, schema=PAIRS)
        require((counts == 1).all(), "counts")
        k, v = map(words_of, columns)
        require(same_pairs(k, v, keys, values), "the rows")
    more: dict[str, Any] = {"keys": n, "updates": count * per_tick, "tick_updates": per_tick}
    tenths = [per_tick * len(part) / part.sum() for part in np.array_split(taken, 10)]
    record = bench.recorder.record
    record(
        "churn, greatest memory / live", most / live, "ratio", bar=BAR_CHURN_MEMORY, live_bytes=live, **more
    )
    record("churn, greatest chain / live", most_chain / live, "ratio", **more)
    record("churn, rate", statistics.median(tenths), "rows/s", **spread(tenths), **more)
    record(
        "churn, last tenth / first tenth", tenths[-1] / tenths[0], "ratio", bar=BAR_CHURN_FLAT, at_most=False,
        tenths_rows_per_s=[round(rate) for rate in tenths], **more,
    )  # fmt: skip


def _churned(
    keys: Words, values: Words, rng: np.random.Generator, per_tick: int, count: int
) -> Iterator[Updates]:
    """Each time, half of `per_tick` keys get another value; `values` follows."""
    order = rng.permutation(len(keys))
    half = per_tick // 2
    diffs = np.concatenate((np.full(half, -1), np.ones(per_tick - half, np.int64)))
    for t, first in zip(range(1, count + 1), itertools.count(0, half), strict=False):
        chosen = order[np.arange(first, first + half) % len(keys)]
        before = values[chosen]
        values[chosen] += np.uint64(1)
        both = np.concatenate((keys[chosen], keys[chosen]))
        yield pairs(both, np.concatenate((before, values[chosen])), t, diffs)
