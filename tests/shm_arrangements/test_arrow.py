"""Arrow hand-out: the same values, and the same memory where the layouts agree."""

from __future__ import annotations

import decimal
import gc
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shm_arrangements import arrow
from shm_arrangements.columns import Column
from shm_arrangements.types import ColumnSpec, ColumnType

VALUES: dict[ColumnType, st.SearchStrategy[Any]] = {
    ColumnType.BOOL: st.booleans(),
    ColumnType.INT64: st.integers(-(1 << 63), (1 << 63) - 1),
    ColumnType.FLOAT64: st.floats(allow_nan=False),
    ColumnType.TEXT: st.text(st.characters(codec="utf-8"), max_size=12),
    ColumnType.TIMESTAMP: st.integers(-(1 << 55), 1 << 55),
    ColumnType.NUMERIC: st.integers(-(10**38) + 1, 10**38 - 1),
}


def _plain(array: Any) -> list[Any]:
    if pa.types.is_timestamp(array.type):
        array = array.cast(pa.int64())
    return [int(v) if isinstance(v, decimal.Decimal) else v for v in array.to_pylist()]


@pytest.mark.parametrize("kind", list(ColumnType))
@given(data=st.data())
def test_arrow_sees_the_same_values(kind: ColumnType, data: st.DataObject) -> None:
    values = data.draw(st.lists(st.one_of(st.none(), VALUES[kind]), max_size=20))
    lo = data.draw(st.integers(0, len(values)))
    for column in (
        Column.from_pylist(kind, values),
        Column.from_pylist(kind, [None, *values]).slice(1, len(values) + 1),
        _mapped(Column.from_pylist(kind, values)),
    ):
        array = arrow.to_array(column.slice(lo, len(values)))
        array.validate(full=True)
        assert _plain(array) == values[lo:]
        assert array.null_count == values[lo:].count(None)


def _mapped(column: Column) -> Column:
    """The same column as a batch holds it: validity as bits."""
    bits = column.bits()
    return Column.with_bits(column.type, column.values, column.offsets, None if bits is None else bits[0])


@pytest.mark.parametrize("kind", [k for k in ColumnType if k is not ColumnType.BOOL])
def test_fixed_width_and_text_are_handed_out_without_a_copy(kind: ColumnType) -> None:
    values: list[Any] = ["ab", None, ""] if kind is ColumnType.TEXT else [1.5, None, 2.5]
    if kind not in (ColumnType.TEXT, ColumnType.FLOAT64):
        values = [1, None, 2]
    column = _mapped(Column.from_pylist(kind, values))
    buffers = arrow.to_array(column).buffers()
    assert buffers[-1].address == column.values.ctypes.data
    bits = column.bits()
    assert bits is not None
    assert buffers[0].address == bits[0].ctypes.data
    if column.offsets is not None:
        assert buffers[1].address == column.offsets.ctypes.data


def test_an_arrow_array_keeps_the_memory_alive() -> None:
    column = Column.from_pylist(ColumnType.INT64, list(range(10_000)))
    array = arrow.to_array(column)
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
