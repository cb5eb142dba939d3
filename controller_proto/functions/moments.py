"""Dates, times, timestamps and intervals. A timestamptz is a moment, shown and taken apart in UTC."""

from __future__ import annotations

from functools import partial
from typing import Final

from controller_proto.functions.signatures import declared

_moment = partial(declared, "moments")
_FIELDS = (
    "millennium century decade year isoyear quarter month week day doy dow isodow hour minute second "
    "milliseconds microseconds epoch julian"
)
_OF_EXTRACT = (
    f"`extract(field FROM x)`; fields are {_FIELDS}. second, epoch and julian have 6 digits behind the "
    "point, milliseconds 3, the others none."
)
_RANGE = "timestamp out of range"
_UNIT = "unit not recognized; unit not supported"

FUNCTIONS: Final = (
    _moment("extract", "text, {timestamp|timestamptz|time|interval} -> numeric", _OF_EXTRACT,
            'extract(second FROM timestamp "2013-07-01 12:00:01.5")', "1.500000", errors=_UNIT, constant=(0,),
            differs="DuckDB gives whole numbers."),
    _moment("date_part", "text, {timestamp|timestamptz|time|interval} -> double precision",
            "As `extract`, a double.", 'date_part("dow", date "2013-07-01")', "1.0", errors=_UNIT),
    _moment("date_trunc",
            "text, timestamp -> timestamp; text, timestamptz -> timestamptz; text, interval -> interval",
            "Without what is finer than a field: microseconds milliseconds second minute hour day week "
            "month quarter year decade century millennium.",
            'date_trunc("month", timestamp "2013-07-21 12:00:00")', '"2013-07-01 00:00:00"',
            errors=f"{_UNIT}; {_RANGE}", differs="DuckDB's centuries and millennia begin a year earlier."),
    _moment("date_bin",
            "interval, timestamp, timestamp -> timestamp; interval, timestamptz, timestamptz -> timestamptz",
            "The start of the step of an interval, counted from the third, that a timestamp is in.",
            'date_bin(interval "15 minutes", timestamp "2013-07-01 12:34:00", timestamp "2013-01-01 '
            '00:00:00")', '"2013-07-01 12:30:00"',
            errors=f"stride must be positive; timestamps cannot be binned into months or years; {_RANGE}"),
    _moment("age", "timestamp, timestamp -> interval; timestamptz, timestamptz -> interval",
            "The time from the second to the first, in years, months and days.",
            'age(date "2013-07-01", date "2012-05-31")', '"1 year 1 mon 1 day"'),
    _moment("make_date", "bigint, bigint, bigint -> date",
            "Of year, month and day; years before Christ negative.", "make_date(2013, 7, 1)", '"2013-07-01"',
            errors="date field value out of range"),
    _moment("make_time", "bigint, bigint, double precision -> time", "Of hour, minute and second.",
            "make_time(8, 15, 23.5)", '"08:15:23.5"', errors="time field value out of range"),
    _moment("make_timestamp", "bigint, bigint, bigint, bigint, bigint, double precision -> timestamp",
            "Of year, month, day, hour, minute and second.", "make_timestamp(2013, 7, 1, 8, 15, 23.5)",
            '"2013-07-01 08:15:23.500000"',
            errors=f"date field value out of range; time field value out of range; {_RANGE}"),
    _moment("to_timestamp", "double precision -> timestamptz", "The moment so many seconds after 1970.",
            "to_timestamp(1372636800)", '"2013-07-01 00:00:00+00"', errors=_RANGE),
    _moment("timezone", "text, timestamp -> timestamptz; text, timestamptz -> timestamp",
            "`x AT TIME ZONE zone`: the moment at which a clock there shows a timestamp, or what it shows "
            "then. Zones are `UTC` and offsets such as `+05:30`.",
            'timestamp "2013-07-01 12:00:00" AT TIME ZONE "+02:00"', '"2013-07-01 10:00:00+00"',
            errors=f"time zone not recognized; {_RANGE}",
            differs="PostgreSQL knows zones by name, and reads the sign of an offset the POSIX way; "
                    "DuckDB as here."),
    _moment("justify_hours", "interval -> interval", "With 24 hours as a day.",
            'justify_hours(interval "50 hours")', '"2 days 02:00:00"', errors="interval out of range"),
    _moment("justify_days", "interval -> interval", "With 30 days as a month.",
            'justify_days(interval "35 days")', '"1 mon 5 days"', errors="interval out of range"),
    _moment("justify_interval", "interval -> interval",
            "With 24 hours as a day and 30 days as a month, all of one sign.",
            'justify_interval(interval "1 mon -1 hour")', '"29 days 23:00:00"',
            errors="interval out of range"),
    _moment("to_char", "timestamp, text -> text; timestamptz, text -> text",
            "A timestamp by a template: YYYY YY MM DD DDD D ID HH24 HH12 HH MI SS MS US AM PM Q IW IYYY "
            'Month Mon Day Dy (also in capitals or small), FM before one for no padding, and `"text"` for '
            "itself.", 'to_char(timestamp "2013-07-01 08:05:09", "YYYY-MM-DD HH24:MI:SS, FMDay")',
            '"2013-07-01 08:05:09, Monday"'),
    _moment("now_ts", "-> bigint",
            "The time at which a row is looked at: in predicates alone, compared with numbers.",
            "now_ts() > 5", "", nulls="never"),
)  # fmt: skip
