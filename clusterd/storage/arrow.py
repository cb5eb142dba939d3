"""Between Arrow arrays and `Column`: files, parts and clients speak Arrow.

| Arrow                                   | column type, unless a schema asks for another that fits      |
|-----------------------------------------|--------------------------------------------------------------|
| bool                                    | boolean                                                      |
| int8 .. int64, uint8 .. uint64          | bigint; smallint .. uint8, numeric                           |
| halffloat, float, double                | double precision; real                                       |
| decimal                                 | numeric of its scale; of another                             |
| string, large_string, string_view       | text; jsonb                                                  |
| binary, large_, fixed_size_, binary_view| bytea; uuid, of 16 bytes                                     |
| date32, date64                          | date                                                         |
| time32, time64                          | time                                                         |
| timestamp, of any unit                  | timestamp; with a zone timestamptz, timestamp (then UTC)     |
| month_day_nano_interval, duration       | interval                                                     |
| uuid, json (extensions)                 | uuid, jsonb                                                  |
| list, large_list, fixed_size_list       | list                                                         |
| struct                                  | record                                                       |
| dictionary                              | as its values                                                |

The layouts agree but for two things: Arrow keeps validity and booleans as bits, a `Column` as bytes; and
Arrow leaves what stands under a NULL open, a `Column` has zeros there. What fits goes over without a copy.
What comes from outside is made canonical (floats, JSON, what stands under NULLs) and checked (UTF-8, ranges);
what we wrote ourselves (`trusted`) was.

Does not: round. A value that the column cannot hold exactly is refused by name of its column, with the value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clusterd.convert import column_from_scalars, type_name_of
from controller_proto.errors import Refusal
from controller_proto.schema import Column as WireColumn
from controller_proto.schema import ColumnType as WireType
from controller_proto.schema import Schema
from shm_arrangements.arrow import arrow_type, to_array
from shm_arrangements.columns import Column
from shm_arrangements.types import (
    DTYPES,
    VARIABLE,
    WIDE,
    AnyType,
    ColumnSpec,
    ColumnType,
    ListType,
    RecordType,
)

__all__ = ["arrow_schema", "column_from_arrow", "column_to_arrow", "schema_from_arrow", "wire_column"]

_T = ColumnType
_INTEGERS = (_T.INT16, _T.INT32, _T.INT64, _T.UINT16, _T.UINT32, _T.UINT64)
_MOMENTS = (_T.TIMESTAMP, _T.TIMESTAMPTZ)
# How many of a unit make a microsecond; negative: how many microseconds make one.
_UNITS = {"s": -1_000_000, "ms": -1_000, "us": 1, "ns": 1_000}
_NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 1_000, "ns": 1}
_DAY_MS = 86_400_000
_DAY_US = 86_400_000_000
_HINT = "cast it to a type that a column can have (docs/script.md), or leave it out"


def arrow_schema(specs: Sequence[ColumnSpec]) -> Any:
    """The `pa.Schema` of columns as `column_to_arrow` gives them."""
    return pa.schema([pa.field(s.name, arrow_type(s), nullable=s.nullable) for s in specs])


def column_to_arrow(spec: ColumnSpec, column: Column) -> Any:
    """The same values as a `pa.Array`; numbers and text share the column's memory."""
    return to_array(spec, column)


def schema_from_arrow(schema: Any) -> Schema:
    """The wire schema that holds an Arrow schema; a field is nullable as Arrow says.

    Raises Refusal(`schema-mismatch`) naming the column and the type that no column holds.
    """
    return Schema(tuple(map(wire_column, schema)))


def wire_column(field: Any) -> WireColumn:
    """The column that holds every value of a `pa.Field`. Raises Refusal as `schema_from_arrow`."""
    return _wire(field.name, field.type, field.nullable)


def _wire(name: str, type: Any, nullable: bool) -> WireColumn:
    is_ = pa.types
    if is_.is_dictionary(type):
        return _wire(name, type.value_type, nullable)
    if isinstance(type, pa.BaseExtensionType):
        known = {"arrow.uuid": WireType.UUID, "arrow.json": WireType.JSONB}.get(type.extension_name)
        return WireColumn(name, known, nullable) if known else _wire(name, type.storage_type, nullable)
    if is_.is_decimal(type) and 0 <= type.scale <= 38:
        return WireColumn(name, WireType.NUMERIC, nullable, type.scale)
    if _is_list(type):
        return WireColumn(name, WireType.LIST, nullable, 0, (wire_column(type.value_field),))
    if is_.is_struct(type):
        return WireColumn(name, WireType.RECORD, nullable, 0, tuple(map(wire_column, type)))
    for is_it, found in _DEFAULTS:
        if is_it(type):
            return WireColumn(name, found, nullable)
    if is_.is_timestamp(type):
        return WireColumn(name, WireType.TIMESTAMP if type.tz is None else WireType.TIMESTAMPTZ, nullable)
    raise _unheld(name, type)


