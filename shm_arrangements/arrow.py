"""Columns as Arrow: the same memory where the layouts agree, which is all but booleans.

| type | Arrow |
|---|---|
| BOOL, integers, floats | bool, int16 .. uint64, float, double |
| NUMERIC | decimal128(38, scale) |
| TEXT, JSONB, BYTEA | large_string, large_string, large_binary |
| DATE, TIME | date32, time64[us] |
| TIMESTAMP, TIMESTAMPTZ | timestamp[us], timestamp[us, UTC] |
| INTERVAL | month_day_nano_interval |
| UUID | fixed_size_binary(16) |
| lists, records | large_list, struct |

A column that is stored as a dictionary or as one repeated value is decoded, which copies: Arrow has forms for
both, but then the type of a result would depend on its data. `dictionary` asks for them.

The one module that imports pyarrow, and only its users import it.

Does not: convert from Arrow (the layer above, which knows its own types).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, BinaryIO, Final

import numpy as np
import pyarrow as pa

from shm_arrangements.columns import Column, Encoding, Ints
from shm_arrangements.types import AnyType, ColumnSpec, ColumnType, ListType, RecordType

_TYPES: Final[dict[AnyType, Any]] = {
    ColumnType.BOOL: pa.bool_(),
    ColumnType.INT16: pa.int16(),
    ColumnType.INT32: pa.int32(),
    ColumnType.INT64: pa.int64(),
    ColumnType.UINT16: pa.uint16(),
    ColumnType.UINT32: pa.uint32(),
    ColumnType.UINT64: pa.uint64(),
    ColumnType.FLOAT32: pa.float32(),
    ColumnType.FLOAT64: pa.float64(),
    ColumnType.TEXT: pa.large_string(),
    ColumnType.JSONB: pa.large_string(),
    ColumnType.BYTEA: pa.large_binary(),
    ColumnType.DATE: pa.date32(),
    ColumnType.TIME: pa.time64("us"),
    ColumnType.TIMESTAMP: pa.timestamp("us"),
    ColumnType.TIMESTAMPTZ: pa.timestamp("us", tz="UTC"),
    ColumnType.INTERVAL: pa.month_day_nano_interval(),
    ColumnType.UUID: pa.binary(16),
}


def arrow_type(spec: ColumnSpec) -> Any:
    """The pyarrow.DataType of a column."""
    if isinstance(spec.type, ListType):
        return pa.large_list(_field(spec.type.element))
    if isinstance(spec.type, RecordType):
        return pa.struct([_field(field) for field in spec.type.fields])
    if spec.type is ColumnType.NUMERIC:
        return pa.decimal128(38, spec.scale)
    return _TYPES[spec.type]


def to_array(spec: ColumnSpec, column: Column, *, dictionary: bool = False) -> Any:
    """Return `column` as a pyarrow.Array; its buffers keep the memory alive.

    dictionary: give a column that is stored as a dictionary as a DictionaryArray, without a copy.
    """
    if dictionary and column.encoding is Encoding.DICTIONARY:
        assert column.stored is not None
        assert column.indices is not None
        kind = pa.from_numpy_dtype(column.indices.dtype)
        indices = pa.Array.from_buffers(
            kind, len(column), [_validity(column), pa.py_buffer(np.ascontiguousarray(column.indices))]
        )
        return pa.DictionaryArray.from_arrays(indices, to_array(spec, column.stored))
    column = column.plain()
    type_, n = arrow_type(spec), len(column)
    validity = _validity(column)
    if isinstance(spec.type, RecordType):
        pairs = zip(spec.type.fields, column.children, strict=True)
        children = [to_array(field, child) for field, child in pairs]
        return pa.Array.from_buffers(type_, n, [validity], children=children)
    if isinstance(spec.type, ListType):
        offsets = pa.py_buffer(np.ascontiguousarray(column.offsets))
        child = to_array(spec.type.element, column.children[0])
        return pa.Array.from_buffers(type_, n, [validity, offsets], children=[child])
    if column.type is ColumnType.BOOL:
        return pa.Array.from_buffers(type_, n, [validity, _bits(column.values)])
    buffers = [validity, pa.py_buffer(np.ascontiguousarray(column.values))]
    if column.offsets is not None:
        buffers.insert(1, pa.py_buffer(np.ascontiguousarray(column.offsets)))
    return pa.Array.from_buffers(type_, n, buffers)


def to_record_batch(
    specs: Sequence[ColumnSpec],
    columns: Sequence[Column],
    counts: Ints | None = None,
    *,
    dictionary: bool = False,
) -> Any:
    """Return a pyarrow.RecordBatch of the columns, followed by int64 `count` if `counts` are given.

    A relation of no columns has no length in Arrow: without `counts` it comes out empty.
    """
    arrays = [
        to_array(spec, column, dictionary=dictionary) for spec, column in zip(specs, columns, strict=True)
    ]
    fields = [
        pa.field(spec.name, array.type, spec.nullable) for spec, array in zip(specs, arrays, strict=True)
    ]
    if counts is not None:
        fields.append(pa.field("count", pa.int64(), nullable=False))
        buffers = [None, pa.py_buffer(np.ascontiguousarray(counts))]
        arrays.append(pa.Array.from_buffers(pa.int64(), len(counts), buffers))
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def write_parquet(specs: Sequence[ColumnSpec], columns: Sequence[Column], file: BinaryIO) -> None:
    """Write the columns as a Parquet file. Raises: as `require_parquet`; OSError."""
    require_parquet(specs)
    write_parquet_table(pa.Table.from_batches([to_record_batch(specs, columns)]), file)


def write_parquet_table(table: Any, file: BinaryIO) -> None:
    """Write a pyarrow.Table, for whose types there is a place, as a Parquet file. Raises: OSError."""
    import pyarrow.parquet

    pyarrow.parquet.write_table(table, file)


def require_parquet(specs: Sequence[ColumnSpec]) -> None:
    """Raises: ValueError naming the first column for whose type Parquet has no place."""
    for spec in specs:
        _require_place(_field(spec), spec.type.name.lower())


def require_parquet_schema(schema: Any) -> None:
    """As `require_parquet`, of a pyarrow.Schema."""
    for field in schema:
        _require_place(field, str(field.type))


def _require_place(field: Any, type_name: str) -> None:
    import pyarrow.parquet

    try:
        pyarrow.parquet.ParquetWriter(pa.BufferOutputStream(), pa.schema([field])).close()
    except pa.ArrowNotImplementedError as error:
        raise ValueError(f"parquet has no place for column {field.name!r} of type {type_name}") from error


def _field(spec: ColumnSpec) -> Any:
    return pa.field(spec.name, arrow_type(spec), spec.nullable)


def _validity(column: Column) -> Any:
    """The bitmap: the index's own where it begins at a byte, else packed anew; None if all are valid."""
    found = column.bits()
    if found is None:
        return None
    bits, start = found
    if start % 8 == 0:
        return pa.py_buffer(bits[start // 8 :])
    return _bits(column.validity)


def _bits(values: Any) -> Any:
    """Booleans as a bitmap, least significant bit first."""
    return pa.py_buffer(np.packbits(values, bitorder="little"))
