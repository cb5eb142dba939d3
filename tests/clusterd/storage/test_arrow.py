"""Arrow arrays to columns and back, exactly, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from clusterd.convert import scalars_from_column
from clusterd.storage import arrow
from controller_proto.errors import Refusal
from shm_arrangements.columns import Column
from shm_arrangements.types import ColumnType

VALUES: dict[ColumnType, list[Any]] = {
    ColumnType.BOOL: [True, None, False, True, True, False, True, True, None, True, False],
    ColumnType.INT64: [1, None, -(2**63), 2**63 - 1, 0, 5, 6, 7, 8, None, 10],
    ColumnType.FLOAT64: [0.5, None, math.inf, -2.0, 0.0, 1.0, 2.0, 3.0, None, 5.0, 6.0],
    ColumnType.TEXT: ["", None, "é", "x" * 50, "a", "b", "c", None, "d", "e", "\N{SNOWMAN}"],
    ColumnType.TIMESTAMP: [0, None, -1, 10**15, 1, 2, 3, 4, 5, None, 7],
    ColumnType.NUMERIC: [0, None, -(10**37), 10**37, 1, 2, 3, None, 5, 6, 7],
}


@pytest.mark.parametrize("type_", list(ColumnType))
@pytest.mark.parametrize("trusted", [False, True])
def test_a_column_goes_over_and_back_whole_and_in_slices(type_: ColumnType, trusted: bool) -> None:
    values = VALUES[type_]
    array = arrow.column_to_arrow(Column.from_pylist(type_, values))
    array.validate(full=True)
    for lo in range(len(values) + 1):
        for hi in range(lo, len(values) + 1):
            column = arrow.column_from_arrow(array.slice(lo, hi - lo), type_, trusted=trusted)
            assert column.to_pylist() == values[lo:hi]
            assert arrow.column_to_arrow(column).equals(array.slice(lo, hi - lo))


@pytest.mark.parametrize("type_", list(ColumnType))
def test_chunks_are_put_together(type_: ColumnType) -> None:
    array = arrow.column_to_arrow(Column.from_pylist(type_, VALUES[type_]))
    chunked = pa.chunked_array([array, array.slice(3), array.slice(0, 0)])
    assert arrow.column_from_arrow(chunked, type_).to_pylist() == VALUES[type_] + VALUES[type_][3:]
    assert arrow.column_from_arrow(pa.chunked_array([], array.type), type_).to_pylist() == []


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "America/New_York"])
def test_timestamps_of_every_unit_become_microseconds(unit: str, zone: str | None) -> None:
    scale = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}[unit]
    array = pa.array([0, None, -3 * scale, 1_357_000_000 * scale], pa.int64()).cast(pa.timestamp(unit, zone))
    column = arrow.column_from_arrow(array, ColumnType.TIMESTAMP)
    assert column.to_pylist() == [0, None, -3_000_000, 1_357_000_000_000_000]


def test_a_timestamp_between_microseconds_is_refused_with_its_value() -> None:
    array = pa.array([1_000, 1_234_567], pa.timestamp("ns"))
    with pytest.raises(Refusal, match="schema-mismatch: column 'at': 1234567 ns is no whole number"):
        arrow.column_from_arrow(array, ColumnType.TIMESTAMP, name="at")


def test_a_timestamp_beyond_the_range_is_refused_with_its_value() -> None:
    array = pa.array([2**60], pa.timestamp("s"))
    with pytest.raises(Refusal, match=f"schema-mismatch: column 'at': {2**60} s is out of range"):
        arrow.column_from_arrow(array, ColumnType.TIMESTAMP, name="at")


@pytest.mark.parametrize("narrow", [pa.int8(), pa.int32(), pa.uint8(), pa.uint32(), pa.uint64()])
def test_integers_are_widened(narrow: Any) -> None:
    column = arrow.column_from_arrow(pa.array([1, None, 100], narrow), ColumnType.INT64)
    assert column.to_pylist() == [1, None, 100]
    assert column.values.dtype == np.int64


def test_an_unsigned_integer_beyond_bigint_is_refused_with_its_value() -> None:
    with pytest.raises(Refusal, match=f"column 'n': {2**63} is out of range for bigint"):
        arrow.column_from_arrow(pa.array([1, 2**63], pa.uint64()), ColumnType.INT64, name="n")


def test_dictionary_text_and_small_offsets_become_text() -> None:
    words = pa.array(["b", None, "a", "b"])
    for array in (
        words,
        words.dictionary_encode(),
        words.cast(pa.string_view()),
        words.cast(pa.large_string()),
    ):
        assert arrow.column_type(array.type) is ColumnType.TEXT
        assert arrow.column_from_arrow(array, ColumnType.TEXT).to_pylist() == ["b", None, "a", "b"]


def test_decimals_of_scale_zero_are_numeric() -> None:
    array = pa.array([None, 12, -(10**37)], pa.decimal128(38, 0))
    column = arrow.column_from_arrow(array, ColumnType.NUMERIC)
    assert scalars_from_column(column) == (None, "12", str(-(10**37)))
    narrow = pa.array([7], pa.decimal128(5, 0))
    assert scalars_from_column(arrow.column_from_arrow(narrow, ColumnType.NUMERIC)) == ("7",)


def test_what_stands_under_a_null_does_not_survive() -> None:
    valid = pa.py_buffer(np.array([0b101], np.uint8))
    numbers = pa.Array.from_buffers(pa.int64(), 3, [valid, pa.py_buffer(np.array([1, 99, 3]))])
    assert arrow.column_from_arrow(numbers, ColumnType.INT64).values.tolist() == [1, 0, 3]
    offsets = pa.py_buffer(np.array([0, 1, 3, 4], np.int32))
    text = pa.Array.from_buffers(pa.string(), 3, [valid, offsets, pa.py_buffer(b"aXXb")])
    column = arrow.column_from_arrow(text, ColumnType.TEXT)
    assert column.to_pylist() == ["a", None, "b"]
    assert column.offsets is not None
    assert np.diff(column.offsets).tolist() == [1, 0, 1]


def test_floats_from_outside_are_made_canonical() -> None:
    column = arrow.column_from_arrow(pa.array([-0.0, math.nan, 1.5], pa.float64()), ColumnType.FLOAT64)
    assert column.values.tobytes() == np.array([0.0, np.nan, 1.5]).tobytes()
    assert arrow.column_from_arrow(pa.array([1.5, None], pa.float32()), ColumnType.FLOAT64).to_pylist() == [
        1.5,
        None,
    ]


def test_text_that_is_not_utf8_is_refused() -> None:
    offsets = pa.py_buffer(np.array([0, 1], np.int32))
    text = pa.Array.from_buffers(pa.string(), 1, [None, offsets, pa.py_buffer(b"\xff")])
    with pytest.raises(Refusal, match="schema-mismatch: column 't'"):
        arrow.column_from_arrow(text, ColumnType.TEXT, name="t")


def test_a_type_that_no_column_holds_is_refused_by_name() -> None:
    for type_ in (pa.list_(pa.int64()), pa.decimal128(10, 2), pa.date32(), pa.null()):
        with pytest.raises(Refusal, match="schema-mismatch: column 'c' is of Arrow type"):
            arrow.schema_from_arrow(pa.schema([("c", type_)]))
