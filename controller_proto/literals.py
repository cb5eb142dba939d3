"""Values as they are written in scripts and printed in answers; each form is read back as the same value.

| type                  | form                                                                            |
|-----------------------|---------------------------------------------------------------------------------|
| boolean               | `true`, `false`                                                                 |
| integers, numeric     | digits; of a numeric with scale as many behind the point, `12.30`               |
| double precision, real| shortest digits that read back, whole ones as `2.0`; `NaN`, `Infinity`          |
| text                  | in double quotes; one word may stand without, except `null`                     |
| bytea                 | quoted: `"\\\\x00ff"`                                                           |
| dates and times       | quoted, ISO: `"2013-01-01 05:00:00"`; moments.py says which forms               |
| uuid, jsonb           | quoted                                                                          |
| list                  | `{1,2}`, `{"a",null}`                                                           |
| record                | `(1,"a")`                                                                       |

Does not: hold columns of values (clusterd does); know expressions.
"""

from __future__ import annotations

import decimal
import math
import re
import struct
import uuid
from collections.abc import Callable, Sequence

import msgspec

from controller_proto.errors import LocalProtocolError
from controller_proto.jsonb import canonical_json
from controller_proto.moments import format_interval, format_moment, parse_interval, parse_moment
from controller_proto.schema import (
    MAX_SCALE,
    NUMERIC,
    Column,
    ColumnType,
    Row,
    Scalar,
    Schema,
    counted,
    fits_real,
    scalar_problem,
)
from controller_proto.tokens import Tokens, quote

__all__ = [
    "TYPE_NAMES",
    "format_scalar",
    "parse_row",
    "parse_scalar",
    "parse_type",
    "parse_types",
    "read_type",
]

# PostgreSQL's names of one word, and its short ones. `double precision` is read by its first.
TYPE_NAMES = {
    **{t.value: t for t in ColumnType if t not in (ColumnType.LIST, ColumnType.FLOAT64)},
    "double": ColumnType.FLOAT64,
    "bool": ColumnType.BOOL,
    "int2": ColumnType.INT16,
    "int4": ColumnType.INT32,
    "int": ColumnType.INT32,
    "int8": ColumnType.INT64,
    "float4": ColumnType.FLOAT32,
    "float8": ColumnType.FLOAT64,
    "decimal": ColumnType.NUMERIC,
}

_FLOATS = {"nan": math.nan, "infinity": math.inf, "inf": math.inf, "-infinity": -math.inf, "-inf": -math.inf}
_INTEGER = re.compile(r"[+-]?\d{1,100}", re.ASCII)
_FLOAT = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_MOMENTS = frozenset({ColumnType.DATE, ColumnType.TIME, ColumnType.TIMESTAMP, ColumnType.TIMESTAMPTZ})
_REAL = struct.Struct("<f")


# Types.


def parse_type(text: str, name: str = "", *, nullable: bool = False) -> Column:
    """A column `name` of the type of this name. Raises LocalProtocolError `invalid-plan`.

    >>> parse_type("numeric(38,2) list").fields[0].scale
    2
    """
    tokens = Tokens(text)
    column = read_type(tokens, name)
    tokens.expect_end()
    return msgspec.structs.replace(column, nullable=True) if nullable else column


def parse_types(text: str) -> Schema:
    """`(bigint, text?)` -> columns named c0, c1, ...; `?` marks what may be NULL.

    >>> parse_types("(bigint, text?)").columns[1].nullable
    True
    """
    tokens = Tokens(text)
    columns: list[Column] = []
    tokens.expect_op("(")
    while not tokens.accept_op(")"):
        if columns:
            tokens.expect_op(",")
        columns.append(_read_column(tokens, f"c{len(columns)}"))
    tokens.expect_end()
    return Schema(tuple(columns))


def read_type(tokens: Tokens, name: str = "") -> Column:
    """A type, as a column that may not be NULL; a `?` behind it is left to the caller.

    Raises LocalProtocolError `invalid-plan`.
    """
    column = _read_base(tokens, name)
    while tokens.is_word("list") or (tokens.is_op("?") and tokens.after.value.lower() == "list"):
        nullable = tokens.accept_op("?")
        tokens.expect_word("list")
        element = msgspec.structs.replace(column, nullable=nullable)
        column = _column(tokens, name, ColumnType.LIST, fields=(element,))
    return column


