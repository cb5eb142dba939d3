"""What a subscription tells adds up to the collection at every time, however the input was cut."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np
import pytest

from clusterd.dataflow.operator import Delta, Round
from clusterd.operators.export_subscribe import ExportSubscribe, Told
from shm_arrangements.columns import Column
from shm_arrangements.frontier import Frontier
from shm_arrangements.types import ColumnSpec, ColumnType
from shm_arrangements.updates import Updates
from shm_arrangements.writer import ERRS_SCHEMA

COLUMNS = (ColumnSpec("k", ColumnType.INT64, True), ColumnSpec("v", ColumnType.FLOAT64, False))
TIMES = 12
ROWS: list[tuple[Any, ...]] = [(1, 0.5), (None, float("nan")), (2, 0.0), (None, 0.5)]
TEXTS = ["eval-error: division by zero", "invalid-data: too often"]
Change = tuple[tuple[Any, ...], int, int]


def updates(types: Any, changes: list[Change]) -> Updates:
    return Updates.from_rows(types, changes) if changes else Updates.empty(types)


def rows_of(told: Told) -> list[Change]:
    return [row for part in told.parts for row in part.to_rows()]


def tell(
    oks: list[Change], errs: list[Change], cuts: list[int | None], as_of: int, *, snapshot: bool = True
) -> list[Told]:
    """Run rounds up to each of `cuts` (None: the end)."""
    types = tuple(spec.type for spec in COLUMNS)
    subscription = ExportSubscribe(COLUMNS, snapshot=snapshot)
    told: list[Told] = []
    lower = 0
    for cut in cuts:
        upper = Frontier.empty() if cut is None else Frontier.at(cut)
        round = Round(lower, upper, as_of)
        subscription.start(round)
        parts = [
            round.cut(updates(kinds, changes))
            for kinds, changes in ((types, oks), ([ERRS_SCHEMA.columns[0].type], errs))
        ]
        half = len(parts[0]) // 2
        for piece in (parts[0].slice(0, half), parts[0].slice(half, len(parts[0]))):
            list(subscription.push(0, Delta.of(piece)))
        list(subscription.push(0, Delta(Updates.empty(types), parts[1])))
        list(subscription.finish())
        told += subscription.take()
        lower = 0 if cut is None else cut
    assert not subscription.take()
    return told


def count(changes: list[Change], time: int, after: int = -1) -> Counter[str]:
    found: Counter[str] = Counter()
    for row, at, diff in changes:
        if after < at <= time:
            found[repr(row)] += diff
    return Counter({row: diff for row, diff in found.items() if diff})


@pytest.mark.parametrize("seed", range(60))
def test_what_is_told_adds_up_at_every_time(seed: int) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    oks = [(rng.choice(ROWS), rng.randrange(TIMES), rng.choice([1, 1, 2, -1])) for _ in range(40)]
    errs: list[Change] = []
    for _ in range(rng.choice([0, 1, 3])):
        text, start = rng.choice(TEXTS), rng.randrange(TIMES)
        errs.append(((text,), start, 1))
        if rng.random() < 0.8:
            errs.append(((text,), rng.randint(start, TIMES - 1), -1))
    as_of, snapshot = rng.randrange(3), rng.random() < 0.7
    cuts = sorted(rng.sample(range(as_of + 1, TIMES + 1), rng.randint(1, 5)))
    told = tell(oks, errs, [*cuts, None], as_of, snapshot=snapshot)
    assert [each.lower for each in told] == [0, *(each.upper.time for each in told[:-1])], "they tile"
    assert told[-1].upper == Frontier.empty()
    seen: Counter[str] = Counter()
    for each in told:
        limit = TIMES if each.upper.is_empty else each.upper.time
        assert limit > each.lower or each.lower >= TIMES
        for row, time, diff in rows_of(each):
            assert not each.error
            assert max(each.lower, as_of) <= time < limit
            assert diff
            seen[repr(row)] += diff
        for time in range(max(each.lower, as_of), limit):
            there = [text for text in TEXTS if count(errs, time)[repr((text,))] > 0]
            assert each.error == min(there, default=""), f"at {time}"
        if not each.error and limit > as_of:
            wanted = count(oks, limit - 1, -1 if snapshot else as_of)
            assert Counter({row: n for row, n in seen.items() if n}) == wanted, f"before {limit}"


def test_within_a_batch_updates_come_by_time_and_once() -> None:
    changes = [((1, 0.5), 3, 1), ((1, 0.5), 1, 1), ((1, 0.5), 3, 1), ((2, 0.0), 2, 1), ((2, 0.0), 2, -1)]
    (told,) = tell(changes, [], [5], 0)
    assert rows_of(told) == [((1, 0.5), 1, 1), ((1, 0.5), 3, 2)]


def test_a_multiplicity_beyond_64_bits_is_told_as_an_error_and_heals() -> None:
    most = (1 << 63) - 1
    changes = [((1, 0.5), 1, most), ((1, 0.5), 1, most), ((1, 0.5), 2, -most), ((2, 0.0), 2, 1)]
    first, second = tell(changes, [], [2, 4], 0)
    assert first.error.startswith("multiplicity-overflow: ")
    assert not second.error
    assert sorted(rows_of(second)) == [((1, 0.5), 2, most), ((2, 0.0), 2, 1)]


def test_a_million_updates_are_told_in_pieces_of_work() -> None:
    rng = np.random.default_rng(5)
    subscription = ExportSubscribe((ColumnSpec("k", ColumnType.INT64, False),))
    subscription.start(Round(0, Frontier.at(10), 0))
    n, total = 50_000, 0
    for _ in range(4):
        keys = Column(ColumnType.INT64, rng.integers(0, 1 << 40, n))
        times = rng.integers(0, 10, n).astype(np.uint64)
        list(subscription.push(0, Delta.of(Updates((keys,), times, np.ones(n, np.int64)))))
        total += n
    assert subscription.statistics().state_rows == total
    pieces = list(subscription.finish())
    assert len(pieces) > 4
    (told,) = subscription.take()
    assert sum(int(part.diffs.sum()) for part in told.parts) == total


def test_a_snapshot_is_told_as_it_comes_and_many_times_in_order() -> None:
    """What is there at one time is not put together: that would be one piece of work, however long."""
    n = 100_000
    for spread in (1, 10):
        subscription = ExportSubscribe((ColumnSpec("k", ColumnType.INT64, False),))
        subscription.start(Round(0, Frontier.at(10), 0))
        keys = Column(ColumnType.INT64, np.arange(n))
        times = (np.arange(n) % spread).astype(np.uint64)
        list(subscription.push(0, Delta.of(Updates((keys,), times, np.ones(n, np.int64)))))
        list(subscription.finish())
        (told,) = subscription.take()
        assert (len(told.parts) > 1) == (spread == 1)
        assert sorted(row[0] for row, _, _ in rows_of(told)) == list(range(n))
        found = [time for _, time, _ in rows_of(told)]
        assert found == sorted(found)


def test_errors_that_come_and_go_at_many_times_are_told_in_pieces_of_work() -> None:
    changes: list[Change] = [((TEXTS[0],), time, 1 - time % 2 * 2) for time in range(2_000)]
    subscription = ExportSubscribe(COLUMNS)
    subscription.start(Round(0, Frontier.at(2_000), 0))
    errs = updates([ERRS_SCHEMA.columns[0].type], changes)
    list(subscription.push(0, Delta(Updates.empty(tuple(spec.type for spec in COLUMNS)), errs)))
    assert len(list(subscription.finish())) > 5
    assert [bool(told.error) for told in subscription.take()] == [True, False] * 1_000
