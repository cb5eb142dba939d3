from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from controller_proto.errors import LocalProtocolError
from controller_proto.literals import (
    format_scalar,
    parse_row,
    parse_scalar,
    parse_type,
    parse_types,
)
from controller_proto.schema import SAMPLE_SCHEMA, Column, ColumnType, Scalar
from controller_proto.tokens import tokenize

T = ColumnType
values = {
    T.BOOL: st.booleans(),
    T.INT64: st.integers(-(1 << 63), (1 << 63) - 1),
    T.FLOAT64: st.floats(allow_nan=False),
    T.TEXT: st.text(),
    T.TIMESTAMP: st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(0, 1 << 52),
    T.NUMERIC: st.integers(-(10**38) + 1, 10**38 - 1).map(str),
}
typed = st.sampled_from(T).flatmap(lambda t: st.tuples(st.just(t), values[t] | st.none()))


@given(typed)
@example((T.TEXT, "null"))
@example((T.TEXT, ""))
@example((T.TEXT, 'a "quote" \\ \n\t\x00\x7f\u2028'))
@example((T.TIMESTAMP, 253402300800000000))
def test_a_value_that_is_printed_is_read_back_the_same(typed_value: tuple[ColumnType, Scalar]) -> None:
    type_, value = typed_value
    text = format_scalar(value, type_)
    assert "\n" not in text
    quoted = text.startswith('"')
    if quoted:
        text = tokenize(text)[0].value
    assert parse_scalar(text, Column("c", type_, nullable=True), quoted=quoted) == value


@pytest.mark.parametrize(
    ("value", "type_", "text"),
    [
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
    assert format_scalar(value, type_) == text


def test_one_word_text_needs_no_quotes_and_a_quoted_null_is_text() -> None:
    assert parse_row([("1", False), ("null", True)], SAMPLE_SCHEMA) == (1, "null")
    assert parse_row([("-1", False), ("alpha", False)], SAMPLE_SCHEMA) == (-1, "alpha")
    assert format_scalar("null", T.TEXT) == '"null"'


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
    assert parse_type("INT8") is T.INT64
    for text in ("bigint", "(bigint", "(bigint,)", "(interval)"):
        with pytest.raises(LocalProtocolError):
            parse_types(text)
