"""Between Arrow arrays and `Column`: files, parts and clients speak Arrow.

The layouts agree but for two things: Arrow keeps validity and booleans as bits, a `Column` as bytes; and
Arrow leaves what stands under a NULL open, a `Column` has zeros there. Numbers, timestamps in microseconds,
decimals and text with 64-bit offsets go over without a copy. What comes from outside is made canonical
(floats, text under NULLs) and checked (UTF-8, ranges); what we wrote ourselves (`trusted`) was.

Does not: round. A timestamp that is no whole number of microseconds, or a uint64 beyond bigint, is refused
with its value. A type that no column can hold is refused by name.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from clusterd.convert import to_wire_type
from controller_proto.errors import Refusal
from controller_proto.schema import Column as WireColumn
from controller_proto.schema import Schema
from shm_arrangements.columns import Column
from shm_arrangements.types import AnyType, ColumnSpec, ColumnType

__all__ = [
    "arrow_schema",
    "column_from_arrow",
    "column_to_arrow",
    "column_type",
    "schema_from_arrow",
]

_ARROW: dict[AnyType, Any] = {
    ColumnType.BOOL: pa.bool_(),
    ColumnType.INT64: pa.int64(),
    ColumnType.FLOAT64: pa.float64(),
    ColumnType.TEXT: pa.large_string(),
    ColumnType.TIMESTAMP: pa.timestamp("us"),
    ColumnType.NUMERIC: pa.decimal128(38, 0),
}
_DTYPES: dict[AnyType, Any] = {
    ColumnType.INT64: np.int64,
    ColumnType.FLOAT64: np.float64,
    ColumnType.TIMESTAMP: np.int64,
}
# How many of a unit make a microsecond; negative: how many microseconds make one.
_UNITS = {"s": -1_000_000, "ms": -1_000, "us": 1, "ns": 1_000}


def arrow_schema(specs: tuple[ColumnSpec, ...]) -> Any:
    """The `pa.Schema` of columns as `column_to_arrow` gives them."""
    return pa.schema([pa.field(s.name, _ARROW[s.type], nullable=s.nullable) for s in specs])


def column_type(type: Any, name: str = "") -> AnyType:
    """The column type that holds every value of an Arrow type.

    Raises Refusal(`schema-mismatch`) naming the column and the type if there is none.
    """
    if pa.types.is_dictionary(type):
        return column_type(type.value_type, name)
    if pa.types.is_boolean(type):
        return ColumnType.BOOL
    if pa.types.is_integer(type):
        return ColumnType.INT64
    if pa.types.is_floating(type):
        return ColumnType.FLOAT64
    if pa.types.is_string(type) or pa.types.is_large_string(type) or pa.types.is_string_view(type):
        return ColumnType.TEXT
    if pa.types.is_timestamp(type):
        return ColumnType.TIMESTAMP
    if pa.types.is_decimal(type) and type.scale == 0 and type.precision <= 38:
        return ColumnType.NUMERIC
    raise Refusal(
        "schema-mismatch",
        f"column {name!r} is of Arrow type {type}, which no column type holds",
        "cast it to boolean, an integer, a float, a string, a timestamp or decimal128(38, 0)",
    )


def schema_from_arrow(schema: Any) -> Schema:
    """The wire schema that holds an Arrow schema; a field is nullable as Arrow says."""
    return Schema(
        tuple(WireColumn(f.name, to_wire_type(column_type(f.type, f.name)), f.nullable) for f in schema)
    )


def column_from_arrow(array: Any, type: AnyType, *, name: str = "", trusted: bool = False) -> Column:
    """A column of a `pa.Array` or `pa.ChunkedArray` of any Arrow type that `column_type` maps to `type`.

    trusted: we wrote it, so floats are canonical, text is UTF-8 and zeros stand under NULLs; nothing is
    copied but booleans. Raises Refusal(`schema-mismatch`) naming the column and the value that does not fit.
    """
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks() if array.num_chunks != 1 else array.chunk(0)
        if isinstance(array, pa.ChunkedArray):  # combine_chunks keeps several when offsets would overflow
            return Column.concat(
                type, [column_from_arrow(c, type, name=name, trusted=trusted) for c in array.chunks]
            )
    if column_type(array.type, name) is not type:
        raise Refusal(
            "schema-mismatch", f"column {name!r} is {array.type}, {to_wire_type(type).value} expected"
        )
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if type is ColumnType.TEXT:
        values, offsets = _text(array, name, trusted)
    elif type is ColumnType.BOOL:
        values, offsets = _bits(array.buffers()[1], array.offset, len(array)), None
    elif type is ColumnType.NUMERIC:
        if array.type != _ARROW[type]:
            array = array.cast(_ARROW[type])
        lanes = _view(array.buffers()[1], np.uint64, 2 * array.offset, 2 * len(array))
        values, offsets = lanes.reshape(-1, 2), None
    elif type is ColumnType.TIMESTAMP:
        values, offsets = _microseconds(array, name), None
    else:
        values, offsets = _numbers(array, type, name), None
    if array.null_count == 0:
        column = Column(type, values, offsets)
    elif array.offset % 8:
        column = Column(type, values, offsets, _validity(array))
    else:
        bits = np.frombuffer(array.buffers()[0], dtype=np.uint8, offset=array.offset // 8)
        column = Column.with_bits(type, values, offsets, bits)
    return column if trusted else column.canonical()


def _view(buffer: Any, dtype: Any, start: int, count: int) -> Any:
    if buffer is None or count == 0:
        return np.empty(0, dtype=dtype)
    return np.frombuffer(buffer, dtype=dtype, count=count, offset=start * np.dtype(dtype).itemsize)


def _bits(buffer: Any, start: int, count: int) -> Any:
    if buffer is None or count == 0:
        return np.zeros(count, dtype=np.bool_)
    first = start // 8
    packed = np.frombuffer(buffer, dtype=np.uint8, count=(start + count + 7) // 8 - first, offset=first)
    skip = start - 8 * first
    return np.unpackbits(packed, bitorder="little")[skip : skip + count].view(np.bool_)


def _validity(array: Any) -> Any:
    """(n,) bool, or None if there are no NULLs."""
    if array.null_count == 0:
        return None
    return _bits(array.buffers()[0], array.offset, len(array))


def _numbers(array: Any, type: AnyType, name: str) -> Any:
    if array.type == pa.uint64():
        raw = _view(array.buffers()[1], np.uint64, array.offset, len(array))
        beyond = raw > np.uint64(np.iinfo(np.int64).max)
        if beyond.any():
            validity = _validity(array)
            found = np.flatnonzero(beyond if validity is None else beyond & validity)
            if len(found):
                raise Refusal(
                    "schema-mismatch", f"column {name!r}: {raw[found[0]]} is out of range for bigint"
                )
        return raw.view(np.int64)
    if array.type != _ARROW[type]:
        array = array.cast(_ARROW[type])
    return _view(array.buffers()[1], _DTYPES[type], array.offset, len(array))


def _microseconds(array: Any, name: str) -> Any:
    raw = _view(array.buffers()[1], np.int64, array.offset, len(array))
    unit = _UNITS[array.type.unit]
    if unit == 1:
        return raw
    validity = _validity(array)
    if validity is not None:
        raw = np.where(validity, raw, 0)
    if unit < 0:
        factor = -unit
        limit = np.iinfo(np.int64).max // factor
        beyond = np.flatnonzero((raw > limit) | (raw < -limit))
        if len(beyond):
            value = f"{int(raw[beyond[0]])} {array.type.unit}"
            raise Refusal("schema-mismatch", f"column {name!r}: {value} is out of range for timestamp")
        return raw * factor
    uneven = np.flatnonzero(raw % unit)
    if len(uneven):
        raise Refusal(
            "schema-mismatch",
            f"column {name!r}: {int(raw[uneven[0]])} ns is no whole number of microseconds",
            "round the column to microseconds before loading it",
        )
    return raw // unit


def _text(array: Any, name: str, trusted: bool) -> tuple[Any, Any]:
    if not trusted:
        try:
            array.validate(full=True)
        except pa.ArrowInvalid as error:
            raise Refusal("schema-mismatch", f"column {name!r}: {error}") from error
    if len(array) == 0:
        return np.empty(0, dtype=np.uint8), np.zeros(1, dtype=np.int64)
    if array.type != _ARROW[ColumnType.TEXT]:
        array = array.cast(_ARROW[ColumnType.TEXT])
    _, offsets, data = array.buffers()
    values = np.empty(0, dtype=np.uint8) if data is None else np.frombuffer(data, dtype=np.uint8)
    return values, _view(offsets, np.int64, array.offset, len(array) + 1)


def column_to_arrow(column: Column) -> Any:
    """The same values as a `pa.Array`; numbers and text share the column's memory."""
    count = len(column)
    valid = column.validity
    nulls = 0 if valid is None else int(count - np.count_nonzero(valid))
    validity = _packed(valid) if nulls else None
    type = _ARROW[column.type]
    values = pa.py_buffer(np.ascontiguousarray(column.values))
    if column.type is ColumnType.TEXT:
        buffers = [validity, pa.py_buffer(np.ascontiguousarray(column.offsets)), values]
    elif column.type is ColumnType.BOOL:
        buffers = [validity, _packed(column.values)]
    else:
        buffers = [validity, values]
    return pa.Array.from_buffers(type, count, buffers, null_count=nulls)


def _packed(flags: Any) -> Any:
    return pa.py_buffer(np.packbits(flags, bitorder="little"))
