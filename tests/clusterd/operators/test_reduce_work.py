"""What a change costs Reduce: rows of state that it looks at, at a size of the state and at ten times it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from clusterd.dataflow.operator import BLOCK_ROWS, Columns, Delta, Round
from clusterd.operators.aggregates import AggregateCall
from clusterd.operators.ordered import OrderColumn
from clusterd.operators.reduce import ReduceOperator
from shm_arrangements.columns import Column
from shm_arrangements.frontier import Frontier
from shm_arrangements.types import ColumnSpec, ColumnType
from shm_arrangements.updates import Updates

I64 = ColumnType.INT64
TYPES: Columns = (ColumnSpec("k", I64, False), ColumnSpec("v", I64, False))
CHANGES = 50


def round_of(
    operator: ReduceOperator, time: int, keys: Sequence[int], values: Sequence[int], diffs: Sequence[int]
) -> int:
    """One round; how many updates came out."""
    n = len(keys)
    columns = tuple(Column(I64, np.asarray(c, np.int64)) for c in (keys, values))
    times, counts = np.full(n, time, np.uint64), np.asarray(diffs, np.int64)
    operator.start(Round(time, Frontier.at(time + 1), 0))

    def deltas() -> Iterator[Delta]:
        for lo in range(0, n, BLOCK_ROWS):
            yield from operator.push(
                0, Delta.of(Updates(columns, times, counts).slice(lo, min(lo + BLOCK_ROWS, n)))
            )
        yield from operator.finish()

    return sum(len(delta) for delta in deltas())


def touched(
    calls: Sequence[AggregateCall],
    groups: int,
    size: int,
    *,
    monotonic: bool = False,
    keys: int | None = None,
) -> tuple[float, int, int]:
    """(rows touched a change, state rows, state bytes) after groups of `size` values and single changes.

    keys: how many of the groups change.
    """
    operator = ReduceOperator(TYPES, (0,), calls, monotonic=monotonic)
    rng = np.random.default_rng(5)
    all_keys = np.repeat(np.arange(groups), size)
    values = rng.permutation(len(all_keys))
    round_of(operator, 0, all_keys, values, np.ones(len(all_keys)))
    before = operator.statistics()
    for time in range(1, CHANGES + 1):
        key = int(rng.integers(keys or groups))
        gone = [] if monotonic else [int(values[key * size])]
        added = len(all_keys) + time
        out = round_of(operator, time, [key] * (1 + len(gone)), [added, *gone], [1] + [-1] * len(gone))
        assert out <= 2
        if gone:
            values[key * size] = added
    after = operator.statistics()
    return (after.touched_rows - before.touched_rows) / CHANGES, after.state_rows, after.state_bytes


ACCUMULATED = [AggregateCall(f, 1) for f in ("count", "sum", "avg", "stddev")]
DISTINCT = [AggregateCall(f, 1, distinct=True) for f in ("count", "sum")]
EDGES = [AggregateCall("min", 1), AggregateCall("max", 1)]
LISTS = [AggregateCall("array_agg", 1, order=(OrderColumn(1, True),)), AggregateCall("jsonb_agg", 1)]


@pytest.mark.slow
@pytest.mark.parametrize("calls", [ACCUMULATED, DISTINCT], ids=["sums", "distinct"])
def test_sums_touch_what_changes_whatever_the_state(calls: list[AggregateCall]) -> None:
    for groups, size in ((1000, 5), (10_000, 5), (1, 50_000)):
        assert touched(calls, groups, size)[0] <= 3


@pytest.mark.slow
def test_min_and_max_touch_the_logarithm_of_a_group() -> None:
    small, large = (touched(EDGES, 1, size)[0] for size in (5000, 50_000))
    assert large < small + 60
    many = touched(EDGES, 10_000, 5)[0]
    assert many < small


@pytest.mark.slow
def test_lists_read_the_group_that_changes_and_no_other() -> None:
    few, many = (touched(LISTS, groups, 20)[0] for groups in (500, 5000))
    assert many < 1.1 * few
    size = 20
    assert few < len(LISTS) * (2 * size + 60)


@pytest.mark.slow
def test_of_an_input_that_grows_one_value_a_group_is_kept() -> None:
    for groups in (100, 1000):
        touches, rows, _ = touched(EDGES[1:], groups, 50, monotonic=True)
        assert rows <= 3 * groups  # the group itself, its first and its last value
        assert touches <= 2
    kept, all_kept = (touched(EDGES, 100, 1000, monotonic=grows)[2] for grows in (True, False))
    assert kept < all_kept / 4


@pytest.mark.slow
def test_state_goes_when_its_groups_go() -> None:
    calls = [*ACCUMULATED, *DISTINCT, *EDGES, *LISTS]
    operator = ReduceOperator(TYPES, (0,), calls)
    keys, values = np.arange(5000) % 700, np.arange(5000)
    bytes_then = 0
    for time in range(6):
        round_of(operator, time, keys, values, np.full(5000, 1 if time % 2 == 0 else -1))
        statistics = operator.statistics()
        if time % 2:
            assert statistics.state_rows == 0
            assert statistics.state_bytes <= 1.1 * (bytes_then or statistics.state_bytes)
            bytes_then = bytes_then or statistics.state_bytes
