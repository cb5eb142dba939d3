"""A relation of introspection: its columns with what they mean, and the function that makes its rows.

Does not: list them (relations.py), keep rows (keeper.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from clusterd.introspection.sample import Outside
from clusterd.introspection.samples import Samples
from controller_proto.schema import Column, ColumnType, Row, Schema

__all__ = ["Field", "Relation", "Rows", "relation"]

Rows = Callable[[Samples, Outside], Iterable[Row]]
_TYPES = {
    "text": ColumnType.TEXT,
    "bigint": ColumnType.INT64,
    "uint8": ColumnType.UINT64,
    "boolean": ColumnType.BOOL,
    "double": ColumnType.FLOAT64,
}


@dataclass(frozen=True, slots=True)
class Field:
    """A column. type: as a script writes it, with `?` where NULL may stand."""

    name: str
    type: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Relation:
    """meaning: one sentence, of a row. key: columns of the index. rows: all of them, as the samples say."""

    name: str
    meaning: str
    fields: tuple[Field, ...]
    columns: Schema
    key: tuple[int, ...]
    rows: Rows


def relation(
    name: str, meaning: str, rows: Rows, *, key: tuple[str, ...], fields: Iterable[tuple[str, str, str]]
) -> Relation:
    """key: names of columns. fields: name, type and meaning of each column."""
    found = tuple(Field(*each) for each in fields)
    names = [field.name for field in found]
    columns = tuple(
        Column(field.name, _TYPES[field.type.removesuffix("?")], field.type.endswith("?")) for field in found
    )
    return Relation(name, meaning, found, Schema(columns), tuple(map(names.index, key)), rows)
