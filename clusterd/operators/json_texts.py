"""Values of any type as JSON, as PostgreSQL's to_jsonb makes them, in the canonical form of jsonb.py.

Numbers are numbers, but NaN and the infinities strings; moments are ISO 8601 strings, bytes `\\x...`, lists
arrays, records objects; NULL is null. Integers, booleans, texts and JSON itself are made by kernels, the rest
value by value.

Does not: parse JSON.
"""

from __future__ import annotations

import math
from json.encoder import encode_basestring
from typing import Any

import numpy as np

from clusterd.convert import scalars_from_column, to_wire
from clusterd.operators.kernels import lists as kernels
from controller_proto.jsonb import canonical_json
from controller_proto.moments import format_interval, format_moment
from controller_proto.schema import Column as WireColumn
from controller_proto.schema import ColumnType as WireType
from shm_arrangements.columns import Column
from shm_arrangements.types import AnyType, ColumnSpec, ColumnType

__all__ = ["json_texts", "quoted"]

_INTEGERS = (
    ColumnType.INT16, ColumnType.INT32, ColumnType.INT64, ColumnType.UINT16, ColumnType.UINT32,
)  # fmt: skip
_DIGITS = 20


def json_texts(spec: ColumnSpec, column: Column) -> Column:
    """(n,) the JSON of each value of a column of `spec`, NULL as null: no NULL among them."""
    made = _plain(column.plain(), spec)
    validity = column.validity
    if validity is None or validity.all():
        return Column(ColumnType.JSONB, made.values, made.offsets)
    null = Column.from_pylist(ColumnType.JSONB, ["null"])
    rows = np.where(validity, np.arange(len(column)), len(column))
    return Column.concat(ColumnType.JSONB, [made, null]).take(rows)


def quoted(column: Column) -> Column:
    """Texts as strings of JSON."""
    offsets, text = _texts(column)
    out = np.empty(len(column) + 1, np.int64)
    made = np.empty(kernels.quoted_offsets(offsets, text, out), np.uint8)
    kernels.quote_texts(offsets, text, made)
    return Column(ColumnType.JSONB, made, out)


def _texts(column: Column) -> tuple[Any, Any]:
    offsets = column.offsets
    assert offsets is not None
    return offsets, column.values


def _plain(column: Column, spec: ColumnSpec) -> Column:
    """As `json_texts`, whatever stands where there is NULL."""
    type_: AnyType = column.type
    if type_ is ColumnType.JSONB:
        offsets, text = _texts(column)
        return Column(ColumnType.JSONB, text, offsets)
    if type_ is ColumnType.TEXT:
        return quoted(column)
    if type_ is ColumnType.BOOL:
        words = Column.from_pylist(ColumnType.JSONB, ["false", "true"])
        return words.take(column.values.astype(np.int64))
    if type_ in _INTEGERS:
        assert isinstance(type_, ColumnType)
        values = np.ascontiguousarray(column.values).astype(np.int64, copy=False)
        offsets, out = np.empty(len(values) + 1, np.int64), np.empty(_DIGITS * len(values), np.uint8)
        kernels.write_integers(values, offsets, out)
        return Column(ColumnType.JSONB, out[: int(offsets[-1])].copy(), offsets)
    wire = to_wire(spec)
    texts = [_json(value, wire) for value in scalars_from_column(spec, column)]
    return Column.from_pylist(ColumnType.JSONB, texts)


def _json(value: Any, column: WireColumn) -> str:
    """The canonical JSON of a wire value."""
    if value is None:
        return "null"
    match column.type:
        case WireType.BOOL:
            return "true" if value else "false"
        case WireType.JSONB:
            return str(value)
        case WireType.TEXT | WireType.UUID:
            return encode_basestring(str(value))
        case WireType.BYTEA:
            return encode_basestring("\\x" + value.hex())
        case WireType.NUMERIC:
            return canonical_json(value)
        case WireType.FLOAT32 | WireType.FLOAT64:
            return _float(value, column.type)
        case WireType.DATE | WireType.TIME | WireType.TIMESTAMP | WireType.TIMESTAMPTZ:
            text = format_moment(value, column.type).replace(" ", "T")
            return encode_basestring(f"{text}:00" if text.endswith("+00") else text)
        case WireType.INTERVAL:
            return encode_basestring(format_interval(*value))
        case WireType.LIST:
            return f"[{','.join(_json(item, column.fields[0]) for item in value)}]"
        case WireType.RECORD:
            fields = {f.name: _json(v, f) for f, v in zip(column.fields, value, strict=True)}
            return f"{{{','.join(f'{encode_basestring(name)}:{fields[name]}' for name in sorted(fields))}}}"
    return str(value)


def _float(value: float, type_: WireType) -> str:
    if math.isnan(value):
        return '"NaN"'
    if math.isinf(value):
        return '"Infinity"' if value > 0 else '"-Infinity"'
    shown = str(np.float32(value)) if type_ is WireType.FLOAT32 else repr(value)
    return canonical_json(shown)
