"""Between the wire's words and the arrangements' columns: schemas, scalars, rows.

`controller_proto` and `shm_arrangements` do not know each other; what one calls `numeric` and writes as
digits, the other keeps as two 64-bit lanes. Every conversion goes by the whole column, and is exact both
ways or refused with the value named. A value enters by `Column.from_pylist`, which makes it canonical, so
whatever comes through here compares, hashes and sorts as the same value that came another way.

Does not: touch Arrow (storage/arrow.py), evaluate, coerce (a bigint where a double belongs is the one
widening allowed, because scripts and clients write `2` for `2.0`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from controller_proto.errors import Refusal
from controller_proto.schema import Column as WireColumn
from controller_proto.schema import ColumnType as WireType
from controller_proto.schema import Row, Scalar, Schema, counted
from shm_arrangements.columns import Column
from shm_arrangements.schema import ArrangementSchema
from shm_arrangements.types import AnyType, ColumnSpec, ColumnType
from shm_arrangements.updates import Updates

__all__ = [
    "arrangement_schema", "column_from_scalars", "column_specs", "columns_from_rows", "from_wire_type",
    "scalars_from_column", "to_wire_type", "updates_from_rows", "wire_schema",
]  # fmt: skip

_FROM_WIRE: dict[WireType, AnyType] = {
    WireType.BOOL: ColumnType.BOOL,
    WireType.INT64: ColumnType.INT64,
    WireType.FLOAT64: ColumnType.FLOAT64,
    WireType.TEXT: ColumnType.TEXT,
    WireType.TIMESTAMP: ColumnType.TIMESTAMP,
    WireType.NUMERIC: ColumnType.NUMERIC,
}
_TO_WIRE: dict[AnyType, WireType] = {ours: wire for wire, ours in _FROM_WIRE.items()}

# The Python types a wire value of a column may have. bool is no int here.
_PYTHON_TYPES: dict[AnyType, tuple[type, ...]] = {
    ColumnType.BOOL: (bool,),
    ColumnType.INT64: (int,),
    ColumnType.FLOAT64: (float, int),
    ColumnType.TEXT: (str,),
    ColumnType.TIMESTAMP: (int,),
    ColumnType.NUMERIC: (str, int),
}
_NUMERIC = re.compile(r"[+-]?[0-9]{1,38}", re.ASCII)
_NUMERIC_LIMIT = 10**38


def from_wire_type(type: WireType) -> AnyType:
    """The column type of a wire type."""
    return _FROM_WIRE[type]


def to_wire_type(type: AnyType) -> WireType:
    """The wire type of a column type."""
    return _TO_WIRE[type]


def column_specs(schema: Schema) -> tuple[ColumnSpec, ...]:
    """The columns of a wire schema, in row order."""
    return tuple(ColumnSpec(c.name, _FROM_WIRE[c.type], c.nullable) for c in schema.columns)


def wire_schema(specs: Sequence[ColumnSpec]) -> Schema:
    """The inverse of `column_specs`."""
    return Schema(tuple(WireColumn(s.name, _TO_WIRE[s.type], s.nullable) for s in specs))


def arrangement_schema(schema: Schema, key: Sequence[int]) -> ArrangementSchema:
    """Of an index on a collection of this wire schema. key: distinct positions, in key order."""
    return ArrangementSchema(column_specs(schema), tuple(key))


def column_from_scalars(kind: AnyType, values: Sequence[Scalar]) -> Column:
    """A column of wire values; None is NULL.

    Raises ValueError, naming the value, if one is not of `kind` or out of its range.
    """
    allowed = _PYTHON_TYPES[kind]
    found = set(map(type, values))
    for wrong in found.difference(allowed, (type(None),)):
        value = next(v for v in values if type(v) is wrong)
        raise ValueError(f"{value!r} is not a {_TO_WIRE[kind].value}")
    if kind is ColumnType.NUMERIC:
        return Column.from_pylist(kind, [_numeric(value) for value in values])
    if kind is ColumnType.FLOAT64 and int in found:
        return Column.from_pylist(kind, [float(v) if v is not None else None for v in values])
    return Column.from_pylist(kind, list(values))


def _numeric(value: Scalar) -> int | None:
    if value is None:
        return None
    if isinstance(value, str):
        if not _NUMERIC.fullmatch(value):
            raise ValueError(f"{value!r} is not a numeric of up to 38 digits")
        return int(value)
    if not -_NUMERIC_LIMIT < int(value) < _NUMERIC_LIMIT:
        raise ValueError(f"{value!r} is out of range for numeric")
    return int(value)


def scalars_from_column(column: Column) -> tuple[Scalar, ...]:
    """The wire values of a column; numeric as digits."""
    values = column.to_pylist()
    if column.type is ColumnType.NUMERIC:
        return tuple(str(value) if value is not None else None for value in values)
    return tuple(values)


def columns_from_rows(specs: Sequence[ColumnSpec], rows: Sequence[Row]) -> tuple[Column, ...]:
    """Columns, in row order, of rows of wire values.

    Raises Refusal(`schema-mismatch`) naming the row's length, or the column and the value that do not fit.
    """
    for row in rows:
        if len(row) != len(specs):
            raise Refusal(
                "schema-mismatch",
                f"row {row!r} has {counted(len(row), 'value')} for {counted(len(specs), 'column')}",
            )
    by_column: Sequence[Sequence[Scalar]] = list(zip(*rows, strict=True)) if rows else [()] * len(specs)
    columns = []
    for spec, values in zip(specs, by_column, strict=True):
        try:
            column = column_from_scalars(spec.type, values)
        except ValueError as error:
            raise Refusal("schema-mismatch", f"column {spec.name!r}: {error}") from error
        if column.null_count and not spec.nullable:
            raise Refusal(
                "schema-mismatch", f"column {spec.name!r} is not nullable, and a row has NULL there"
            )
        columns.append(column)
    return tuple(columns)


def updates_from_rows(
    schema: Schema, rows: Sequence[Row], times: int | Sequence[int], diffs: int | Sequence[int] = 1
) -> Updates:
    """Updates of rows of wire values; one time or diff stands for all.

    Raises Refusal(`schema-mismatch`) as `columns_from_rows` does.
    """
    columns = columns_from_rows(column_specs(schema), rows)
    return Updates(
        columns,
        np.ascontiguousarray(np.broadcast_to(np.asarray(times, dtype=np.uint64), len(rows))),
        np.ascontiguousarray(np.broadcast_to(np.asarray(diffs, dtype=np.int64), len(rows))),
    )
