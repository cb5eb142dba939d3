"""Columns as their users want them: numpy arrays and Python values; and keys as columns.

| type | numpy | Python |
|---|---|---|
| integers, floats, BOOL | the same, no copy | int, float, bool |
| TIMESTAMP, TIMESTAMPTZ | datetime64[us], no copy | datetime, or int microseconds where that ends |
| DATE | datetime64[D] | date, int days where that ends |
| TIME | timedelta64[us], no copy | time; int microseconds for 24:00 |
| NUMERIC | objects, as Python | int if its scale is 0, else Decimal |
| TEXT, JSONB, BYTEA | objects, as Python | str, str (JSON text), bytes |
| INTERVAL | objects, as Python | (months, days, nanoseconds) |
| UUID | objects, as Python | uuid.UUID |
| lists, records | objects, as Python | list, tuple |

NULL is masked in an array (a masked array is what comes then) and None among objects and Python values.

Does not: touch Arrow (arrow.py).
"""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shm_arrangements.columns import Column, canonical_floats
from shm_arrangements.types import DTYPES, VARIABLE, WIDE, ColumnSpec, ColumnType, ListType, RecordType

_NUMPY: Final = {
    ColumnType.TIMESTAMP: "datetime64[us]",
    ColumnType.TIMESTAMPTZ: "datetime64[us]",
    ColumnType.TIME: "timedelta64[us]",
}
_FLOATS: Final = (ColumnType.FLOAT32, ColumnType.FLOAT64)
_MOMENTS: Final = (ColumnType.TIMESTAMP, ColumnType.TIMESTAMPTZ)
_NOT_A_TIME: Final = -(1 << 63)  # to numpy; to us the least moment, which Python would show as None
_EPOCH: Final = datetime.date(1970, 1, 1)
_DAY_US: Final = 86_400_000_000
_EXACT: Final = decimal.Context(prec=64)


def to_numpy(spec: ColumnSpec, column: Column) -> NDArray[Any]:
    """(n,) as the table above says."""
    type_ = spec.type
    if not isinstance(type_, ColumnType) or type_ in VARIABLE or type_ in WIDE:
        objects = np.empty(len(column), object)
        objects[:] = to_python(spec, column)
        return objects
    values = column.values
    if type_ is ColumnType.DATE:
        values = values.astype("datetime64[D]")
    elif type_ in _NUMPY:
        values = values.view(_NUMPY[type_])
    validity = column.validity
    if validity is None or validity.all():
        return values
    masked: NDArray[Any] = np.ma.MaskedArray(values, mask=~validity)
    return masked


def to_python(spec: ColumnSpec, column: Column) -> list[Any]:
    """Python values as the table above says, NULL as None."""
    type_ = spec.type
    if type_ is ColumnType.TIMESTAMP or type_ is ColumnType.TIMESTAMPTZ:
        moments = column.values.view("datetime64[us]").tolist()
        for i in np.flatnonzero(column.values == _NOT_A_TIME).tolist():
            moments[i] = _NOT_A_TIME
        if type_ is ColumnType.TIMESTAMPTZ:
            moments = [_in_utc(moment) for moment in moments]
        return _with_nulls(moments, column)
    if type_ is ColumnType.DATE:
        return _with_nulls(column.values.astype("datetime64[D]").tolist(), column)
    if type_ is ColumnType.TIME:
        return _with_nulls([_time(us) for us in column.values.tolist()], column)
    if type_ is ColumnType.NUMERIC and spec.scale:
        return [
            None if v is None else decimal.Decimal(v).scaleb(-spec.scale, _EXACT) for v in column.to_pylist()
        ]
    if isinstance(type_, ListType):
        offsets = column.offsets
        assert offsets is not None
        first, last = int(offsets[0]), int(offsets[-1])
        elements = to_python(type_.element, column.children[0].slice(first, last))
        ends = (offsets - first).tolist()
        lists = [elements[ends[i] : ends[i + 1]] for i in range(len(column))]
        return _with_nulls(lists, column)
    if isinstance(type_, RecordType):
        pairs = zip(type_.fields, column.children, strict=True)
        fields = [to_python(field, child) for field, child in pairs]
        return _with_nulls(list(zip(*fields, strict=True)) if fields else [()] * len(column), column)
    return column.to_pylist()


def key_columns(specs: Sequence[ColumnSpec], keys: Any) -> tuple[Column, ...]:
    """Keys as columns in key order.

    keys: a sequence of values (of tuples, unless the key has one column), or a numpy array for one column.
        Values are those `to_python` gives, or values.py.
    Raises: ValueError naming what does not fit.
    """
    if isinstance(keys, np.ndarray) and keys.dtype != object:
        if len(specs) != 1 or keys.ndim != 1:
            raise ValueError(f"an array gives the keys of one column, the index has {len(specs)}")
        return (_column_of_array(specs[0], keys),)
    if len(specs) == 1:
        is_record = isinstance(specs[0].type, RecordType)
        values = [k[0] if not is_record and isinstance(k, tuple) and len(k) == 1 else k for k in keys]
        return (column_of_values(specs[0], values),)
    for key in keys:
        if not isinstance(key, tuple) or len(key) != len(specs):
            raise ValueError(f"key {key!r} is not a tuple of {len(specs)} values")
    if not specs:
        raise ValueError("the index has no key: use scan")
    return tuple(column_of_values(spec, [key[i] for key in keys]) for i, spec in enumerate(specs))


