from __future__ import annotations

import pytest
from hypothesis import example, given

from controller_proto.errors import LocalProtocolError
from controller_proto.expr import Literal
from controller_proto.literals import (
    format_scalar,
    parse_row,
    parse_scalar,
    parse_type,
    parse_types,
)
from controller_proto.parse_expr import parse_expr
from controller_proto.print_plan import format_expr
from controller_proto.schema import SAMPLE_SCHEMA, Column, ColumnType, Scalar, scalar_problem, type_name
from controller_proto.script import split_line
from controller_proto.tokens import Tokens
from tests.controller_proto.values import typed_values

T = ColumnType


@given(typed_values)
@example((Column("c", T.TEXT), "null"))
@example((Column("c", T.TEXT), ""))
@example((Column("c", T.TEXT), 'a "quote" \\ \n\t\x00\x7f\u2028'))
@example((Column("c", T.TIMESTAMP), 253402300800000000))
@example((Column("c", T.DATE), -719163))
def test_a_value_that_is_printed_is_read_back_the_same(typed_value: tuple[Column, Scalar]) -> None:
    column, value = typed_value
    assert scalar_problem(value, column) is None
    text = format_scalar(value, column)
    assert "\n" not in text
    (word,) = split_line(text)
    (taken, quoted) = Tokens(word).take_value()
    assert parse_scalar(taken, column, quoted=quoted) == value


@given(typed_values)
def test_a_typed_literal_is_read_back_the_same_and_so_is_its_type(typed_value: tuple[Column, Scalar]) -> None:
    column, value = typed_value
    literal = Literal(column.type, value, column.scale, column.fields)
    assert parse_expr(format_expr(literal)) == literal
    assert parse_types(f"({type_name(column)}?)").columns[0] == Column(
        "c0", column.type, True, column.scale, column.fields
    )


@pytest.mark.parametrize(
    ("value", "type_", "text"),
    [
        (5, T.INT16, "5"),
        ((1 << 64) - 1, T.UINT64, "18446744073709551615"),
        (0.10000000149011612, T.FLOAT32, "0.1"),
        (16777216.0, T.FLOAT32, "16777216.0"),
        (b"\x00\xff", T.BYTEA, '"\\\\x00ff"'),
        (15706, T.DATE, '"2013-01-01"'),
        (2932897, T.DATE, '"@2932897"'),
        (18000500000, T.TIME, '"05:00:00.5"'),
        (86400000000, T.TIME, '"24:00:00"'),
        (1356998400000000, T.TIMESTAMPTZ, '"2013-01-01 00:00:00+00"'),
        ((14, -3, 14706500000000), T.INTERVAL, '"1 year 2 mons -3 days +04:05:06.5"'),
        ((-1, 0, -1), T.INTERVAL, '"-1 mons -00:00:00.000000001"'),
        ((0, 0, 0), T.INTERVAL, '"00:00:00"'),
        ('{"a":1}', T.JSONB, '"{\\"a\\":1}"'),
        (2.0, T.FLOAT64, "2.0"),
        (0.1, T.FLOAT64, "0.1"),
        (float("nan"), T.FLOAT64, "NaN"),
        (float("-inf"), T.FLOAT64, "-Infinity"),
        (True, T.BOOL, "true"),
        ("a b", T.TEXT, '"a b"'),
        (1356998400000000, T.TIMESTAMP, '"2013-01-01 00:00:00"'),
        (1356998400000001, T.TIMESTAMP, '"2013-01-01 00:00:00.000001"'),
        ("9223372036854775808", T.NUMERIC, "9223372036854775808"),
        (None, T.TEXT, "null"),
    ],
)
def test_values_are_printed_as_the_page_says(value: Scalar, type_: ColumnType, text: str) -> None:
    column = Column("c", type_, nullable=True)
    assert format_scalar(value, column) == text
    (taken, quoted) = Tokens(text).take_value()
    assert parse_scalar(taken, column, quoted=quoted) == value or value != value


