"""Casts of any type to text, as PostgreSQL prints it.

Numbers, booleans, dates and timestamps, bytes and UUIDs are written by whole columns; intervals, lists,
records, and floats so large or small that they have an exponent, once for each distinct value.

Does not: loop over rows in Python but for what is said above.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from clusterd.convert import scalars_from_column, to_wire
from clusterd.render.functions.arithmetic import lanes
from clusterd.render.functions.casts import double_texts, numeric_texts
from clusterd.render.functions.casts_of_moments import DAY
from clusterd.render.functions.registry import CallSite, Outcome, strict
from clusterd.render.functions.text import joined
from clusterd.render.functions.texts import by_distinct, from_arrow, plain_texts
from controller_proto.literals import format_scalar
from controller_proto.moments import format_interval, format_moment
from controller_proto.schema import Column as WireColumn
from controller_proto.schema import ColumnType as WireType
from shm_arrangements.columns import Column
from shm_arrangements.types import ColumnSpec, ColumnType

__all__ = ["hex_texts", "text_of"]

_TEXT: Final = ColumnType.TEXT
_PLAIN: Final = (1e-4, 1e10)  # what Arrow writes without an exponent, as PostgreSQL does
_DIGITS: Final = np.frombuffer(b"0123456789abcdef", np.uint8)
# The days and microseconds of years 1 to 9999.
_YEARS: Final = (-719_162, 2_932_896)
_DASHES: Final = (8, 12, 16, 20)


def text_of(spec: ColumnSpec, column: Column) -> Column:
    """A column of `spec`'s type as text."""
    type_ = spec.type
    if type_ is ColumnType.TEXT:
        return column
    if not isinstance(type_, ColumnType):
        return _nested(spec, column)
    match type_:
        case ColumnType.BOOL:
            return Column.from_pylist(_TEXT, ["false", "true"]).take(column.values.astype(np.int64))
        case ColumnType.NUMERIC:
            return numeric_texts(column.values, spec.scale)
        case ColumnType.FLOAT32 | ColumnType.FLOAT64:
            return _floats(column)
        case ColumnType.DATE | ColumnType.TIMESTAMP | ColumnType.TIMESTAMPTZ | ColumnType.TIME:
            return _moments(type_, column)
        case ColumnType.INTERVAL:
            return by_distinct(_TEXT, lambda value: format_interval(*value), column)[0]
        case ColumnType.UUID:
            return _uuids(column)
        case ColumnType.BYTEA:
            return joined(Column.from_pylist(_TEXT, ["\\x"]), hex_texts(column))
        case ColumnType.JSONB:
            return Column(_TEXT, *plain_texts(column))
        case _:
            return numeric_texts(lanes(column.values), 0)


@strict(
    "cast",
    *(
        f"{each.value} -> text"
        for each in WireType
        if each.value not in ("numeric", "text", "list", "record")
    ),
)
@strict("cast", "numeric(s) -> text", "any -> text")
def _to_text(call: CallSite, args: Sequence[Column]) -> Outcome:
    return text_of(call.args[0], args[0])


def _nested(spec: ColumnSpec, column: Column) -> Column:
    wire = to_wire(spec)
    values = scalars_from_column(spec, column)
    return Column.from_pylist(_TEXT, ["" if v is None else format_scalar(v, wire) for v in values])


def _floats(column: Column) -> Column:
    values = column.values
    size = np.abs(values)
    if (
        (values == 0) | ((size >= _PLAIN[0]) & (size < _PLAIN[1]))
    ).all() and column.type is ColumnType.FLOAT64:
        return from_arrow(_TEXT, double_texts(values))
    wire = WireColumn("", WireType[column.type.name])
    most = 15 if column.type is ColumnType.FLOAT64 else 6
    return by_distinct(_TEXT, lambda value: _float_text(value, wire, most), column)[0]


def _float_text(value: float, wire: WireColumn, most: int) -> str:
    """The shortest digits; with an exponent below -4 or from `most` on."""
    if math.isnan(value) or math.isinf(value):
        return format_scalar(value, wire)
    digits = format_scalar(value, wire)
    mantissa, _, exponent = digits.lstrip("-").partition("e")
    whole, _, fraction = mantissa.partition(".")
    fraction = "" if fraction == "0" else fraction
    kept = (whole + fraction).lstrip("0")
    if not kept:
        return "0"
    # The value is 0.KEPT times 10 ** places.
    places = len(whole) + int(exponent or 0) - (len(whole + fraction) - len(kept))
    kept = kept.rstrip("0")
    sign = "-" if value < 0 else ""
    if not -4 <= places - 1 < most:
        point = "." if len(kept) > 1 else ""
        return f"{sign}{kept[0]}{point}{kept[1:]}e{places - 1:+03d}"
    if places <= 0:
        return f"{sign}0.{'0' * -places}{kept}"
    if len(kept) <= places:
        return sign + kept.ljust(places, "0")
    return f"{sign}{kept[:places]}.{kept[places:]}"


def _moments(type_: ColumnType, column: Column) -> Column:
    values = column.values.astype(np.int64)
    unit = 1 if type_ is ColumnType.DATE else DAY
    if type_ is ColumnType.TIME:
        plain = values < DAY
    else:
        plain = (values >= _YEARS[0] * unit) & (values < (_YEARS[1] + 1) * unit)
    usual = _usual_moments(type_, np.where(plain, values, 0))
    if plain.all():
        return usual
    wire = WireType[type_.name]
    others = by_distinct(_TEXT, lambda value: format_moment(value, wire), column.filter(~plain))[0]
    both = Column.concat(_TEXT, (usual, others))
    return both.take(np.where(plain, np.arange(len(usual)), len(usual) - 1 + np.cumsum(~plain)))


def _usual_moments(type_: ColumnType, values: NDArray[np.int64]) -> Column:
    """Those of years 1 to 9999, and times before 24:00:00."""
    if type_ is ColumnType.DATE:
        return _of_unicode(np.datetime_as_string(values.view("M8[D]")))
    texts = pc.replace_substring(pa.array(np.datetime_as_string(values.view("M8[us]"))), "T", " ")
    texts = pc.replace_substring_regex(texts, r"(\.[0-9]*[1-9])0+$", r"\1")
    texts = pc.replace_substring_regex(texts, r"\.0+$", "")
    if type_ is ColumnType.TIME:
        texts = pc.utf8_slice_codeunits(texts, 11)
    found = from_arrow(_TEXT, texts)
    if type_ is ColumnType.TIMESTAMPTZ:
        return joined(found, Column.from_pylist(_TEXT, ["+00"]))
    return found


def _of_unicode(texts: NDArray[Any]) -> Column:
    return from_arrow(_TEXT, pa.array(texts, pa.string()))


def hex_texts(column: Column) -> Column:
    """Two hexadecimal digits a byte."""
    data, offsets = plain_texts(column)
    lo, hi = int(offsets[0]), int(offsets[-1])
    return Column(_TEXT, _hex(data[lo:hi]), 2 * (offsets - lo))


def _hex(data: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.stack((_DIGITS[data >> 4], _DIGITS[data & 15]), axis=-1).reshape(-1)


def _uuids(column: Column) -> Column:
    n = len(column)
    digits = _hex(np.ascontiguousarray(column.values).view(np.uint8).reshape(-1)).reshape(n, 32)
    out = np.insert(digits, _DASHES, ord("-"), axis=1)
    return Column(_TEXT, np.ascontiguousarray(out).reshape(-1), np.arange(n + 1, dtype=np.int64) * 36)
