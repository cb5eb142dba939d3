"""What a user passes, checked before anything is sent or written.

Does not: convert values of rows and keys (values.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, SupportsIndex

import msgspec

from controller_proto.errors import Refusal
from controller_proto.plan import OrderBy
from controller_proto.schema import Row, Schema

__all__ = [
    "LAST_TIME",
    "order_of",
    "plain_row",
    "position_of",
    "read_time_of",
    "renamed",
    "require_list",
    "time_of",
]

LAST_TIME = (1 << 64) - 1


def time_of(at: object, name: str = "at") -> int | None:
    """`at` as a time. Raises TypeError, ValueError.

    >>> time_of(-1)
    Traceback (most recent call last):
    ValueError: at must not be negative, it is -1
    """
    if at is None:
        return None
    if isinstance(at, bool) or not isinstance(at, SupportsIndex):
        raise TypeError(f"{name} must be an int time or None, not {at!r}")
    if at.__index__() < 0:
        raise ValueError(f"{name} must not be negative, it is {at!r}")
    if at.__index__() > LAST_TIME:
        raise ValueError(f"{name} must not be beyond 2^64 - 1, it is {at!r}")
    return at.__index__()


def read_time_of(at: object) -> int | None:
    """`at` of a read as a time, None for `latest`. Raises TypeError, ValueError.

    >>> read_time_of("now")
    Traceback (most recent call last):
    TypeError: at must be an int time or 'latest', not 'now'
    """
    if isinstance(at, str) and at != "latest":
        raise TypeError(f"at must be an int time or 'latest', not {at!r}")
    return time_of(None if isinstance(at, str) else at)


def plain_row(row: Sequence[Any] | Mapping[str, Any], names: Sequence[str]) -> Row:
    """A row to write as a tuple. Raises TypeError."""
    if isinstance(row, tuple | list):
        return tuple(row)
    if isinstance(row, Mapping):
        return tuple(row[name] for name in names)
    raise TypeError(f"row {row!r} is no tuple or mapping: write [('pear', 5)] or [{{'name': 'pear', ...}}]")


def require_list(name: str, given: object) -> None:
    """A text is a sequence too, of letters, and never meant as one. Raises TypeError."""
    if isinstance(given, str | bytes):
        raise TypeError(f"{name} must be a list: {name}=[{given!r}]")


def renamed(schema: Schema, names: Sequence[str] | None) -> Schema:
    """`schema` with other names, if any are given. Raises Refusal(`invalid-plan`)."""
    if names is None:
        return schema
    if len(names) != schema.arity:
        raise Refusal("invalid-plan", f"{len(names)} names for {schema.arity} columns")
    pairs = zip(names, schema.columns, strict=True)
    return Schema(tuple(msgspec.structs.replace(column, name=name) for name, column in pairs))


def order_of(schema: Schema, column: str | OrderBy) -> OrderBy:
    """What to order by: a column from its least value on. Raises Refusal(`invalid-plan`)."""
    if isinstance(column, OrderBy):
        return column
    name, _, direction = column.rpartition(" ") if isinstance(column, str) else ("", "", "")
    names = [c.name for c in schema.columns]
    if column not in names and name in names and direction.lower() in ("asc", "desc"):
        down = f"OrderBy({names.index(name)}, descending=True)"
        order = repr(name) if direction.lower() == "asc" else down
        hint = f"write order_by=[{order}]; OrderBy is controller_proto.plan's"
        raise Refusal("invalid-plan", f"no column {column!r}", hint)
    return OrderBy(position_of(schema, column))


def position_of(schema: Schema, column: str | int) -> int:
    """Where a column is; a number as it is, for the replica to judge. Raises Refusal(`invalid-plan`)."""
    names = [c.name for c in schema.columns]
    if isinstance(column, int):
        return column
    if column not in names:
        raise Refusal("invalid-plan", f"no column {column!r}", f"there are: {', '.join(names)}")
    return names.index(column)
