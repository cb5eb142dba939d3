"""What arrangements take of memory, counted and not timed: by the names in shared memory and their blocks."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from shm_arrangements import instance as instances
from shm_arrangements.arena import SegmentAllocator
from shm_arrangements.columns import Column
from shm_arrangements.frontier import Frontier
from shm_arrangements.index_writer import IndexWriter, advance_idle
from shm_arrangements.instance import Instance
from shm_arrangements.reclaim import GRACE_S
from shm_arrangements.schema import ArrangementSchema
from shm_arrangements.spine import MAX_BATCHES
from shm_arrangements.types import ColumnSpec, ColumnType
from shm_arrangements.updates import Updates
from shm_arrangements.writer import TraceWriter

WORD = ColumnType.UINT64
SCHEMA = ArrangementSchema((ColumnSpec("k", WORD, False), ColumnSpec("v", WORD, False)), (0,))
PAGE_BYTES = 4096


@pytest.fixture
def held() -> Iterator[Instance]:
    with Instance.create() as instance:
        yield instance


class Clock:
    """Seconds that pass when told to."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def pass_grace(self, writer: TraceWriter) -> None:
        """Let every name that may go, go."""
        writer.reclaim(self.now_s)
        self.now_s += 2 * GRACE_S
        for _ in range(4):  # what is freed in one call is bounded, by a quarter of what is due at least
            if writer.reclaim(self.now_s) is None:
                return
        raise AssertionError("names are kept beyond their grace")


@contextmanager
def trace(held: Instance) -> Iterator[TraceWriter]:
    """A published trace of the instance, with nothing in it."""
    writer = TraceWriter(SegmentAllocator(held.token, 1), 1, 1, SCHEMA, 0)
    try:
        yield writer
    finally:
        writer.close()


def updates(keys: Any, values: Any, t: int, diff: int = 1) -> Updates:
    n = len(keys)
    columns = (Column(WORD, np.asarray(keys, np.uint64)), Column(WORD, np.asarray(values, np.uint64)))
    return Updates(columns, np.full(n, t, np.uint64), np.full(n, diff, np.int64))


def shm(held: Instance, kind: str = "") -> dict[str, int]:
    """Name -> bytes of memory behind it, of the instance's names of a kind (b batch, a arena)."""
    found = {}
    for name in instances.names_of(held.token):
        if not kind or name.split(".")[2] == kind:
            found[name] = os.stat(f"/dev/shm/{name}").st_blocks * 512
    return found


def test_a_dropped_trace_leaves_nothing_at_once(held: Instance) -> None:
    before = shm(held)
    writer = TraceWriter(SegmentAllocator(held.token, 1), 1, 1, SCHEMA, 0)
    for t in range(20):
        keys = np.arange(t * 10_000, t * 10_000 + (10_000 if t % 3 else 10))
        writer.insert(updates(keys, keys, t), Frontier.at(t + 1))
    assert sum(shm(held).values()) > 100_000 * 16
    writer.close()
    assert shm(held) == before


def test_merged_batches_are_given_back_after_their_grace(held: Instance) -> None:
    with trace(held) as writer:
        clock = Clock()
        n = 10_000
        for t in range(30):
            keys = np.arange(t * n, (t + 1) * n)
            writer.insert(updates(keys, keys, t), Frontier.at(t + 1))
            clock.pass_grace(writer)
            named = {b.locator.name for b in writer.reader().batches() if b.locator is not None}
            assert set(shm(held, "b")) >= named
        while writer.exert(100_000):
            pass
        clock.pass_grace(writer)
        chain = writer.reader().batches()
        assert set(shm(held, "b")) == {batch.locator.name for batch in chain if batch.locator is not None}
        shown = sum(batch.nbytes for batch in chain)
        assert sum(shm(held, "b").values()) <= shown + len(chain) * PAGE_BYTES


def test_everything_retracted_takes_nothing(held: Instance) -> None:
    with trace(held) as writer:
        clock = Clock()
        keys = np.arange(50_000)
        writer.insert(updates(keys, keys, 0), Frontier.at(1))
        writer.set_compaction(Frontier.at(1))
        writer.insert(updates(keys, keys, 1, -1), Frontier.at(2))
        while writer.exert(100_000):
            pass
        clock.pass_grace(writer)
        assert shm(held, "b") == {}
        assert writer.statistics().nbytes == 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_batches_are_few_whatever_is_inserted(held: Instance, seed: int) -> None:
    with trace(held) as writer:
        print(f"seed {seed}")
        rng = np.random.default_rng(seed)
        clock = Clock()
        total = 0
        for t in range(400):
            n = int(rng.choice([0, 1, 10, 500, 5_000], p=[0.2, 0.4, 0.2, 0.15, 0.05]))
            writer.insert(updates(np.arange(total, total + n), np.arange(n), t), Frontier.at(t + 1))
            clock.now_s += GRACE_S
            writer.reclaim(clock.now_s)
            total += n
            batches = len(writer.reader().batches())
            assert batches <= min(2 * total.bit_length() + 2, MAX_BATCHES)
            # What merging has superseded in the last two graces at most, beside what is shown.
            assert len(shm(held, "b")) <= 3 * batches + 8


@pytest.mark.slow
@pytest.mark.parametrize("per_tick", [100, 300, 1_000, 3_000, 10_000, 20_000])
def test_churn_with_since_following_takes_at_most_three_times_what_lives(
    held: Instance, per_tick: int
) -> None:
    """All of it: the chain, merges in progress, what waits for its grace, and arenas live and dead."""
    with trace(held) as writer:
        n = 100_000
        rng = np.random.default_rng(5)
        keys = rng.integers(0, 1 << 63, n).astype(np.uint64)
        values = np.arange(n, dtype=np.uint64)
        writer.insert(updates(keys, values, 0), Frontier.at(1))
        live = writer.statistics().nbytes
        memory: list[int] = []
        for t in range(1, 61 + 60_000 // per_tick):
            chosen = (np.arange(per_tick // 2) + t * per_tick // 2) % n
            gone = updates(keys[chosen], values[chosen], t, -1)
            values[chosen] += np.uint64(1)
            writer.insert(
                Updates.concat([gone, updates(keys[chosen], values[chosen], t)]), Frontier.at(t + 1)
            )
            writer.set_compaction(Frontier.at(t))
            writer.reclaim(t * GRACE_S / 10)
            memory.append(sum(shm(held).values()))
        assert max(memory) <= 3 * live, f"{max(memory) / live:.2f} times"


def test_time_passing_allocates_nothing(held: Instance) -> None:
    allocator = SegmentAllocator(held.token, 1)
    indexes = [IndexWriter(allocator, id, 1, SCHEMA, 0) for id in range(1, 51)]
    nothing = Updates.empty((ColumnType.TEXT,))
    for index in indexes:
        index.insert(updates(np.arange(10), np.arange(10), 0), nothing, Frontier.at(1))
    advance_idle(indexes, Frontier.at(2))
    before = shm(held)
    tracemalloc.start()
    try:
        advance_idle(indexes, Frontier.at(3))
        kept, _ = tracemalloc.get_traced_memory()
        for t in range(4, 54):
            advance_idle(indexes, Frontier.at(t))
        grown = tracemalloc.get_traced_memory()[0] - kept
    finally:
        tracemalloc.stop()
    assert shm(held) == before
    assert grown <= 50 * 50, "less than a byte an index and advance is left"
    assert all(index.upper == Frontier.at(53) for index in indexes)
    for index in indexes:
        index.close()