def _is_text(type: Any) -> bool:
    return bool(pa.types.is_string(type) or pa.types.is_large_string(type) or pa.types.is_string_view(type))


def _is_bytes(type: Any) -> bool:
    is_ = pa.types
    plain = is_.is_binary(type) or is_.is_large_binary(type) or is_.is_binary_view(type)
    return bool(plain or is_.is_fixed_size_binary(type))


def _is_list(type: Any) -> bool:
    is_ = pa.types
    return bool(is_.is_list(type) or is_.is_large_list(type) or is_.is_fixed_size_list(type))


def _is_interval(type: Any) -> bool:
    return bool(pa.types.is_interval(type) or pa.types.is_duration(type))


_DEFAULTS = (
    (pa.types.is_boolean, WireType.BOOL),
    (pa.types.is_integer, WireType.INT64),
    (pa.types.is_floating, WireType.FLOAT64),
    (_is_text, WireType.TEXT),
    (_is_bytes, WireType.BYTEA),
    (pa.types.is_date, WireType.DATE),
    (pa.types.is_time, WireType.TIME),
    (_is_interval, WireType.INTERVAL),
)


def _unheld(name: str, type: Any) -> Refusal:
    return Refusal(
        "schema-mismatch", f"column {name!r} is of Arrow type {type}, which no column type holds", _HINT
    )


def column_from_arrow(array: Any, spec: ColumnSpec, *, trusted: bool = False) -> Column:
    """A column of `spec` from a `pa.Array` or `pa.ChunkedArray` of any Arrow type that goes with it.

    trusted: we wrote it, so floats are canonical, text is UTF-8 and zeros stand under NULLs; nothing is
    copied but booleans. Raises Refusal(`schema-mismatch`) naming the column, and the type or the value that
    does not fit.
    """
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks() if array.num_chunks != 1 else array.chunk(0)
        if isinstance(array, pa.ChunkedArray):  # combine_chunks keeps several when offsets would overflow
            parts = [column_from_arrow(c, spec, trusted=trusted) for c in array.chunks]
            return Column.concat(spec.type, parts)
    if not trusted:
        try:
            array.validate(full=True)
        except pa.ArrowInvalid as error:
            raise Refusal("schema-mismatch", f"column {spec.name!r}: {error}") from error
    return _column(array, spec, trusted)


def _column(array: Any, spec: ColumnSpec, trusted: bool) -> Column:
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    if spec.type in VARIABLE:
        column = _variable(array, spec)
        if spec.type is _T.JSONB and not trusted:
            return _json(column, spec)
    elif isinstance(spec.type, ListType):
        column = _list(array, spec, spec.type, trusted)
    elif isinstance(spec.type, RecordType):
        column = _record(array, spec, spec.type, trusted)
    elif spec.type in WIDE:
        column = _with_validity(array, spec.type, _wide(array, spec))
    else:
        column = _with_validity(array, spec.type, _flat(array, spec))
    return column if trusted else column.canonical()


