"""Types of columns, by PostgreSQL name, and the form of values on the wire.

| type                                   | value on the wire (NULL is nil)                                  |
|----------------------------------------|------------------------------------------------------------------|
| boolean                                | bool                                                             |
| smallint integer bigint                | int within 16, 32, 64 bits                                       |
| uint2 uint4 uint8                      | int from 0 within 16, 32, 64 bits                                |
| real, double precision                 | float; -0.0 and every NaN are made canonical where they enter    |
| numeric                                | str: digits with sign and point, 38 in all, `scale` behind it    |
| text                                   | str, valid UTF-8, no limit but the frame's                       |
| bytea                                  | bytes                                                            |
| date                                   | int: days since 1970-01-01                                       |
| time                                   | int: microseconds since midnight, 24:00:00 included              |
| timestamp, timestamptz                 | int: microseconds since 1970-01-01 00:00:00, of no zone, of UTC  |
| interval                               | array of three ints: months, days, nanoseconds                   |
| uuid                                   | str: 8-4-4-4-12 hexadecimal digits                               |
| jsonb                                  | str: JSON, in the form that jsonb.py makes of it                 |
| list                                   | array of values of the one field                                 |
| record                                 | array of a value a field                                         |

Arrays are tuples in Python. What a message holds is a value of some type by construction (`freeze`); of
which, only its column can tell (`scalar_problem`).

Does not: hold columns (clusterd does, as numpy), evaluate anything.
"""

from __future__ import annotations

import datetime
import enum
import json
import math
import re
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, cast

import msgspec

from controller_proto.jsonb import json_problem

__all__ = [
    "I64", "INTEGERS", "MAX_SCALE", "NUMERIC", "SAMPLE_SCHEMA", "U64", "Column", "ColumnType", "Row",
    "Scalar", "Schema", "counted", "distinct_names", "fits_real", "freeze", "same_type", "scalar_problem",
    "type_name",
]  # fmt: skip

# MessagePack itself ends at 2^64 - 1.
U64 = Annotated[int, msgspec.Meta(ge=0)]
I64 = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]

if TYPE_CHECKING:
    Scalar = None | bool | int | float | str | bytes | tuple["Scalar", ...]
else:
    Scalar = Any  # msgspec has no type for "text or bytes", nor for one that contains itself
Row = tuple[Scalar, ...]

_PLAIN = frozenset({type(None), bool, int, float, str, bytes})


def freeze(values: Sequence[Scalar]) -> Row:
    """The same values as a tuple, arrays among them as tuples too.

    Raises TypeError for what a message can carry and no value is: a map, an extension, a date of its own.
    """
    if set(map(type, values)) <= _PLAIN:
        return values if type(values) is tuple else tuple(values)
    return tuple(map(_frozen, values))


def _frozen(value: Any) -> Scalar:
    if isinstance(value, list | tuple):
        return freeze(value)
    if isinstance(value, dict | msgspec.msgpack.Ext | datetime.datetime):
        raise TypeError(f"{_shown(value)} is no value of any type")
    return cast("Scalar", value)


class ColumnType(enum.Enum):
    """The types, by PostgreSQL name. A numeric has a scale, a list one field, a record any number."""

    BOOL = "boolean"
    INT16 = "smallint"
    INT32 = "integer"
    INT64 = "bigint"
    UINT16 = "uint2"
    UINT32 = "uint4"
    UINT64 = "uint8"
    FLOAT32 = "real"
    FLOAT64 = "double precision"
    NUMERIC = "numeric"
    TEXT = "text"
    BYTEA = "bytea"
    DATE = "date"
    TIME = "time"
    TIMESTAMP = "timestamp"
    TIMESTAMPTZ = "timestamptz"
    INTERVAL = "interval"
    UUID = "uuid"
    JSONB = "jsonb"
    LIST = "list"
    RECORD = "record"


MAX_SCALE = 38  # all the digits a 128-bit decimal holds, as in Arrow
_ELEMENT = "element"
_MAX_NESTING = 16  # values are compared by recursion, down to the compiled kernels


