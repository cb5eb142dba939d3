"""Fields of moments: taken out, cut off, and written by a template.

Does not: loop over rows in Python.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from clusterd.render.functions.arithmetic import lanes
from clusterd.render.functions.calendar import civil, first_of_month, iso_year_and_week, month_number
from clusterd.render.functions.casts import numeric_texts
from clusterd.render.functions.casts_of_moments import DAY, intervals, parts_of
from clusterd.render.functions.evaluated import Ints, code_of
from clusterd.render.functions.moments import moment
from clusterd.render.functions.registry import CallSite, Outcome, strict
from clusterd.render.functions.text import joined
from clusterd.render.functions.texts import by_constants, spread
from shm_arrangements.columns import Column
from shm_arrangements.types import AnyType, ColumnType

__all__: list[str] = []

_TEXT: Final = ColumnType.TEXT
_SECOND: Final = 1_000_000
_JULIAN: Final = 2_440_588  # of 1970-01-01
# Digits behind the point, where there are any; the table has them too (resolve.py).
_SCALES: Final = {"second": 6, "epoch": 6, "julian": 6, "milliseconds": 3}
_CLOCK: Final[dict[str, Callable[[Ints], Ints]]] = {  # of microseconds since midnight
    "hour": lambda t: t // (3600 * _SECOND),
    "minute": lambda t: t // (60 * _SECOND) % 60,
    "second": lambda t: t % (60 * _SECOND),
    "milliseconds": lambda t: t % (60 * _SECOND),
    "microseconds": lambda t: t % (60 * _SECOND),
}
_UNITS: Final = {  # that a time is cut to
    "microseconds": 1, "milliseconds": 1000, "second": _SECOND, "minute": 60 * _SECOND,
    "hour": 3600 * _SECOND, "day": DAY,
}  # fmt: skip
_MONTHS: Final = {"month": 1, "quarter": 3, "year": 12}
_YEARS: Final = {"decade": 10, "century": 100, "millennium": 1000}
_ALL: Final = frozenset({
    *_CLOCK, *_UNITS, *_MONTHS, *_YEARS, "week", "doy", "dow", "isodow", "isoyear", "epoch", "julian",
    "timezone", "timezone_hour", "timezone_minute",
})  # fmt: skip
_PLURALS: Final = {
    f"{name}s": name for name in (*_MONTHS, "second", "minute", "hour", "day", "week", "decade")
}


def _field(name: str) -> str:
    low = name.lower()
    return {**_PLURALS, "millennia": "millennium", "centuries": "century"}.get(low, low)


def _failed(type_: AnyType, n: int, field: str) -> Outcome:
    error = "unit not supported" if field in _ALL else "unit not recognized"
    return Column.zeros(type_, n), np.full(n, code_of(error), np.uint32)


def _of_years(field: str, years: Ints) -> Ints:
    """A count of years, decades and so on, from astronomical years."""
    size = _YEARS.get(field, 1)
    if field == "decade":
        decades: Ints = years // 10
        return decades
    # There is no year 0: 1 before Christ follows it, and begins the first century before.
    return np.where(
        years > 0, (years + size - 1) // size, -((size - years) // size) if size > 1 else years - 1
    )


def _of_date(field: str, days: Ints) -> Ints | None:
    if field in ("year", "decade", "century", "millennium"):
        return _of_years(field, civil(days)[0])
    if field in ("month", "quarter", "day"):
        _, month, day = civil(days)
        return {"month": month, "quarter": (month + 2) // 3, "day": day}[field]
    if field == "isoyear":
        years = iso_year_and_week(days)[0]
        shown: Ints = years - (years <= 0)
        return shown
    if field == "week":
        return iso_year_and_week(days)[1]
    if field == "doy":
        return days - first_of_month(month_number(days) // 12 * 12) + 1
    if field == "dow":
        return (days + 4) % 7
    return (days + 3) % 7 + 1 if field == "isodow" else None


def _of_timestamp(type_: AnyType, field: str, values: Ints) -> Ints | None:
    if field in _CLOCK:
        return _CLOCK[field](values % DAY)
    if field == "epoch":
        return values
    if field == "julian":
        return (values // DAY + _JULIAN) * _SECOND + (values % DAY + 43_200) // 86_400
    if field.startswith("timezone") and field in _ALL:
        none: Ints = np.zeros(len(values), np.int64)
        return none if type_ is ColumnType.TIMESTAMPTZ else None
    return _of_date(field, values // DAY)


def _quotient(values: Ints, by: int) -> Ints:
    """Rounded toward zero."""
    quotient: Ints = np.sign(values) * (np.abs(values) // by)
    return quotient


def _of_interval(field: str, column: Column) -> Ints | None:
    months, days, nanoseconds = parts_of(column)
    time = _quotient(nanoseconds, 1000)
    if field in _CLOCK:
        part: Ints = np.sign(time) * _CLOCK[field](np.abs(time))
        return part
    if field == "epoch":
        years, rest = _quotient(months, 12), np.fmod(months, 12)
        total: Ints = (years * 31_557_600 + rest * 2_592_000 + days * 86_400) * _SECOND + time
        return total
    if field in _YEARS or field == "year":
        return _quotient(months, 12 * _YEARS.get(field, 1))
    return {"month": np.fmod(months, 12), "quarter": _quotient(np.fmod(months, 12), 3) + 1, "day": days}.get(
        field
    )


def _values(column: Column, field: str) -> Ints | None:
    """The field times 10 ** its scale; None if there is none."""
    if column.type is ColumnType.INTERVAL:
        return _of_interval(field, column)
    if column.type is ColumnType.TIME:
        if field == "epoch":
            return column.values
        return _CLOCK[field](column.values) if field in _CLOCK else None
    return _of_timestamp(column.type, field, column.values)


@strict("extract")
def _extract(call: CallSite, args: Sequence[Column]) -> Outcome:
    field = _field(str(call.constants[0]))
    values = _values(args[1], field)
    if values is None:
        return _failed(ColumnType.NUMERIC, len(args[1]), field)
    return Column(ColumnType.NUMERIC, lanes(values))


@strict("date_part")
def _date_part(call: CallSite, args: Sequence[Column]) -> Outcome:
    def part(column: Column, name: str) -> Outcome:
        field = _field(name)
        values = _values(column, field)
        if values is None:
            return _failed(ColumnType.FLOAT64, len(column), field)
        return Column(ColumnType.FLOAT64, values / 10.0 ** _SCALES.get(field, 0))

    return by_constants(ColumnType.FLOAT64, part, args[1], args[0])


def _first_year(field: str, years: Ints) -> Ints:
    """The year that a decade, century or millennium begins with."""
    size = _YEARS[field]
    return years // 10 * 10 if field == "decade" else (years - 1) // size * size + 1


def _cut(type_: AnyType, values: Ints, field: str) -> Outcome:
    days, rest = values // DAY, values % DAY
    if field in _UNITS:
        unit = _UNITS[field]
        return Column(type_, values - rest % unit) if unit < DAY else moment(type_, days, rest * 0)
    if field == "week":
        start = days - (days + 3) % 7
    elif field in _MONTHS:
        months = month_number(days)
        start = first_of_month(months - months % _MONTHS[field])
    elif field in _YEARS:
        start = first_of_month((_first_year(field, civil(days)[0]) - 1970) * 12)
    else:
        return _failed(type_, len(values), field)
    return moment(type_, start, rest * 0)


def _cut_interval(column: Column, field: str) -> Outcome:
    months, days, nanoseconds = parts_of(column)
    none = np.zeros(len(column), np.int64)
    if field in _UNITS:
        unit = _UNITS[field] * 1000
        return intervals(months, days, _quotient(nanoseconds, unit) * unit if field != "day" else none)
    size = _MONTHS.get(field) or 12 * _YEARS.get(field, 0)
    if not size:
        return _failed(ColumnType.INTERVAL, len(column), field)
    return intervals(_quotient(months, size) * size, none, none)


@strict("date_trunc")
def _date_trunc(call: CallSite, args: Sequence[Column]) -> Outcome:
    type_ = call.result.type

    def cut(column: Column, name: str) -> Outcome:
        if type_ is ColumnType.INTERVAL:
            return _cut_interval(column, _field(name))
        return _cut(type_, column.values, _field(name))

    return by_constants(type_, cut, args[1], args[0])


@strict("date_bin")
def _date_bin(call: CallSite, args: Sequence[Column]) -> Outcome:
    months, days, nanoseconds = parts_of(args[0])
    time = nanoseconds // 1000
    stride = days * DAY + time
    codes = np.where(
        months != 0,
        np.uint32(code_of("timestamps cannot be binned into months or years")),
        np.where(stride <= 0, np.uint32(code_of("stride must be positive")), np.uint32(0)),
    )
    far = (np.abs(days) > 106_000_000) | (codes != 0)
    stride = np.where(far, DAY, stride)
    source, origin = args[1].values, args[2].values
    distance = source - origin
    wraps = ((source ^ origin) & (source ^ distance)) < 0
    codes = np.where(
        codes != 0, codes, np.where(wraps | far, np.uint32(code_of("timestamp out of range")), np.uint32(0))
    )
    start = np.where(wraps, 0, distance) // stride * stride + origin
    return Column(call.result.type, start), codes if codes.any() else None


# Templates.

_TOKEN: Final = re.compile(
    r'"[^"]*"|FM|YYYY|YY|IYYY|MONTH|Month|month|MON|Mon|mon|MM|MS|MI|DAY|Day|day|DY|Dy|dy|DDD|DD|D|ID|IW|'
    r"HH24|HH12|HH|SS|US|AM|PM|am|pm|Q|(?s:.)"
)
_MONTH_NAMES: Final = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October",
    "November", "December",
)  # fmt: skip
_DAY_NAMES: Final = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
_NUMBERS: Final[dict[str, tuple[str, int]]] = {  # the field, and to how many digits it is filled
    "YYYY": ("year", 4), "IYYY": ("isoyear", 4), "MM": ("month", 2), "DD": ("day", 2), "DDD": ("doy", 3),
    "ID": ("isodow", 1), "IW": ("week", 2), "HH24": ("hour", 2), "MI": ("minute", 2), "Q": ("quarter", 1),
    "US": ("microseconds", 6),
}  # fmt: skip


def _name(token: str, names: Sequence[str], index: Ints, padded: bool) -> Column:
    shape = str.upper if token.isupper() else str.lower if token.islower() else str
    size = None if token.lower() in ("month", "day") else 3
    width = max(map(len, names)) if padded and size is None else 0
    return Column.from_pylist(_TEXT, [shape(name[:size]).ljust(width) for name in names]).take(index)


def _number(values: Ints, width: int) -> Column:
    digits = numeric_texts(lanes(np.abs(values)), 0)
    assert digits.offsets is not None
    zeros = Column.from_pylist(_TEXT, ["0" * count for count in range(width + 1)])
    missing = np.maximum(width - np.diff(digits.offsets), 0)
    sign = Column.from_pylist(_TEXT, ["", "-"]).take((values < 0).astype(np.int64))
    return joined(joined(sign, zeros.take(missing)), digits)


def _written(token: str, type_: AnyType, values: Ints, padded: bool) -> Column | None:
    def field(name: str) -> Ints:
        found = _of_timestamp(type_, name, values)
        assert found is not None
        return found

    if token in _NUMBERS:
        name, width = _NUMBERS[token]
        part = field(name)
        return _number(part % _SECOND if token == "US" else part, width if padded else 0)
    low = token.lower()
    if low in ("month", "mon"):
        return _name(token, _MONTH_NAMES, field("month") - 1, padded)
    if low in ("day", "dy"):
        return _name(token, _DAY_NAMES, field("dow"), padded)
    if low in ("am", "pm"):
        pair = ["am", "pm"] if token == low else ["AM", "PM"]
        return Column.from_pylist(_TEXT, pair).take((field("hour") >= 12).astype(np.int64))
    numbers: dict[str, Callable[[], tuple[Any, int]]] = {
        "YY": lambda: (field("year") % 100, 2),
        "D": lambda: (field("dow") + 1, 1),
        "HH": lambda: ((field("hour") + 11) % 12 + 1, 2),
        "HH12": lambda: ((field("hour") + 11) % 12 + 1, 2),
        "SS": lambda: (field("second") // _SECOND, 2),
        "MS": lambda: (field("second") % _SECOND // 1000, 3),
    }
    if token not in numbers:
        return None
    part, width = numbers[token]()
    return _number(part, width if padded else 0)


@strict("to_char")
def _to_char(call: CallSite, args: Sequence[Column]) -> Outcome:
    def written(column: Column, template: str) -> Column:
        total = spread(Column.zeros(_TEXT, 1), len(column))
        padded = True
        for token in _TOKEN.findall(template):
            if token == "FM":
                padded = False
                continue
            found = _written(token, column.type, column.values, padded)
            padded = True
            literal = token[1:-1] if len(token) > 1 and token[0] == '"' else token
            total = joined(total, Column.from_pylist(_TEXT, [literal]) if found is None else found)
        return total

    return by_constants(_TEXT, written, *args)
