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

import msgspec

__all__ = ["SAMPLE_SCHEMA", "Column", "ColumnType", "Row", "Scalar", "Schema"]

Scalar = None | bool | int | float | str
Row = tuple[Scalar, ...]


class ColumnType(enum.Enum):
    BOOL = "boolean"
    INT64 = "bigint"
    FLOAT64 = "double precision"
    TEXT = "text"
    TIMESTAMP = "timestamp"
    NUMERIC = "numeric"


class Column(msgspec.Struct, frozen=True):
    name: str
    type: ColumnType
    nullable: bool = False


class Schema(msgspec.Struct, frozen=True):
    columns: tuple[Column, ...]

    @property
    def arity(self) -> int:
        return len(self.columns)

    @property
    def types(self) -> tuple[ColumnType, ...]:
        return tuple(c.type for c in self.columns)


SAMPLE_SCHEMA = Schema((Column("id", ColumnType.INT64), Column("payload", ColumnType.TEXT)))
