"""Values of Python into columns, and back: exact both ways, or refused with the value named.

| type | Python |
|---|---|
| BOOL | bool |
| INT16, INT32, INT64, UINT16, UINT32, UINT64 | int |
| FLOAT32, FLOAT64 | float (or int) |
| TEXT, JSONB | str (JSON: its canonical text) |
| BYTEA | bytes |
| TIMESTAMP, TIMESTAMPTZ, TIME | int microseconds |
| DATE | int days |
| NUMERIC | int, the value times 10 ** scale |
| INTERVAL | (months, days, nanoseconds) |
| UUID | uuid.UUID |
| lists | list |
| records | tuple |

Does not: format or parse (the layer above), or make datetimes and decimals of these (conversion.py).
"""

from __future__ import annotations

import itertools
import operator
import uuid
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from shm_arrangements.columns import Column, Ints, canonical_floats
from shm_arrangements.types import DTYPES, VARIABLE, AnyType, ColumnType, ListType, RecordType

_I128_RANGE: Final = (-(1 << 127), (1 << 127) - 1)
_MASK64: Final = (1 << 64) - 1
_NO_VALUES: Final = np.empty(0, np.uint8)
_FLOATS: Final = (ColumnType.FLOAT64, ColumnType.FLOAT32)
_MOMENT: Final = "int microseconds since 1970, or a datetime where the column is given"
# Of types whose name does not say it: also what conversion.py turns into these, for it knows the column.
_WANTED: Final[dict[AnyType, str]] = {
    ColumnType.JSONB: "str, JSON text",
    ColumnType.BYTEA: "bytes",
    ColumnType.TIMESTAMP: _MOMENT,
    ColumnType.TIMESTAMPTZ: _MOMENT,
    ColumnType.DATE: "int days since 1970, or a date where the column is given",
    ColumnType.TIME: "int microseconds, or a time where the column is given",
    ColumnType.NUMERIC: "int, the value times 10 ** scale, or a Decimal where the column is given",
    ColumnType.INTERVAL: "(months, days, nanoseconds)",
    ColumnType.UUID: "uuid.UUID",
}


def column_of(type_: AnyType, values: Sequence[object]) -> Column:
    """Values as a column; None is NULL. Raises: ValueError naming the value that does not fit the type."""
    n = len(values)
    known = np.fromiter((v is not None for v in values), np.bool_, n)
    validity = None if known.all() else known
    if isinstance(type_, ListType):
        return _lists(type_, values, validity)
    if isinstance(type_, RecordType):
        return _records(type_, values, validity)
    if type_ in VARIABLE:
        texts = [b"" if v is None else _bytes(type_, v) for v in values]
        offsets = np.zeros(n + 1, np.int64)
        np.cumsum(np.fromiter(map(len, texts), np.int64, n), out=offsets[1:])
        return Column(type_, np.frombuffer(b"".join(texts), np.uint8), offsets, validity)
    if type_ is ColumnType.NUMERIC:
        wide = np.zeros((n, 2), np.uint64)
        for i, value in enumerate(values):
            number = 0 if value is None else _integer(value, _I128_RANGE, type_)
            wide[i, 0] = number & _MASK64
            wide[i, 1] = (number >> 64) & _MASK64
        return Column(type_, wide, None, validity)
    if type_ is ColumnType.UUID:
        ids = b"".join(bytes(16) if v is None else _uuid(v).bytes for v in values)
        return Column(type_, np.frombuffer(ids, np.uint64).reshape(n, 2), None, validity)
    if type_ is ColumnType.INTERVAL:
        parts = [(0, 0, 0) if v is None else _interval(v) for v in values]
        spans = np.zeros(n, [("months", np.int32), ("days", np.int32), ("nanoseconds", np.int64)])
        spans[:] = parts
        return Column(type_, spans.view(np.uint64).reshape(n, 2), None, validity)
    if type_ is ColumnType.BOOL:
        flags = [False if v is None else _boolean(v) for v in values]
        return Column(type_, np.array(flags, np.bool_), None, validity)
    dtype = DTYPES[type_]
    if type_ in _FLOATS:
        numbers = np.array([0.0 if v is None else _floating(v, type_) for v in values], dtype)
        return Column(type_, canonical_floats(numbers), None, validity)
    bounds = np.iinfo(dtype)
    integers = [0 if v is None else _integer(v, (bounds.min, bounds.max), type_) for v in values]
    return Column(type_, np.array(integers, dtype), None, validity)


