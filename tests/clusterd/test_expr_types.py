"""Comparison of values of every type, and of numbers of two types, in expressions over columns."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import msgspec
import numpy as np
import pytest

from clusterd.convert import column_from_scalars, column_specs, scalars_from_column
from clusterd.render.expr import compile_expr
from clusterd.render.functions import MESSAGES, Evaluated
from controller_proto.expr import Call, Case, ColumnRef, Expr, Literal
from controller_proto.functions import common_type
from controller_proto.literals import parse_type
from controller_proto.schema import INTEGERS, Column, ColumnType, Scalar, Schema
from controller_proto.typing_rules import expr_type
from shm_arrangements.types import ColumnSpec
from tests.clusterd.columns import VALUES

T = ColumnType
COMPARISONS: dict[str, Callable[[int], bool]] = {
    "=": lambda order: order == 0, "!=": lambda order: order != 0, "<": lambda order: order < 0,
    "<=": lambda order: order <= 0, ">": lambda order: order > 0, ">=": lambda order: order >= 0,
}  # fmt: skip
NUMBERS = [name for name, (c, _) in VALUES.items() if c.type in {*INTEGERS, T.NUMERIC, T.FLOAT32, T.FLOAT64}]
BEYOND = "eval-error: numeric out of range"


def run(expr: Expr, columns: list[Column], rows: Sequence[tuple[Scalar, ...]]) -> list[Any]:
    """The wire values of an expression, an error as its message; its type is what the rules say."""
    schema = Schema(tuple(msgspec.structs.replace(c, nullable=True) for c in columns))
    specs = column_specs(schema)
    compiled = compile_expr(expr, specs)
    wire = expr_type(expr, schema)
    assert (compiled.wire.type, compiled.scale, compiled.wire.fields) == (wire.type, wire.scale, wire.fields)
    values = [[row[i] for row in rows] for i in range(len(columns))]
    inputs = [Evaluated(column_from_scalars(spec, v)) for spec, v in zip(specs, values, strict=True)]
    out = compiled(inputs, len(rows))
    spec = ColumnSpec("", compiled.type, True, compiled.scale)
    found: list[Any] = list(scalars_from_column(spec, out.column))
    if out.errors is not None:
        assert compiled.fallible
        for row in np.flatnonzero(out.errors).tolist():
            assert found[row] is None
            found[row] = MESSAGES[out.errors[row] - 1]
    return found


@pytest.mark.parametrize("name", list(VALUES))
def test_values_of_one_type_compare_as_they_are_listed_and_with_null_as_null(name: str) -> None:
    column, values = VALUES[name]
    pairs = list(itertools.product([*enumerate(values), (None, None)], repeat=2))
    rows = [(a, b) for (_, a), (_, b) in pairs]
    for function, holds in COMPARISONS.items():
        wanted = [None if i is None or j is None else holds(i - j) for (i, _), (j, _) in pairs]
        assert run(Call(function, (ColumnRef(0), ColumnRef(1))), [column, column], rows) == wanted
        for at, value in enumerate(values):
            literal = Literal(column.type, value, column.scale, column.fields)
            found = run(Call(function, (ColumnRef(0), literal)), [column], [(v,) for v in values])
            assert found == [holds(i - at) for i in range(len(values))]


def exact(value: Any, double: bool) -> Any:
    if double:
        return float(value)
    return Fraction(str(value)) if isinstance(value, str) else Fraction(value)


def order(a: Any, b: Any) -> int:
    x, y = (isinstance(v, float) and math.isnan(v) for v in (a, b))
    return int(x) - int(y) if x or y else int(a > b) - int(a < b)


@pytest.mark.parametrize("left", NUMBERS)
def test_numbers_of_two_types_compare_exactly_or_as_doubles(left: str) -> None:
    """A numeric that would not fit the other's scale compares all the same."""
    for right in NUMBERS:
        (a, a_values), (b, b_values) = VALUES[left], VALUES[right]
        common = common_type(a, b)
        exprs = {f: Call(f, (ColumnRef(0), ColumnRef(1))) for f in COMPARISONS}
        assert common is not None
        rows = [(x, y) for x in a_values for y in b_values]
        double = common.type in (T.FLOAT32, T.FLOAT64)
        for function, holds in COMPARISONS.items():
            wanted = [holds(order(exact(x, double), exact(y, double))) for x, y in rows]
            assert run(exprs[function], [a, b], rows) == wanted, (left, function, right)


