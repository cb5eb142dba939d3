"""Operators inside a recursion: what they give over times and iterations adds up to what it must.

Inputs are random changes at (time, iteration). After all of them, the sum of an operator's output up to an
iteration must be the plain operator's answer to the sum of its input up to that iteration; and the fast
operators must give what the general one does.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from clusterd.dataflow.operator import BLOCK_ROWS, Columns, Delta, Operator, types_of
from clusterd.operators.aggregates import AggregateCall
from clusterd.operators.distinct import DistinctOperator
from clusterd.operators.iterative import IterativeOperator
from clusterd.operators.iterative_binding import IterativeBinding
from clusterd.operators.iterative_counts import CountMode, IterativeCounts
from clusterd.operators.iterative_extremes import IterativeExtremes
from clusterd.operators.iterative_grouped import Grouped
from clusterd.operators.iterative_join import IterativeJoin
from clusterd.operators.reduce import ReduceOperator
from clusterd.operators.threshold import ThresholdOperator
from shm_arrangements.types import ColumnSpec, ColumnType
from shm_arrangements.updates import Updates

Row = tuple[Any, ...]
Change = tuple[int, Row, int, int]  # port, row, iteration, diff

COLUMNS: Columns = (ColumnSpec("a", ColumnType.INT64, True), ColumnSpec("b", ColumnType.TEXT, False))
ITERATIONS = 7


def some(rng: random.Random, ports: int, changes: int) -> list[Change]:
    return [
        (
            rng.randrange(ports),
            (rng.choice([None, 0, 1, 2]), rng.choice(["x", "a text of some length"])),
            rng.randrange(ITERATIONS),
            rng.choice([1, 1, 2, -1]),
        )
        for _ in range(changes)
    ]


def step(
    operator: IterativeOperator, iteration: int, changes: Sequence[Change], ports: int, columns: Columns
) -> list[Delta]:
    """One iteration, its changes in one block a port or one each."""
    inputs: list[list[Delta]] = [[] for _ in range(ports)]
    for port, row, _, diff in changes:
        inputs[port].append(Delta.of(Updates.from_rows(types_of(columns), [(row, iteration, diff)])))
    return list(operator.step(iteration, inputs))


def run(
    operator: IterativeOperator,
    times: Sequence[Sequence[Change]],
    ports: int,
    columns: Columns = COLUMNS,
) -> list[Counter[Any]]:
    """By time: what was given, as counts of (row or message, iteration)."""
    out = []
    for changes in times:
        given: Counter[Any] = Counter()
        for iteration in range(ITERATIONS):
            mine = [change for change in changes if change[2] == iteration]
            if not mine:
                continue
            for delta in step(operator, iteration, mine, ports, columns):
                for updates in (delta.oks, delta.errs):
                    for row, at, diff in updates.to_rows():
                        assert at >= iteration
                        given[row, at] += diff
        for _ in operator.settle():
            pass
        out.append(Counter({key: count for key, count in given.items() if count}))
    return out


@pytest.mark.parametrize(
    ("mode", "plain"),
    [(CountMode.MULTISET, DistinctOperator), (CountMode.POSITIVE, ThresholdOperator)],
)
def test_counts_give_what_the_plain_operator_gives_run_over_histories(
    mode: CountMode, plain: Callable[[Columns], Operator]
) -> None:
    for seed in range(40):
        rng = random.Random(seed)
        print(f"seed {seed}")
        times = [some(rng, 1, rng.choice([1, 4, 12])) for _ in range(rng.choice([1, 6]))]
        grouped = Grouped(plain(COLUMNS), COLUMNS, (0, 1))
        assert run(IterativeCounts(COLUMNS, mode), times, 1) == run(grouped, times, 1)


FLAT: Columns = (*COLUMNS, ColumnSpec("n", ColumnType.INT64, True), ColumnSpec("m", ColumnType.INT64, False))


def flat(rng: random.Random, changes: int, signed: bool) -> list[Change]:
    """Few groups of several values; if not signed, what is taken away is there."""
    out: list[Change] = []
    have: list[tuple[Row, int]] = []
    for _ in range(changes):
        if have and not signed and rng.random() < 0.4:
            row, since = have.pop(rng.randrange(len(have)))
            out.append((0, row, rng.randrange(since, ITERATIONS), -1))
            continue
        number = rng.randrange(6)
        row = rng.choice([None, 0, 1]), rng.choice(["x", "a text of some length"]), number or None, number
        have.append((row, rng.randrange(ITERATIONS)))
        out.append((0, row, have[-1][1], rng.choice([1, 2, -1]) if signed else 1))
    return out


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("value", [1, 2, 3])
@pytest.mark.parametrize("functions", [("min",), ("max",), ("max", "min")])
def test_extremes_give_what_the_plain_operator_gives_led_back_and_forth(
    signed: bool, value: int, functions: tuple[str, ...]
) -> None:
    for seed in range(30):
        rng = random.Random(seed)
        print(f"seed {seed}")
        times = [flat(rng, rng.choice([1, 4, 30]), signed) for _ in range(rng.choice([1, 6]))]
        calls = [AggregateCall(function, value) for function in functions]
        key = rng.choice([(0,), ()])
        grouped = Grouped(ReduceOperator(FLAT, key, calls), FLAT, key)
        extremes = IterativeExtremes(FLAT, key, calls)
        assert run(extremes, times, 1, FLAT) == run(grouped, times, 1, FLAT)
        gone = [[(0, row, at, -diff) for _, row, at, diff in changes] for changes in times]
        for operator in (extremes, grouped):
            run(operator, gone, 1, FLAT)
            assert operator.statistics().state_rows == 0


@pytest.mark.parametrize("null_safe", [False, True])
def test_a_join_gives_every_pair_of_changes_once_at_the_greater_iteration(null_safe: bool) -> None:
    for seed in range(40):
        rng = random.Random(seed)
        print(f"seed {seed}")
        times = [some(rng, 2, rng.choice([1, 4, 12])) for _ in range(rng.choice([1, 6]))]
        join = IterativeJoin(
            (COLUMNS, COLUMNS), ((0,), (0,)),
            null_safe=null_safe, output_columns=None, closure=None, closure_columns=None,
        )  # fmt: skip
        wanted: list[Counter[Any]] = [Counter() for _ in times]
        before: Counter[Any] = Counter()
        for number in range(len(times)):
            upto = [change for changes in times[: number + 1] for change in changes]
            whole: Counter[Any] = Counter()
            for _, x, i, m in (c for c in upto if c[0] == 0):
                for _, y, j, n in (c for c in upto if c[0] == 1):
                    if x[0] == y[0] and (null_safe or x[0] is not None):
                        whole[x + y, max(i, j)] += m * n
            wanted[number].update(whole)
            wanted[number].subtract(before)
            before = whole
        assert run(join, times, 2) == [
            Counter({key: count for key, count in each.items() if count}) for each in wanted
        ]


def test_state_is_gone_with_the_rows_it_was_of() -> None:
    rng = random.Random(1)
    changes = some(rng, 2, 60)
    gone = [(port, row, iteration, -diff) for port, row, iteration, diff in changes]
    join = IterativeJoin(
        (COLUMNS, COLUMNS), ((0,), (0,)),
        null_safe=True, output_columns=None, closure=None, closure_columns=None,
    )  # fmt: skip
    run(join, [changes, gone], 2)
    assert join.statistics().state_rows == 0
    for operator in (
        IterativeCounts(COLUMNS, CountMode.MULTISET),
        Grouped(DistinctOperator(COLUMNS), COLUMNS, (0, 1)),
    ):
        run(operator, [[(0, *rest) for _, *rest in changes], [(0, *rest) for _, *rest in gone]], 1)  # type: ignore[misc]
        assert operator.statistics().state_rows == 0


@pytest.mark.slow
def test_a_binding_gives_one_update_a_row_however_many_came() -> None:
    one = ColumnSpec("n", ColumnType.INT64, True)
    for size in (10, 3 * BLOCK_ROWS):
        rows = [((n % (size // 2) or None,), 4, 1 if n < size // 2 else -1 - n % 2) for n in range(size)]
        whole = Updates.from_rows([ColumnType.INT64], rows)
        blocks = [Delta.of(whole.slice(lo, min(lo + BLOCK_ROWS, size))) for lo in range(0, size, BLOCK_ROWS)]
        given = [delta.oks for delta in IterativeBinding((one,)).step(4, [blocks])]
        assert sorted(Updates.concat(given).to_rows(), key=str) == sorted(
            whole.consolidate().to_rows(), key=str
        )