def column_of_values(spec: ColumnSpec, values: Sequence[Any]) -> Column:
    """Python values, those of `to_python` among them, as a column.

    Raises: ValueError naming what does not fit.
    """
    only = values[0] if len(values) == 1 else None
    if spec.type is ColumnType.INT64 and type(only) is int and -(1 << 63) <= only < 1 << 63:
        return Column(spec.type, np.array(values, np.int64))  # by far the most frequent key
    return Column.from_pylist(spec.type, [_stored(spec, value) for value in values])


def _stored(spec: ColumnSpec, value: Any) -> Any:
    """A value in the form of values.py; what does not fit is left for it to refuse."""
    type_ = spec.type
    if value is None:
        return None
    if type_ in _MOMENTS:
        if isinstance(value, datetime.datetime) and value.tzinfo is not None:
            if type_ is ColumnType.TIMESTAMP:
                raise ValueError(f"not a timestamp without a time zone: {value!r}")
            value = value.astimezone(datetime.UTC).replace(tzinfo=None)
        if isinstance(value, datetime.datetime | np.datetime64):
            return int(np.array(value, "datetime64[us]").view(np.int64))
    elif type_ is ColumnType.DATE:
        if isinstance(value, datetime.datetime):
            raise ValueError(f"not a date: {value!r}")
        if isinstance(value, datetime.date):
            return (value - _EPOCH).days
        if isinstance(value, np.datetime64):
            return int(value.astype("datetime64[D]").view(np.int64))
    elif type_ is ColumnType.TIME and isinstance(value, datetime.time):
        if value.tzinfo is not None:
            raise ValueError(f"not a time without a time zone: {value!r}")
        seconds = (value.hour * 60 + value.minute) * 60 + value.second
        return seconds * 1_000_000 + value.microsecond
    elif type_ is ColumnType.NUMERIC and (spec.scale or isinstance(value, decimal.Decimal)):
        return _unscaled(spec, value)
    elif isinstance(type_, ListType) and isinstance(value, list | tuple):
        return [_stored(type_.element, element) for element in value]
    elif isinstance(type_, RecordType) and isinstance(value, tuple) and len(value) == len(type_.fields):
        return tuple(_stored(field, part) for field, part in zip(type_.fields, value, strict=True))
    return value


def _unscaled(spec: ColumnSpec, value: Any) -> int:
    fits = isinstance(value, decimal.Decimal | int) and not isinstance(value, bool)
    exact = decimal.Decimal(value) if fits else decimal.Decimal("NaN")
    shifted = exact.scaleb(spec.scale, _EXACT) if exact.is_finite() else exact
    if not shifted.is_finite() or shifted != shifted.to_integral_value():
        raise ValueError(f"not a numeric of scale {spec.scale}: {value!r}")
    return int(shifted)


def _column_of_array(spec: ColumnSpec, keys: NDArray[Any]) -> Column:
    type_ = spec.type
    if not isinstance(type_, ColumnType) or type_ in VARIABLE or type_ in WIDE:
        return column_of_values(spec, keys.tolist())
    if keys.dtype.kind in "mM" and (type_ in _NUMPY or type_ is ColumnType.DATE):
        unit = "datetime64[D]" if type_ is ColumnType.DATE else _NUMPY[type_]
        if np.can_cast(keys.dtype, unit, "same_kind"):
            return Column(type_, keys.astype(unit).view(np.int64).astype(DTYPES[type_]))
    if not np.can_cast(keys.dtype, DTYPES[type_], "safe"):
        raise ValueError(f"keys of {keys.dtype} do not fit column {spec.name!r} of type {type_.name}")
    values = np.ascontiguousarray(keys, DTYPES[type_])
    return Column(type_, canonical_floats(values) if type_ in _FLOATS else values)


def _with_nulls(values: list[Any], column: Column) -> list[Any]:
    validity = column.validity
    if validity is None:
        return values
    return [value if valid else None for value, valid in zip(values, validity.tolist(), strict=True)]


def _in_utc(moment: Any) -> Any:
    return moment.replace(tzinfo=datetime.UTC) if isinstance(moment, datetime.datetime) else moment


def _time(microseconds: int) -> Any:
    if not 0 <= microseconds < _DAY_US:
        return microseconds
    seconds, fraction = divmod(microseconds, 1_000_000)
    minutes, second = divmod(seconds, 60)
    return datetime.time(minutes // 60, minutes % 60, second, fraction)
