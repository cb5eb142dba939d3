"""Arrow arrays to columns and back, exactly, and what is refused."""

from __future__ import annotations

import datetime
import decimal
import math
import uuid
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from clusterd.convert import column_from_scalars, from_wire, scalars_from_column
from clusterd.storage import arrow
from controller_proto.errors import Refusal
from controller_proto.literals import parse_type
from controller_proto.schema import Scalar, type_name
from shm_arrangements.columns import Column
from shm_arrangements.types import ColumnSpec, ColumnType
from tests.clusterd.columns import VALUES


def spec(type_: str, name: str = "c") -> ColumnSpec:
    return from_wire(parse_type(type_, name, nullable=True))


def load(array: Any, type_: str, name: str = "c") -> list[Scalar]:
    """The wire values of an array as a column of this type."""
    return list(scalars_from_column(spec(type_), arrow.column_from_arrow(array, spec(type_, name))))


def of(name: str) -> tuple[ColumnSpec, list[Scalar], Column]:
    """The column of that name, with a few NULLs among its values: more than a byte of them."""
    column, values = VALUES[name]
    values = [value for value in values if name != "tm" or value != 86_400_000_000]  # Arrow has no 24:00:00
    given = [None, *values, None, *values, *values, None, *values, *[values[0]] * 9]
    found = from_wire(column)
    return found, given, column_from_scalars(found, given)


def same(a: Any, b: Any) -> bool:
    return repr(a) == repr(b)  # NaN equals itself


@pytest.mark.parametrize("name", list(VALUES))
@pytest.mark.parametrize("trusted", [False, True])
def test_a_column_goes_over_and_back_whole_and_in_slices(name: str, trusted: bool) -> None:
    spec_, values, whole = of(name)
    array = arrow.column_to_arrow(spec_, whole)
    array.validate(full=True)
    for lo in range(len(values) + 1):
        for hi in (lo, lo + 1, lo + 9, len(values)):
            hi = min(hi, len(values))
            if hi < lo:
                continue
            column = arrow.column_from_arrow(array.slice(lo, hi - lo), spec_, trusted=trusted)
            assert same(list(scalars_from_column(spec_, column)), values[lo:hi])
            assert arrow.column_to_arrow(spec_, column).type == array.type


@pytest.mark.parametrize("name", list(VALUES))
def test_chunks_are_put_together(name: str) -> None:
    spec_, values, whole = of(name)
    array = arrow.column_to_arrow(spec_, whole)
    chunked = pa.chunked_array([array, array.slice(3), array.slice(0, 0)])
    column = arrow.column_from_arrow(chunked, spec_)
    assert same(list(scalars_from_column(spec_, column)), values + values[3:])
    empty = arrow.column_from_arrow(pa.chunked_array([], array.type), spec_)
    assert scalars_from_column(spec_, empty) == ()


@pytest.mark.parametrize(
    ("type_", "found"),
    [
        (pa.bool_(), "boolean"),
        (pa.int8(), "bigint"),
        (pa.uint64(), "bigint"),
        (pa.float16(), "double precision"),
        (pa.float32(), "double precision"),
        (pa.string_view(), "text"),
        (pa.dictionary(pa.int8(), pa.string()), "text"),
        (pa.binary(5), "bytea"),
        (pa.binary(16), "bytea"),
        (pa.uuid(), "uuid"),
        (pa.json_(), "jsonb"),
        (pa.date32(), "date"),
        (pa.date64(), "date"),
        (pa.time32("ms"), "time"),
        (pa.time64("ns"), "time"),
        (pa.timestamp("s"), "timestamp"),
        (pa.timestamp("ns", "America/New_York"), "timestamptz"),
        (pa.duration("ms"), "interval"),
        (pa.month_day_nano_interval(), "interval"),
        (pa.decimal128(38, 9), "numeric(38,9)"),
        (pa.decimal256(60, 0), "numeric"),
        (pa.list_(pa.field("item", pa.int32(), False)), "bigint list"),
        (pa.list_(pa.int32(), 3), "bigint? list"),
        (pa.large_list(pa.list_(pa.string())), "text? list? list"),
        (pa.struct([pa.field("a", pa.int64(), False), ("b", pa.date32())]), "record(a bigint, b date?)"),
    ],
)
def test_a_type_is_held_by_one_that_holds_all_its_values(type_: Any, found: str) -> None:
    (column,) = arrow.schema_from_arrow(pa.schema([pa.field("c", type_, nullable=False)])).columns
    assert (column.name, type_name(column), column.nullable) == ("c", found, False)


