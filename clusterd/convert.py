"""Between the wire's words and the arrangements' columns: schemas, scalars, rows.

`controller_proto` and `shm_arrangements` do not know each other; what one calls `numeric(38,2)` and writes
as digits, the other keeps as two 64-bit lanes. Every conversion goes by the whole column, and is exact both
ways or refused with the value named. A value enters by `Column.from_pylist`, which makes it canonical, so
whatever comes through here compares, hashes and sorts as the same value that came another way; JSON is made
canonical here and where files are read (storage/arrow.py), by one function.

Does not: touch Arrow (storage/arrow.py), evaluate, coerce (an int where a double or a numeric belongs is the
one widening allowed, because scripts and clients write `2` for `2.0`).
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np

from controller_proto.errors import Refusal
from controller_proto.jsonb import canonical_json
from controller_proto.schema import Column as WireColumn
from controller_proto.schema import ColumnType as WireType
from controller_proto.schema import Row, Scalar, Schema, counted, scalar_problem, type_name
from shm_arrangements.columns import Column
from shm_arrangements.schema import ArrangementSchema
from shm_arrangements.types import AnyType, ColumnSpec, ColumnType, ListType, RecordType
from shm_arrangements.updates import Updates

__all__ = [
    "arrangement_schema", "column_from_scalars", "column_specs", "columns_from_rows", "from_wire",
    "scalars_from_column", "to_wire", "type_name_of", "updates_from_rows", "wire_schema",
]  # fmt: skip

_FLOATS = (ColumnType.FLOAT32, ColumnType.FLOAT64)
# `Column.from_pylist` takes more than these hold.
_UNCHECKED = (ColumnType.FLOAT32, ColumnType.TIME, ColumnType.NUMERIC, ColumnType.INTERVAL)


def from_wire(column: WireColumn) -> ColumnSpec:
    """The column that holds a wire column."""
    kind: AnyType
    if column.type is WireType.LIST:
        kind = ListType(from_wire(column.fields[0]))
    elif column.type is WireType.RECORD:
        kind = RecordType(tuple(map(from_wire, column.fields)))
    else:
        kind = ColumnType[column.type.name]
    return ColumnSpec(column.name, kind, column.nullable, column.scale)


def to_wire(spec: ColumnSpec) -> WireColumn:
    """The inverse of `from_wire`."""
    if isinstance(spec.type, ColumnType):
        return WireColumn(spec.name, WireType[spec.type.name], spec.nullable, spec.scale)
    if isinstance(spec.type, ListType):
        return WireColumn(spec.name, WireType.LIST, spec.nullable, 0, (to_wire(spec.type.element),))
    return WireColumn(spec.name, WireType.RECORD, spec.nullable, 0, tuple(map(to_wire, spec.type.fields)))


def type_name_of(type: AnyType, scale: int = 0) -> str:
    """How scripts write a type."""
    return type_name(to_wire(ColumnSpec("", type, False, scale)))


def column_specs(schema: Schema) -> tuple[ColumnSpec, ...]:
    """The columns of a wire schema, in row order."""
    return tuple(map(from_wire, schema.columns))


def wire_schema(specs: Sequence[ColumnSpec]) -> Schema:
    """The inverse of `column_specs`."""
    return Schema(tuple(map(to_wire, specs)))


def arrangement_schema(schema: Schema, key: Sequence[int]) -> ArrangementSchema:
    """Of an index on a collection of this wire schema. key: distinct positions, in key order."""
    return ArrangementSchema(column_specs(schema), tuple(key))


def column_from_scalars(spec: ColumnSpec, values: Sequence[Scalar]) -> Column:
    """A column of wire values; None is NULL, whatever `spec` says of it.

    Raises ValueError, naming the value, if one is not of the type or out of its range.
    """
    to_stored = _storing(spec)
    try:
        if spec.type in _UNCHECKED or not isinstance(spec.type, ColumnType):
            _check(spec, values)
        stored = values if to_stored is None else [None if v is None else to_stored(v) for v in values]
        return Column.from_pylist(spec.type, stored)
    except (ValueError, TypeError, AttributeError) as error:
        _check(spec, values)
        raise ValueError(str(error)) from error


def _check(spec: ColumnSpec, values: Sequence[Scalar]) -> None:
    """Raise ValueError for the first value that cannot stand in the column."""
    column = msgspec.structs.replace(to_wire(spec), name="", nullable=True)
    for value in values:
        if type(value) is int and _takes_int(spec, value):
            continue
        problem = scalar_problem(value, column)
        if problem is not None:
            raise ValueError(problem.removeprefix("column : "))


def _takes_int(spec: ColumnSpec, value: int) -> bool:
    return spec.type in _FLOATS or (spec.type is ColumnType.NUMERIC and abs(value) < 10 ** (38 - spec.scale))


def _storing(spec: ColumnSpec) -> Callable[[Any], object] | None:
    """How a wire value becomes one of `Column.from_pylist`; None if it is one."""
    kind = spec.type
    if isinstance(kind, ListType):
        element = _storing(kind.element)
        return None if element is None else lambda value: [v if v is None else element(v) for v in value]
    if isinstance(kind, RecordType):
        fields = [_storing(field) for field in kind.fields]
        if not any(fields):
            return None
        return lambda value: tuple(
            v if v is None or to is None else to(v) for to, v in zip(fields, value, strict=True)
        )
    match kind:
        case ColumnType.NUMERIC:
            return lambda value: _unscaled(value, spec.scale)
        case ColumnType.UUID:
            return uuid.UUID
        case ColumnType.JSONB:
            return canonical_json
        case _:
            return None


def _unscaled(value: str | int, scale: int) -> int:
    if isinstance(value, int):
        return int(value) * int(10**scale)
    whole, _, fraction = value.partition(".")
    return int(whole + fraction.ljust(scale, "0"))


def scalars_from_column(spec: ColumnSpec, column: Column) -> tuple[Scalar, ...]:
    """The wire values of a column of `spec`'s type."""
    kind = spec.type
    if isinstance(kind, ListType):
        column = column.plain()
        offsets = column.offsets
        assert offsets is not None
        first, last = int(offsets[0]), int(offsets[-1])
        elements = scalars_from_column(kind.element, column.children[0].slice(first, last))
        ends = (offsets - first).tolist()
        return _with_nulls([elements[a:b] for a, b in itertools.pairwise(ends)], column)
    if isinstance(kind, RecordType):
        column = column.plain()
        pairs = zip(kind.fields, column.children, strict=True)
        fields = [scalars_from_column(field, child) for field, child in pairs]
        return _with_nulls(list(zip(*fields, strict=True)) if fields else [()] * len(column), column)
    values = column.to_pylist()
    if kind is ColumnType.NUMERIC:
        return tuple(None if value is None else _digits(value, spec.scale) for value in values)
    if kind is ColumnType.UUID:
        return tuple(None if value is None else str(value) for value in values)
    return tuple(values)


