"""Columns as Arrow: the same memory where the layouts agree, which is all but booleans.

The one module that imports pyarrow, and only its users import it.

Does not: convert from Arrow (the layer above, which knows its own types).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from shm_arrangements.columns import Column, Ints
from shm_arrangements.types import ColumnSpec, ColumnType

TYPES: Final[dict[ColumnType, Any]] = {
    ColumnType.BOOL: pa.bool_(),
    ColumnType.INT64: pa.int64(),
    ColumnType.FLOAT64: pa.float64(),
    ColumnType.TEXT: pa.large_string(),
    ColumnType.TIMESTAMP: pa.timestamp("us"),
    ColumnType.NUMERIC: pa.decimal128(38, 0),
}


def to_array(column: Column) -> Any:
    """Return `column` as a pyarrow.Array; its buffers keep the memory alive."""
    buffers = [_validity(column), pa.py_buffer(np.ascontiguousarray(column.values))]
    if column.type is ColumnType.BOOL:
        buffers[1] = _bits(column.values)
    elif column.offsets is not None:
        buffers.insert(1, pa.py_buffer(np.ascontiguousarray(column.offsets)))
    return pa.Array.from_buffers(TYPES[column.type], len(column), buffers)


def to_record_batch(
    specs: Sequence[ColumnSpec], columns: Sequence[Column], counts: Ints | None = None
) -> Any:
    """Return a pyarrow.RecordBatch of the columns, followed by int64 `count` if `counts` are given.

    A relation of no columns has no length in Arrow: without `counts` it comes out empty.
    """
    fields = [pa.field(spec.name, TYPES[spec.type], spec.nullable) for spec in specs]
    arrays = [to_array(column) for column in columns]
    if counts is not None:
        fields.append(pa.field("count", pa.int64(), nullable=False))
        arrays.append(pa.Array.from_buffers(pa.int64(), len(counts), [None, pa.py_buffer(counts)]))
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


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