@pytest.mark.parametrize("type_", [pa.null(), pa.map_(pa.string(), pa.int64()), pa.decimal128(5, -2)])
def test_a_type_that_no_column_holds_is_refused_by_name(type_: Any) -> None:
    for given in (type_, pa.list_(type_)):
        with pytest.raises(Refusal, match=r"schema-mismatch: column '(c|item)' is of Arrow type"):
            arrow.schema_from_arrow(pa.schema([("c", given)]))


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize(("zone", "type_"), [(None, "timestamp"), ("America/New_York", "timestamptz")])
def test_timestamps_of_every_unit_become_microseconds(unit: str, zone: str | None, type_: str) -> None:
    """BUG87: 2020-01-02 03:00 is that in every unit."""
    scale = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}[unit]
    array = pa.array([0, None, -3 * scale, 1_577_934_000 * scale], pa.int64()).cast(pa.timestamp(unit, zone))
    assert load(array, type_) == [0, None, -3_000_000, 1_577_934_000_000_000]
    if zone is not None:
        assert load(array, "timestamp") == [0, None, -3_000_000, 1_577_934_000_000_000]


def test_dates_times_and_durations_of_every_unit_are_exact() -> None:
    day = datetime.date(2020, 1, 2)
    assert load(pa.array([day, None], pa.date64()), "date") == [18263, None]
    clock = datetime.time(3, 0, 0, 500_000)
    for type_ in (pa.time32("ms"), pa.time64("us"), pa.time64("ns")):
        assert load(pa.array([clock, None], type_), "time") == [10_800_500_000, None]
    for unit, factor in (("s", 10**9), ("ms", 10**6), ("us", 1000), ("ns", 1)):
        assert load(pa.array([-7, None], pa.duration(unit)), "interval") == [(0, 0, -7 * factor), None]


@pytest.mark.parametrize("type_", [pa.int8(), pa.int32(), pa.uint8(), pa.uint32(), pa.uint64(), pa.int64()])
@pytest.mark.parametrize(
    "asked", ["smallint", "integer", "bigint", "uint2", "uint4", "uint8", "numeric(38,2)"]
)
def test_integers_become_what_a_schema_asks_for(type_: Any, asked: str) -> None:
    found = load(pa.array([1, None, 100], type_), asked)
    assert found == (["1.00", None, "100.00"] if asked == "numeric(38,2)" else [1, None, 100])


def test_decimals_are_rescaled_where_that_is_exact() -> None:
    array = pa.array([None, decimal.Decimal("12.300000000")], pa.decimal128(38, 9))
    assert load(array, "numeric(38,9)") == [None, "12.300000000"]
    assert load(array, "numeric(38,2)") == [None, "12.30"]
    assert load(pa.array([decimal.Decimal("1.5")], pa.decimal256(60, 1)), "numeric(38,3)") == ["1.500"]


def test_uuid_and_json_are_taken_by_schema_and_json_in_its_one_form() -> None:
    id = uuid.UUID(int=5)
    assert load(pa.array([id.bytes, None], pa.binary(16)), "uuid") == [str(id), None]
    assert load(pa.array(['{"b": 1.0, "a": 2}', None]), "jsonb") == ['{"a":2,"b":1}', None]
    assert load(pa.array(["a", "b"]).dictionary_encode(), "text") == ["a", "b"]
    assert load(pa.array([0.5, None], pa.float64()), "real") == [0.5, None]