def _with_nulls(values: list[Any], column: Column) -> tuple[Scalar, ...]:
    validity = column.validity
    if validity is None:
        return tuple(values)
    return tuple(v if valid else None for v, valid in zip(values, validity.tolist(), strict=True))


def _digits(value: int, scale: int) -> str:
    if not scale:
        return str(value)
    digits = str(abs(value)).rjust(scale + 1, "0")
    return f"{'-' if value < 0 else ''}{digits[:-scale]}.{digits[-scale:]}"


def columns_from_rows(specs: Sequence[ColumnSpec], rows: Sequence[Row]) -> tuple[Column, ...]:
    """Columns, in row order, of rows of wire values.

    Raises Refusal(`schema-mismatch`) naming the row's length, or the column and the value that do not fit.
    """
    return columns_by(column_from_scalars, specs, rows)


def columns_by(
    convert: Callable[[ColumnSpec, Sequence[Any]], Column], specs: Sequence[ColumnSpec], rows: Sequence[Any]
) -> tuple[Column, ...]:
    """As `columns_from_rows`, of rows of values that `convert` makes columns of."""
    for row in rows:
        if len(row) != len(specs):
            raise Refusal(
                "schema-mismatch",
                f"row {row!r} has {counted(len(row), 'value')} for {counted(len(specs), 'column')}",
            )
    by_column: Sequence[Sequence[Any]] = list(zip(*rows, strict=True)) if rows else [()] * len(specs)
    columns = []
    for spec, values in zip(specs, by_column, strict=True):
        try:
            column = convert(spec, values)
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
