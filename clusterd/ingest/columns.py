"""Columns: which type of ours a type of PostgreSQL becomes, and columns of values from its texts.

| PostgreSQL                                        | here                                                   |
|---------------------------------------------------|--------------------------------------------------------|
| boolean, smallint, integer, bigint, real, double  | the same                                               |
| numeric(p, s)                                     | numeric of scale s; without (p, s) as `numeric_scale`  |
| text, varchar, char, name, "char", enums          | text                                                   |
| bytea, date, time, timestamp, timestamptz         | the same                                               |
| interval, uuid                                    | the same                                               |
| jsonb, json                                       | jsonb                                                  |
| oid                                               | uint4                                                  |
| arrays of one dimension                           | list, of elements that may be NULL; bounds are dropped |
| domains                                           | as what they are made of                               |

Texts are those of a session with `DateStyle=ISO`, `TimeZone=UTC`, `IntervalStyle=postgres` and
`bytea_output=hex`. They are converted by the column; only where Arrow does not read what PostgreSQL prints
(jsonb, interval, moments outside the years 1 to 9999) value by value.

A value that no value of ours equals (NaN as numeric, `infinity` as a date, a year beyond 9999, an array in an
array) is an IngestError(`invalid-data`): nothing is rounded and nothing becomes NULL.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clusterd.convert import column_from_scalars, to_wire
from clusterd.ingest.arrays import parse_array
from clusterd.ingest.errors import IngestError
from clusterd.storage.arrow import column_from_arrow
from controller_proto.errors import LocalProtocolError, Refusal
from controller_proto.literals import parse_scalar
from controller_proto.schema import Column as WireColumn
from controller_proto.schema import ColumnType as WireType
from shm_arrangements.columns import Column
from shm_arrangements.types import ColumnSpec, ColumnType, ListType

__all__ = ["PgType", "column_of_texts", "map_type", "texts_of_values"]

_T = ColumnType
_NAMES = {
    "bool": WireType.BOOL, "int2": WireType.INT16, "int4": WireType.INT32, "int8": WireType.INT64,
    "oid": WireType.UINT32, "float4": WireType.FLOAT32, "float8": WireType.FLOAT64, "text": WireType.TEXT,
    "varchar": WireType.TEXT, "bpchar": WireType.TEXT, "char": WireType.TEXT, "name": WireType.TEXT,
    "bytea": WireType.BYTEA, "date": WireType.DATE, "time": WireType.TIME, "timestamp": WireType.TIMESTAMP,
    "timestamptz": WireType.TIMESTAMPTZ, "interval": WireType.INTERVAL, "uuid": WireType.UUID,
    "jsonb": WireType.JSONB, "json": WireType.JSONB,
}  # fmt: skip
_LEAVE_OUT = "leave the column out: CREATE PUBLICATION .. FOR TABLE t (a, b, ..)"
_MEND = "change it at its source, then start with --resnapshot; or leave the column out of the publication"
_DAY, _BLANK = pa.scalar("1970-01-01", pa.large_string()), pa.scalar(" ", pa.large_string())
_NO_UUID = "0" * 32


class PgType(msgspec.Struct, frozen=True):
    """A row of pg_type. kind: b(ase), d(omain), e(num), ..; builtin: it is pg_catalog's."""

    name: str
    kind: str
    builtin: bool
    base: int = 0  # of a domain
    modifier: int = -1  # of a domain's base
    element: int = 0  # of an array


def map_type(
    types: Mapping[int, PgType],
    oid: int,
    modifier: int,
    name: str,
    *,
    nullable: bool,
    numeric_scale: int | None,
) -> WireColumn:
    """The column `name` that holds type `oid` of `modifier`. Raises IngestError(`unmapped-type`)."""
    found = types.get(oid)
    if found is None:
        raise IngestError("unmapped-type", f"column {name} is of a composite or unknown type", _LEAVE_OUT)
    if found.kind == "d":
        inner = found.modifier if modifier == -1 else modifier
        return map_type(types, found.base, inner, name, nullable=nullable, numeric_scale=numeric_scale)
    if found.kind == "e":
        return WireColumn(name, WireType.TEXT, nullable)
    if found.element:
        element = map_type(types, found.element, modifier, name, nullable=True, numeric_scale=numeric_scale)
        return WireColumn(name, WireType.LIST, nullable, 0, (element,))
    if found.builtin and found.name == "numeric":
        return WireColumn(name, WireType.NUMERIC, nullable, _scale(modifier, name, numeric_scale))
    if not found.builtin or found.name not in _NAMES:
        raise IngestError("unmapped-type", f"column {name} is of type {found.name}", _LEAVE_OUT)
    return WireColumn(name, _NAMES[found.name], nullable)


def _scale(modifier: int, name: str, numeric_scale: int | None) -> int:
    if modifier == -1:
        if numeric_scale is None:
            raise IngestError(
                "unmapped-type",
                f"column {name} is a numeric that may have any number of digits behind the point",
                "say with --numeric-scale how many to keep room for, or declare it as numeric(p, s)",
            )
        return numeric_scale
    scale = (((modifier - 4) & 0x7FF) ^ 1024) - 1024  # eleven bits with a sign; below zero it rounds to tens
    if scale > 38:
        raise IngestError("unmapped-type", f"column {name} has {scale} digits behind the point, over 38")
    return max(scale, 0)


