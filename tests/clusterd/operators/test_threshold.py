"""Threshold against recomputation at every time, and its errors and its cost."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from clusterd.dataflow.operator import Columns
from clusterd.operators.threshold import ThresholdOperator
from shm_arrangements.types import ColumnSpec, ColumnType
from tests.clusterd.operators.histories import Change, accumulate, history, random_uppers, run

I64, F64, TEXT = ColumnType.INT64, ColumnType.FLOAT64, ColumnType.TEXT
ROW: Columns = (ColumnSpec("a", I64, True), ColumnSpec("b", F64, True), ColumnSpec("c", TEXT, True))
ONE: Columns = (ColumnSpec("a", I64, False),)


@pytest.mark.slow
def test_every_time_equals_recomputation() -> None:
    for seed in range(60):
        rng = random.Random(seed)
        times, as_of = rng.choice([3, 12]), rng.choice([0, 2])
        past = history(rng, [ROW], 80, times, valid=seed % 3 == 0)
        operator = ThresholdOperator(ROW)
        oks, errs = run(operator, [ROW], past, random_uppers(rng, times, as_of), as_of=as_of, rng=rng)
        assert not errs
        for time in range(as_of, times + 1):
            total = accumulate([(row, t, d) for _, row, t, d in past], time)
            wanted = Counter({row: n for row, n in total.items() if n > 0})
            assert accumulate(oks, time) == wanted, f"seed {seed} time {time}"


@pytest.mark.parametrize("uppers", [[1, 2, 3, 4, 5], [5], [3, None]])
def test_bug38_except_all_and_intersect_all_are_the_positive_part_of_the_total(
    uppers: list[int | None],
) -> None:
    a = [(1, 3)]
    b = [(1, 1), (2, 3), (3, -2), (4, -2)]
    plus: list[Change] = [(0, (7,), time, diff) for time, diff in a]
    less: list[Change] = [(0, (7,), time, -diff) for time, diff in b]
    without, errs = run(ThresholdOperator(ONE), [ONE], plus + less, uppers)
    assert not errs
    assert [accumulate(without, time)[(7,)] for time in range(1, 5)] == [2, 0, 1, 3]
    # A intersect B = A - (A except B)
    changes: list[Change] = plus + [(0, row, time, -diff) for row, time, diff in without]
    shared, _ = run(ThresholdOperator(ONE), [ONE], changes, uppers)
    assert [accumulate(shared, time)[(7,)] for time in range(1, 5)] == [1, 3, 2, 0]


def test_a_count_beyond_64_bits_is_an_error_that_heals() -> None:
    most = (1 << 63) - 1
    changes: list[Change] = [
        (0, (7,), 0, most), (0, (7,), 1, most), (0, (8,), 1, 1), (0, (7,), 2, -most), (0, (7,), 3, 1 - most),
    ]  # fmt: skip
    for uppers in ([1, 2, 3, 4], [4]):
        oks, errs = run(ThresholdOperator(ONE), [ONE], changes, [*uppers])
        assert accumulate(oks, 0) == Counter({(7,): most})
        assert accumulate(oks, 1) == Counter({(8,): 1})
        text = f"multiplicity-overflow: threshold: row (7) has multiplicity {2 * most}"
        assert accumulate(errs, 1) == Counter([text])
        assert accumulate(oks, 2) == Counter({(7,): most, (8,): 1})
        assert accumulate(oks, 3) == Counter({(7,): 1, (8,): 1})
        assert not accumulate(errs, 3)


def test_rows_that_are_gone_are_forgotten_and_untouched_ones_not_looked_at() -> None:
    operator = ThresholdOperator(ONE)
    run(operator, [ONE], [(0, (n,), 0, 1) for n in range(1000)], [1])
    before = operator.statistics()
    assert before.state_rows == 1000
    changes: list[Change] = [(0, (n,), 0, 1) for n in range(1000)]
    changes += [(0, (n,), 1, -1) for n in range(990)]
    other = ThresholdOperator(ONE)
    run(other, [ONE], changes, [1, 2])
    assert other.statistics().state_rows == 10
    assert other.statistics().touched_rows == 1990
