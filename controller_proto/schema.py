"""Types of columns, by PostgreSQL name, and the form of values on the wire.

| type             | value on the wire (never NaN-boxed, NULL is nil)                      |
|------------------|------------------------------------------------------------------------|
| boolean          | bool                                                                   |
| bigint           | int, -2^63 .. 2^63-1                                                   |
| double precision | float; -0.0 and every NaN are made canonical where they enter          |
| text             | str, valid UTF-8, no limit but the frame's                             |
| timestamp        | int: microseconds since 1970-01-01 00:00:00, no time zone              |
| numeric          | str: decimal digits with an optional sign, up to 38 (scale 0 as yet)   |

Does not: hold columns (clusterd does, as numpy), evaluate anything.
"""

from __future__ import annotations

import enum
from typing import Annotated

import msgspec

__all__ = [
    "I64", "SAMPLE_SCHEMA", "U64", "Column", "ColumnType", "Row", "Scalar", "Schema", "counted",
    "scalar_problem",
]  # fmt: skip

# MessagePack itself ends at 2^64 - 1.
U64 = Annotated[int, msgspec.Meta(ge=0)]
I64 = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]

Scalar = None | bool | int | float | str
Row = tuple[Scalar, ...]


class ColumnType(enum.Enum):
    """The types, by PostgreSQL name."""

    BOOL = "boolean"
    INT64 = "bigint"
    FLOAT64 = "double precision"
    TEXT = "text"
    TIMESTAMP = "timestamp"
    NUMERIC = "numeric"


class Column(msgspec.Struct, frozen=True):
    """A column by name; `nullable`: NULL may stand in it."""

    name: str
    type: ColumnType
    nullable: bool = False


class Schema(msgspec.Struct, frozen=True):
    """The columns of a row, in order."""

    columns: tuple[Column, ...]

    @property
    def arity(self) -> int:
        return len(self.columns)

    @property
    def types(self) -> tuple[ColumnType, ...]:
        return tuple(c.type for c in self.columns)


_NUMERIC_DIGITS = 38  # what a 128-bit decimal holds, as in Arrow


def counted(count: int, noun: str) -> str:
    """`1 column`, `2 columns`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def scalar_problem(value: Scalar, column: Column) -> str | None:
    """Say why `value` cannot stand in `column`; None if it can.

    >>> scalar_problem("a", Column("id", ColumnType.INT64))
    "column id: 'a' is no bigint"
    """
    if value is None:
        return None if column.nullable else f"column {column.name}: null in a column that is not nullable"
    where, name = f"column {column.name}: ", column.type.value
    shown = repr(value) if len(repr(value)) <= 60 else repr(value)[:60] + "..."
    match column.type:
        case ColumnType.BOOL:
            fits = type(value) is bool
        case ColumnType.INT64 | ColumnType.TIMESTAMP:
            fits = type(value) is int
            if fits and not -(1 << 63) <= int(value) < 1 << 63:
                return f"{where}{shown} is out of range of {name}"
        case ColumnType.FLOAT64:
            fits = type(value) is float
        case ColumnType.TEXT:
            fits = type(value) is str
        case ColumnType.NUMERIC:
            digits = value[1:] if type(value) is str and value[:1] in ("-", "+") else value
            fits = type(digits) is str and digits.isascii() and digits.isdigit()
            if fits and type(digits) is str and len(digits.lstrip("0")) > _NUMERIC_DIGITS:
                return f"{where}{shown} is out of range of {name}, which has {_NUMERIC_DIGITS} digits"
    return None if fits else f"{where}{shown} is no {name}"


SAMPLE_SCHEMA = Schema((Column("id", ColumnType.INT64), Column("payload", ColumnType.TEXT)))
