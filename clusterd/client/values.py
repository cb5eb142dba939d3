"""Python values that a user writes, as values of the wire: the inverse of how an Answer gives them.

| type | Python, beside the form on the wire |
|---|---|
| numeric | decimal.Decimal, int |
| date, time | datetime.date (or numpy.datetime64), datetime.time |
| timestamp, timestamptz | datetime.datetime (without a zone it is of UTC), numpy.datetime64 |
| uuid | uuid.UUID |
| interval | (months, days, nanoseconds) |
| list, record | list, tuple |

What is none of these goes on as it is, for the check of the wire to refuse by name.

Does not: check, or know the layout of columns (clusterd/convert.py).
"""

from __future__ import annotations

import datetime
import decimal
import uuid
from collections.abc import Sequence
from typing import Any

import numpy as np

from controller_proto.schema import Column, ColumnType, Row, Scalar

__all__ = ["key_rows", "wire_rows"]

_AS_THEY_ARE = frozenset(ColumnType) - {
    ColumnType.NUMERIC, ColumnType.DATE, ColumnType.TIME, ColumnType.TIMESTAMP, ColumnType.TIMESTAMPTZ,
    ColumnType.UUID, ColumnType.INTERVAL, ColumnType.LIST, ColumnType.RECORD,
}  # fmt: skip
_COMPOSED = (ColumnType.INTERVAL, ColumnType.LIST, ColumnType.RECORD)  # such a value may be a tuple
_EPOCH = datetime.date(1970, 1, 1)


def wire_rows(columns: Sequence[Column], rows: Sequence[Sequence[Any]]) -> list[Row]:
    """The same rows in values of the wire; rows of another length as they are."""
    if all(column.type in _AS_THEY_ARE for column in columns):
        return list(map(tuple, rows))
    return [
        tuple(_wire(value, column) for value, column in zip(row, columns, strict=True))
        if len(row) == len(columns)
        else tuple(row)
        for row in rows
    ]


def key_rows(columns: Sequence[Column], keys: Sequence[Any]) -> tuple[Row, ...]:
    """Keys of an index on `columns`, each a tuple, or the value itself if there is one column."""
    alone = columns[0] if len(columns) == 1 else None
    rows = []
    for key in keys:
        is_row = isinstance(key, tuple) and (alone is None or alone.type not in _COMPOSED)
        rows.append(key if is_row else (key,))
    return tuple(wire_rows(columns, rows))


def _wire(value: Any, column: Column) -> Scalar:
    result: Scalar = value
    match column.type:
        case ColumnType.NUMERIC if isinstance(value, decimal.Decimal | int) and not isinstance(value, bool):
            result = _digits(decimal.Decimal(value), column.scale)
        case ColumnType.TIMESTAMP | ColumnType.TIMESTAMPTZ:
            result = _moment(value, column.type)
        case ColumnType.DATE if isinstance(value, np.datetime64) and not np.isnat(value):
            result = int(value.astype("datetime64[D]").view(np.int64))
        case ColumnType.DATE if isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
            result = (value - _EPOCH).days
        case ColumnType.TIME if isinstance(value, datetime.time) and value.tzinfo is None:
            seconds = (value.hour * 60 + value.minute) * 60 + value.second
            result = seconds * 1_000_000 + value.microsecond
        case ColumnType.UUID if isinstance(value, uuid.UUID):
            result = str(value)
        case ColumnType.INTERVAL if isinstance(value, list):
            result = tuple(value)
        case ColumnType.LIST if isinstance(value, list | tuple):
            result = tuple(_wire(element, column.fields[0]) for element in value)
        case ColumnType.RECORD if isinstance(value, list | tuple) and len(value) == len(column.fields):
            result = tuple(_wire(part, field) for part, field in zip(value, column.fields, strict=True))
    return result


def _digits(value: decimal.Decimal, scale: int) -> str:
    """With no more digits behind the point than say something, if the scale has no room for them."""
    whole, point, fraction = f"{value:f}".partition(".")
    fraction = fraction[:scale] + fraction[scale:].rstrip("0")
    return whole + point * bool(fraction) + fraction


def _moment(value: Any, type_: ColumnType) -> Scalar:
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        if type_ is ColumnType.TIMESTAMP:
            return str(value)  # a timestamp has no zone: refused, with the value
        value = value.astimezone(datetime.UTC).replace(tzinfo=None)
    if isinstance(value, datetime.datetime) or (isinstance(value, np.datetime64) and not np.isnat(value)):
        return int(np.array(value, "datetime64[us]").view(np.int64))
    result: Scalar = value
    return result
