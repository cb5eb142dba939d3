"""Casts among dates, times, timestamps and intervals. A timestamp of no zone is taken as one of UTC.

Does not: read or write their texts (casts_of_text.py), loop over rows in Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from clusterd.render.functions.evaluated import Codes, code_of
from clusterd.render.functions.registry import CallSite, Outcome, strict
from shm_arrangements.columns import Column
from shm_arrangements.types import ColumnType

__all__ = ["DAY", "DAYS", "dates_of", "intervals", "nanoseconds_of", "parts_of"]

DAY: Final = 86_400_000_000  # microseconds
# The days whose midnight is a timestamp.
DAYS: Final = ((-(1 << 63)) // DAY + 1, ((1 << 63) - 1) // DAY)


def dates_of(microseconds: NDArray[np.int64]) -> NDArray[np.int64]:
    """The days that timestamps are on."""
    days: NDArray[np.int64] = microseconds // DAY
    return days


def intervals(months: NDArray[Any], days: NDArray[Any], nanoseconds: NDArray[np.int64]) -> Column:
    """Intervals of their parts (n,), of which months and days fit 32 bits."""
    spans = np.empty(len(nanoseconds), [("months", np.int32), ("days", np.int32), ("nanoseconds", np.int64)])
    spans["months"], spans["days"], spans["nanoseconds"] = months, days, nanoseconds
    return Column(ColumnType.INTERVAL, spans.view(np.uint64).reshape(len(spans), 2))


def parts_of(column: Column) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Months, days and nanoseconds of intervals."""
    halves = np.ascontiguousarray(column.values[:, 0]).view(np.int32).reshape(-1, 2).astype(np.int64)
    return halves[:, 0], halves[:, 1], nanoseconds_of(column)


def nanoseconds_of(column: Column) -> NDArray[np.int64]:
    """The last part of intervals."""
    return np.ascontiguousarray(column.values[:, 1]).view(np.int64)


def _code(wrong: NDArray[np.bool_], error: str) -> Codes | None:
    return np.where(wrong, np.uint32(code_of(error)), np.uint32(0)) if wrong.any() else None


@strict("cast", "date -> timestamp", "date -> timestamptz")
def _date_to_timestamp(call: CallSite, args: Sequence[Column]) -> Outcome:
    days = args[0].values.astype(np.int64)
    beyond = (days < DAYS[0]) | (days > DAYS[1])
    values = np.where(beyond, 0, days) * DAY
    return Column(call.result.type, values), _code(beyond, "timestamp out of range")


@strict("cast", "timestamp -> timestamptz", "timestamptz -> timestamp")
def _timestamp_to_timestamp(call: CallSite, args: Sequence[Column]) -> Outcome:
    return Column(call.result.type, args[0].values)


@strict("cast", "timestamp -> date", "timestamptz -> date")
def _timestamp_to_date(call: CallSite, args: Sequence[Column]) -> Outcome:
    return Column(ColumnType.DATE, dates_of(args[0].values).astype(np.int32))


@strict("cast", "timestamp -> time", "timestamptz -> time")
def _timestamp_to_time(call: CallSite, args: Sequence[Column]) -> Outcome:
    return Column(ColumnType.TIME, args[0].values % DAY)


@strict("cast", "time -> interval")
def _time_to_interval(call: CallSite, args: Sequence[Column]) -> Outcome:
    none = np.zeros(len(args[0]), np.int32)
    return intervals(none, none, args[0].values * 1000)


@strict("cast", "interval -> time")
def _interval_to_time(call: CallSite, args: Sequence[Column]) -> Outcome:
    return Column(ColumnType.TIME, nanoseconds_of(args[0]) // 1000 % DAY)
