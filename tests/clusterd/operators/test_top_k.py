"""TopK against recomputation at every time, its window by multiplicity, and its cost."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from functools import cmp_to_key, partial
from typing import Any

import numpy as np
import pytest

from clusterd.dataflow.operator import BLOCK_ROWS, Columns, Delta, Round
from clusterd.operators.ordered import OrderColumn
from clusterd.operators.top_k import TopKOperator
from shm_arrangements.columns import Column
from shm_arrangements.frontier import Frontier
from shm_arrangements.rows import RowImage
from shm_arrangements.types import ColumnSpec, ColumnType
from shm_arrangements.updates import Updates
from tests.clusterd.operators.histories import Row, accumulate, history, random_uppers, run, updates_of

I64, F64, TEXT, BOOL, NUMERIC = (
    ColumnType.INT64, ColumnType.FLOAT64, ColumnType.TEXT, ColumnType.BOOL, ColumnType.NUMERIC,
)  # fmt: skip


def columns(*types: ColumnType, nullable: bool = True) -> Columns:
    return tuple(ColumnSpec(f"c{i}", t, nullable) for i, t in enumerate(types))


def value_order(v: Any) -> tuple[int, Any]:
    return (1, 0) if v == "nan" else (0, v.encode() if isinstance(v, str) else v)


def compare(a: Row, b: Row, order: Sequence[OrderColumn]) -> int:
    for item in order:
        x, y = a[item.column], b[item.column]
        if x == y:
            continue
        if x is None or y is None:
            return (-1 if item.nulls_first else 1) * (1 if x is None else -1)
        return (-1 if value_order(x) < value_order(y) else 1) * (-1 if item.descending else 1)
    return 0


def top_k_naively(
    rows: Counter[Row], group: Sequence[int], order: Sequence[OrderColumn], limit: int | None, offset: int
) -> Counter[Row]:
    out: Counter[Row] = Counter()
    groups: dict[Row, list[Row]] = {}
    for row, count in rows.items():
        groups.setdefault(tuple(row[k] for k in group), []).extend([row] * max(count, 0))
    for mine in groups.values():
        arity = len(mine[0]) if mine else 0
        full = [*order, *(OrderColumn(k) for k in range(arity))]
        mine.sort(key=cmp_to_key(partial(compare, order=full)))
        out.update(mine[offset : None if limit is None else offset + limit])
    return out


def show(row: Row) -> str:
    return f"({', '.join('NULL' if v is None else str(v) for v in row)})"


TYPES = columns(I64, TEXT, F64, NUMERIC, BOOL)
ORDERS = [
    (),
    (OrderColumn(1),),
    (OrderColumn(1, descending=True), OrderColumn(3, nulls_first=True)),
    (OrderColumn(2, descending=True, nulls_first=True), OrderColumn(1), OrderColumn(2)),
    (OrderColumn(0), OrderColumn(4, descending=True), OrderColumn(3, descending=True)),
]


def check(seed: int, *, valid: bool, limit: int | None, offset: int) -> None:
    rng = random.Random(seed)
    times = rng.choice([3, 10, 40])
    as_of = rng.choice([0, 2])
    group = rng.choice([(), (0,), (4,), (1, 4)])
    order = ORDERS[seed % len(ORDERS)]
    past = history(rng, [TYPES], 80, times, valid=valid)
    operator = TopKOperator(TYPES, group, order, limit, offset)
    oks, errs = run(operator, [TYPES], past, random_uppers(rng, times, as_of), as_of=as_of, rng=rng)
    flat = [(row, time, diff) for _, row, time, diff in past]
    for time in range(as_of, times + 1):
        rows = accumulate(flat, time)
        assert accumulate(oks, time) == top_k_naively(rows, group, order, limit, offset), (
            f"seed {seed} time {time}"
        )
        wrong = [f"invalid-data: top-k: row {show(r)} has multiplicity {n}" for r, n in rows.items() if n < 0]
        assert accumulate(errs, time) == Counter(wrong), f"seed {seed} time {time}"
    assert len({(str(row), time) for row, time, _ in oks}) == len(oks), "a time's changes are net"
    assert operator.statistics().state_rows == len(accumulate(flat, times))


@pytest.mark.slow
@pytest.mark.parametrize("valid", [True, False])
@pytest.mark.parametrize(
    ("limit", "offset"),
    [
        (1, 0),
        (3, 0),
        (2, 2),
        (5, 1),
        (None, 0),
        (None, 3),
        (0, 1),
        (40, 7),
        ((1 << 63) - 1, 2),
        (None, (1 << 64) - 1),
        ((1 << 63) - 1, (1 << 64) - 1),
    ],
)
def test_windows_equal_recomputation_at_every_time(valid: bool, limit: int | None, offset: int) -> None:
    for seed in range(10):
        check(seed, valid=valid, limit=limit, offset=offset)


@pytest.mark.slow
def test_colliding_hashes_never_join_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RowImage, "hash", lambda self, columns=None: np.zeros(len(self), np.uint64))
    for seed in range(3):
        check(seed, valid=True, limit=3, offset=1)


def at_times(types: Columns, operator: TopKOperator, *ticks: list[tuple[Row, int]]) -> list[list[Row]]:
    changes = [(0, row, t, diff) for t, tick in enumerate(ticks) for row, diff in tick]
    oks, errs = run(operator, [types], changes, [t + 1 for t in range(len(ticks))])
    assert not errs
    return [sorted(accumulate(oks, t).elements(), key=str) for t in range(len(ticks))]


def test_c24_top_two_of_a_group() -> None:
    types = columns(I64, I64)
    got = at_times(
        types, TopKOperator(types, (0,), (OrderColumn(1),), 2),
        [((1, 5), 1), ((1, 3), 1), ((1, 8), 1)], [((1, 3), -1)], [((1, 1), 1)],
    )  # fmt: skip
    assert got == [[(1, 3), (1, 5)], [(1, 5), (1, 8)], [(1, 1), (1, 5)]]


def test_c25_offset_and_no_limit() -> None:
    types = columns(I64)
    ticks: list[list[tuple[Row, int]]] = [[((5,), 1), ((3,), 1), ((8,), 1)], [((5,), -1)], [((8,), -1)]]
    assert at_times(types, TopKOperator(types, (), (OrderColumn(0),), 1, 1), *ticks) == [[(5,)], [(8,)], []]
    got = at_times(types, TopKOperator(types, (), (OrderColumn(0),), None, 1), *ticks)
    assert got == [[(5,), (8,)], [(8,)], []]


def test_c27_where_nulls_go() -> None:
    types = columns(I64)
    rows: list[tuple[Row, int]] = [((None,), 1), ((2,), 1), ((7,), 1)]
    for order, want in (
        (OrderColumn(0, descending=True), [(2,), (7,)]),
        (OrderColumn(0, descending=True, nulls_first=True), [(7,), (None,)]),
        (OrderColumn(0), [(2,), (7,)]),
        (OrderColumn(0, nulls_first=True), [(2,), (None,)]),
    ):
        assert at_times(types, TopKOperator(types, (), (order,), 2), rows) == [want]


def test_bug39_limit_and_offset_count_copies() -> None:
    types = columns(I64)
    rows: list[tuple[Row, int]] = [((2,), 2), ((1,), 1)]
    for limit, offset, want in ((1, 1, [(2,)]), (2, 2, [(2,)]), (None, 3, []), (3, 3, []), (0, 0, [])):
        assert at_times(types, TopKOperator(types, (), (OrderColumn(0),), limit, offset), rows) == [want]
    unordered = [at_times(types, TopKOperator(types, (), (), 1, k), rows)[0] for k in range(3)]
    assert Counter(row for rows in unordered for row in rows) == Counter([(1,), (2,), (2,)])


def test_bug34_a_negative_row_is_an_error_that_heals() -> None:
    types = columns(I64, I64)
    operator = TopKOperator(types, (0,), (OrderColumn(1),), 1)
    changes = [(0, (3, 5), 1, 1), (0, (4, 1), 1, 1), (0, (3, 5), 2, -2), (0, (3, 5), 3, 1)]
    oks, errs = run(operator, [types], changes, [2, 3, 4])
    assert accumulate(errs, 2) == Counter(["invalid-data: top-k: row (3, 5) has multiplicity -1"])
    assert not accumulate(errs, 3)
    assert [accumulate(oks, t) for t in (1, 2, 3)] == [
        Counter([(3, 5), (4, 1)]),
        Counter([(4, 1)]),
        Counter([(4, 1)]),
    ]


def test_copies_beyond_the_window_are_not_an_error_but_beyond_counting_are() -> None:
    types = columns(I64)
    changes = [
        (0, (1,), 0, (1 << 63) - 1),
        (0, (1,), 1, (1 << 63) - 1),
        (0, (1,), 2, -(1 << 63)),
        (0, (1,), 2, -((1 << 63) - 3)),
    ]
    oks, errs = run(TopKOperator(types, (), (), 2), [types], changes, [1, 2, 3])
    assert [accumulate(oks, t) for t in range(3)] == [
        Counter({(1,): 2}),
        Counter({(1,): 2}),
        Counter({(1,): 1}),
    ]
    assert errs == []
    oks, errs = run(TopKOperator(types, (), (), None), [types], changes, [1, 2, 3])
    assert accumulate(oks, 2) == Counter([(1,)])
    assert list(accumulate(errs, 1)) == [
        f"multiplicity-overflow: top-k: row (1) has multiplicity {(1 << 64) - 2}"
    ]
    assert not accumulate(errs, 2)


def test_a_window_that_cannot_be_is_refused() -> None:
    for limit, offset in ((-1, 0), (None, -1)):
        with pytest.raises(ValueError, match="window"):
            TopKOperator(columns(I64), (), (), limit, offset)


@pytest.mark.slow
@pytest.mark.parametrize(("limit", "offset"), [(10, 0), (10, 5000), (None, 1)])
def test_work_follows_the_change_and_freed_rows_are_reused(limit: int | None, offset: int) -> None:
    visited = []
    types = columns(I64, TEXT, nullable=False)
    rng = np.random.default_rng(5)
    for rows in (20_000, 200_000):
        operator = TopKOperator(types, (), (OrderColumn(0),), limit, offset)
        values = rng.permutation(rows).astype(np.int64)
        operator.start(Round(0, Frontier.at(1), 0))
        for lo in range(0, rows, BLOCK_ROWS):
            v = values[lo : lo + BLOCK_ROWS]
            text = Column.constant(TEXT, "a text of some length", len(v))
            zeros, ones = np.zeros(len(v), np.uint64), np.ones(len(v), np.int64)
            list(operator.push(0, Delta.of(Updates((Column(I64, v), text), zeros, ones))))
        emitted = sum(len(d) for d in operator.finish())
        assert emitted == (rows - offset if limit is None else limit)
        before = operator.statistics()
        for t in range(1, 101):
            operator.start(Round(t, Frontier.at(t + 1), 0))
            gone, new = int(values[t]), rows + t
            change = [
                ((gone, "a text of some length"), t, -1),
                ((new, "another text, of other length"), t, 1),
            ]
            list(operator.push(0, Delta.of(updates_of(types, change))))
            assert sum(len(d) for d in operator.finish()) <= 6
        after = operator.statistics()
        visited.append(after.touched_rows - before.touched_rows)
        assert after.state_rows == before.state_rows
        assert after.state_bytes < 1.01 * before.state_bytes
    assert visited[1] < 1.6 * visited[0] < 1.6 * 100 * 300