@pytest.mark.parametrize(
    ("type_", "text", "value"),
    [
        ("numeric(38,2)", "12.3", "12.30"),
        ("numeric(38,2)", "-007", "-7.00"),
        ("numeric(38,2)", "-0.00", "0.00"),
        ("numeric(38,2)", "1.5e1", "15.00"),
        ("timestamptz", "2013-01-01 05:00:00-05", 1357034400000000),
        ("timestamptz", "2013-01-01 10:00:00", 1357034400000000),
        ("interval", "1 mon 2 days 00:00:01.5", (1, 2, 1_500_000_000)),
        ("interval", "-1.5 hours 3 weeks", (0, 21, -5_400_000_000_000)),
        ("uuid", "{A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11}", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
        ("jsonb", '{"b": 1.0, "a": [1e2, null], "b": 2}', '{"a":[100,null],"b":2}'),
        ("bigint? list", "{1, null,2}", (1, None, 2)),
        ("text list list", '{{a,"b c"},{}}', (("a", "b c"), ())),
        ("record(a bigint, b text? list)", '(1, {"x",null})', (1, ("x", None))),
        ("date list", '{"2013-01-01"}', (15706,)),
    ],
)
def test_other_forms_of_a_value_are_read_as_it(type_: str, text: str, value: Scalar) -> None:
    assert parse_scalar(text, parse_type(type_, "c")) == value


@pytest.mark.parametrize(
    ("type_", "text", "says"),
    [
        ("smallint", "32768", "32768 is out of range of smallint"),
        ("uint4", "-1", "-1 is out of range of uint4"),
        ("real", "1e39", "1e+39 is out of range of real"),
        ("real", "1e-60", "1e-60 is out of range of real"),
        ("numeric(38,2)", "1.234", "'1.234' is no numeric(38,2), which has 2 digits behind the point"),
        ("numeric", "1.5", "'1.5' is no numeric, which has no point"),
        ("numeric(38,2)", "1" * 37, "is out of range of numeric(38,2), which has 38 digits"),
        ("bigint", "9" * 5000, "is no bigint"),
        ("date", "2013-02-30", "'2013-02-30' is no date"),
        ("time", "24:00:01", "86401000000 is out of range of time"),
        ("timestamp", "2013-01-01 00:00:00+01", "is no timestamp"),
        ("timestamp", "2013-01-01 00:00:00.0000001", "is no timestamp"),
        ("interval", "1.5 days", "'1.5 days' is no interval"),
        ("interval", "4000000000 days", "is out of range of interval"),
        ("interval", "", "'' is no interval"),
        ("uuid", "a0eebc99", "'a0eebc99' is no uuid"),
        ("bytea", "00ff", "'00ff' is no bytea"),
        ("jsonb", "{a: 1}", "'{a: 1}' is no jsonb: "),
        ("jsonb", "NaN", "NaN is no number of JSON"),
        ("bigint list", "{1,null}", "element 2 of (1, None): null in a bigint list"),
        ("bigint list", "{1,x}", "element 2: 'x' is no bigint"),
        ("bigint list", "{1,2", "'{1,2' is no bigint list"),
        ("record(a bigint, b text)", "(1)", "(1,) has 1 value for a record(a bigint, b text)"),
        ("record(a bigint)", "(1,2)", "'(1,2)' is no record(a bigint)"),
        ("record(a smallint)", "(70000)", "field a: 70000 is out of range of smallint"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_value_named(type_: str, text: str, says: str) -> None:
    with pytest.raises(LocalProtocolError) as caught:
        parse_scalar(text, parse_type(type_, "c"))
    assert caught.value.code == "schema-mismatch"
    assert says in caught.value.message


def test_one_word_text_needs_no_quotes_and_a_quoted_null_is_text() -> None:
    assert parse_row([("1", False), ("null", True)], SAMPLE_SCHEMA) == (1, "null")
    assert parse_row([("-1", False), ("alpha", False)], SAMPLE_SCHEMA) == (-1, "alpha")
    assert format_scalar("null", Column("c", T.TEXT)) == '"null"'


@pytest.mark.parametrize(
    ("items", "says"),
    [
        ([("1", False)], "1 value for 2 columns"),
        ([("one", False), ("a", False)], "column id: 'one' is no bigint"),
        ([("1", True), ("a", False)], "column id: '1' is no bigint"),
        ([("1.5", False), ("a", False)], "column id: '1.5' is no bigint"),
        ([("9223372036854775808", False), ("a", False)], "out of range of bigint"),
        ([("null", False), ("a", False)], "column id: null"),
    ],
)
def test_a_row_that_does_not_fit_names_the_column_and_the_value(
    items: list[tuple[str, bool]], says: str
) -> None:
    with pytest.raises(LocalProtocolError) as caught:
        parse_row(items, SAMPLE_SCHEMA)
    assert caught.value.code == "schema-mismatch"
    assert says in caught.value.message


def test_types_are_read_by_their_names_and_others_are_refused() -> None:
    schema = parse_types("(bigint, double precision?, text)")
    assert [(c.type, c.nullable) for c in schema.columns] == [
        (T.INT64, False),
        (T.FLOAT64, True),
        (T.TEXT, False),
    ]
    assert parse_types("()").arity == 0
    assert parse_type("INT8").type is T.INT64
    for text in (
        "bigint", "(bigint", "(bigint,)", "(money)", "(numeric(10,2))", "(numeric(38,39))", "(list)",
        f"(bigint{' list' * 17})", "(record(a))", "(double)",
    ):  # fmt: skip
        with pytest.raises(LocalProtocolError):
            parse_types(text)