class Column(msgspec.Struct, frozen=True):
    """A column by name; `nullable`: NULL may stand in it.

    scale: of a numeric, digits behind the point. fields: of a list, the column its elements would be, always
    called `element`; of a record, its columns. Raises ValueError (in a message: `bad-message`) for a scale or
    fields that do not go with the type.
    """

    name: str
    type: ColumnType
    nullable: bool = False
    scale: int = 0
    fields: tuple[Column, ...] = ()

    def __post_init__(self) -> None:
        name = self.type.value
        if not 0 <= self.scale <= (MAX_SCALE if self.type is ColumnType.NUMERIC else 0):
            raise ValueError(f"a {name} of scale {self.scale}")
        if self.type is ColumnType.LIST and len(self.fields) != 1:
            raise ValueError(f"a list of {counted(len(self.fields), 'field')}, it has one: its element")
        if self.type is ColumnType.LIST and self.fields[0].name != _ELEMENT:
            element = msgspec.structs.replace(self.fields[0], name=_ELEMENT)
            msgspec.structs.force_setattr(self, "fields", (element,))
        if self.fields:
            if self.type not in (ColumnType.LIST, ColumnType.RECORD):
                raise ValueError(f"a {name} with fields")
            if _nesting(self) > _MAX_NESTING:
                raise ValueError(f"a type nested deeper than {_MAX_NESTING}")


def _nesting(column: Column) -> int:
    return 1 + max((_nesting(field) for field in column.fields), default=0)


class Schema(msgspec.Struct, frozen=True):
    """The columns of a row, in order."""

    columns: tuple[Column, ...]

    @property
    def arity(self) -> int:
        return len(self.columns)

    @property
    def types(self) -> tuple[ColumnType, ...]:
        return tuple(c.type for c in self.columns)


def distinct_names(schema: Schema) -> Schema:
    """The schema, a number behind each name that another column has before it.

    >>> columns = Column("n", ColumnType.INT64), Column("n", ColumnType.TEXT)
    >>> [column.name for column in distinct_names(Schema(columns)).columns]
    ['n', 'n_2']
    """
    seen: set[str] = set()
    columns = []
    for column in schema.columns:
        name, number = column.name, 1
        while name in seen:
            number += 1
            name = f"{column.name}_{number}"
        seen.add(name)
        columns.append(msgspec.structs.replace(column, name=name))
    return Schema(tuple(columns))


def type_name(column: Column) -> str:
    """The type as scripts write it: `bigint`, `numeric(38,2)`, `text? list`, `record(a bigint, b text?)`."""
    match column.type:
        case ColumnType.NUMERIC if column.scale:
            return f"numeric({MAX_SCALE},{column.scale})"
        case ColumnType.LIST:
            return f"{_with_null(column.fields[0])} list"
        case ColumnType.RECORD:
            return f"record({', '.join(f'{_word(f.name)} {_with_null(f)}' for f in column.fields)})"
    return str(column.type.value)


def _with_null(column: Column) -> str:
    return type_name(column) + "?" * column.nullable


def _word(name: str) -> str:
    return name if re.fullmatch("[A-Za-z_][A-Za-z_0-9]*", name) else json.dumps(name, ensure_ascii=False)


def same_type(a: Column, b: Column) -> bool:
    """Whether two columns are of one type: scale and fields included, their own names and NULLs not."""
    return a.type is b.type and a.scale == b.scale and a.fields == b.fields


