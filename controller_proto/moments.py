"""Dates, times and intervals as text, in the forms of PostgreSQL, and back.

| type        | text                                                                                   |
|-------------|----------------------------------------------------------------------------------------|
| date        | `2013-01-01`; outside years 1 to 9999 `@DAYS`                                          |
| time        | `05:00:00.5`                                                                           |
| timestamp   | `2013-01-01 05:00:00`; outside years 1 to 9999 `@MICROSECONDS`                         |
| timestamptz | `2013-01-01 05:00:00+00`; read with any offset, and without one as UTC                 |
| interval    | `1 year 2 mons -3 days +04:05:06.5`, zero parts left out; `00:00:00`                   |

A parser gives None for what is no such text, or would have to be rounded.

Does not: check ranges (schema.py does), know time zones by name.
"""

from __future__ import annotations

import datetime
import re
from fractions import Fraction

from controller_proto.schema import ColumnType

__all__ = ["format_interval", "format_moment", "parse_interval", "parse_moment"]

_EPOCH = datetime.datetime(1970, 1, 1)
_MICROSECOND = datetime.timedelta(microseconds=1)
_AT = re.compile(r"@([+-]?[0-9]{1,20})")
_TIME = re.compile(r"([0-9]{1,2}):([0-9]{2})(?::([0-9]{2})(?:\.([0-9]{1,6})0*)?)?")
_FINE = re.compile(r"\.[0-9]{6}[0-9]*[1-9]")  # Python reads the first six digits of a second, and no more

_PART = re.compile(
    r"\s*([+-]?)(?:([0-9]+):([0-9]{2})(?::([0-9]{2}(?:\.[0-9]+)?))?|([0-9]+(?:\.[0-9]+)?)\s*([a-z]+))"
)
_SECOND = 10**9
_MONTHS = {"year": 12, "mon": 1, "month": 1}
_DAYS = {"week": 7, "day": 1}
_CLOCK = {
    "hour": 3600 * _SECOND, "minute": 60 * _SECOND, "min": 60 * _SECOND, "second": _SECOND, "sec": _SECOND,
    "millisecond": 10**6, "microsecond": 1000, "nanosecond": 1,
}  # fmt: skip


def parse_moment(text: str, type_: ColumnType) -> int | None:
    """The days or microseconds that `text` is as a date, time, timestamp or timestamptz."""
    if type_ is ColumnType.TIME:
        return _parse_time(text)
    at = _AT.fullmatch(text)
    if at is not None:
        return int(at[1])
    if _FINE.search(text):
        return None
    try:
        if type_ is ColumnType.DATE:
            return (datetime.date.fromisoformat(text) - _EPOCH.date()).days
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        return None
    if moment.tzinfo is not None:
        if type_ is ColumnType.TIMESTAMP:
            return None
        return (moment - _EPOCH.replace(tzinfo=datetime.UTC)) // _MICROSECOND
    return (moment - _EPOCH) // _MICROSECOND


def _parse_time(text: str) -> int | None:
    match = _TIME.fullmatch(text)
    if match is None:
        return None
    hours, minutes, seconds = int(match[1]), int(match[2]), int(match[3] or 0)
    if minutes > 59 or seconds > 59:
        return None
    return ((hours * 60 + minutes) * 60 + seconds) * 1_000_000 + int((match[4] or "").ljust(6, "0"))


def format_moment(value: int, type_: ColumnType) -> str:
    """Inverse of `parse_moment`."""
    if type_ is ColumnType.TIME:
        return _clock(value * 1000)
    try:
        if type_ is ColumnType.DATE:
            return (_EPOCH.date() + datetime.timedelta(days=value)).isoformat()
        text = (_EPOCH + value * _MICROSECOND).isoformat(sep=" ")
    except OverflowError:
        return f"@{value}"
    return text + "+00" * (type_ is ColumnType.TIMESTAMPTZ)


def _clock(nanoseconds: int) -> str:
    """`HH:MM:SS` of a count that is not negative, with as many decimals as it needs."""
    seconds, fraction = divmod(nanoseconds, _SECOND)
    minutes, second = divmod(seconds, 60)
    text = f"{minutes // 60:02d}:{minutes % 60:02d}:{second:02d}"
    return f"{text}.{fraction:09d}".rstrip("0") if fraction else text


def format_interval(months: int, days: int, nanoseconds: int) -> str:
    """Years, months, days, then the time, each with its own sign; a plus stands only after a minus."""
    sign = -1 if months < 0 else 1
    years, mons = sign * (abs(months) // 12), sign * (abs(months) % 12)
    parts: list[str] = []
    negative = False
    for count, unit in ((years, "year"), (mons, "mon"), (days, "day")):
        if count:
            plus = "+" if negative and count > 0 else ""
            parts.append(f"{plus}{count} {unit}" + ("" if count == 1 else "s"))
            negative = count < 0
    if nanoseconds or not parts:
        plus = "-" if nanoseconds < 0 else "+" if negative else ""
        parts.append(plus + _clock(abs(nanoseconds)))
    return " ".join(parts)


def parse_interval(text: str) -> tuple[int, int, int] | None:
    """Months, days and nanoseconds; a fraction of a unit longer than an hour is none of ours.

    >>> parse_interval("1 mon 2 days 00:00:01.5")
    (1, 2, 1500000000)
    """
    months = days = 0
    clock = Fraction(0)
    at = 0
    lowered = text.strip().lower()
    while at < len(lowered):
        match = _PART.match(lowered, at)
        if match is None or len(match[0]) > 60:
            return None
        at = match.end()
        sign = -1 if match[1] == "-" else 1
        if match[2] is not None:
            if int(match[3]) > 59 or Fraction(match[4] or 0) >= 60:
                return None
            clock += sign * (int(match[2]) * 3600 + int(match[3]) * 60 + Fraction(match[4] or 0)) * _SECOND
            continue
        unit, amount = match[6].removesuffix("s"), sign * Fraction(match[5])
        if unit in _CLOCK:
            clock += amount * _CLOCK[unit]
        elif amount.denominator != 1:
            return None
        elif unit in _MONTHS:
            months += int(amount) * _MONTHS[unit]
        elif unit in _DAYS:
            days += int(amount) * _DAYS[unit]
        else:
            return None
    if not lowered or clock.denominator != 1:
        return None
    return months, days, int(clock)
