"""Values that look for trouble: the edges of every type, and how to draw others between them.

A value here is one of Python's, as values.py lists them by type. Draws come from a `random.Random`, so that a
seed tells a whole history again, and Hypothesis can stand behind the same draws.

Does not: know columns or histories.
"""

from __future__ import annotations

import json
import random
import struct
import uuid
from collections.abc import Callable
from typing import Any, Final

from shm_arrangements.types import AnyType, ColumnSpec, ColumnType, ListType, RecordType

_NAN = float("nan")
_EIGHT = ["abcdefgh", "abcdefgh\0", "abcdefghi", "abcdefghj"]  # the same in their first eight bytes
_TEXTS = ["", "\0", "a", "a\0", *_EIGHT, "z" * 40, "é", "\U0010ffff"]
_FLOATS = [0.0, -0.0, 1.5, -1.5, _NAN, -_NAN, float("inf"), -float("inf")]
_JSON = ["null", "true", "0", "-1.5", '""', "[]", "{}", '{"a":1}', '{"a":1,"b":[null]}', '{"a":"\U0010ffff"}']
_F32_MOST, _F32_LEAST = 3.4028234663852886e38, 1.401298464324817e-45
_DAY_US = 86_400_000_000

TYPES: Final = tuple(ColumnType)  # what columns are drawn of
NESTED: Final = 2  # how deep lists and records go


def bounds(bits: int, *, signed: bool = True) -> tuple[int, int]:
    """The least and the greatest integer of so many bits."""
    return (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)


def _integers(bits: int, *, signed: bool = True) -> list[int]:
    least, most = bounds(bits, signed=signed)
    return [0, 1, *([-1] if signed else []), 255, 256, most >> 1, least, most - 1, most]


EDGES: Final[dict[ColumnType, list[Any]]] = {
    ColumnType.BOOL: [False, True],
    ColumnType.INT16: _integers(16),
    ColumnType.INT32: _integers(32),
    ColumnType.INT64: _integers(64),
    ColumnType.UINT16: _integers(16, signed=False),
    ColumnType.UINT32: _integers(32, signed=False),
    ColumnType.UINT64: _integers(64, signed=False),
    ColumnType.FLOAT32: [*_FLOATS, _F32_MOST, -_F32_MOST, _F32_LEAST],
    ColumnType.FLOAT64: [*_FLOATS, 1.7976931348623157e308, 5e-324, -5e-324],
    ColumnType.NUMERIC: [0, 1, -1, 1 << 63, 1 << 64, -(1 << 64), (1 << 64) - 1, *bounds(128)],
    ColumnType.TEXT: _TEXTS,
    ColumnType.BYTEA: [text.encode() for text in _TEXTS[:-1]] + [b"\xff", b"\xff" * 9, b"abcdefgh\xff"],
    ColumnType.DATE: [0, 1, -1, 20_000, *bounds(32)],
    ColumnType.TIME: [0, 1, _DAY_US - 1, _DAY_US],
    ColumnType.TIMESTAMP: [0, 1, -1, *bounds(64)],
    ColumnType.TIMESTAMPTZ: [0, 1, -1, *bounds(64)],
    ColumnType.INTERVAL: [
        (0, 0, 0), (1, 0, 0), (0, 30, 0), (0, 31, -1), (0, 0, 30 * 86_400 * 10**9), (-1, 0, 0), (0, -1, 0),
        (*(bounds(32)[:1] * 2), bounds(64)[0]), (*(bounds(32)[1:] * 2), bounds(64)[1]),
    ],
    ColumnType.UUID: [uuid.UUID(int=i) for i in (0, 1, 1 << 63, 1 << 64, 1 << 127, (1 << 128) - 1)],
    ColumnType.JSONB: _JSON,
}  # fmt: skip


def _between(bits: int, *, signed: bool = True) -> Callable[[random.Random], int]:
    def draw(draws: random.Random) -> int:
        number = draws.getrandbits(draws.randint(1, bits - signed))
        return ~number if signed and draws.random() < 0.4 else number

    return draw


def _text(draws: random.Random) -> str:
    return "".join(draws.choice("ab\0zé\U0010ffff") for _ in range(draws.randint(0, 12)))


def _float(form: str, bits: int) -> Callable[[random.Random], float]:
    def draw(draws: random.Random) -> float:
        number: float = struct.unpack(form, draws.getrandbits(bits).to_bytes(bits // 8, "little"))[0]
        return number

    return draw


def _interval(draws: random.Random) -> tuple[int, int, int]:
    return _between(32)(draws), _between(32)(draws), _between(64)(draws)


def json_text(value: Any) -> str:
    """The canonical text of a JSON value."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


_BETWEEN: Final[dict[ColumnType, Callable[[random.Random], Any]]] = {
    ColumnType.BOOL: lambda draws: draws.random() < 0.5,
    ColumnType.INT16: _between(16),
    ColumnType.INT32: _between(32),
    ColumnType.INT64: _between(64),
    ColumnType.UINT16: _between(16, signed=False),
    ColumnType.UINT32: _between(32, signed=False),
    ColumnType.UINT64: _between(64, signed=False),
    ColumnType.FLOAT32: _float("<f", 32),
    ColumnType.FLOAT64: _float("<d", 64),
    ColumnType.NUMERIC: _between(128),
    ColumnType.TEXT: _text,
    ColumnType.BYTEA: lambda draws: _text(draws).encode() + b"\xff" * draws.randint(0, 2),
    ColumnType.DATE: _between(32),
    ColumnType.TIME: lambda draws: draws.randint(0, _DAY_US),
    ColumnType.TIMESTAMP: _between(64),
    ColumnType.TIMESTAMPTZ: _between(64),
    ColumnType.INTERVAL: _interval,
    ColumnType.UUID: lambda draws: uuid.UUID(int=draws.getrandbits(128)),
    ColumnType.JSONB: lambda draws: json_text({_text(draws): draws.randint(-9, 9), "a": [_text(draws)]}),
}


def random_type(draws: random.Random, nested: int = NESTED) -> AnyType:
    """Any scalar type; sometimes a list or a record of them, at most `nested` deep."""
    kind = draws.random()
    if nested == 0 or kind < 0.85:
        return draws.choice(TYPES)
    if kind < 0.93:
        return ListType(random_spec(draws, "item", nested - 1))
    fields = range(draws.randint(0, 3))
    return RecordType(tuple(random_spec(draws, f"f{i}", nested - 1) for i in fields))


def random_spec(draws: random.Random, name: str, nested: int = NESTED) -> ColumnSpec:
    """A column of any type, with NULL or without; a numeric one of any scale."""
    type_ = random_type(draws, nested)
    scale = draws.choice([0, 0, 2, 38]) if type_ is ColumnType.NUMERIC else 0
    return ColumnSpec(name, type_, draws.random() < 0.5, scale)


def random_value(draws: random.Random, type_: AnyType, nullable: bool) -> Any:
    """A value of the type, or None: an edge as often as another."""
    if nullable and draws.random() < 0.25:
        return None
    if isinstance(type_, ListType):
        one = type_.element
        return [random_value(draws, one.type, one.nullable) for _ in range(draws.choice([0, 1, 1, 2, 3]))]
    if isinstance(type_, RecordType):
        return tuple(random_value(draws, field.type, field.nullable) for field in type_.fields)
    return draws.choice(EDGES[type_]) if draws.random() < 0.6 else _BETWEEN[type_](draws)
