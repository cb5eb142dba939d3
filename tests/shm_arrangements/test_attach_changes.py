"""Changes through an attachment are differences of states, whatever the writer did; a reader killed in the
midst of any call holds nothing."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from shm_arrangements.arena import SegmentAllocator
from shm_arrangements.attach import Attached, attach, snapshot
from shm_arrangements.errors import DataError, NotReadable, NotSealed, WaitTimeout
from shm_arrangements.frontier import Frontier
from shm_arrangements.index_writer import IndexWriter
from shm_arrangements.instance import Instance
from shm_arrangements.names import collection_id
from shm_arrangements.schema import ArrangementSchema
from shm_arrangements.types import ColumnSpec, ColumnType
from shm_arrangements.updates import Updates
from tests.shm_arrangements.killed_reader import killed_in

I64, TEXT = ColumnType.INT64, ColumnType.TEXT
COLUMNS = (ColumnSpec("k", I64, False), ColumnSpec("v", TEXT, True))
NO_ERRS = Updates.empty((TEXT,))
Rows = list[tuple[tuple[Any, ...], int, int]]


@pytest.fixture
def held() -> Iterator[Instance]:
    with Instance.create() as made:
        yield made


class History:
    """What was inserted, as a list of updates: the state at each time is their sum."""

    def __init__(self, rng: random.Random, index: IndexWriter) -> None:
        self.rows: Rows = []
        self.errors: Rows = []
        self._rng = rng
        self._index = index
        self._writer_time = 0.0

    def state(self, at: int, of: Rows) -> Counter[tuple[Any, ...]]:
        found: Counter[tuple[Any, ...]] = Counter()
        for row, time, diff in of:
            if time <= at:
                found[row] += diff
        return _nonzero(found)

    def step(self) -> None:
        """Several times at once, retractions, errors that come and go, merges, compaction, time alone."""
        rng, index = self._rng, self._index
        first = index.upper.time
        upper = first + rng.randint(1, 4)
        rows: Rows = []
        for _ in range(rng.choice([0, 1, 7, 40])):
            rows.append(((rng.randint(0, 9), rng.choice([None, "a", "bb"])), rng.randrange(first, upper), 1))
        there = [*self.state(first - 1, self.rows).items()] if first else []
        for row, count in rng.sample(there, min(len(there), rng.randint(0, 5))):
            rows.append((row, rng.randrange(first, upper), -rng.randint(1, count)))
        errors: Rows = []
        standing = self.state(first - 1, self.errors) if first else Counter()
        if standing and rng.random() < 0.7:
            errors = [(row, rng.randrange(first, upper), -count) for row, count in standing.items()]
        elif rng.random() < 0.15:
            errors = [((f"eval-error: of {first}",), rng.randrange(first, upper), 1)]
        index.insert(
            Updates.from_rows((I64, TEXT), rows), Updates.from_rows((TEXT,), errors), Frontier.at(upper)
        )
        self.rows += rows
        self.errors += errors
        if rng.random() < 0.3:
            index.advance(Frontier.at(upper + 1))
        if rng.random() < 0.3:
            index.set_compaction(Frontier.at(max(0, index.upper.time - rng.randint(1, 12))))
        if rng.random() < 0.4:
            index.exert(rng.choice([1, 100, 1 << 16]))
        self._writer_time += 1.0
        index.reclaim(self._writer_time)


def _nonzero(counts: Counter[tuple[Any, ...]]) -> Counter[tuple[Any, ...]]:
    return Counter({row: count for row, count in counts.items() if count})


def _sum(rows: Rows, upto: int) -> Counter[tuple[Any, ...]]:
    found: Counter[tuple[Any, ...]] = Counter()
    for row, time, diff in rows:
        if time <= upto:
            found[row] += diff
    return found


def _check(read: Attached, history: History, rng: random.Random) -> None:
    since, upper = read.since.time, read.upper.time
    if since:
        with pytest.raises(NotReadable) as early:
            read.changes(since - 1)
        assert early.value.facts["since"] == Frontier.at(since)
    if since >= upper:
        return
    for late in (lambda: read.changes(since, upper), lambda: read.snapshot(upper)):
        with pytest.raises(NotSealed):
            late()
    for _ in range(4):
        t1, t2 = sorted(rng.randrange(since, upper) for _ in range(2))
        changes = read.changes(t1, t2)
        rows = changes.rows()
        assert all(t1 < time <= t2 for _, time, _ in rows)
        assert len({(row, time) for row, time, _ in rows}) == len(rows)
        assert all(diff for _, _, diff in rows)
        errors: Rows = [((message,), time, diff) for message, time, diff in changes.errors]
        for t in range(t1, t2 + 1):  # each time between as well
            before = history.state(t1, history.rows)
            before.update(_sum(rows, t))
            assert _nonzero(before) == history.state(t, history.rows), (t1, t, t2)
            failing = history.state(t1, history.errors)
            failing.update(_sum(errors, t))
            assert _nonzero(failing) == history.state(t, history.errors), (t1, t, t2)
        standing = history.state(t2, history.errors)
        if standing:
            with pytest.raises(DataError) as told:
                read.scan(t2)
            assert (told.value.message,) in standing
        else:
            assert Counter(read.scan(t2).rows()) == history.state(t2, history.rows)
        table = changes.to_arrow().to_pydict()
        assert sorted(zip(table["time"], table["diff"], strict=True)) == sorted((t, d) for _, t, d in rows)


@pytest.mark.slow
@pytest.mark.parametrize("ordered", [False, True])
def test_changes_are_the_difference_of_states_whatever_was_merged_and_compacted(
    held: Instance, ordered: bool
) -> None:
    for seed in range(6):
        print(f"seed {seed}")
        rng = random.Random(seed)
        schema = ArrangementSchema(COLUMNS, (0,), ordered=ordered)
        allocator = SegmentAllocator(held.token, 10 + seed)
        index = IndexWriter(allocator, collection_id(f"u{seed}"), 1, schema, 0)
        history = History(rng, index)
        history.step()
        with attach(f"u{seed}", held.token) as read:
            kept = []  # views of before, which must not change
            for _ in range(25):
                history.step()
                _check(read, history, rng)
                if rng.random() < 0.2 and read.since.time < read.upper.time:
                    kept.append((read.snapshot(), read.since.time))
            for view, since in kept:
                found: Counter[tuple[Any, ...]] = Counter()
                for row, _, diff in view.changes(since).rows():
                    found[row] += diff
                before = history.state(since, history.rows)
                before.update(found)
                assert _nonzero(before) == history.state(view.at, history.rows)
        index.close()


# -- killed in the midst


def _wait(read: Attached) -> None:
    with pytest.raises(WaitTimeout):
        read.wait(1 << 40, timeout_s=0.001)


CALLS: dict[str, Callable[[Attached], Any]] = {
    "lookup": lambda read: read.lookup(7).rows(),
    "lookup_many": lambda read: read.lookup_many(list(range(500)))["k"],
    "scan": lambda read: read.snapshot(0).scan().rows(),
    "scan as Arrow": lambda read: read.snapshot(1).scan().to_arrow(),
    "range": lambda read: read.range(3, 300).rows(),
    "changes": lambda read: read.changes(0).rows(),
    "snapshot": lambda read: [view.scan()["k"] for view in snapshot([read, read], at=1)],
    "wait": _wait,
    "attach": lambda read: attach(read.id, read.instance).snapshot(),
}


@pytest.mark.slow
@pytest.mark.parametrize("call", list(CALLS))
def test_bug12_a_reader_killed_in_the_midst_of_any_call_holds_nothing(held: Instance, call: str) -> None:
    schema = ArrangementSchema(COLUMNS, (0,), ordered=True)
    index = IndexWriter(SegmentAllocator(held.token, 0), collection_id("u1"), 1, schema, 0)
    for t in range(2):
        rows = [((key, f"{key} at {t}"), t, 1) for key in range(4_000)]
        index.insert(Updates.from_rows((I64, TEXT), rows), NO_ERRS, Frontier.at(t + 1))
    for after in (1, 2):
        killed_in(CALLS[call], held.token, after)
    while index.exert(1 << 20):  # and the writer goes on
        pass
    index.set_compaction(Frontier.at(1))
    index.reclaim(1e3)
    index.close()
    assert not [name for name in os.listdir("/dev/shm") if f"{held.token}.b." in name]