@pytest.mark.parametrize(
    ("left", "right", "found"),
    [
        ("smallint", "integer", "integer"),
        ("integer", "bigint", "bigint"),
        ("uint2", "uint4", "uint4"),
        ("uint2", "smallint", "integer"),
        ("uint4", "smallint", "bigint"),
        ("uint8", "uint2", "uint8"),
        ("uint8", "smallint", "numeric"),
        ("bigint", "real", "double precision"),
        ("real", "double precision", "double precision"),
        ("uint8", "numeric(38,2)", "numeric(38,2)"),
        ("numeric(38,2)", "numeric(38,5)", "numeric(38,5)"),
        ("numeric", "real", "double precision"),
        ("date", "timestamp", "timestamp"),
        ("timestamp", "timestamptz", "timestamptz"),
        ("text", "jsonb", None),
        ("bigint list", "bigint? list", "bigint? list"),
        ("record(a bigint)", "record(b bigint)", None),
    ],
)
def test_what_two_types_are_widened_to(left: str, right: str, found: str | None) -> None:
    a, b = parse_type(left), parse_type(right)
    wanted = None if found is None else parse_type(found)
    assert common_type(a, b) == common_type(b, a) == wanted


@pytest.mark.parametrize(
    ("function", "left", "right", "wanted"),
    [
        ("+", "1.50", "0.125", "1.625"),
        ("-", "1.50", "0.125", "1.375"),
        ("*", "1.50", "-0.125", "-0.18750"),
        ("%", "1.50", "0.400", "0.300"),
        ("%", "-1.50", "0.400", "-0.300"),
        ("%", "1.50", "0.000", "eval-error: division by zero"),
        ("+", "9" * 35 + ".00", "1.000", BEYOND),
        ("+", "9" * 36 + ".00", "1.000", BEYOND),
        ("*", "1" + "0" * 30 + ".00", "1000.000", BEYOND),
        ("*", "1" + "0" * 30 + ".00", "100.000", "1" + "0" * 32 + ".00000"),
        ("+", None, "1.000", None),
    ],
)
def test_arithmetic_of_numerics_keeps_every_digit_or_is_an_error(
    function: str, left: str | None, right: str, wanted: str | None
) -> None:
    columns = [Column("a", T.NUMERIC, scale=2), Column("b", T.NUMERIC, scale=3)]
    assert run(Call(function, (ColumnRef(0), ColumnRef(1))), columns, [(left, right)]) == [wanted]


def test_an_integer_beside_a_numeric_has_its_scale_and_a_quotient_has_sixteen_digits() -> None:
    columns = [Column("n", T.NUMERIC, scale=2), Column("i", T.INT16)]
    both = (ColumnRef(0), ColumnRef(1))
    assert run(Call("-", both), columns, [("1.50", 3)]) == ["-1.50"]
    assert run(Call("*", both), columns, [("1.50", 3)]) == ["4.50"]
    assert run(Call("neg", both[:1]), columns, [("1.50", 3)]) == ["-1.50"]
    thirds = ["0.6666666666666667", "-0.6666666666666667"]
    assert run(Call("/", both), columns, [("2.00", 3), ("-2.00", 3)]) == thirds
    assert run(Call("+", both[1:] * 2), columns, [("0.00", 3), ("0.00", 2**14)])[0] == 6


def test_the_arms_of_case_are_widened_and_may_be_of_any_type() -> None:
    for column, values in VALUES.values():
        flag = Column("flag", T.BOOL)
        expr = Case(ColumnRef(0), ColumnRef(1), Literal(column.type, values[-1], column.scale, column.fields))
        rows = [(flag, value) for value in (*values, None) for flag in (True, False, None)]
        wanted = [value if flag else values[-1] for flag, value in rows]
        assert repr(run(expr, [flag, column], rows)) == repr(wanted)
    columns = [Column("flag", T.BOOL), Column("n", T.NUMERIC, scale=2), Column("i", T.INT64)]
    mixed = Case(ColumnRef(0), ColumnRef(1), ColumnRef(2))
    assert run(mixed, columns, [(True, "1.50", 7), (False, "1.50", 7)]) == ["1.50", "7.00"]
    columns[1] = Column("n", T.NUMERIC, scale=30)
    assert run(mixed, columns, [(False, "0." + "0" * 30, 10**8)]) == [BEYOND]