def _read_base(tokens: Tokens, name: str) -> Column:
    if tokens.next.kind != "name":
        raise tokens.error("expected a type")
    word = tokens.next.value.lower()
    if word not in TYPE_NAMES:
        known = ", ".join(t.value for t in ColumnType)
        raise LocalProtocolError("invalid-plan", f"type {word!r} is not known; there are {known}")
    tokens.take()
    type_ = TYPE_NAMES[word]
    if word == "double":
        tokens.expect_word("precision")
    if type_ is ColumnType.NUMERIC and tokens.accept_op("("):
        if tokens.take().value != str(MAX_SCALE):
            raise tokens.error(f"every numeric has {MAX_SCALE} digits: write numeric({MAX_SCALE},SCALE)")
        tokens.expect_op(",")
        scale = tokens.take().value
        tokens.expect_op(")")
        if not (scale.isdigit() and int(scale) <= MAX_SCALE):
            raise tokens.error(f"a scale is between 0 and {MAX_SCALE}, not {scale!r},")
        return Column(name, type_, scale=int(scale))
    if type_ is not ColumnType.RECORD:
        return Column(name, type_)
    fields: list[Column] = []
    tokens.expect_op("(")
    while not tokens.accept_op(")"):
        if fields:
            tokens.expect_op(",")
        if tokens.next.kind not in ("name", "text"):
            raise tokens.error("expected the name of a field")
        fields.append(_read_column(tokens, tokens.take().value))
    return _column(tokens, name, type_, fields=tuple(fields))


def _column(tokens: Tokens, name: str, type_: ColumnType, *, fields: tuple[Column, ...]) -> Column:
    try:
        return Column(name, type_, fields=fields)
    except ValueError as error:
        raise tokens.error(str(error)) from error


def _read_column(tokens: Tokens, name: str) -> Column:
    column = read_type(tokens, name)
    return msgspec.structs.replace(column, nullable=True) if tokens.accept_op("?") else column


# Values from text.


def parse_scalar(text: str, column: Column, *, quoted: bool = False) -> Scalar:
    """The value that `text` (unquoted; `quoted` if it was in quotes) has in `column`.

    Raises LocalProtocolError `schema-mismatch`, naming the column and the value.
    """
    value = _parse(text, column, quoted)
    problem = scalar_problem(value, column)
    if problem is not None:
        raise LocalProtocolError("schema-mismatch", problem)
    return value


def _parse(text: str, column: Column, quoted: bool) -> Scalar:
    """The value, or `text` itself if it is none of this type: then the check of the type says so."""
    if text.lower() == "null" and not quoted:
        return None
    type_ = column.type
    value: Scalar = None
    match type_:
        case ColumnType.TEXT:
            return text
        case _ if type_ in _MOMENTS:
            value = parse_moment(text, type_)
        case ColumnType.INTERVAL:
            value = parse_interval(text)
        case ColumnType.BYTEA:
            value = _bytes(text)
        case ColumnType.UUID:
            value = _uuid(text)
        case ColumnType.JSONB:
            value = _json(text)
        case ColumnType.LIST | ColumnType.RECORD:
            value = _nested(text, column)
        case _ if quoted:
            return text
        case ColumnType.BOOL:
            value = {"true": True, "false": False}.get(text.lower())
        case ColumnType.NUMERIC:
            value = _numeric(text, column.scale)
        case ColumnType.FLOAT32 | ColumnType.FLOAT64:
            value = _double(text) if _FLOAT.fullmatch(text) else _FLOATS.get(text.lower())
            if type_ is ColumnType.FLOAT32 and isinstance(value, float) and fits_real(value):
                value = float(_REAL.unpack(_REAL.pack(value))[0])
        case _:
            value = int(text) if _INTEGER.fullmatch(text) else None
    return text if value is None else value


def _double(text: str) -> float | None:
    """None of digits that would become infinite, or vanish."""
    value = float(text)
    vanishes = value == 0 and text.lower().partition("e")[0].strip("+-0.") != ""
    return None if vanishes or math.isinf(value) else value


