"""Order, equality, hash and image of values in plain Python: what the forms that kernels use must agree with.

Values are Python's, as values.py of this package lists them; so it is shown at once that encodings and forms
in memory do not matter.

Does not: share code with the kernels.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Any, Final

from shm_arrangements.types import VARIABLE, AnyType, ColumnType, ListType, RecordType

MASK: Final = (1 << 64) - 1
SIGN: Final = 1 << 63


@dataclass(frozen=True)
class Relation:
    """Rows of Python's values, with the types of their columns."""

    types: tuple[AnyType, ...]
    rows: tuple[tuple[Any, ...], ...]


def key_of(type_: AnyType, value: Any) -> tuple[Any, ...]:
    """What orders, in Python, as a value does: NULL last, NaN behind infinity."""
    if value is None:
        return (1,)
    if isinstance(type_, ListType):
        return (0, tuple(key_of(type_.element.type, element) for element in value))
    if isinstance(type_, RecordType):
        pairs = zip(type_.fields, value, strict=True)
        return (0, tuple(key_of(field.type, part) for field, part in pairs))
    if isinstance(value, float):
        return (0, 1, 0.0) if math.isnan(value) else (0, 0, value)
    if isinstance(value, str):
        return (0, value.encode())
    return (0, value.bytes) if type_ is ColumnType.UUID else (0, value)


def row_key(relation: Relation, row: int, first: int = 0, last: int | None = None) -> tuple[Any, ...]:
    """What orders as a row does, by its columns first..last-1."""
    pairs = zip(relation.types, relation.rows[row], strict=True)
    return tuple(key_of(type_, value) for type_, value in pairs)[first:last]


def _float_word(value: float, form: str, bits: int) -> int:
    canonical = math.nan if math.isnan(value) else value + 0.0
    if math.isnan(canonical):
        canonical = float("nan")
    word = int.from_bytes(struct.pack(f">{form}", canonical), "big")
    sign = 1 << (bits - 1)
    return word ^ sign if word < sign else word ^ ((1 << bits) - 1)


def words_of(type_: ColumnType, value: Any) -> tuple[int, ...]:
    """The order words of a value, unsigned: one, or two of a wide one."""
    unsigned = (ColumnType.BOOL, ColumnType.UINT16, ColumnType.UINT32, ColumnType.UINT64)
    if type_ in unsigned:
        return (int(value),)
    if type_ is ColumnType.FLOAT64:
        return (_float_word(value, "d", 64),)
    if type_ is ColumnType.FLOAT32:
        return (_float_word(value, "f", 32),)
    if type_ is ColumnType.NUMERIC:
        return ((value >> 64) + SIGN, value & MASK)
    if type_ is ColumnType.UUID:
        return (value.int >> 64, value.int & MASK)
    if type_ is ColumnType.INTERVAL:
        months, days, nanoseconds = value
        half = 1 << 31
        return (((months + half) << 32) | (days + half), nanoseconds + SIGN)
    if type_ in VARIABLE:
        return (int.from_bytes(bytes_of(value)[:8].ljust(8, b"\0"), "big"),)
    return (value + SIGN,)


def bytes_of(value: Any) -> bytes:
    """The bytes that a text (or bytes) is."""
    return value.encode() if isinstance(value, str) else bytes(value)


def _mix(h: int, word: int) -> int:
    h = ((h ^ word) * 0x9E3779B97F4A7C15) & MASK
    h = ((h ^ (h >> 32)) * 0xD6E8FEB86659FD93) & MASK
    return h ^ (h >> 29)


def _mix_value(h: int, type_: AnyType, value: Any) -> int:
    if value is None:
        return _mix(h, 0x3C6EF372FE94F82B)
    if isinstance(type_, ListType):
        h = _mix(h, len(value))
        for element in value:
            h = _mix_value(h, type_.element.type, element)
    elif isinstance(type_, RecordType):
        for field, part in zip(type_.fields, value, strict=True):
            h = _mix_value(h, field.type, part)
    elif type_ in VARIABLE:
        data = bytes_of(value)
        h = _mix(h, len(data))
        for at in range(0, len(data), 8):
            h = _mix(h, int.from_bytes(data[at : at + 8], "little"))
    else:
        for word in words_of(type_, value):
            h = _mix(h, word)
    return h


def hash_row(relation: Relation, row: int, first: int, last: int) -> int:
    """The hash of columns first..last-1 of a row."""
    h = 0x6A09E667F3BCC908
    for column in range(first, last):
        h = _mix_value(h, relation.types[column], relation.rows[row][column])
    return _mix(h, int(first == last))


def image_of(type_: AnyType, value: Any) -> bytes:
    """A value inside a list or record as bytes that order as it does."""
    if value is None:
        return b"\1"
    if isinstance(type_, ListType):
        elements = [b"\1" + image_of(type_.element.type, element) for element in value]
        return b"\0" + b"".join(elements) + b"\0"
    if isinstance(type_, RecordType):
        pairs = zip(type_.fields, value, strict=True)
        return b"\0" + b"".join(image_of(field.type, part) for field, part in pairs)
    if type_ in VARIABLE:
        return b"\0" + bytes_of(value).replace(b"\0", b"\0\xff") + b"\0\0"
    return b"\0" + b"".join(word.to_bytes(8, "big") for word in words_of(type_, value))


def parts_of(total: int) -> list[int]:
    """A sum of diffs as it is stored: nothing if zero, all parts but the last 2^63 - 1 or -2^63."""
    parts = []
    while total > SIGN - 1:
        parts.append(SIGN - 1)
        total -= SIGN - 1
    while total < -SIGN:
        parts.append(-SIGN)
        total += SIGN
    return [*parts, total] if total else parts
