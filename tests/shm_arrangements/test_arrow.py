"""Arrow hand-out: the same values, and the same memory where the layouts agree."""

from __future__ import annotations

import decimal
import gc
import random
import uuid
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from shm_arrangements import arrow
from shm_arrangements.columns import Column
from shm_arrangements.testing import edges
from shm_arrangements.types import ColumnSpec, ColumnType, ListType, RecordType

SPECS = [
    *(ColumnSpec(kind.name, kind, True, 4 if kind is ColumnType.NUMERIC else 0) for kind in ColumnType),
    ColumnSpec("texts", ListType(ColumnSpec("e", ColumnType.TEXT, True)), True),
    ColumnSpec(
        "record",
        RecordType(
            (
                ColumnSpec("a", ColumnType.NUMERIC, False, 2),
                ColumnSpec("b", ListType(ColumnSpec("e", ColumnType.BOOL, False)), True),
            )
        ),
        True,
    ),
    ColumnSpec("nothing", RecordType(()), True),
]


def _drawn(spec: ColumnSpec, n: int, seed: int) -> list[Any]:
    draws = random.Random(seed)
    values = [_within_arrow(edges.random_value(draws, spec.type, True)) for _ in range(n)]
    if spec.type is ColumnType.TIME:  # 24:00 is beyond Arrow's times
        return [None if v is None else v % 86_400_000_000 for v in values]
    return values


def _within_arrow(value: Any) -> Any:
    """Arrow's decimals have 38 digits; the rest of 128 bits is beyond them."""
    if isinstance(value, int) and abs(value) >= 10**38:
        return value // 10
    if isinstance(value, tuple | list):
        return type(value)(_within_arrow(part) for part in value)
    return value


def _stored(spec: ColumnSpec, value: Any) -> Any:
    """A value that Arrow gives, in the form of values.py."""
    if value is None:
        return None
    if isinstance(spec.type, ListType):
        return [_stored(spec.type.element, v) for v in value]
    if isinstance(spec.type, RecordType):
        return tuple(_stored(field, value[field.name]) for field in spec.type.fields)
    if isinstance(value, decimal.Decimal):
        return int(value.scaleb(spec.scale, decimal.Context(prec=64)))
    if spec.type is ColumnType.UUID:
        return uuid.UUID(bytes=value)
    return tuple(value) if spec.type is ColumnType.INTERVAL else value


def _plain(spec: ColumnSpec, array: Any) -> list[Any]:
    kind = array.type
    if pa.types.is_timestamp(kind) or pa.types.is_time64(kind):
        array = array.cast(pa.int64())
    elif pa.types.is_date32(kind):
        array = array.cast(pa.int32())
    return [_stored(spec, value) for value in array.to_pylist()]


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
@pytest.mark.parametrize("seed", range(4))
def test_arrow_sees_the_same_values(spec: ColumnSpec, seed: int) -> None:
    values = _drawn(spec, 20 if seed else 0, seed)
    lo = seed * 3 if values else 0
    for column in (
        Column.from_pylist(spec.type, values),
        Column.from_pylist(spec.type, [None, *values]).slice(1, len(values) + 1),
        _mapped(Column.from_pylist(spec.type, values)),
    ):
        part = column.slice(lo, len(values))
        array = arrow.to_array(spec, part)
        array.validate(full=True)
        assert array.type == arrow.arrow_type(spec)
        assert repr(_plain(spec, array)) == repr(part.to_pylist())
        assert array.null_count == values[lo:].count(None)


def _mapped(column: Column) -> Column:
    """The same column as a batch holds it: validity as bits."""
    bits = column.bits()
    return Column.with_bits(
        column.type,
        column.values,
        column.offsets,
        None if bits is None else bits[0],
        children=column.children,
        length=len(column),
    )


@pytest.mark.parametrize("kind", [k for k in ColumnType if k is not ColumnType.BOOL])
def test_fixed_width_and_text_are_handed_out_without_a_copy(kind: ColumnType) -> None:
    values = [edges.EDGES[kind][1], None, edges.EDGES[kind][2]]
    column = _mapped(Column.from_pylist(kind, values))
    buffers = arrow.to_array(ColumnSpec("c", kind, True), column).buffers()
    assert buffers[-1].address == column.values.ctypes.data
    bits = column.bits()
    assert bits is not None
    assert buffers[0].address == bits[0].ctypes.data
    if column.offsets is not None:
        assert buffers[1].address == column.offsets.ctypes.data


def test_lists_and_records_are_handed_out_without_a_copy() -> None:
    spec = ColumnSpec("texts", ListType(ColumnSpec("e", ColumnType.INT64, False)), False)
    column = Column.from_pylist(spec.type, [[1, 2], [3]])
    buffers = arrow.to_array(spec, column).buffers()
    assert column.offsets is not None
    assert buffers[1].address == column.offsets.ctypes.data
    assert buffers[-1].address == column.children[0].values.ctypes.data


def test_a_dictionary_is_decoded_unless_it_is_asked_for() -> None:
    dictionary = Column.from_pylist(ColumnType.TEXT, ["", "a", "bb"])
    indices = np.array([2, 1, 0, 2], np.uint8)
    column = Column.of_dictionary(dictionary, indices, np.array([True, True, False, True]))
    spec = ColumnSpec("c", ColumnType.TEXT, True)
    assert arrow.to_array(spec, column).to_pylist() == ["bb", "a", None, "bb"]
    assert arrow.to_array(spec, column).type == pa.large_string()
    kept = arrow.to_array(spec, column, dictionary=True)
    assert kept.to_pylist() == ["bb", "a", None, "bb"]
    assert kept.indices.buffers()[-1].address == indices.ctypes.data
    batch = arrow.to_record_batch([spec], [column], dictionary=True)
    assert batch.column(0).to_pylist() == ["bb", "a", None, "bb"]


def test_an_arrow_array_keeps_the_memory_alive() -> None:
    column = Column.from_pylist(ColumnType.INT64, list(range(10_000)))
    array = arrow.to_array(ColumnSpec("c", ColumnType.INT64, False), column)
    del column
    gc.collect()
    assert array.to_pylist() == list(range(10_000))


def test_a_record_batch_has_names_nullability_and_counts_if_asked() -> None:
    specs = [ColumnSpec("k", ColumnType.INT64, False), ColumnSpec("v", ColumnType.TEXT, True)]
    columns = [Column.from_pylist(ColumnType.INT64, [1, 2]), Column.from_pylist(ColumnType.TEXT, ["a", None])]
    plain = arrow.to_record_batch(specs, columns)
    assert plain.schema == pa.schema(
        [pa.field("k", pa.int64(), False), pa.field("v", pa.large_string(), True)]
    )
    counted = arrow.to_record_batch(specs, columns, np.array([1, 3]))
    assert counted.to_pylist() == [{"k": 1, "v": "a", "count": 1}, {"k": 2, "v": None, "count": 3}]


def test_polars_reads_what_arrow_is_given() -> None:
    polars = pytest.importorskip("polars")
    columns = (ColumnSpec("k", ColumnType.INT64, False), ColumnSpec("t", ColumnType.TEXT, True))
    rows = [Column.from_pylist(ColumnType.INT64, [1, 2]), Column.from_pylist(ColumnType.TEXT, ["a", None])]
    frame = polars.from_arrow(arrow.to_record_batch(columns, rows))
    assert frame.rows() == [(1, "a"), (2, None)]
