"""generate_series and generate_subscripts: every value from a start to a stop.

A series of numbers is its positions, which are bigints whatever the type, times the step. Moments go by
microseconds, or by the calendar where a step has months, as PostgreSQL does: from each value the next.

Does not: loop over rows in Python.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from clusterd.dataflow.operator import BLOCK_ROWS
from clusterd.operators.kernels import scalar
from clusterd.operators.kernels import series as kernels
from clusterd.render.functions.arithmetic import arithmetic, lanes
from clusterd.render.functions.casts_of_moments import parts_of
from clusterd.render.functions.evaluated import Bools, Ints, code_of, first_errors
from clusterd.render.functions.expanding import Made, TableCall, cut_rows, expanding
from clusterd.render.functions.lists import lists_of
from clusterd.render.functions.texts import spread
from shm_arrangements.columns import Column
from shm_arrangements.types import DTYPES, ColumnType

__all__: list[str] = []

_NUMERIC: Final = ColumnType.NUMERIC
_MOST: Final = np.uint64((1 << 63) - 1)
_DAYS: Final = 10**8  # what is more does not fit in microseconds: such steps go by the calendar


def _wide(values: NDArray[Any], n: int) -> Ints:
    return np.ascontiguousarray(np.broadcast_to(values.astype(np.int64, copy=False), n))


def _failing(which: Bools, error: str) -> Iterator[Made]:
    rows = np.flatnonzero(which)
    if len(rows):
        yield rows, np.full(len(rows), code_of(error), np.uint32)


def _expanded(
    starts: Ints, steps: Ints, ends: NDArray[np.uint64], some: Bools
) -> Iterator[tuple[Ints, Ints]]:
    """Rows and values of series whose last positions are `ends`."""
    state = np.zeros(2, np.uint64)
    while state[kernels.ROW] < len(starts):
        rows, values = np.empty(BLOCK_ROWS, np.int64), np.empty(BLOCK_ROWS, np.int64)
        made = kernels.expand_series(starts, steps, ends, some, state, rows, values)
        if made:
            yield rows[:made], values[:made]


def _integers(starts: Ints, stops: Ints, steps: Ints) -> Iterator[tuple[Ints, Ints]]:
    ends, some = np.empty(len(starts), np.uint64), np.empty(len(starts), np.bool_)
    kernels.series_ends(starts, stops, steps, ends, some)
    return _expanded(starts, steps, ends, some)


@expanding("generate_series", *(
    f"{t}, {t}{more} -> {t}" for t in ("integer", "bigint") for more in ("", f", {t}")
))  # fmt: skip
def _of_integers(call: TableCall, args: Sequence[Column], n: int) -> Iterator[Made]:
    type_ = call.columns[0].type
    assert isinstance(type_, ColumnType)
    starts, stops = (_wide(column.values, n) for column in args[:2])
    steps = _wide(args[2].values, n) if len(args) > 2 else np.ones(n, np.int64)
    yield from _failing(steps == 0, "step size cannot equal zero")
    for rows, values in _integers(starts, stops, steps):
        yield rows, (Column(type_, values.astype(DTYPES[type_], copy=False)),)


@expanding(
    "generate_series",
    "numeric(s), numeric(s) -> numeric(s)", "numeric(s), numeric(s), numeric(s) -> numeric(s)",
)  # fmt: skip
def _of_numerics(call: TableCall, args: Sequence[Column], n: int) -> Iterator[Made]:
    starts, stops = (spread(column, n) for column in args[:2])
    one = Column.from_pylist(_NUMERIC, [10 ** call.columns[0].scale])
    steps = spread(args[2] if len(args) > 2 else one, n)
    low, high = steps.values[:, 0], steps.values[:, 1]
    none = (low == 0) & (high == 0)
    yield from _failing(none, "step size cannot equal zero")
    spans, codes = arithmetic(scalar.SUB, stops, starts)
    steps = Column.concat(_NUMERIC, (steps, one)).take(np.where(none, n, np.arange(n, dtype=np.int64)))
    count, more = arithmetic(scalar.DIV, spans, steps)
    codes = first_errors(codes, more)
    wrong = none if codes is None else none | (codes != 0)
    if codes is not None:
        rows = np.flatnonzero((codes != 0) & ~none)
        yield rows, codes[rows]
    is_back, step_back = (each.values[:, 1] >> np.uint64(63) for each in (spans, steps))
    is_point = (spans.values == 0).all(axis=1)
    some = ~wrong & (is_point | (is_back == step_back))
    ends = np.where(count.values[:, 1] == 0, np.minimum(count.values[:, 0], _MOST), _MOST)
    for rows, positions in _expanded(np.zeros(n, np.int64), np.ones(n, np.int64), ends, some):
        # No more than the span, which has room.
        ways, _ = arithmetic(scalar.MUL, Column(_NUMERIC, lanes(positions)), steps.take(rows))
        values, _ = arithmetic(scalar.ADD, starts.take(rows), ways)
        yield rows, (values,)


@expanding(
    "generate_series",
    "timestamp, timestamp, interval -> timestamp", "timestamptz, timestamptz, interval -> timestamptz",
)  # fmt: skip
def _of_moments(call: TableCall, args: Sequence[Column], n: int) -> Iterator[Made]:
    type_ = call.columns[0].type
    starts, stops = (_wide(column.values, n) for column in args[:2])
    months, days, nanoseconds = (_wide(part, n) for part in parts_of(args[2]))
    times = nanoseconds // 1000
    far = np.abs(days) > _DAYS  # then what is less than days does not change the sign
    rest = np.where(far, np.sign(days), np.where(far, 0, days) * kernels.DAY + times)
    none = (months == 0) & (rest == 0)
    mixed = np.sign(months) * np.sign(rest) < 0
    yield from _failing(none, "step size cannot equal zero")
    yield from _failing(mixed, "step size must not mix signs")
    by_calendar = ~none & ~mixed & ((months != 0) | far)
    plain = np.flatnonzero(~none & ~mixed & ~by_calendar)
    for rows, values in _integers(starts[plain], stops[plain], rest[plain]):
        yield plain[rows], (Column(type_, values),)
    some = np.flatnonzero(by_calendar)
    up = np.where(months != 0, months, rest)[some] > 0
    parts = [each[some] for each in (starts, stops, months, days, times)]
    state = np.zeros(4, np.int64)
    while state[kernels.ROW] < len(some):
        rows, values = np.empty(BLOCK_ROWS, np.int64), np.empty(BLOCK_ROWS, np.int64)
        made = kernels.expand_calendar(*parts, up, state, rows, values)
        if made:
            yield some[rows[:made]], (Column(type_, values[:made]),)


@expanding("generate_subscripts")
def _subscripts(call: TableCall, args: Sequence[Column], n: int) -> Iterator[Made]:
    sizes = lists_of(args[0], n).sizes * (_wide(args[1].values, n) == 1)
    ends = np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)
    for rows, places in cut_rows(ends):
        values = np.arange(places.start, places.stop, dtype=np.int64) - ends[rows] + 1
        yield rows, (Column(ColumnType.INT64, values),)
