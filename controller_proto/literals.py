"""Values as they are written in scripts and printed in answers; each form is read back as the same value.

| type             | form                                                                          |
|------------------|-------------------------------------------------------------------------------|
| boolean          | `true`, `false`                                                               |
| bigint, numeric  | digits                                                                        |
| double precision | shortest digits that read back, whole ones as `2.0`; `NaN`, `Infinity`        |
| text             | in double quotes; one word may stand without, except `null`                   |
| timestamp        | quoted, ISO: `"2013-01-01 05:00:00"`; beyond year 9999 `"@MICROSECONDS"`      |

Does not: hold columns of values (clusterd does); know expressions.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Sequence

from controller_proto.errors import LocalProtocolError
from controller_proto.schema import Column, ColumnType, Row, Scalar, Schema, counted, scalar_problem
from controller_proto.tokens import quote

__all__ = [
    "TYPE_NAMES",
    "format_scalar",
    "parse_row",
    "parse_scalar",
    "parse_type",
    "parse_types",
]

# PostgreSQL's names and its short ones.
TYPE_NAMES = {
    **{type_.value: type_ for type_ in ColumnType},
    "bool": ColumnType.BOOL,
    "int8": ColumnType.INT64,
    "float8": ColumnType.FLOAT64,
}

_EPOCH = datetime.datetime(1970, 1, 1)
_MICROSECOND = datetime.timedelta(microseconds=1)
_FLOATS = {"nan": math.nan, "infinity": math.inf, "inf": math.inf, "-infinity": -math.inf, "-inf": -math.inf}
_INTEGER = re.compile(r"[+-]?\d+", re.ASCII)
_FLOAT = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


def parse_type(text: str) -> ColumnType:
    """The type of this name. Raises LocalProtocolError `invalid-plan`."""
    name = " ".join(text.lower().split())
    if name not in TYPE_NAMES:
        known = ", ".join(type_.value for type_ in ColumnType)
        raise LocalProtocolError("invalid-plan", f"type {text!r} is not known; there are {known}")
    return TYPE_NAMES[name]


def parse_types(text: str) -> Schema:
    """`(bigint, text?)` -> columns named c0, c1, ...; `?` marks what may be NULL.

    >>> parse_types("(bigint, text?)").columns[1]
    Column(name='c1', type=<ColumnType.TEXT: 'text'>, nullable=True)
    """
    stripped = text.strip()
    if not (stripped.startswith("(") and stripped.endswith(")")):
        raise LocalProtocolError("invalid-plan", f"types {text!r} are not in parentheses")
    items = [item.strip() for item in stripped[1:-1].split(",")] if stripped[1:-1].strip() else []
    return Schema(
        tuple(
            Column(f"c{position}", parse_type(item.removesuffix("?")), item.endswith("?"))
            for position, item in enumerate(items)
        )
    )


def parse_scalar(text: str, column: Column, *, quoted: bool = False) -> Scalar:
    """The value that `text` (unquoted; `quoted` if it was in quotes) has in `column`.

    Raises LocalProtocolError `schema-mismatch`, naming the column and the value.
    """
    if text.lower() == "null" and not quoted:
        value: Scalar = None
    else:
        value = _parse(text, column.type, quoted)
    problem = scalar_problem(value, column)
    if problem is not None:
        raise LocalProtocolError("schema-mismatch", problem)
    return value


def _parse(text: str, type_: ColumnType, quoted: bool) -> Scalar:
    """The value, or `text` itself if it is none of this type: then the check of the type says so."""
    match type_:
        case ColumnType.TEXT:
            return text
        case ColumnType.TIMESTAMP:
            return _parse_timestamp(text)
        case _ if quoted:
            return text
        case ColumnType.BOOL:
            return {"true": True, "false": False}.get(text.lower(), text)
        case ColumnType.INT64:
            return int(text) if _INTEGER.fullmatch(text) else text
        case ColumnType.NUMERIC:
            return text
        case ColumnType.FLOAT64:
            if text.lower() in _FLOATS:
                return _FLOATS[text.lower()]
            return float(text) if _FLOAT.fullmatch(text) else text


def _parse_timestamp(text: str) -> Scalar:
    if text.startswith("@") and _INTEGER.fullmatch(text[1:]):
        return int(text[1:])
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        return text
    return text if moment.tzinfo is not None else (moment - _EPOCH) // _MICROSECOND


def parse_row(items: Sequence[tuple[str, bool]], schema: Schema) -> Row:
    """The row of these (text, was quoted). Raises LocalProtocolError `schema-mismatch`."""
    if len(items) != schema.arity:
        values = counted(len(items), "value")
        raise LocalProtocolError("schema-mismatch", f"{values} for {counted(schema.arity, 'column')}")
    return tuple(
        parse_scalar(text, column, quoted=quoted)
        for (text, quoted), column in zip(items, schema.columns, strict=True)
    )


def format_scalar(value: Scalar, type_: ColumnType) -> str:
    """`value` as it is printed."""
    if value is None:
        return "null"
    match type_:
        case ColumnType.TEXT:
            return quote(str(value))
        case ColumnType.BOOL:
            return "true" if value else "false"
        case ColumnType.FLOAT64:
            number = float(value)
            if math.isnan(number):
                return "NaN"
            if math.isinf(number):
                return "Infinity" if number > 0 else "-Infinity"
            return repr(number)
        case ColumnType.TIMESTAMP:
            try:
                return quote((_EPOCH + int(value) * _MICROSECOND).isoformat(sep=" "))
            except OverflowError:
                return quote(f"@{value}")
        case ColumnType.INT64 | ColumnType.NUMERIC:
            return str(value)
