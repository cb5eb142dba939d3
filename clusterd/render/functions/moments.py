"""Sums and differences of dates, times, timestamps and intervals, and what makes them of numbers.

What is added to a timestamp is months first, by the calendar, then days, then the time. Timestamps have
microseconds: what an interval has finer than that is dropped.

Does not: take moments apart (fields.py), loop over rows in Python.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from clusterd.render.functions.calendar import (
    add_months,
    civil,
    days_of,
    first_of_month,
    is_date,
    month_number,
)
from clusterd.render.functions.casts_of_moments import DAY, DAYS, intervals, nanoseconds_of, parts_of
from clusterd.render.functions.evaluated import Codes, Ints, code_of, first_errors, rows_of
from clusterd.render.functions.mathematics import failing
from clusterd.render.functions.registry import CallSite, Outcome, Strict, parted, strict
from clusterd.render.functions.texts import by_constants
from shm_arrangements.columns import Column
from shm_arrangements.types import AnyType, ColumnType

__all__ = ["moment", "shifted"]

_DATE, _TIME, _TIMESTAMP = ColumnType.DATE, ColumnType.TIME, ColumnType.TIMESTAMP
_I32: Final = np.iinfo(np.int32)
_NANO_DAY: Final = DAY * 1000
_OFFSET: Final = re.compile(r"([+-])(\d{1,2})(?::?([0-5]\d))?")
_STAMPS: Final = ("timestamp", "timestamptz")


def moment(type_: AnyType, days: Ints, rest: Ints, codes: Codes | None = None) -> Outcome:
    """Timestamps of days and microseconds, of which there may be more than a day's."""
    days = days + rest // DAY
    beyond = (days < DAYS[0]) | (days >= DAYS[1])
    wrong = failing(beyond, "timestamp out of range")
    return Column(type_, np.where(beyond, 0, days) * DAY + rest % DAY), first_errors(codes, wrong)


