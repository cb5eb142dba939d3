"""Wire values to columns and back; what does not fit is refused with the value named."""

from __future__ import annotations

import math
import random

import msgspec
import numpy as np
import pytest
from hypothesis import given

from clusterd import convert
from controller_proto.errors import Refusal
from controller_proto.literals import parse_type
from controller_proto.schema import Column as WireColumn
from controller_proto.schema import ColumnType as WireType
from controller_proto.schema import Scalar, Schema
from shm_arrangements.rows import RowSpec, decode, encode
from shm_arrangements.types import ColumnSpec, ColumnType
from tests.clusterd.columns import VALUES
from tests.controller_proto.values import typed_values


def spec(type_: str) -> ColumnSpec:
    return convert.from_wire(parse_type(type_, "c", nullable=True))


def test_schemas_go_over_and_back() -> None:
    columns = [column for column, _ in VALUES.values()]
    assert {column.type for column in columns} == set(WireType)
    schema = Schema(tuple(msgspec.structs.replace(c, nullable=i % 2 == 0) for i, c in enumerate(columns)))
    assert convert.wire_schema(convert.column_specs(schema)) == schema
    assert convert.arrangement_schema(schema, (2, 0)).stored_order[:4] == (2, 0, 1, 3)
    assert convert.type_name_of(ColumnType.NUMERIC, 2) == "numeric(38,2)"


@pytest.mark.parametrize("name", list(VALUES))
def test_scalars_go_over_and_back(name: str) -> None:
    column, values = VALUES[name]
    of = convert.from_wire(column)
    given = (None, *values, None)
    found = convert.scalars_from_column(of, convert.column_from_scalars(of, given))
    assert repr(found) == repr(given)  # NaN equals itself
    assert convert.scalars_from_column(of, convert.column_from_scalars(of, ())) == ()


@given(typed_values)
def test_any_value_of_any_type_goes_over_and_back(typed: tuple[WireColumn, Scalar]) -> None:
    column, value = typed
    of = convert.from_wire(column)
    assert convert.to_wire(of) == column
    assert convert.scalars_from_column(of, convert.column_from_scalars(of, (value, value))) == (value, value)


@pytest.mark.parametrize("name", list(VALUES))
def test_the_rows_image_orders_as_the_values_are_listed_and_null_last(name: str) -> None:
    column, values = VALUES[name]
    of = convert.from_wire(column)
    shuffled = [*values, None, *values]
    random.Random(3).shuffle(shuffled)
    image = encode([convert.column_from_scalars(of, shuffled)], RowSpec(((of.type, True),)))
    order = image.sort_order()
    starts = image.run_starts(order)
    (distinct,) = decode(image, order.take(starts))
    assert repr(convert.scalars_from_column(of, distinct)) == repr((*values, None))


def test_floats_enter_in_canonical_form() -> None:
    for type_, dtype in (("double precision", np.float64), ("real", np.float32)):
        column = convert.column_from_scalars(spec(type_), (-0.0, math.nan, -math.nan, 2))
        assert column.values.tobytes() == np.array([0.0, np.nan, np.nan, 2.0], dtype).tobytes()


def test_json_enters_in_its_one_form_and_numerics_with_all_their_digits() -> None:
    column = convert.column_from_scalars(spec("jsonb? list"), ((' {"b":1.0, "a":2}', None),))
    assert convert.scalars_from_column(spec("jsonb? list"), column) == (('{"a":2,"b":1}', None),)
    column = convert.column_from_scalars(spec("numeric(38,2)"), ("1", "-0.5", "+07.25", 3, None))
    found = convert.scalars_from_column(spec("numeric(38,2)"), column)
    assert found == ("1.00", "-0.50", "7.25", "3.00", None)


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        ("bigint", "x"),
        ("bigint", True),
        ("bigint", 1.0),
        ("bigint", 2**63),
        ("smallint", 2**15),
        ("uint8", -1),
        ("boolean", 1),
        ("text", 1),
        ("text", b"a"),
        ("bytea", "a"),
        ("double precision", "1"),
        ("real", 1e39),
        ("real", 1e-50),
        ("date", 2**31),
        ("time", -1),
        ("time", 86_400_000_001),
        ("timestamp", "2013-01-01"),
        ("numeric", "1.5"),
        ("numeric", "1e5"),
        ("numeric", "1" * 39),
        ("numeric", 10**38),
        ("numeric(38,2)", "0.125"),
        ("numeric(38,2)", 10**36),
        ("interval", (1, 2)),
        ("interval", (1, 2, 2**63)),
        ("interval", (1, 2, 3.0)),
        ("uuid", "a0eebc99"),
        ("jsonb", "{"),
        ("bigint list", 5),
        ("bigint list", (1, None)),
        ("bigint list", (1, "x")),
        ("record(a bigint, b text?)", (1,)),
        ("record(a bigint, b text?)", (None, "a")),
        ("record(a bigint, b text?)", (1, 2)),
    ],
)
def test_a_value_that_does_not_fit_is_named(type_: str, value: Scalar) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011  the message is checked below
        convert.column_from_scalars(spec(type_), (None, value))
    assert repr(value)[:50] in str(refused.value) or "'x' is no bigint" in str(refused.value) or (
        "2 is no text" in str(refused.value)
    )  # fmt: skip


def test_rows_go_over_and_back() -> None:
    schema = Schema((WireColumn("k", WireType.INT64), WireColumn("v", WireType.NUMERIC, True)))
    rows: list[tuple[Scalar, ...]] = [(1, "10"), (2, None)]
    updates = convert.updates_from_rows(schema, rows, 7, [1, -2])
    specs = convert.column_specs(schema)
    assert list(zip(*map(convert.scalars_from_column, specs, updates.columns), strict=True)) == rows
    assert updates.times.tolist() == [7, 7]
    assert updates.diffs.tolist() == [1, -2]
    assert len(convert.updates_from_rows(schema, [], 0)) == 0


def test_a_row_that_does_not_fit_names_its_column() -> None:
    schema = Schema((WireColumn("k", WireType.INT64), WireColumn("v", WireType.TEXT)))
    specs = convert.column_specs(schema)
    with pytest.raises(Refusal, match=r"schema-mismatch: row \(1,\) has 1 value for 2 columns"):
        convert.columns_from_rows(specs, [(1,)])
    with pytest.raises(Refusal, match="schema-mismatch: column 'k': 'x' is no bigint"):
        convert.columns_from_rows(specs, [(1, "a"), ("x", "b")])
    with pytest.raises(Refusal, match="schema-mismatch: column 'v' is not nullable"):
        convert.columns_from_rows(specs, [(1, None)])
