"""Types of columns: the scalar ones by code, lists and records of any of them, and what a column is called.

A scalar type is a member of `ColumnType`, and its number is its code in the byte format. A nested type is a
frozen value that says of what: two are the same type if they say the same. How values of a type lie in
memory is one of four forms: an array of one dtype (`DTYPES`), two words (`WIDE`), bytes found by offsets
(`VARIABLE`), or other columns (lists and records). All of them are Arrow's, but for booleans, which are
bytes.

Does not: hold values (columns.py), or compare them (kernels/cells.py).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any, Final

import numpy as np


class ColumnType(enum.IntEnum):
    """The scalar types. Codes are those of the byte format, and never reused; 20 and 21 are nested types."""

    BOOL = 1
    INT64 = 2
    FLOAT64 = 3
    TEXT = 4
    TIMESTAMP = 5  # int64 microseconds since 1970, of no time zone
    NUMERIC = 6  # a 128-bit integer times 10 ** -scale
    INT16 = 7
    INT32 = 8
    UINT16 = 9
    UINT32 = 10
    UINT64 = 11
    FLOAT32 = 12
    BYTEA = 13
    DATE = 14  # int32 days since 1970
    TIME = 15  # int64 microseconds since midnight
    TIMESTAMPTZ = 16  # int64 microseconds since 1970, UTC
    INTERVAL = 17  # months, days, nanoseconds: equal and ordered by these, in turn
    UUID = 18
    JSONB = 19  # its canonical text: equal and ordered by bytes


LIST_CODE: Final = 20
RECORD_CODE: Final = 21
MAX_SCALE: Final = 38  # as many digits as a numeric has


@dataclass(frozen=True, slots=True)
class ColumnSpec:
    """Name, type, and whether NULL may occur. `scale` is NUMERIC's: digits behind the point."""

    name: str
    type: AnyType
    nullable: bool
    scale: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.type, ColumnType | ListType | RecordType):
            raise TypeError(
                f"column {self.name!r}: a ColumnType, ListType or RecordType is wanted, not {self.type!r}"
            )
        if not isinstance(self.name, str):
            raise TypeError(f"the name of a column is text, not {self.name!r}")
        if not isinstance(self.scale, int) or not 0 <= self.scale <= MAX_SCALE:
            raise ValueError(f"column {self.name!r}: scale {self.scale} is not in 0 to {MAX_SCALE}")
        if self.scale and self.type is not ColumnType.NUMERIC:
            raise ValueError(f"column {self.name!r}: only NUMERIC has a scale, not {self.type.name}")


@dataclass(frozen=True, slots=True)
class ListType:
    """Lists of any length of one kind of element; ordered element by element, the shorter first."""

    element: ColumnSpec

    def __post_init__(self) -> None:
        _require_specs((self.element,))

    @property
    def name(self) -> str:
        return f"LIST({self.element.type.name})"


@dataclass(frozen=True, slots=True)
class RecordType:
    """Records of these fields, perhaps none; ordered field by field."""

    fields: tuple[ColumnSpec, ...]

    def __post_init__(self) -> None:
        _require_specs(self.fields)

    @property
    def name(self) -> str:
        return f"RECORD({', '.join(field.type.name for field in self.fields)})"


AnyType = ColumnType | ListType | RecordType


def _require_specs(specs: tuple[ColumnSpec, ...]) -> None:
    if not isinstance(specs, tuple) or not all(isinstance(spec, ColumnSpec) for spec in specs):
        raise TypeError(f"what is nested is a ColumnSpec, in a record a tuple of them, not {specs!r}")


VARIABLE: Final = frozenset({ColumnType.TEXT, ColumnType.BYTEA, ColumnType.JSONB})
WIDE: Final = frozenset({ColumnType.NUMERIC, ColumnType.INTERVAL, ColumnType.UUID})

_I64 = np.dtype(np.int64)

# Of the array that holds the values: two words a value for WIDE, the bytes themselves for VARIABLE.
DTYPES: Final[dict[AnyType, np.dtype[Any]]] = {
    ColumnType.BOOL: np.dtype(np.bool_),
    ColumnType.INT64: _I64,
    ColumnType.FLOAT64: np.dtype(np.float64),
    ColumnType.TEXT: np.dtype(np.uint8),
    ColumnType.TIMESTAMP: _I64,
    ColumnType.NUMERIC: np.dtype(np.uint64),
    ColumnType.INT16: np.dtype(np.int16),
    ColumnType.INT32: np.dtype(np.int32),
    ColumnType.UINT16: np.dtype(np.uint16),
    ColumnType.UINT32: np.dtype(np.uint32),
    ColumnType.UINT64: np.dtype(np.uint64),
    ColumnType.FLOAT32: np.dtype(np.float32),
    ColumnType.BYTEA: np.dtype(np.uint8),
    ColumnType.DATE: np.dtype(np.int32),
    ColumnType.TIME: _I64,
    ColumnType.TIMESTAMPTZ: _I64,
    ColumnType.INTERVAL: np.dtype(np.uint64),
    ColumnType.UUID: np.dtype(np.uint64),
    ColumnType.JSONB: np.dtype(np.uint8),
}


def is_nested(type_: AnyType) -> bool:
    """Whether values of this type are made of other columns."""
    return not isinstance(type_, ColumnType)


def type_code(type_: AnyType) -> int:
    """Its code in the byte format."""
    if isinstance(type_, ColumnType):
        return int(type_)
    return LIST_CODE if isinstance(type_, ListType) else RECORD_CODE


def child_specs(type_: AnyType) -> tuple[ColumnSpec, ...]:
    """The columns that a nested type is made of; none for a scalar one."""
    if isinstance(type_, ListType):
        return (type_.element,)
    return type_.fields if isinstance(type_, RecordType) else ()


def value_bytes(type_: ColumnType) -> int:
    """Bytes of a value; of VARIABLE types 1, for their values are single bytes."""
    return 16 if type_ in WIDE else DTYPES[type_].itemsize