def shifted(type_: AnyType, moments: Ints, interval: Column, sign: int) -> Outcome:
    """Timestamps with an interval added, or taken away."""
    months, days, nanoseconds = parts_of(interval)
    at = add_months(moments // DAY, sign * months)
    # Of the time in days and what is left: their sum could leave 64 bits.
    microseconds = sign * (nanoseconds // 1000)
    rest = moments % DAY + microseconds % DAY
    return moment(type_, at + sign * days + microseconds // DAY, rest)


def _shift(sign: int, at: int) -> Strict:
    def run(call: CallSite, args: Sequence[Column]) -> Outcome:
        base, interval = args[at], args[1 - at]
        n = rows_of(args)
        moments = np.broadcast_to(base.values.astype(np.int64), n)
        if base.type is not _DATE:
            return shifted(call.result.type, np.ascontiguousarray(moments), interval, sign)
        months, days, nanoseconds = parts_of(interval)
        start = add_months(np.ascontiguousarray(moments), np.broadcast_to(sign * months, n))
        microseconds = sign * (nanoseconds // 1000)
        return moment(call.result.type, start + sign * days, microseconds)

    return run


for _stamp in _STAMPS:
    strict("+", f"{_stamp}, interval -> {_stamp}")(_shift(1, 0))
    strict("+", f"interval, {_stamp} -> {_stamp}")(_shift(1, 1))
    strict("-", f"{_stamp}, interval -> {_stamp}")(_shift(-1, 0))
strict("+", "date, interval -> timestamp")(_shift(1, 0))
strict("+", "interval, date -> timestamp")(_shift(1, 1))
strict("-", "date, interval -> timestamp")(_shift(-1, 0))


def _dates(days: NDArray[np.int64]) -> Outcome:
    beyond = (days < _I32.min) | (days > _I32.max)
    return Column(_DATE, np.where(beyond, 0, days).astype(np.int32)), failing(beyond, "date out of range")


def _days(column: Column) -> Ints:
    # Far enough for every sum of two to be told, near enough for none to wrap.
    return np.clip(column.values.astype(np.int64), -(1 << 40), 1 << 40)


@strict("+", "date, bigint -> date", "bigint, date -> date")
def _date_and_days(call: CallSite, args: Sequence[Column]) -> Outcome:
    return _dates(_days(args[0]) + _days(args[1]))


@strict("-", "date, bigint -> date")
def _date_less_days(call: CallSite, args: Sequence[Column]) -> Outcome:
    return _dates(_days(args[0]) - _days(args[1]))


@strict("-", "date, date -> integer")
def _date_less_date(call: CallSite, args: Sequence[Column]) -> Outcome:
    days = _days(args[0]) - _days(args[1])
    beyond = (days < _I32.min) | (days > _I32.max)
    wrong = failing(beyond, "integer out of range")
    return Column(ColumnType.INT32, np.where(beyond, 0, days).astype(np.int32)), wrong


@strict("+", "date, time -> timestamp", "time, date -> timestamp")
def _date_and_time(call: CallSite, args: Sequence[Column]) -> Outcome:
    date, time = args if args[0].type is _DATE else (args[1], args[0])
    return moment(_TIMESTAMP, _days(date), time.values)


@strict("-", "timestamp, timestamp -> interval", "timestamptz, timestamptz -> interval")
def _stamp_less_stamp(call: CallSite, args: Sequence[Column]) -> Outcome:
    a, b = args[0].values, args[1].values
    days, rest = a // DAY - b // DAY, a % DAY - b % DAY
    # Both parts of one sign.
    up, down = (days < 0) & (rest > 0), (days > 0) & (rest < 0)
    days, rest = days + up - down, rest + DAY * (down.astype(np.int64) - up)
    return intervals(np.zeros(len(days)), days, rest * 1000)


@strict("-", "time, time -> interval")
def _time_less_time(call: CallSite, args: Sequence[Column]) -> Outcome:
    rest = (args[0].values - args[1].values) * 1000
    return intervals(np.zeros(len(rest)), np.zeros(len(rest)), rest)


def _time_and_interval(sign: int, at: int) -> Strict:
    def run(call: CallSite, args: Sequence[Column]) -> Outcome:
        microseconds = nanoseconds_of(args[1 - at]) // 1000
        return Column(_TIME, (args[at].values + sign * (microseconds % DAY)) % DAY)

    return run


strict("+", "time, interval -> time")(_time_and_interval(1, 0))
strict("+", "interval, time -> time")(_time_and_interval(1, 1))
strict("-", "time, interval -> time")(_time_and_interval(-1, 0))


def _checked(months: Any, days: Any, nanoseconds: Any, beyond: Any) -> Outcome:
    """Intervals of parts as bigints, of which some may not fit."""
    beyond = beyond | (months < _I32.min) | (months > _I32.max) | (days < _I32.min) | (days > _I32.max)
    fine = ~beyond
    column = intervals(months * fine, days * fine, nanoseconds * fine)
    return column, failing(beyond, "interval out of range")


def _sum(sign: int) -> Strict:
    def run(call: CallSite, args: Sequence[Column]) -> Outcome:
        (months, days, time), (more_months, more_days, more_time) = map(parts_of, args)
        total = time + sign * more_time
        wraps = ((time ^ total) & ((more_time if sign > 0 else ~more_time) ^ total)) < 0
        return _checked(months + sign * more_months, days + sign * more_days, total, wraps)

    return run


strict("+", "interval, interval -> interval")(_sum(1))
strict("-", "interval, interval -> interval")(_sum(-1))


@strict("neg", "interval -> interval")
def _opposite(call: CallSite, args: Sequence[Column]) -> Outcome:
    months, days, nanoseconds = parts_of(args[0])
    return _checked(-months, -days, -nanoseconds, nanoseconds == np.iinfo(np.int64).min)


def _scaled(interval: Column, scale: Callable[[Any], Any]) -> Outcome:
    """Parts of a month become days of thirty, parts of a day become time, to the microsecond."""
    months, days, nanoseconds = parts_of(interval)
    with np.errstate(all="ignore"):
        new_months, new_days = scale(months), scale(days)
        whole_months, whole_days = np.trunc(new_months), np.trunc(new_days)
        more = np.round((new_months - whole_months) * 30, 6)
        whole_more = np.trunc(more)
        seconds = np.round((new_days - whole_days + more - whole_more) * 86_400, 6)
        extra = np.trunc(seconds / 86_400)
        time = np.rint(scale(nanoseconds / 1000) + (seconds - extra * 86_400) * 1e6) * 1000
        total_days = whole_days + whole_more + extra
        beyond = ~(
            (np.abs(time) < 9.2e18) & (np.abs(total_days) < 1 << 40) & (np.abs(whole_months) < 1 << 40)
        )
    total_months, total_days, time = (
        np.where(beyond, 0, each).astype(np.int64) for each in (whole_months, total_days, time)
    )
    return _checked(total_months, total_days, time, beyond)


@strict("*", "interval, double precision -> interval", "double precision, interval -> interval")
def _multiplied(call: CallSite, args: Sequence[Column]) -> Outcome:
    interval, factor = args if args[0].type is ColumnType.INTERVAL else (args[1], args[0])
    return _scaled(interval, lambda part: part * factor.values)


@strict("/", "interval, double precision -> interval")
def _divided(call: CallSite, args: Sequence[Column]) -> Outcome:
    zero = args[1].values == 0
    divisor = np.where(zero, 1, args[1].values)
    column, codes = parted(_scaled(args[0], lambda part: part / divisor))
    return column, first_errors(failing(zero, "division by zero"), codes)


@strict("justify_hours")
def _justify_hours(call: CallSite, args: Sequence[Column]) -> Outcome:
    months, days, nanoseconds = parts_of(args[0])
    whole = np.sign(nanoseconds) * (np.abs(nanoseconds) // _NANO_DAY)
    days, rest = days + whole, nanoseconds - whole * _NANO_DAY
    up, down = (days > 0) & (rest < 0), (days < 0) & (rest > 0)
    return _checked(months, days - up + down, rest + _NANO_DAY * (up.astype(np.int64) - down), False)


@strict("justify_days")
def _justify_days(call: CallSite, args: Sequence[Column]) -> Outcome:
    months, days, nanoseconds = parts_of(args[0])
    whole = np.sign(days) * (np.abs(days) // 30)
    months, rest = months + whole, days - whole * 30
    up, down = (months > 0) & (rest < 0), (months < 0) & (rest > 0)
    return _checked(months - up + down, rest + 30 * (up.astype(np.int64) - down), nanoseconds, False)


@strict("justify_interval")
def _justify_interval(call: CallSite, args: Sequence[Column]) -> Outcome:
    months, days, nanoseconds = parts_of(args[0])
    whole = np.sign(nanoseconds) * (np.abs(nanoseconds) // _NANO_DAY)
    days, rest = days + whole, nanoseconds - whole * _NANO_DAY
    more = np.sign(days) * (np.abs(days) // 30)
    months, days = months + more, days - more * 30
    # What is less gets the sign of what is more.
    up = (months > 0) & ((days < 0) | ((days == 0) & (rest < 0)))
    down = (months < 0) & ((days > 0) | ((days == 0) & (rest > 0)))
    carried = down.astype(np.int64) - up
    months, days = months + carried, days - 30 * carried
    up, down = (days > 0) & (rest < 0), (days < 0) & (rest > 0)
    carried = down.astype(np.int64) - up
    return _checked(months, days + carried, rest - _NANO_DAY * carried, False)


@strict("age")
def _age(call: CallSite, args: Sequence[Column]) -> Outcome:
    n = rows_of(args)
    a, b = (np.broadcast_to(each.values, n) for each in args)
    later, earlier = np.maximum(a, b), np.minimum(a, b)
    (y, m, d), (y2, m2, d2) = civil(later // DAY), civil(earlier // DAY)
    months, days, rest = (y - y2) * 12 + m - m2, d - d2, later % DAY - earlier % DAY
    days, rest = days - (rest < 0), rest + DAY * (rest < 0)
    # A day is taken from the month that the earlier one is in.
    month = month_number(earlier // DAY)
    size = first_of_month(month + 1) - first_of_month(month)
    months, days = months - (days < 0), days + size * (days < 0)
    sign = np.where(a < b, -1, 1)
    return intervals(sign * months, sign * days, sign * rest * 1000)


# Of numbers.


def _date_of(years: Ints, months: Ints, days: Ints) -> tuple[Ints, Codes | None]:
    """Days; a year of 0 is none, and -1 is the one before 1."""
    far = np.abs(years) > 6_000_000
    years = np.where(far, 2000, years)
    astronomical = years + (years < 0)
    wrong = far | (years == 0) | ~is_date(astronomical, months, days)
    found = days_of(astronomical, np.where(wrong, 1, months), np.where(wrong, 1, days))
    beyond = wrong | (found < _I32.min) | (found > _I32.max)
    return np.where(beyond, 0, found), failing(beyond, "date field value out of range")


def _time_of(hours: Any, minutes: Any, seconds: Any) -> tuple[Ints, Codes | None]:
    fits = (hours >= 0) & (minutes >= 0) & (minutes < 60) & (seconds >= 0) & (seconds < 60)
    fits = fits & ((hours < 24) | ((hours == 24) & (minutes == 0) & (seconds == 0)))
    exact = np.rint(np.where(fits, seconds, 0) * 1e6).astype(np.int64)
    time = np.where(fits, (hours * 60 + minutes) * 60_000_000 + exact, 0)
    return time, failing(~fits, "time field value out of range")


def _wide(args: Sequence[Column]) -> list[Any]:
    n = rows_of(args)
    return [np.ascontiguousarray(np.broadcast_to(each.values, n)) for each in args]


@strict("make_date")
def _make_date(call: CallSite, args: Sequence[Column]) -> Outcome:
    days, codes = _date_of(*_wide(args))
    return Column(_DATE, days.astype(np.int32)), codes


@strict("make_time")
def _make_time(call: CallSite, args: Sequence[Column]) -> Outcome:
    time, codes = _time_of(*_wide(args))
    return Column(_TIME, time), codes


@strict("make_timestamp")
def _make_timestamp(call: CallSite, args: Sequence[Column]) -> Outcome:
    values = _wide(args)
    days, codes = _date_of(*values[:3])
    time, more = _time_of(*values[3:])
    return moment(_TIMESTAMP, days, time, first_errors(codes, more))


@strict("to_timestamp")
def _to_timestamp(call: CallSite, args: Sequence[Column]) -> Outcome:
    seconds = args[0].values
    days = np.floor(seconds / 86_400)
    fits = np.isfinite(seconds) & (np.abs(days) < DAYS[1])
    days = np.where(fits, days, 0)
    rest = np.rint((np.where(fits, seconds, 0) - days * 86_400) * 1e6).astype(np.int64)
    return moment(
        ColumnType.TIMESTAMPTZ, days.astype(np.int64), rest, failing(~fits, "timestamp out of range")
    )


@strict("timezone")
def _timezone(call: CallSite, args: Sequence[Column]) -> Outcome:
    sign = 1 if call.result.type is _TIMESTAMP else -1

    def at(column: Column, zone: str) -> Outcome:
        offset = _offset(zone)
        if offset is None:
            n = len(column)
            return Column.zeros(call.result.type, n), np.full(
                n, code_of("time zone not recognized"), np.uint32
            )
        values = column.values
        return moment(call.result.type, values // DAY, values % DAY + sign * offset)

    return by_constants(call.result.type, at, args[1], args[0])


def _offset(zone: str) -> int | None:
    """Microseconds east of UTC."""
    if zone.upper() in ("UTC", "GMT", "Z", "ETC/UTC"):
        return 0
    match = _OFFSET.fullmatch(zone)
    if match is None or int(match[2]) > 15:
        return None
    minutes = int(match[2]) * 60 + int(match[3] or 0)
    return (-1 if match[1] == "-" else 1) * minutes * 60_000_000
