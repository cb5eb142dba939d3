"""Arithmetic. A result that its type cannot hold is an error; nothing wraps. An infinite operand gives what
IEEE 754 says, but a finite one never becomes infinite or vanishes.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from controller_proto.functions.signatures import declared

_arithmetic = partial(declared, "arithmetic")
_RANGE = (
    "smallint out of range; integer out of range; bigint out of range; uint2 out of range; "
    "uint4 out of range; uint8 out of range; numeric out of range; real out of range; "
    "double precision out of range"
)
_MOMENTS = "; date out of range; timestamp out of range; interval out of range"
_DIVISION = "division by zero; " + _RANGE
_WHOLE = (
    "smallint, smallint -> smallint; integer, integer -> integer; bigint, bigint -> bigint; "
    "uint2, uint2 -> uint2; uint4, uint4 -> uint4; uint8, uint8 -> uint8; "
)
_ALIKE = _WHOLE + "{} real, real -> real; double precision, double precision -> double precision"
_SIGNED = (
    "smallint -> smallint; integer -> integer; bigint -> bigint; numeric(s) -> numeric(s); real -> real; "
    "double precision -> double precision; interval -> interval"
)
_SUMS = (
    "; date, bigint -> date; bigint, date -> date; date, interval -> timestamp; interval, date -> timestamp; "
    "date, time -> timestamp; time, date -> timestamp; timestamp, interval -> timestamp; "
    "interval, timestamp -> timestamp; timestamptz, interval -> timestamptz; "
    "interval, timestamptz -> timestamptz; time, interval -> time; interval, time -> time; "
    "interval, interval -> interval"
)
_DIFFERENCES = (
    "; date, date -> integer; date, bigint -> date; date, interval -> timestamp; "
    "timestamp, timestamp -> interval; timestamptz, timestamptz -> interval; "
    "timestamp, interval -> timestamp; timestamptz, interval -> timestamptz; time, time -> interval; "
    "time, interval -> time; interval, interval -> interval"
)
_DELETIONS = "; jsonb, text -> jsonb; jsonb, bigint -> jsonb"
_QUOTIENTS = "; interval, double precision -> interval"
_PRODUCTS = "; interval, double precision -> interval; double precision, interval -> interval"

FUNCTIONS: Final = (
    _arithmetic("+", _ALIKE.format("numeric(s), numeric(s) -> numeric(s);") + _SUMS,
                "Sum, also of moments and intervals.", "1 + 0.5", "1.5", errors=_RANGE + _MOMENTS),
    _arithmetic("-", _ALIKE.format("numeric(s), numeric(s) -> numeric(s);") + _DIFFERENCES + _DELETIONS,
                "Difference, also of moments and intervals; a jsonb without a key, equal strings, or the "
                "element at an index.", "2::uint2 - 3::uint2",
                "error: uint2 out of range",
                errors=_RANGE + _MOMENTS + "; cannot delete from scalar; cannot delete from object using "
                "integer index"),
    _arithmetic("*", _ALIKE.format("numeric(s), numeric(t) -> numeric(s+t);") + _PRODUCTS,
                "Product. Of numerics it has the digits behind the point of both, up to 38, and is "
                "rounded half away from zero.", "1.5::numeric(38,1) * 0.25::numeric(38,2)", "0.375",
                errors=_RANGE + _MOMENTS),
    _arithmetic("/", _ALIKE.format("numeric(s), numeric(t) -> numeric(q);") + _QUOTIENTS,
                "Quotient. Of integers it is rounded toward zero; of numerics it has 16 digits behind the "
                "point, or more if an argument does, rounded half away from zero.", "7 / 2", "3",
                errors=_DIVISION,
                differs="PostgreSQL gives a quotient of numerics 16 digits or more in all; DuckDB divides "
                        "integers and decimals as doubles, and by zero to NULL."),
    _arithmetic("%", _ALIKE.format("numeric(s), numeric(s) -> numeric(s);"),
                "Remainder of the quotient rounded toward zero, with the sign of the first argument.",
                "-7 % 3", "-1", errors=_DIVISION,
                differs="PostgreSQL has none of doubles; of DuckDB's, by zero is NULL or NaN."),
    _arithmetic("div", _WHOLE + "numeric(s), numeric(s) -> numeric", "Quotient rounded toward zero.",
                "div(-7.5::numeric(38,1), 2::numeric)", "-3", errors=_DIVISION),
    _arithmetic("mod", _ALIKE.format("numeric(s), numeric(s) -> numeric(s);"), "The same as `%`.",
                "mod(7, 4)", "3", errors=_DIVISION),
    _arithmetic("neg", _SIGNED, "`-x`.", "-(5)", "-5", errors=_RANGE),
)  # fmt: skip