def counted(count: int, noun: str) -> str:
    """`1 column`, `2 columns`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


INTEGERS = {  # the range of each
    ColumnType.INT16: (-(1 << 15), (1 << 15) - 1),
    ColumnType.INT32: (-(1 << 31), (1 << 31) - 1),
    ColumnType.INT64: (-(1 << 63), (1 << 63) - 1),
    ColumnType.UINT16: (0, (1 << 16) - 1),
    ColumnType.UINT32: (0, (1 << 32) - 1),
    ColumnType.UINT64: (0, (1 << 64) - 1),
}
_RANGES = {
    **INTEGERS,
    ColumnType.DATE: INTEGERS[ColumnType.INT32],
    ColumnType.TIME: (0, 86_400_000_000),
    ColumnType.TIMESTAMP: INTEGERS[ColumnType.INT64],
    ColumnType.TIMESTAMPTZ: INTEGERS[ColumnType.INT64],
}
_PYTHON = {
    ColumnType.BOOL: bool,
    ColumnType.FLOAT32: float,
    ColumnType.FLOAT64: float,
    ColumnType.TEXT: str,
    ColumnType.BYTEA: bytes,
}
NUMERIC = re.compile(r"([+-]?)([0-9]+)(?:\.([0-9]+))?")
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_REAL = struct.Struct("<f")


def scalar_problem(value: Scalar, column: Column) -> str | None:
    """Say why `value` cannot stand in `column`; None if it can.

    >>> scalar_problem("a", Column("id", ColumnType.INT64))
    "column id: 'a' is no bigint"
    """
    if value is None:
        return None if column.nullable else f"column {column.name}: null in a column that is not nullable"
    problem = _problem(value, column)
    return None if problem is None else f"column {column.name}: {problem}"


def _problem(value: Scalar, column: Column) -> str | None:
    fits = True
    if column.type in _RANGES:
        fits = type(value) is int
        least, most = _RANGES[column.type]
        if type(value) is int and not least <= value <= most:
            return _beyond(value, column)
    elif column.type in _PYTHON:
        fits = type(value) is _PYTHON[column.type]
        if column.type is ColumnType.FLOAT32 and type(value) is float and not fits_real(value):
            return _beyond(value, column)
    else:
        match column.type:
            case ColumnType.NUMERIC:
                return _numeric_problem(value, column)
            case ColumnType.INTERVAL:
                return _interval_problem(value, column)
            case ColumnType.UUID:
                fits = type(value) is str and _UUID.fullmatch(value) is not None
            case ColumnType.JSONB:
                return json_problem(value) if type(value) is str else _misfit(value, column)
            case _:
                return _nested_problem(value, column)
    return None if fits else _misfit(value, column)


def fits_real(value: float) -> bool:
    """Whether the nearest real is neither infinite nor zero where `value` is not."""
    if value == 0 or math.isinf(value) or math.isnan(value):
        return True
    try:
        return bool(_REAL.unpack(_REAL.pack(value))[0] != 0)
    except OverflowError:
        return False


def _numeric_problem(value: Scalar, column: Column) -> str | None:
    parts = NUMERIC.fullmatch(value) if type(value) is str else None
    if parts is None:
        return _misfit(value, column)
    if len(parts[3] or "") > column.scale:
        behind = f"{counted(column.scale, 'digit')} behind the point" if column.scale else "no point"
        return f"{_shown(value)} is no {type_name(column)}, which has {behind}"
    if len(parts[2].lstrip("0")) > MAX_SCALE - column.scale:
        return f"{_beyond(value, column)}, which has {MAX_SCALE} digits"
    return None


def _interval_problem(value: Scalar, column: Column) -> str | None:
    if type(value) is not tuple or len(value) != 3:
        return _misfit(value, column)
    for part, of in zip(value, (ColumnType.INT32, ColumnType.INT32, ColumnType.INT64), strict=True):
        if type(part) is not int:
            return _misfit(value, column)
        if not INTEGERS[of][0] <= part <= INTEGERS[of][1]:
            return _beyond(value, column)
    return None


def _nested_problem(value: Scalar, column: Column) -> str | None:
    if type(value) is not tuple:
        return _misfit(value, column)
    is_list = column.type is ColumnType.LIST
    if not is_list and len(value) != len(column.fields):
        return f"{_shown(value)} has {counted(len(value), 'value')} for a {type_name(column)}"
    for number, part in enumerate(value):
        field = column.fields[0 if is_list else number]
        where = f"element {number + 1}" if is_list else f"field {field.name}"
        if part is None:
            if not field.nullable:
                return f"{where} of {_shown(value)}: null in a {type_name(column)}"
            continue
        problem = _problem(part, field)
        if problem is not None:
            return f"{where}: {problem}"
    return None


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:60] + "..."


def _misfit(value: Scalar, column: Column) -> str:
    return f"{_shown(value)} is no {type_name(column)}"


def _beyond(value: Scalar, column: Column) -> str:
    return f"{_shown(value)} is out of range of {type_name(column)}"


SAMPLE_SCHEMA = Schema((Column("id", ColumnType.INT64), Column("payload", ColumnType.TEXT)))