def list_of(column: Column) -> list[Any]:
    """Inverse of `column_of`."""
    column = column.plain()
    type_ = column.type
    out: list[Any]
    if isinstance(type_, ListType):
        lo, hi, ends = _spans(column.offsets)
        elements = column.children[0].slice(lo, hi).to_pylist()
        out = [elements[a:b] for a, b in itertools.pairwise(ends)]
    elif isinstance(type_, RecordType):
        fields = [child.to_pylist() for child in column.children]
        out = list(zip(*fields, strict=True)) if fields else [()] * len(column)
    elif type_ in VARIABLE:
        lo, hi, ends = _spans(column.offsets)
        data = column.values[lo:hi].tobytes()
        out = [data[a:b] for a, b in itertools.pairwise(ends)]
        if type_ is not ColumnType.BYTEA:
            out = [text.decode() for text in out]
    elif type_ is ColumnType.NUMERIC:
        high = column.values[:, 1].astype(np.int64).tolist()
        out = [(h << 64) | w for h, w in zip(high, column.values[:, 0].tolist(), strict=True)]
    elif type_ is ColumnType.UUID:
        data = column.values.tobytes()
        out = [uuid.UUID(bytes=data[at : at + 16]) for at in range(0, len(data), 16)]
    elif type_ is ColumnType.INTERVAL:
        halves = np.ascontiguousarray(column.values[:, 0]).view(np.int32).reshape(-1, 2)
        nanoseconds = np.ascontiguousarray(column.values[:, 1]).view(np.int64)
        out = list(zip(halves[:, 0].tolist(), halves[:, 1].tolist(), nanoseconds.tolist(), strict=True))
    else:
        out = column.values.tolist()
    validity = column.validity
    if validity is not None:
        for i in np.flatnonzero(~validity).tolist():
            out[i] = None
    return out


def _lists(type_: ListType, values: Sequence[object], validity: Any) -> Column:
    for value in values:
        if value is not None and not isinstance(value, list | tuple):
            raise _misfit(type_, value)
    items: list[Any] = [() if v is None else v for v in values]
    offsets = np.zeros(len(items) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, items), np.int64, len(items)), out=offsets[1:])
    elements = list(itertools.chain.from_iterable(items))
    return Column(type_, _NO_VALUES, offsets, validity, children=(_child(type_.element, elements, None),))


def _records(type_: RecordType, values: Sequence[object], validity: Any) -> Column:
    for value in values:
        if value is not None and not (isinstance(value, list | tuple) and len(value) == len(type_.fields)):
            raise _misfit(type_, value)
    rows: list[Any] = [(None,) * len(type_.fields) if v is None else v for v in values]
    children = tuple(
        _child(field, [row[i] for row in rows], validity) for i, field in enumerate(type_.fields)
    )
    return Column(type_, _NO_VALUES, None, validity, children=children, length=len(rows))


def _child(spec: Any, values: list[Any], validity: Any) -> Column:
    """A field's column; where the record itself is NULL, a field that may not be is zero."""
    column = Column.from_pylist(spec.type, values)
    own = column.validity
    if spec.nullable or own is None:
        return column
    for i in np.flatnonzero(~own).tolist():
        if validity is None or validity[i]:
            raise ValueError(f"NULL for {spec.name!r}, which may not be NULL")
    return Column(
        spec.type, column.values, column.offsets, None, children=column.children, length=len(column)
    )


def _spans(offsets: Ints | None) -> tuple[int, int, list[int]]:
    assert offsets is not None
    lo = int(offsets[0])
    return lo, int(offsets[-1]), (offsets - lo).tolist()


def _misfit(type_: AnyType, value: object) -> ValueError:
    wanted = _WANTED.get(type_)
    told = f" (wanted: {wanted})" if wanted else ""
    return ValueError(f"not a {type_.name.lower()}: {value!r}{told}")


def _bytes(type_: ColumnType, value: object) -> bytes:
    if type_ is ColumnType.BYTEA:
        if not isinstance(value, bytes | bytearray | memoryview):
            raise _misfit(type_, value)
        return bytes(value)
    if not isinstance(value, str):
        raise _misfit(type_, value)
    return value.encode()  # UnicodeEncodeError is a ValueError that shows the surrogate


def _uuid(value: object) -> uuid.UUID:
    if not isinstance(value, uuid.UUID):
        raise _misfit(ColumnType.UUID, value)
    return value


def _interval(value: object) -> tuple[int, int, int]:
    if not isinstance(value, tuple) or len(value) != 3:
        raise _misfit(ColumnType.INTERVAL, value)
    i32, i64 = (-(1 << 31), (1 << 31) - 1), (-(1 << 63), (1 << 63) - 1)
    months, days, nanoseconds = value
    kind = ColumnType.INTERVAL
    return _integer(months, i32, kind), _integer(days, i32, kind), _integer(nanoseconds, i64, kind)


def _boolean(value: object) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise _misfit(ColumnType.BOOL, value)
    return bool(value)


def _floating(value: object, type_: ColumnType) -> float:
    if isinstance(value, bool) or not isinstance(value, float | int | np.floating | np.integer):
        raise _misfit(type_, value)
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"beyond float64: {value!r}") from None


def _integer(value: object, bounds: tuple[int, int], type_: ColumnType) -> int:
    if isinstance(value, bool | np.bool_):
        raise _misfit(type_, value)
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise _misfit(type_, value) from None
    if not bounds[0] <= number <= bounds[1]:
        raise ValueError(f"beyond {type_.name.lower()}: {number}")
    return number