def texts_of_values(values: Sequence[bytes | None], where: str) -> Any:
    """Values as they came, as an Arrow array of texts. Raises IngestError(`invalid-data`) if not UTF-8."""
    try:
        return pa.array(values, pa.large_binary()).cast(pa.large_string())
    except pa.ArrowInvalid as error:
        raise IngestError("invalid-data", f"{where}: a text is not UTF-8") from error


def column_of_texts(texts: Any, spec: ColumnSpec, where: str) -> Column:
    """The column of `spec` that an array of texts stands for. where: `table.column`, for messages.

    Raises IngestError: `invalid-data` naming the value, `schema-changed` for NULL where there may be none.
    """
    if texts.null_count and not spec.nullable:
        raise IngestError(
            "schema-changed", f"{where} is NULL, and its shard's column is not nullable",
            "the column was NOT NULL when the shard was made: take another shard for the table",
        )  # fmt: skip
    try:
        return _column(texts, spec, where)
    except pa.ArrowInvalid:
        return _one_by_one(texts, spec, where)
    except Refusal as refusal:
        raise IngestError("invalid-data", f"{where}: {refusal.message}") from refusal


def _column(texts: Any, spec: ColumnSpec, where: str) -> Column:
    kind = spec.type
    if isinstance(kind, ListType):
        return _lists(texts, kind, where)
    array: Any
    match kind:
        case _T.TEXT:
            array = texts
        case _T.BOOL:
            array = pc.equal(texts, "t")
        case _T.INT16 | _T.INT32 | _T.INT64 | _T.UINT32:
            array = texts.cast(pa.int64())
        case _T.FLOAT32:
            array = texts.cast(pa.float32())
        case _T.FLOAT64:
            array = texts.cast(pa.float64())
        case _T.NUMERIC:
            array = texts.cast(pa.decimal128(38, spec.scale))
        case _T.DATE:
            array = texts.cast(pa.date32())
        case _T.TIMESTAMP:
            array = texts.cast(pa.timestamp("us"))
        case _T.TIMESTAMPTZ:
            array = texts.cast(pa.timestamp("us", "UTC"))
        case _T.TIME:
            moments = pc.binary_join_element_wise(_DAY, texts, _BLANK).cast(pa.timestamp("us"))
            array = moments.cast(pa.int64()).cast(pa.time64("us"))
        case _T.BYTEA:
            array = _bytes(texts)
        case _T.UUID:
            array = _uuids(texts)
        case _:
            return _one_by_one(texts, spec, where)
    return column_from_arrow(array, spec)


def _one_by_one(texts: Any, spec: ColumnSpec, where: str) -> Column:
    column = msgspec.structs.replace(to_wire(spec), name="", nullable=True)
    try:
        values = [
            None if t is None else parse_scalar(t, column, quoted=_quoted(spec)) for t in texts.to_pylist()
        ]
        return column_from_scalars(spec, values)
    except (LocalProtocolError, ValueError) as error:
        problem = error.message if isinstance(error, LocalProtocolError) else str(error)
        raise IngestError(
            "invalid-data", f"{where}: {problem.removeprefix('column : ')}",
            _MEND,
        ) from error  # fmt: skip


def _quoted(spec: ColumnSpec) -> bool:
    """Whether a text is never the word for NULL; numbers are read only where they are not quoted."""
    return spec.type in (_T.JSONB, _T.TEXT)


def _hex(texts: Any, prefix: int) -> tuple[bytes, Any]:
    """The bytes of all texts of hex digits in one, and where each begins, (n + 1,)."""
    digits = pc.binary_length(texts).fill_null(prefix).to_numpy(zero_copy_only=False) - prefix
    whole = "".join(text[prefix:] for text in texts.to_pylist() if text is not None)
    offsets = np.zeros(len(texts) + 1, np.int64)
    np.cumsum(digits // 2, out=offsets[1:])
    return bytes.fromhex(whole), offsets


def _bytes(texts: Any) -> Any:
    data, offsets = _hex(texts, len("\\x"))
    validity = pc.is_valid(texts)
    array = pa.Array.from_buffers(
        pa.large_binary(), len(texts), [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )
    return pc.if_else(validity, array, pa.scalar(None, pa.large_binary()))


def _uuids(texts: Any) -> Any:
    plain = pc.replace_substring(texts.fill_null(_NO_UUID), "-", "")
    data, _ = _hex(plain, 0)
    kind = pa.binary(16)
    array = pa.Array.from_buffers(kind, len(texts), [None, pa.py_buffer(data)])
    return pc.if_else(pc.is_valid(texts), array, pa.scalar(None, kind))


def _lists(texts: Any, kind: ListType, where: str) -> Column:
    elements: list[str | None] = []
    offsets = np.zeros(len(texts) + 1, np.int64)
    for i, text in enumerate(texts.to_pylist()):
        if text is not None:
            found = parse_array(text)
            if found is None:
                raise IngestError(
                    "invalid-data", f"{where}: {text[:60]!r} is no array of one dimension",
                    f"lists hold no lists: {_MEND}",
                )  # fmt: skip
            elements += found
        offsets[i + 1] = len(elements)
    child = column_of_texts(pa.array(elements, pa.large_string()), kind.element, where)
    validity = pc.is_valid(texts).to_numpy(zero_copy_only=False) if texts.null_count else None
    return Column(kind, np.empty(0, np.uint8), offsets, validity, children=(child,))
