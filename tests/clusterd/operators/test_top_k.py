"""TopK against recomputation at every time, its window by multiplicity, and its cost."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cmp_to_key, partial
from typing import Any

import numpy as np
import pytest

from clusterd.dataflow.operator import BLOCK_ROWS, Columns, Delta, Round
from clusterd.operators.ordered import OrderColumn
from clusterd.operators.top_k import TopKOperator
from controller_proto.expr import Call, ColumnRef, Expr, Literal
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


Bound = Callable[[Row], int | str | None]  # a number, NULL, or the error, of the group a row is in


def top_k_naively(
    rows: Counter[Row],
    group: Sequence[int],
    order: Sequence[OrderColumn],
    limit: int | Bound | None,
    offset: int | Bound,
) -> tuple[Counter[Row], Counter[str]]:
    """The rows, and the errors of groups whose bounds fail."""
    errs: Counter[str] = Counter()
    out: Counter[Row] = Counter()
    groups: dict[Row, list[Row]] = {}
    for row, count in rows.items():
        groups.setdefault(tuple(row[k] for k in group), []).extend([row] * max(count, 0))
    for mine in groups.values():
        arity = len(mine[0]) if mine else 0
        full = [*order, *(OrderColumn(k) for k in range(arity))]
        mine.sort(key=cmp_to_key(partial(compare, order=full)))
        bounds = [b(mine[0]) if callable(b) else b for b in (limit, offset) if mine]
        wrong = [b for b in bounds if isinstance(b, str)]
        errs.update(wrong[:1])
        if mine and not wrong:
            most, skipped = (b for b in bounds if not isinstance(b, str))
            skipped = skipped or 0
            out.update(mine[skipped : None if most is None else skipped + most])
    return out, errs


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


def check(
    seed: int,
    *,
    valid: bool = True,
    limit: int | Bound | None,
    offset: int | Bound = 0,
    exprs: tuple[Expr | None, Expr | int] | None = None,
    grows: bool = False,
) -> None:
    """exprs: limit and offset as expressions; of the first column, which then is of the group."""
    rng = random.Random(seed)
    times = rng.choice([3, 10, 40])
    as_of = rng.choice([0, 2])
    group = rng.choice([(), (0,), (4,), (1, 4)] if exprs is None else [(0,), (0, 4), (1, 0), (0, 0)])
    order = ORDERS[seed % len(ORDERS)]
    past = history(rng, [TYPES], 80, times, valid=valid)
    if grows:
        past = [each for each in past if each[3] > 0]
    bounds = exprs if exprs is not None else (limit, offset)
    operator = TopKOperator(TYPES, group, order, *bounds, monotonic=grows)  # type: ignore[arg-type]
    oks, errs = run(operator, [TYPES], past, random_uppers(rng, times, as_of), as_of=as_of, rng=rng)
    flat = [(row, time, diff) for _, row, time, diff in past]
    for time in range(as_of, times + 1):
        rows = accumulate(flat, time)
        wanted, wrong = top_k_naively(rows, group, order, limit, offset)
        assert accumulate(oks, time) == wanted, f"seed {seed} time {time}"
        wrong.update(
            f"invalid-data: top-k: row {show(r)} has multiplicity {n}" for r, n in rows.items() if n < 0
        )
        assert accumulate(errs, time) == wrong, f"seed {seed} time {time}"
    assert len({(str(row), time) for row, time, _ in oks}) == len(oks), "a time's changes are net"
    if not grows:
        assert operator.statistics().state_rows == len(accumulate(flat, times))
    elif isinstance(limit, int) and isinstance(offset, int):
        groups = len({tuple(row[k] for k in group) for row, _, _ in flat})
        assert operator.statistics().state_rows <= groups * (limit + offset)


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
@pytest.mark.parametrize(
    ("limit", "offset"), [(1, 0), (2, 0), (3, 2), (0, 1), (0, 0), (None, 1), (40, 7), ((1 << 63) - 1, 2)]
)
def test_of_an_input_that_grows_the_answer_is_the_same(limit: int | None, offset: int) -> None:
    for seed in range(10):
        check(seed, limit=limit, offset=offset, grows=True)


ONE, FIRST = Literal(I64, 1), ColumnRef(0)


def first_plus_one(row: Row) -> int | str | None:
    if row[0] is None:
        return None
    if row[0] == (1 << 63) - 1:
        return "eval-error: bigint out of range"
    return "eval-error: limit must not be negative" if row[0] < -1 else row[0] + 1


def one_by_first(row: Row) -> int | str | None:
    if row[0] is None:
        return None
    if row[0] == 0:
        return "eval-error: division by zero"
    found = int(2 / row[0])
    return "eval-error: offset must not be negative" if found < 0 else found


@pytest.mark.slow
@pytest.mark.parametrize("grows", [False, True])
@pytest.mark.parametrize("valid", [True, False])
def test_bounds_by_expression_are_of_the_group(valid: bool, grows: bool) -> None:
    plus, two_by = Call("+", (FIRST, ONE)), Call("/", (Literal(I64, 2), FIRST))
    for seed in range(12):
        check(seed, valid=valid, limit=first_plus_one, exprs=(plus, 0), grows=grows)
        check(seed, valid=valid, limit=2, offset=one_by_first, exprs=(Literal(I64, 2), two_by), grows=grows)
        check(
            seed, valid=valid, limit=first_plus_one, offset=one_by_first, exprs=(plus, two_by), grows=grows
        )  # fmt: skip


@pytest.mark.slow
def test_colliding_hashes_never_join_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RowImage, "hash", lambda self, columns=None: np.zeros(len(self), np.uint64))
    for seed in range(3):
        check(seed, valid=True, limit=3, offset=1)


def test_an_error_of_a_limit_stays_as_long_as_its_group_has_rows() -> None:
    types = columns(I64, I64)
    operator = TopKOperator(types, (0,), (OrderColumn(1),), Call("/", (Literal(I64, 4), FIRST)))
    ticks = [((0, 5), 1), ((2, 5), 1), ((0, 6), 1), ((0, 5), -1), ((-1, 1), 2), ((0, 6), -1), ((-1, 1), -2)]
    changes = [(0, row, t, diff) for t, (row, diff) in enumerate(ticks)]
    oks, errs = run(operator, [types], changes, [t + 1 for t in range(len(ticks))])
    assert oks == [((2, 5), 1, 1)]
    assert errs == [
        ("eval-error: division by zero", 0, 1),
        ("eval-error: limit must not be negative", 4, 1),
        ("eval-error: division by zero", 5, -1),
        ("eval-error: limit must not be negative", 6, -1),
    ]


def test_limits_of_any_integer_type_and_beyond_all_rows() -> None:
    most = {I64: (1 << 63) - 1, ColumnType.UINT64: (1 << 64) - 1, ColumnType.INT16: 32767}
    for type_, number in most.items():
        types = (ColumnSpec("n", type_, True), ColumnSpec("v", I64, False))
        operator = TopKOperator(types, (0,), (OrderColumn(1),), FIRST)
        rows: list[tuple[Row, int]] = [((n, v), 1) for n in (number, 1, 0, None) for v in (7, 8)]
        assert at_times(types, operator, rows) == [
            sorted([(number, 7), (number, 8), (1, 7), (None, 7), (None, 8)], key=str)
        ]


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


def test_an_input_that_does_not_grow_after_all_gives_an_error_that_stays() -> None:
    types = columns(I64, I64)
    operator = TopKOperator(types, (0,), (OrderColumn(1),), 1, monotonic=True)
    changes = [
        (0, (1, 5), 0, 2),
        (0, (1, 4), 1, 1),
        (0, (1, 5), 2, -1),
        (0, (1, 4), 3, -1),
        (0, (1, 3), 4, 1),
    ]
    oks, errs = run(operator, [types], changes, [1, 2, 3, 4, 5])
    assert [accumulate(oks, t) for t in range(5)] == [Counter([(1, v)]) for v in (5, 4, 4, 4, 3)]
    assert errs == [
        (f"invalid-data: top-k: row (1, {v}) has multiplicity -1", t, 1) for v, t in ((5, 2), (4, 3))
    ]


def changed(
    operator: TopKOperator, time: int, keys: Any, values: Any, diffs: Any, types: Columns | None = None
) -> int:
    """One round of (key, value) rows; how many updates came out."""
    n = len(values)
    pairs = zip(types or PAIR, (keys, values), strict=True)
    made = [
        c if isinstance(c, Column) else Column(I64, np.broadcast_to(np.asarray(c, np.int64), n).copy())
        for _, c in pairs
    ]
    updates = Updates(tuple(made), np.full(n, time, np.uint64), np.asarray(diffs, np.int64))
    operator.start(Round(time, Frontier.at(time + 1), 0))
    for lo in range(0, n, BLOCK_ROWS):
        list(operator.push(0, Delta.of(updates.slice(lo, min(lo + BLOCK_ROWS, n)))))
    return sum(len(d) for d in operator.finish())


PAIR = columns(I64, I64, nullable=False)


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["ascending", "descending", "equal", "shuffled", "text"])
def test_a_large_group_costs_the_logarithm_a_change_in_whatever_order_rows_come(shape: str) -> None:
    """Rows one after the other, in rounds of their own; then the extreme one is taken 1000 times."""
    n, step = 60_000, 2000
    rng = np.random.default_rng(3)
    values = np.arange(n)
    if shape == "descending":
        values = values[::-1].copy()
    elif shape in ("shuffled", "text"):
        values = rng.permutation(n)
    types = columns(I64, TEXT if shape == "text" else I64, nullable=False)
    # Of equal keys the whole row decides.
    order = OrderColumn(0 if shape == "equal" else 1)
    operator = TopKOperator(types, (), (order,), 10)

    def column(chosen: Any) -> Any:
        texts = [f"a prefix, then {v:06d}" for v in chosen]
        return Column.from_pylist(TEXT, texts) if shape == "text" else chosen

    for time, lo in enumerate(range(0, n, step)):
        some = values[lo : lo + step]
        changed(operator, time, np.zeros(step), column(some), np.ones(step), types)
    loaded = operator.statistics().touched_rows
    assert loaded < n * 60, "some 2 log2 n, and the window"
    for k in range(1000):
        gone = np.array([k])
        assert changed(operator, 100 + k, np.zeros(1), column(gone), [-1], types) == 2
    assert operator.statistics().touched_rows - loaded < 1000 * 120
    assert operator.statistics().state_rows == n - 1000


@pytest.mark.slow
def test_a_window_of_a_million_rows_is_written_once_and_then_changes_by_its_edge() -> None:
    n = 1_000_000
    operator = TopKOperator(PAIR, (0,), (OrderColumn(1),), n - 10)
    values = np.random.default_rng(4).permutation(n)
    assert changed(operator, 0, np.zeros(n), values, np.ones(n)) == n - 10
    loaded = operator.statistics().touched_rows
    assert loaded < 60 * n, "some 2 log2 n a row, and its way out"
    for time in range(1, 101):
        assert changed(operator, time, [0, 0], [time, n + time], [-1, 1]) == 2
    assert operator.statistics().touched_rows - loaded < 100 * 300


@pytest.mark.slow
def test_of_an_input_that_grows_the_rows_of_windows_are_kept_and_no_more() -> None:
    groups, n = 50, 100_000
    rng = np.random.default_rng(5)
    kept, all_kept = (
        TopKOperator(PAIR, (0,), (OrderColumn(1),), 3, 1, monotonic=grows) for grows in (True, False)
    )
    for time in range(5):
        keys, values = rng.integers(0, groups, n), rng.integers(0, 1 << 40, n)
        assert changed(kept, time, keys, values, np.ones(n)) == changed(
            all_kept, time, keys, values, np.ones(n)
        )
        assert kept.statistics().state_rows <= groups * 4
    before = kept.statistics()
    assert before.state_bytes < all_kept.statistics().state_bytes / 20
    assert changed(kept, 9, [7], [1 << 50], [1]) == 0
    assert kept.statistics().touched_rows - before.touched_rows < 20


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
