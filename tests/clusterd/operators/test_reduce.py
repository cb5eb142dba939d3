"""Reduce against recomputation at every time, and the cases that once broke such systems."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from clusterd.dataflow.operator import BLOCK_ROWS, Columns, Delta, Round
from clusterd.operators.aggregates import AggregateCall
from clusterd.operators.reduce import ReduceOperator
from shm_arrangements.columns import Column
from shm_arrangements.frontier import Frontier
from shm_arrangements.rows import RowImage
from shm_arrangements.types import ColumnSpec, ColumnType
from shm_arrangements.updates import Updates
from tests.clusterd.operators.histories import (
    NAN,
    Row,
    accumulate,
    history,
    key_of,
    random_uppers,
    run,
    updates_of,
)

I64, F64, TEXT, BOOL = ColumnType.INT64, ColumnType.FLOAT64, ColumnType.TEXT, ColumnType.BOOL
NUMERIC, STAMP = ColumnType.NUMERIC, ColumnType.TIMESTAMP


def columns(*types: ColumnType, nullable: bool = True) -> Columns:
    return tuple(ColumnSpec(f"c{i}", t, nullable) for i, t in enumerate(types))


def show(row: Sequence[Any]) -> str:
    return f"({', '.join('NULL' if v is None else str(v) for v in row)})"


def sum_of_doubles(counts: Counter[Row], at: int) -> float | None:
    """The nearest double to the exact sum; None if there is none."""
    total = Fraction(0)
    plus = minus = nan = 0
    for row, count in counts.items():
        v = row[at]
        if v == "nan":
            nan += count
        elif v == float("inf"):
            plus += count
        elif v == float("-inf"):
            minus += count
        elif v is not None:
            total += Fraction(v) * count
    up, down = plus > 0 or minus < 0, minus > 0 or plus < 0
    if nan or (up and down):
        return NAN
    if up or down:
        return float("inf") if up else float("-inf")
    try:
        return total.numerator / total.denominator
    except OverflowError:
        return None


def order_of(v: Any) -> tuple[int, Any]:
    """A key by which values of one type order as in the system: NaN is greatest, texts by their bytes."""
    if v == "nan":
        return 1, 0
    return 0, v.encode() if isinstance(v, str) else v


def reduce_naively(
    types: Columns, key: Sequence[int], calls: Sequence[AggregateCall], rows: Counter[Row]
) -> tuple[Counter[Row], Counter[str]]:
    """What Reduce owes for a multiset of rows: its rows, and its errors."""
    oks: Counter[Row] = Counter()
    errs: Counter[str] = Counter()
    groups: dict[Row, Counter[Row]] = {}
    for row, count in rows.items():
        groups.setdefault(tuple(row[k] for k in key), Counter())[row] += count
    edges = list(dict.fromkeys(c.column for c in calls if c.function in ("min", "max")))
    for group, mine in groups.items():
        total = sum(mine.values())
        present = total > 0 if edges or not calls else total != 0
        if not calls and total < 0:
            errs[f"invalid-data: distinct: row {show(group)} has multiplicity {total}"] += 1
        values: dict[int, Counter[Any]] = {}
        for k in edges:
            assert k is not None
            name = next(c.function for c in calls if c.column == k and c.function != "count")
            name = next(c.function for c in calls if c.column == k and c.function in ("min", "max"))
            values[k] = Counter()
            for row, count in mine.items():
                values[k][row[k]] += count
            for v, count in values[k].items():
                if count < 0 and v is None:
                    errs[f"invalid-data: {name}: NULL of group {show(group)} has multiplicity {count}"] += 1
                elif count < 0:
                    shown = show((*group, v))
                    errs[f"invalid-data: {name}: group and value {shown} has multiplicity {count}"] += 1
        out: list[Any] = []
        for call in calls:
            if call.column is None:
                out.append(total)
                continue
            known = sum(count for row, count in mine.items() if row[call.column] is not None)
            spec = types[call.column]
            if call.function == "count":
                out.append(known)
            elif call.function == "sum":
                if spec.type is F64:
                    result: Any = sum_of_doubles(mine, call.column)
                    fits, kind = result is not None, "double precision"
                else:
                    result = sum((row[call.column] or 0) * count for row, count in mine.items())
                    fits, kind = abs(result) < 10**38, "numeric"
                if not fits and present:
                    errs[f"eval-error: {kind} out of range: sum of group {show(group)}"] += 1
                    present = False
                out.append(None if known == 0 else result)
            else:
                there = [v for v, count in values[call.column].items() if count > 0 and v is not None]
                pick = min if call.function == "min" else max
                out.append(pick(there, key=order_of) if there else None)
        if present:
            oks[key_of((*group, *out))] += 1
    return oks, errs


def check(
    seed: int,
    types: Columns,
    key: Sequence[int],
    calls: Sequence[AggregateCall],
    *,
    valid: bool,
    changes: int = 60,
) -> None:
    rng = random.Random(seed)
    times = rng.choice([3, 8, 40])
    as_of = rng.choice([0, 0, 2])
    past = history(rng, [types], changes, times, valid=valid)
    operator = ReduceOperator(types, key, calls)
    oks, errs = run(operator, [types], past, random_uppers(rng, times, as_of), as_of=as_of, rng=rng)
    flat = [(row, time, diff) for _, row, time, diff in past]
    for time in range(as_of, times + 1):
        want_oks, want_errs = reduce_naively(types, key, calls, accumulate(flat, time))
        assert accumulate(oks, time) == want_oks, f"seed {seed} time {time}"
        assert accumulate(errs, time) == want_errs, f"seed {seed} time {time}"
    if not accumulate(flat, times):
        assert operator.statistics().state_rows == 0


SUMS = columns(I64, I64, F64, NUMERIC)
EDGES = columns(I64, F64, TEXT, STAMP, BOOL)


@pytest.mark.slow
@pytest.mark.parametrize("valid", [True, False])
def test_sums_and_counts_equal_recomputation_at_every_time(valid: bool) -> None:
    for seed in range(12):
        calls = [AggregateCall("count"), *(AggregateCall(f, c) for c in (1, 2, 3) for f in ("sum", "count"))]
        check(seed, SUMS, (0,), calls, valid=valid)


@pytest.mark.slow
@pytest.mark.parametrize("valid", [True, False])
def test_min_and_max_equal_recomputation_at_every_time(valid: bool) -> None:
    for seed in range(12):
        calls = [AggregateCall(f, c) for c in (1, 2, 3, 4) for f in ("max", "min")]
        check(seed, EDGES, (0,), calls, valid=valid)


@pytest.mark.slow
@pytest.mark.parametrize("valid", [True, False])
@pytest.mark.parametrize("key", [(), (2,), (1, 2), (4, 0)])
def test_all_kinds_of_aggregates_share_one_pass(valid: bool, key: tuple[int, ...]) -> None:
    for seed in range(8):
        calls = [
            AggregateCall("max", 0), AggregateCall("count"), AggregateCall("sum", 0), AggregateCall("sum", 1),
            AggregateCall("min", 2),
        ]  # fmt: skip
        check(seed, EDGES, key, calls, valid=valid)


@pytest.mark.slow
@pytest.mark.parametrize("valid", [True, False])
def test_a_reduce_without_aggregates_gives_distinct_keys(valid: bool) -> None:
    for seed in range(8):
        check(seed, EDGES, (2, 1), [], valid=valid)


@pytest.mark.slow
def test_columns_without_nulls_give_the_same() -> None:
    for seed in range(4):
        types = columns(I64, I64, F64, nullable=False)
        calls = [
            AggregateCall("sum", 1),
            AggregateCall("min", 1),
            AggregateCall("count", 2),
            AggregateCall("sum", 2),
        ]
        check(seed, types, (0,), calls, valid=True)
        check(seed, types, (0,), calls, valid=False)


@pytest.mark.slow
def test_colliding_hashes_never_join_groups_or_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RowImage, "hash", lambda self, columns=None: np.zeros(len(self), np.uint64))
    for seed in range(4):
        calls = [
            AggregateCall("count"),
            AggregateCall("max", 2),
            AggregateCall("min", 1),
            AggregateCall("sum", 1),
        ]
        check(seed, EDGES, (0, 2), calls, valid=seed % 2 == 0)


def test_the_cut_into_rounds_and_blocks_changes_no_answer() -> None:
    rng = random.Random(7)
    past = history(rng, [EDGES], 80, 12, valid=False)
    calls = [AggregateCall("sum", 1), AggregateCall("max", 2)]
    seen = set()
    for uppers in ([None], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, None], [6, None]):
        oks, errs = run(
            ReduceOperator(EDGES, (0,), calls), [EDGES], past, uppers, rng=random.Random(len(uppers))
        )
        net = [
            {row: diff for row, diff in (accumulate(out, t) - Counter()).items()}
            for out in (oks, errs)
            for t in range(12)
        ]
        seen.add(str([sorted(map(str, n.items())) for n in net]))
    assert len(seen) == 1


def at_times(
    types: Columns, key: Sequence[int], calls: Sequence[AggregateCall], *ticks: list[tuple[Row, int]]
) -> list[Counter[Row]]:
    """The output at each tick, one tick a round; each also as one round for all."""
    changes = [(0, row, t, diff) for t, tick in enumerate(ticks) for row, diff in tick]
    uppers: list[int | None] = [t + 1 for t in range(len(ticks))]
    oks, errs = run(ReduceOperator(types, key, calls), [types], changes, uppers)
    again, _ = run(ReduceOperator(types, key, calls), [types], changes, [None])
    out = [accumulate(oks, t) for t in range(len(ticks))]
    assert out == [accumulate(again, t) for t in range(len(ticks))]
    assert not accumulate(errs, len(ticks))
    return out


def test_c13_sums_over_nulls_alone_are_null() -> None:
    calls = [AggregateCall("count"), AggregateCall("count", 1), AggregateCall("sum", 1)]
    first, second = at_times(
        columns(I64, I64), (0,), calls, [((1, 10), 1), ((1, None), 1), ((2, None), 1)], [((1, 10), -1)]
    )
    assert first == Counter([(1, 2, 1, 10), (2, 1, 0, None)])
    assert second == Counter([(1, 1, 0, None), (2, 1, 0, None)])


def test_c15_no_key_over_nothing_gives_no_row() -> None:
    rows = [((i,), 1) for i in range(3000)]
    empty, full, again = at_times(
        columns(I64), (), [AggregateCall("count")], [], rows, [(row, -1) for row, _ in rows]
    )
    assert (empty, full, again) == (Counter(), Counter([(3000,)]), Counter())


def test_c16_max_falls_back_when_the_extreme_goes() -> None:
    ticks: list[list[tuple[Row, int]]] = [
        [((1, 5), 1), ((1, 9), 1), ((1, 7), 1), ((2, 4), 1)], [((1, 9), -1)], [((2, 4), -1), ((1, 7), -1)],
    ]  # fmt: skip
    got = at_times(columns(I64, I64), (0,), [AggregateCall("max", 1)], *ticks)
    assert got == [Counter([(1, 9), (2, 4)]), Counter([(1, 7), (2, 4)]), Counter([(1, 5)])]
    low = [[((k, -v), d) for (k, v), d in tick] for tick in ticks]
    got = at_times(columns(I64, I64), (0,), [AggregateCall("min", 1)], *low)
    assert got == [Counter([(1, -9), (2, -4)]), Counter([(1, -7), (2, -4)]), Counter([(1, -5)])]


@pytest.mark.slow
def test_c16_the_extreme_of_a_large_group_goes_a_hundred_times_in_a_row() -> None:
    rows = [((1, v), 1) for v in range(10_000)]
    ticks = [rows, *([((1, 9_999 - k), -1)] for k in range(100))]
    for got, want in zip(
        at_times(columns(I64, I64), (0,), [AggregateCall("max", 1)], *ticks),
        range(9_999, 0, -1),
        strict=False,
    ):
        assert got == Counter([(1, want)])


def test_c23_sums_that_do_not_fit_are_exact_and_floats_do_not_drift() -> None:
    (got,) = at_times(columns(I64), (), [AggregateCall("sum", 0)], [(((1 << 63) - 1,), 1), ((1,), 1)])
    assert got == Counter([(1 << 63,)])
    inf = float("inf")
    got_inf = at_times(
        columns(F64), (), [AggregateCall("sum", 0)], [((inf,), 1), ((2.0,), 1)], [((inf,), -1)]
    )
    assert got_inf == [Counter([(inf,)]), Counter([(2.0,)])]
    drift = [((0.1,), 1 if k % 2 == 0 else -1) for k in range(2000)]
    assert at_times(columns(F64), (), [AggregateCall("sum", 0)], drift) == [Counter()]
    both = at_times(
        columns(F64),
        (),
        [AggregateCall("sum", 0)],
        [((inf,), 1)],
        [((-inf,), 1)],
        [((inf,), -1), ((-inf,), -1), ((1e308,), 1), ((1.0,), 1)],
        [((1e308,), -1)],
    )
    assert both == [Counter([(inf,)]), Counter([("nan",)]), Counter([(1e308,)]), Counter([(1.0,)])]


def test_bug25_zeros_and_nans_are_one_group_each() -> None:
    other = float(np.array([0xFFF8000000000000], np.uint64).view(np.float64)[0])
    got = at_times(
        columns(F64), (0,), [AggregateCall("count")],
        [((0.0,), 1), ((-0.0,), 1), ((NAN,), 1), ((other,), 1)], [((0.0,), -1), ((other,), -1)],
    )  # fmt: skip
    assert got == [Counter([(0.0, 2), ("nan", 2)]), Counter([(0.0, 1), ("nan", 1)])]


def test_bug30_a_sum_beyond_bigint_comes_back_exactly() -> None:
    big = 9223372036854775000
    got = at_times(
        columns(TEXT, I64), (0,), [AggregateCall("sum", 1), AggregateCall("count")],
        [(("big", big), 1), (("small", 1), 1)], [(("big", 9000), 1)], [(("big", 9000), -1)],
    )  # fmt: skip
    assert got == [
        Counter([("big", big, 1), ("small", 1, 1)]),
        Counter([("big", big + 9000, 2), ("small", 1, 1)]),
        Counter([("big", big, 1), ("small", 1, 1)]),
    ]


def test_bug34_one_retraction_too_many_is_an_error_that_heals() -> None:
    types = columns(I64, I64)
    changes = [
        (0, (3, 5), 1, 1),
        (0, (4, 1), 1, 1),
        (0, (3, 5), 2, -1),
        (0, (3, 5), 2, -1),
        (0, (3, 5), 3, 1),
    ]
    for first in (2, 3):  # hydrated at 1 and at 2: as_of is one less
        uppers: list[int | None] = [first, 3, 4] if first == 2 else [3, 4]
        signed = ReduceOperator(types, (0,), [AggregateCall("count"), AggregateCall("sum", 1)])
        oks, errs = run(signed, [types], changes, uppers, as_of=first - 1)
        assert accumulate(oks, 2) == Counter([(3, -1, -5), (4, 1, 1)])
        assert accumulate(oks, 3) == Counter([(4, 1, 1)])
        assert not errs
        for function in ("min", "max"):
            edge = ReduceOperator(types, (0,), [AggregateCall(function, 1)])
            oks, errs = run(edge, [types], changes, uppers, as_of=first - 1)
            wrong = f"invalid-data: {function}: group and value (3, 5) has multiplicity -1"
            assert accumulate(errs, 2) == Counter([wrong])
            assert not accumulate(errs, 3)
            assert accumulate(oks, 3) == Counter([(4, 1)])
        keys = ReduceOperator(types, (0,), [])
        oks, errs = run(keys, [types], changes, uppers, as_of=first - 1)
        assert accumulate(errs, 2) == Counter(["invalid-data: distinct: row (3) has multiplicity -1"])
        assert not accumulate(errs, 3)
        assert accumulate(oks, 3) == Counter([(4,)])


def test_a_count_beyond_64_bits_is_an_error_that_heals() -> None:
    types = columns(I64, I64)
    most = (1 << 63) - 1
    changes = [(0, (1, 1), 0, most), (0, (1, 2), 1, most), (0, (1, 2), 2, -most)]
    oks, errs = run(ReduceOperator(types, (0,), [AggregateCall("count")]), [types], changes, [1, 2, 3])
    assert [accumulate(oks, t) for t in range(3)] == [Counter([(1, most)]), Counter(), Counter([(1, most)])]
    assert accumulate(errs, 1) == Counter([f"multiplicity-overflow: count of group (1) is {2 * most}"])
    assert not accumulate(errs, 2)


def test_a_change_that_does_not_show_emits_nothing() -> None:
    types = columns(I64, I64)
    operator = ReduceOperator(types, (0,), [AggregateCall("max", 1)])
    oks, _ = run(operator, [types], [(0, (1, 5), 0, 1), (0, (1, 3), 1, 1), (0, (1, 5), 2, 1)], [1, 2, 3])
    assert oks == [((1, 5), 0, 1)]


def test_errors_of_the_input_pass() -> None:
    operator = ReduceOperator(columns(I64), (0,), [AggregateCall("count")])
    operator.start(Round(0, Frontier.at(2), 0))
    errs = Updates.from_rows((TEXT,), [(("eval-error: division by zero",), 1, 1)])
    out = list(operator.push(0, Delta(Updates.empty((I64,)), errs)))
    assert [d.errs.to_rows() for d in out] == [errs.to_rows()]
    assert list(operator.finish()) == []


def test_aggregates_that_do_not_exist_are_refused() -> None:
    for call in (AggregateCall("sum", 0), AggregateCall("median", 1), AggregateCall("min")):
        with pytest.raises(ValueError, match=r"of text|not known|needs an argument"):
            ReduceOperator(columns(TEXT, I64), (1,), [call])


@pytest.mark.slow
def test_work_and_state_follow_the_change_and_the_groups() -> None:
    """A million rows, then single changes: nodes visited grow with the logarithm, and churn frees what it
    used.
    """
    visited = []
    types = columns(I64, I64, nullable=False)
    for rows in (20_000, 200_000):
        operator = ReduceOperator(types, (0,), [AggregateCall("max", 1), AggregateCall("count")])
        values = np.random.default_rng(3).permutation(rows).astype(np.int64)
        operator.start(Round(0, Frontier.at(1), 0))
        for lo in range(0, rows, BLOCK_ROWS):
            v = values[lo : lo + BLOCK_ROWS]
            block = Updates(
                (Column(I64, np.ones(len(v), np.int64)), Column(I64, v)),
                np.zeros(len(v), np.uint64), np.ones(len(v), np.int64),
            )  # fmt: skip
            list(operator.push(0, Delta.of(block)))
        list(operator.finish())
        before = operator.statistics()
        for t in range(1, 101):
            operator.start(Round(t, Frontier.at(t + 1), 0))
            list(
                operator.push(0, Delta.of(updates_of(types, [((1, rows - t), t, -1), ((1, rows + t), t, 1)])))
            )
            list(operator.finish())
        after = operator.statistics()
        visited.append(after.touched_rows - before.touched_rows)
        assert after.state_rows == before.state_rows
        assert after.state_bytes < 1.01 * before.state_bytes
    assert visited[1] < 1.6 * visited[0] < 1.6 * 100 * 200
