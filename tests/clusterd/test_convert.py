"""Wire values to columns and back; what does not fit is refused with the value named."""

from __future__ import annotations

import math

import pytest

from clusterd import convert
from controller_proto.errors import Refusal
from controller_proto.schema import Column as WireColumn
from controller_proto.schema import ColumnType as WireType
from controller_proto.schema import Scalar, Schema
from shm_arrangements.columns import Column
from shm_arrangements.types import ColumnType

BIG = 10**37 + 7


def test_schemas_go_over_and_back() -> None:
    schema = Schema(tuple(WireColumn(t.value, t, i % 2 == 0) for i, t in enumerate(WireType)))
    assert convert.wire_schema(convert.column_specs(schema)) == schema
    assert convert.arrangement_schema(schema, (2, 0)).stored_order == (2, 0, 1, 3, 4, 5)


@pytest.mark.parametrize(
    ("type_", "values"),
    [
        (ColumnType.BOOL, (True, None, False)),
        (ColumnType.INT64, (-(2**63), None, 2**63 - 1, 0)),
        (ColumnType.FLOAT64, (1.5, None, math.inf, -math.inf)),
        (ColumnType.TEXT, ("", "é\N{SNOWMAN}", None, "a b")),
        (ColumnType.TIMESTAMP, (0, None, -1, 1_700_000_000_000_000)),
        (ColumnType.NUMERIC, ("0", "-1", None, str(BIG), str(-BIG))),
        (ColumnType.INT64, ()),
    ],
)
def test_scalars_go_over_and_back(type_: ColumnType, values: tuple[Scalar, ...]) -> None:
    assert convert.scalars_from_column(convert.column_from_scalars(type_, values)) == values


def test_floats_enter_in_canonical_form() -> None:
    column = convert.column_from_scalars(ColumnType.FLOAT64, (-0.0, math.nan, -math.nan, 2))
    assert (
        column.values.tobytes()
        == Column.from_pylist(ColumnType.FLOAT64, [0.0, math.nan, math.nan, 2.0]).values.tobytes()
    )


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        (ColumnType.INT64, "x"),
        (ColumnType.INT64, True),
        (ColumnType.INT64, 1.0),
        (ColumnType.INT64, 2**63),
        (ColumnType.BOOL, 1),
        (ColumnType.TEXT, 1),
        (ColumnType.FLOAT64, "1"),
        (ColumnType.TIMESTAMP, "2013-01-01"),
        (ColumnType.NUMERIC, "1.5"),
        (ColumnType.NUMERIC, "1" * 39),
        (ColumnType.NUMERIC, 10**38),
    ],
)
def test_a_value_that_does_not_fit_is_named(type_: ColumnType, value: Scalar) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011  the message is checked below
        convert.column_from_scalars(type_, (None, value))
    assert str(value) in str(refused.value)


def test_rows_go_over_and_back() -> None:
    schema = Schema((WireColumn("k", WireType.INT64), WireColumn("v", WireType.NUMERIC, True)))
    rows: list[tuple[Scalar, ...]] = [(1, "10"), (2, None)]
    updates = convert.updates_from_rows(schema, rows, 7, [1, -2])
    assert list(zip(*map(convert.scalars_from_column, updates.columns), strict=True)) == rows
    assert updates.times.tolist() == [7, 7]
    assert updates.diffs.tolist() == [1, -2]
    assert len(convert.updates_from_rows(schema, [], 0)) == 0


def test_a_row_that_does_not_fit_names_its_column() -> None:
    schema = Schema((WireColumn("k", WireType.INT64), WireColumn("v", WireType.TEXT)))
    specs = convert.column_specs(schema)
    with pytest.raises(Refusal, match=r"schema-mismatch: row \(1,\) has 1 value for 2 columns"):
        convert.columns_from_rows(specs, [(1,)])
    with pytest.raises(Refusal, match="schema-mismatch: column 'k': 'x' is not a bigint"):
        convert.columns_from_rows(specs, [(1, "a"), ("x", "b")])
    with pytest.raises(Refusal, match="schema-mismatch: column 'v' is not nullable"):
        convert.columns_from_rows(specs, [(1, None)])