@pytest.mark.parametrize(
    ("array", "asked", "says"),
    [
        (pa.array([1_000, 1_234_567], pa.timestamp("ns")), "timestamp", "1234567 ns is no whole number"),
        (pa.array([2**60], pa.timestamp("s")), "timestamp", f"{2**60} s is out of range for timestamp"),
        (pa.array([5], pa.time64("ns")), "time", "5 ns is no whole number of microseconds"),
        (pa.array([2**62], pa.duration("s")), "interval", f"{2**62} s is out of range for interval"),
        (pa.array([1, 2**63], pa.uint64()), "bigint", f"{2**63} is out of range for bigint"),
        (pa.array([1, -1]), "uint8", "-1 is out of range for uint8"),
        (pa.array([1, 40000]), "smallint", "40000 is out of range for smallint"),
        (pa.array([0.5, 0.1]), "real", "0.1 is no real without rounding"),
        (pa.array([decimal.Decimal("0.125")]), "numeric(38,2)", "0.125 is no numeric(38,2) without rounding"),
        (pa.array([decimal.Decimal(10**50)]), "numeric", f"{10**50} is no numeric without"),
        (pa.array(["{"]), "jsonb", "'{' is no jsonb"),
        (pa.array(["a"]), "bigint", "is string, bigint expected"),
        (pa.array([1]), "text", "is int64, text expected"),
        (pa.array([b"123"], pa.binary(3)), "uuid", "is fixed_size_binary[3], uuid expected"),
        (pa.array([[1, None]]), "bigint list", "NULL in field 'element', which is not nullable"),
        (pa.array([{"a": None}, {"a": 1}]), "record(a bigint)", "NULL in field 'a', which is not nullable"),
        (pa.array([{"a": 1}]), "record(b bigint)", "is struct<a: int64>, record(b bigint) expected"),
        (pa.array([[70000]]), "smallint list", "70000 is out of range for smallint"),
    ],
)
def test_what_a_column_cannot_hold_exactly_is_refused_with_the_value(
    array: Any, asked: str, says: str
) -> None:
    with pytest.raises(Refusal) as caught:
        load(array, asked, "at")
    assert caught.value.code == "schema-mismatch"
    assert "column 'at" in caught.value.message
    assert says in caught.value.message


def test_what_stands_under_a_null_does_not_survive_and_is_not_judged() -> None:
    valid = pa.py_buffer(np.array([0b101], np.uint8))
    wide = pa.Array.from_buffers(pa.int64(), 3, [valid, pa.py_buffer(np.array([1, 2**40, 3]))])
    column = arrow.column_from_arrow(wide, spec("smallint"))
    assert column.values.tolist() == [1, 0, 3]
    seconds = pa.Array.from_buffers(pa.timestamp("s"), 3, [valid, pa.py_buffer(np.array([1, 2**62, 3]))])
    assert load(seconds, "timestamp") == [1_000_000, None, 3_000_000]
    offsets = pa.py_buffer(np.array([0, 1, 3, 4], np.int32))
    text = pa.Array.from_buffers(pa.string(), 3, [valid, offsets, pa.py_buffer(b"aXXb")])
    column = arrow.column_from_arrow(text, spec("text"))
    assert column.to_pylist() == ["a", None, "b"]
    assert column.offsets is not None
    assert np.diff(column.offsets).tolist() == [1, 0, 1]
    lists = pa.Array.from_buffers(
        pa.list_(pa.int64()), 3, [valid, offsets], children=[pa.array([1, 8, 8, 4])]
    )
    column = arrow.column_from_arrow(lists, spec("bigint list"))
    assert column.to_pylist() == [[1], None, [4]]
    assert column.offsets is not None
    assert np.diff(column.offsets).tolist() == [1, 0, 1]
    records = pa.StructArray.from_arrays([pa.array([1, None, 3])], ["a"], mask=pa.array([False, True, False]))
    column = arrow.column_from_arrow(records, spec("record(a bigint)"))
    assert column.to_pylist() == [(1,), None, (3,)]
    assert column.children[0].validity is None


def test_floats_from_outside_are_made_canonical() -> None:
    column = arrow.column_from_arrow(pa.array([-0.0, math.nan, 1.5], pa.float64()), spec("double precision"))
    assert column.values.tobytes() == np.array([0.0, np.nan, 1.5]).tobytes()
    nested = arrow.column_from_arrow(pa.array([[-0.0]], pa.list_(pa.float32())), spec("real? list"))
    assert nested.children[0].values.tobytes() == np.array([0.0], np.float32).tobytes()


def test_text_that_is_not_utf8_is_refused() -> None:
    offsets = pa.py_buffer(np.array([0, 1], np.int32))
    text = pa.Array.from_buffers(pa.string(), 1, [None, offsets, pa.py_buffer(b"\xff")])
    with pytest.raises(Refusal, match="schema-mismatch: column 't'"):
        arrow.column_from_arrow(text, spec("text", "t"))


def test_every_type_is_tried_here() -> None:
    assert {from_wire(column).type for column, _ in VALUES.values()} >= set(ColumnType)