def _bytes(text: str) -> bytes | None:
    try:
        return bytes.fromhex(text[2:]) if text.startswith("\\x") else None
    except ValueError:
        return None


def _uuid(text: str) -> str | None:
    try:
        return str(uuid.UUID(text))
    except ValueError:
        return None


def _json(text: str) -> str | None:
    try:
        return canonical_json(text)
    except ValueError:
        return None


def _numeric(text: str, scale: int) -> str | None:
    """With `scale` digits behind the point, unless it has more; without zeros or a sign that say nothing."""
    match = NUMERIC.fullmatch(text)
    if match is None and _FLOAT.fullmatch(text):
        number = decimal.Decimal(text)
        if abs(number.adjusted()) <= 2 * MAX_SCALE:
            match = NUMERIC.fullmatch(f"{number:f}")
    if match is None:
        return None
    fraction = (match[3] or "").ljust(scale, "0")
    value = (match[2].lstrip("0") or "0") + ("." + fraction if fraction else "")
    return "-" + value if match[1] == "-" and value.strip("0.") else value


def _nested(text: str, column: Column) -> Scalar:
    try:
        tokens = Tokens(text)
        value = _read_nested(tokens, column)
        tokens.expect_end()
    except LocalProtocolError:
        return None
    return value


def _read_nested(tokens: Tokens, column: Column) -> Scalar:
    """`{1,2}` or `(1,"a")`; elements that are none of their type stay texts."""
    if column.type is ColumnType.LIST:
        return _read_items(tokens, "{", "}", lambda number: column.fields[0])
    return _read_items(tokens, "(", ")", lambda number: column.fields[number])


def _read_items(tokens: Tokens, opening: str, closing: str, field: Callable[[int], Column]) -> Row:
    values: list[Scalar] = []
    tokens.expect_op(opening)
    while not tokens.accept_op(closing):
        if values:
            tokens.expect_op(",")
        text, quoted = tokens.take_value()
        try:
            values.append(_parse(text, field(len(values)), quoted))
        except IndexError:
            raise tokens.error("a record with more values than fields") from None
    return tuple(values)


def parse_row(items: Sequence[tuple[str, bool]], schema: Schema) -> Row:
    """The row of these (text, was quoted). Raises LocalProtocolError `schema-mismatch`."""
    if len(items) != schema.arity:
        values = counted(len(items), "value")
        raise LocalProtocolError("schema-mismatch", f"{values} for {counted(schema.arity, 'column')}")
    return tuple(
        parse_scalar(text, column, quoted=quoted)
        for (text, quoted), column in zip(items, schema.columns, strict=True)
    )


# Values as text.


def format_scalar(value: Scalar, column: Column) -> str:
    """`value`, one of `column`, as it is printed."""
    if value is None:
        return "null"
    match value:
        case bool():
            return "true" if value else "false"
        case float():
            return _format_float(value, column.type)
        case bytes():
            return quote("\\x" + value.hex())
        case int():
            return quote(format_moment(value, column.type)) if column.type in _MOMENTS else str(value)
        case str():
            return value if column.type is ColumnType.NUMERIC else quote(value)
        case tuple():
            return _format_tuple(value, column)


def _format_tuple(value: Row, column: Column) -> str:
    if column.type is ColumnType.INTERVAL:
        months, days, nanoseconds = value
        assert isinstance(months, int)
        assert isinstance(days, int)
        assert isinstance(nanoseconds, int)
        return quote(format_interval(months, days, nanoseconds))
    if column.type is ColumnType.LIST:
        return "{" + ",".join(format_scalar(element, column.fields[0]) for element in value) + "}"
    fields = zip(value, column.fields, strict=True)
    return "(" + ",".join(format_scalar(part, field) for part, field in fields) + ")"


def _format_float(value: float, type_: ColumnType) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    if type_ is not ColumnType.FLOAT32:
        return repr(value)
    for digits in range(6, 9):  # nine tell every real from every other
        shorter = float(f"{value:.{digits}g}")
        if _REAL.pack(shorter) == _REAL.pack(value):
            return repr(shorter)
    return repr(float(f"{value:.9g}"))
