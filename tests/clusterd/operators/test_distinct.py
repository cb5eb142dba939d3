"""Distinct against recomputation at every time."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from clusterd.dataflow.operator import Delta, Round
from clusterd.operators.distinct import DistinctOperator
from shm_arrangements.frontier import Frontier
from shm_arrangements.types import ColumnSpec, ColumnType
from tests.clusterd.operators.histories import (
    NAN,
    Row,
    accumulate,
    history,
    random_uppers,
    run,
    updates_of,
)

I64, F64, TEXT = ColumnType.INT64, ColumnType.FLOAT64, ColumnType.TEXT
TYPES = (ColumnSpec("a", I64, True), ColumnSpec("b", F64, True), ColumnSpec("c", TEXT, True))


def show(row: Row) -> str:
    return f"({', '.join('NULL' if v is None else str(v) for v in row)})"


@pytest.mark.slow
@pytest.mark.parametrize("valid", [True, False])
def test_each_row_stands_once_at_every_time(valid: bool) -> None:
    for seed in range(10):
        rng = random.Random(seed)
        past = history(rng, [TYPES], 150, 20, valid=valid, wild=False)
        oks, errs = run(DistinctOperator(TYPES), [TYPES], past, random_uppers(rng, 20), rng=rng)
        flat = [(row, time, diff) for _, row, time, diff in past]
        for time in range(21):
            counts = accumulate(flat, time)
            assert accumulate(oks, time) == Counter(row for row, n in counts.items() if n > 0), f"seed {seed}"
            assert accumulate(errs, time) == Counter(
                f"invalid-data: distinct: row {show(row)} has multiplicity {n}"
                for row, n in counts.items()
                if n < 0
            ), f"seed {seed}"


def test_c22_a_copy_that_goes_changes_nothing() -> None:
    types = TYPES[:1]
    changes = [(0, (1,), 0, 2), (0, (2,), 0, 1), (0, (1,), 1, -1), (0, (1,), 2, -1)]
    oks, errs = run(DistinctOperator(types), [types], changes, [1, 2, 3])
    assert sorted(oks) == [((1,), 0, 1), ((1,), 2, -1), ((2,), 0, 1)]
    assert errs == []


def test_bug27_nan_rows_are_merged() -> None:
    types = TYPES[:2]
    other = float("-nan")
    changes = [
        (0, (1, NAN), 1, 3), (0, (1, 2.5), 1, 2), (0, (None, other), 1, 2), (0, (1, other), 2, -1),
        (0, (5, NAN), 1, 1), (0, (5, other), 2, -1),
    ]  # fmt: skip
    operator = DistinctOperator(types)
    oks, _ = run(operator, [types], changes, [2, 3])
    assert accumulate(oks, 2) == Counter([(1, "nan"), (1, 2.5), (None, "nan")])
    assert operator.statistics().state_rows == 3


def test_a_change_touches_its_own_row_alone_over_ten_times_the_state() -> None:
    def touched(rows: int) -> int:
        operator = DistinctOperator(TYPES[:1])
        total = []
        for time, changes in enumerate([[((k,), 0, 1) for k in range(rows)], [((3,), 1, -1), ((-1,), 1, 1)]]):
            operator.start(Round(time, Frontier.at(time + 1), 0))
            emitted = [*operator.push(0, Delta.of(updates_of(TYPES[:1], changes))), *operator.finish()]
            assert sum(map(len, emitted)) == len(changes)
            total.append(operator.statistics().touched_rows)
        return total[1] - total[0]

    assert touched(300) == touched(3000) == 2