def _with_validity(
    array: Any, type: AnyType, values: Any, offsets: Any = None, children: tuple[Column, ...] = ()
) -> Column:
    """A column of these arrays and the validity of `array`."""
    n = len(array)
    if array.null_count == 0:
        return Column(type, values, offsets, children=children, length=n)
    if array.offset % 8:
        return Column(type, values, offsets, _validity(array), children=children, length=n)
    bits = np.frombuffer(array.buffers()[0], dtype=np.uint8, offset=array.offset // 8)
    return Column.with_bits(type, values, offsets, bits, children=children, length=n)


def _refused(array: Any, spec: ColumnSpec) -> Refusal:
    wanted = type_name_of(spec.type, spec.scale)
    return Refusal("schema-mismatch", f"column {spec.name!r} is {array.type}, {wanted} expected")


def _beyond(spec: ColumnSpec, shown: object) -> Refusal:
    wanted = type_name_of(spec.type, spec.scale)
    return Refusal("schema-mismatch", f"column {spec.name!r}: {shown} is out of range for {wanted}")


def _view(buffer: Any, dtype: Any, start: int, count: int) -> Any:
    if buffer is None or count == 0:
        return np.empty(0, dtype=dtype)
    return np.frombuffer(buffer, dtype=dtype, count=count, offset=start * np.dtype(dtype).itemsize)


def _values(array: Any, dtype: Any) -> Any:
    return _view(array.buffers()[1], dtype, array.offset, len(array))


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


def _first(array: Any, wrong: Any) -> int:
    """The first row in `wrong` (n,) that is not NULL; -1 if there is none."""
    if not wrong.any():
        return -1
    validity = _validity(array)
    found = np.flatnonzero(wrong if validity is None else wrong & validity)
    return int(found[0]) if len(found) else -1


def _flat(array: Any, spec: ColumnSpec) -> Any:
    """(n,) values of a type of one word or less."""
    kind, is_ = spec.type, pa.types
    if kind is _T.BOOL and is_.is_boolean(array.type):
        return _bits(array.buffers()[1], array.offset, len(array))
    if kind in _INTEGERS and is_.is_integer(array.type):
        return _narrowed(array, spec)
    if kind in (_T.FLOAT32, _T.FLOAT64) and is_.is_floating(array.type):
        return _floats(array, spec)
    if kind is _T.DATE and is_.is_date32(array.type):
        return _values(array, np.int32)
    if kind is _T.DATE and is_.is_date64(array.type):
        return _whole(array, spec, _values(array, np.int64), _DAY_MS, "ms is no whole day").astype(np.int32)
    if kind is _T.TIME and is_.is_time(array.type):
        micros = _microseconds(array, spec)
        wrong = _first(array, (micros < 0) | (micros > _DAY_US))
        if wrong >= 0:
            raise _beyond(spec, f"{micros[wrong]} us")
        return micros
    zoned = is_.is_timestamp(array.type) and array.type.tz is not None
    if kind in _MOMENTS and is_.is_timestamp(array.type) and (zoned or kind is _T.TIMESTAMP):
        return _microseconds(array, spec)
    raise _refused(array, spec)


def _narrowed(array: Any, spec: ColumnSpec) -> Any:
    assert isinstance(spec.type, ColumnType)
    raw = _values(array, array.type.to_pandas_dtype())
    wanted = DTYPES[spec.type]
    if raw.dtype == wanted:
        return raw
    if not np.can_cast(raw.dtype, wanted, "safe") and len(raw):
        bounds, given = np.iinfo(wanted), np.iinfo(raw.dtype)
        wrong = np.zeros(len(raw), np.bool_)
        if given.max > bounds.max:
            wrong |= raw > raw.dtype.type(bounds.max)
        if given.min < bounds.min:
            wrong |= raw < raw.dtype.type(bounds.min)
        found = _first(array, wrong)
        if found >= 0:
            raise _beyond(spec, raw[found])
    return raw.astype(wanted)


def _floats(array: Any, spec: ColumnSpec) -> Any:
    assert isinstance(spec.type, ColumnType)
    raw = _values(array, array.type.to_pandas_dtype())
    wanted = DTYPES[spec.type]
    if raw.dtype == wanted:
        return raw
    with np.errstate(over="ignore"):
        values = raw.astype(wanted)
    wrong = _first(array, (values != raw) & ~np.isnan(raw))
    if wrong >= 0:
        shown = f"column {spec.name!r}: {raw[wrong]} is no real without rounding"
        raise Refusal("schema-mismatch", shown, "load it as double precision, or round the column before")
    return values


def _whole(array: Any, spec: ColumnSpec, raw: Any, unit: int, problem: str) -> Any:
    """`raw` divided by `unit`, which has to go exactly."""
    wrong = _first(array, raw % unit != 0)
    if wrong >= 0:
        message = f"column {spec.name!r}: {int(raw[wrong])} {problem}"
        raise Refusal("schema-mismatch", message, "round the column before loading it")
    return raw // unit


def _microseconds(array: Any, spec: ColumnSpec) -> Any:
    width = np.int32 if pa.types.is_time32(array.type) else np.int64
    raw = _values(array, width).astype(np.int64, copy=False)
    unit = _UNITS[array.type.unit]
    if unit == 1:
        return raw
    if unit > 0:
        return _whole(array, spec, raw, unit, "ns is no whole number of microseconds")
    return _multiplied(array, spec, raw, -unit)


def _multiplied(array: Any, spec: ColumnSpec, raw: Any, factor: int) -> Any:
    limit = np.iinfo(np.int64).max // factor
    wrong = _first(array, (raw > limit) | (raw < -limit))
    if wrong >= 0:
        raise _beyond(spec, f"{int(raw[wrong])} {array.type.unit}")
    return raw * factor  # may wrap under a NULL


def _wide(array: Any, spec: ColumnSpec) -> Any:
    """(n, 2) uint64 of a type of two words."""
    kind, is_ = spec.type, pa.types
    if kind is _T.NUMERIC and (is_.is_decimal(array.type) or is_.is_integer(array.type)):
        array = _rescaled(array, spec)
    elif kind is _T.INTERVAL and is_.is_duration(array.type):
        return _intervals(array, spec)
    elif not (
        (kind is _T.INTERVAL and is_.is_interval(array.type))
        or (kind is _T.UUID and is_.is_fixed_size_binary(array.type) and array.type.byte_width == 16)
    ):
        raise _refused(array, spec)
    return _view(array.buffers()[1], np.uint64, 2 * array.offset, 2 * len(array)).reshape(-1, 2)


def _rescaled(array: Any, spec: ColumnSpec) -> Any:
    """As decimal128(38, scale). One value is tried after another only to name the one that does not fit."""
    wanted = arrow_type(spec)
    if array.type == wanted:
        return array
    if pa.types.is_integer(array.type):
        array = array.cast(pa.decimal128(20, 0))
    try:
        return array.cast(wanted)
    except pa.ArrowInvalid:
        for i in range(len(array)):
            try:
                array.slice(i, 1).cast(wanted)
            except pa.ArrowInvalid:
                shown, name = array[i].as_py(), type_name_of(spec.type, spec.scale)
                message = f"column {spec.name!r}: {shown} is no {name} without rounding, or out of its range"
                raise Refusal("schema-mismatch", message) from None
        raise


def _intervals(array: Any, spec: ColumnSpec) -> Any:
    raw = _values(array, np.int64)
    words = np.zeros((len(raw), 2), np.uint64)
    words[:, 1] = _multiplied(array, spec, raw, _NANOSECONDS[array.type.unit]).view(np.uint64)
    return words


def _variable(array: Any, spec: ColumnSpec) -> Column:
    is_bytes = spec.type is _T.BYTEA
    if not (_is_bytes(array.type) if is_bytes else _is_text(array.type)):
        raise _refused(array, spec)
    if len(array) == 0:
        return Column.empty(spec.type)
    wanted = pa.large_binary() if is_bytes else pa.large_string()
    if array.type != wanted:
        array = array.cast(wanted)
    _, offsets, data = array.buffers()
    values = np.empty(0, dtype=np.uint8) if data is None else np.frombuffer(data, dtype=np.uint8)
    return _with_validity(array, spec.type, values, _view(offsets, np.int64, array.offset, len(array) + 1))


def _json(column: Column, spec: ColumnSpec) -> Column:
    try:
        return column_from_scalars(spec, column.to_pylist())
    except ValueError as error:
        raise Refusal("schema-mismatch", f"column {spec.name!r}: {error}") from error


def _list(array: Any, spec: ColumnSpec, kind: ListType, trusted: bool) -> Column:
    if not _is_list(array.type):
        raise _refused(array, spec)
    if pa.types.is_fixed_size_list(array.type):
        array = array.cast(pa.large_list(array.type.value_field))
    width = np.int32 if pa.types.is_list(array.type) else np.int64
    offsets = _view(array.buffers()[1], width, array.offset, len(array) + 1).astype(np.int64, copy=False)
    if len(array) == 0:
        return Column.empty(kind)
    _check_nulls(array, kind.element, pc.list_flatten, spec)
    element = ColumnSpec(spec.name, kind.element.type, kind.element.nullable, kind.element.scale)
    child = _without_nulls(_column(array.values, element, trusted), kind.element)
    return _with_validity(array, kind, np.empty(0, np.uint8), offsets, (child,))


def _record(array: Any, spec: ColumnSpec, kind: RecordType, trusted: bool) -> Column:
    if not pa.types.is_struct(array.type) or len(array.type) != len(kind.fields):
        raise _refused(array, spec)
    children = []
    for i, field in enumerate(kind.fields):
        if array.type.field(i).name != field.name:
            raise _refused(array, spec)
        _check_nulls(array, field, lambda whole, i=i: whole.drop_null().field(i), spec)
        named = ColumnSpec(f"{spec.name}.{field.name}", field.type, field.nullable, field.scale)
        children.append(_without_nulls(_column(array.field(i), named, trusted), field))
    return _with_validity(array, kind, np.empty(0, np.uint8), None, tuple(children))


def _check_nulls(array: Any, field: ColumnSpec, parts: Any, spec: ColumnSpec) -> None:
    """Refuse a NULL among the parts of values that are not NULL themselves, where the field has none."""
    if not field.nullable and parts(array).null_count:
        message = f"column {spec.name!r}: NULL in field {field.name!r}, which is not nullable"
        raise Refusal("schema-mismatch", message)


def _without_nulls(column: Column, field: ColumnSpec) -> Column:
    """What stands under NULLs of the whole is zero, and no NULL of a field that has none."""
    if field.nullable or not column.has_validity:
        return column
    plain = column.canonical()
    return Column(plain.type, plain.values, plain.offsets, None, children=plain.children, length=len(plain))
