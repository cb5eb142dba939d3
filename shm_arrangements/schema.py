"""ArrangementSchema: the columns of a row, which of them are the key, and the code that a key has.

Rows are written and read in row order. An arrangement stores the key columns first, in key order, and then
the others in row order, because that is the order it sorts by. Everything that depends on the two orders is
computed here once.

It sorts by code first: a u64 made of the key, compared unsigned. Equal keys have equal codes, and equal codes
prove nothing. Which kind of code depends on the key's types alone, unless the arrangement was made `ordered`;
so arrangements with keys of the same types can be joined by their codes.

Does not: know the bytes (layout.py), nor compare (kernels/cells.py).
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from shm_arrangements.columns import Column
from shm_arrangements.kernels import cells, nodes
from shm_arrangements.rows import Words
from shm_arrangements.table import Table
from shm_arrangements.types import (
    VARIABLE,
    AnyType,
    ColumnSpec,
    ColumnType,
    child_specs,
    is_nested,
    type_code,
)


class CodeKind(enum.IntEnum):
    """What the code of a key is; the numbers are those of the byte format."""

    HASH = 1  # of the key's values
    IDENTITY = 2  # the 8 bytes of a key of one column, as they are stored; 0 for NULL
    ORDERED = 3  # the first 64 bits of an image of the key that orders as it does


_IDENTITY_TYPES: Final = frozenset(
    {
        ColumnType.INT64, ColumnType.UINT64, ColumnType.FLOAT64, ColumnType.TIMESTAMP,
        ColumnType.TIMESTAMPTZ, ColumnType.TIME,
    }
)  # fmt: skip


def _constant(array: NDArray[np.int64]) -> NDArray[np.int64]:
    array = np.ascontiguousarray(array)
    array.flags.writeable = False
    return array


@dataclass(frozen=True)
class ArrangementSchema:
    """`columns` in row order; `key` distinct positions in it, in key order; `()` is one group of all rows.

    >>> ArrangementSchema((ColumnSpec("dest", ColumnType.TEXT, False),), key=(0,)).key_specs[0].name
    'dest'

    ordered: keys that are near in order are near in the arrangement, so that a range of them can be read.
    """

    columns: tuple[ColumnSpec, ...]
    key: tuple[int, ...]
    ordered: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.columns, tuple) or not isinstance(self.key, tuple):
            raise TypeError(f"columns and key are tuples, not {self.columns!r} and {self.key!r}")
        if not all(isinstance(position, int) for position in self.key):
            raise TypeError(f"a key is positions of columns, as (0,), not {self.key!r}")
        if len(set(self.key)) != len(self.key):
            raise ValueError(f"a key names each column once: {self.key}")
        for position in self.key:
            if not 0 <= position < len(self.columns):
                raise ValueError(f"key column {position} of {len(self.columns)} columns")

    @cached_property
    def code(self) -> CodeKind:
        """An ordered arrangement of one column of 8 bytes is served by IDENTITY: a range is one of codes, or
        two where it crosses zero."""
        if len(self.key) == 1 and self.columns[self.key[0]].type in _IDENTITY_TYPES:
            return CodeKind.IDENTITY
        return CodeKind.ORDERED if self.ordered else CodeKind.HASH

    def codes_of(self, key_columns: Sequence[Column], rows: int | None = None) -> Words:
        """(n,) the codes of keys, canonical columns in key order; no copy where the values are the codes.

        rows: how many, needed only for the empty key.
        """
        if self.code is CodeKind.IDENTITY:
            return np.ascontiguousarray(key_columns[0].values).view(np.uint64)
        n = len(key_columns[0]) if key_columns else int(rows or 0)
        return self.codes_in(Table(key_columns), n)

    def codes_in(self, table: Table, rows: int) -> Words:
        """(rows,) the codes of keys that a table begins with, HASH or ORDERED."""
        out = np.empty(rows, np.uint64)
        if self.code is CodeKind.HASH:
            cells.hash_table(table.cells, 0, len(self.key), out)
        else:
            cells.ordered_codes(table.cells, len(self.key), out)
        return out

    @cached_property
    def stored_order(self) -> tuple[int, ...]:
        """Stored position -> row position."""
        keyed = set(self.key)
        return self.key + tuple(i for i in range(len(self.columns)) if i not in keyed)

    @cached_property
    def row_order(self) -> tuple[int, ...]:
        """Row position -> stored position."""
        back = [0] * len(self.columns)
        for stored, row in enumerate(self.stored_order):
            back[row] = stored
        return tuple(back)

    @cached_property
    def stored(self) -> tuple[ColumnSpec, ...]:
        """The columns in stored order: key columns, then the others."""
        return tuple(self.columns[i] for i in self.stored_order)

    @cached_property
    def stored_types(self) -> list[AnyType]:
        """The types of the stored columns."""
        return [spec.type for spec in self.stored]

    @cached_property
    def nodes(self) -> NDArray[np.int64]:
        """(nodes, NODE_FIELDS) of a batch's nodes (kernels/nodes.py) what is the schema's: types, children.

        The columns, then the children of lists and records, in the order of their parents.
        """
        specs = list(self.stored)
        rows = []
        at = 0
        while at < len(specs):
            spec = specs[at]
            children = child_specs(spec.type)
            rows.append([0] * nodes.NODE_FIELDS)
            rows[at][nodes.TYPE] = (
                type_code(spec.type) | spec.nullable << nodes.NULLABLE_BIT | spec.scale << nodes.SCALE_BIT
            )
            if children:
                rows[at][nodes.CHILDREN] = len(specs) | len(children) << 32
            specs += children
            at += 1
        return _constant(np.array(rows, np.int64).reshape(len(rows), nodes.NODE_FIELDS))

    @cached_property
    def node_types(self) -> NDArray[np.int64]:
        """(nodes, 2) type and number of children of each, as kernels/nodes.py checks them."""
        children = self.nodes[:, nodes.CHILDREN] >> 32
        return _constant(np.stack((self.nodes[:, nodes.TYPE], children), axis=1))

    @cached_property
    def node_numbers(self) -> NDArray[np.int64]:
        """(nodes,) 0, 1, ..."""
        return _constant(np.arange(len(self.nodes)))

    @cached_property
    def variable_columns(self) -> tuple[int, ...]:
        """Stored positions of texts and the like."""
        return tuple(i for i, spec in enumerate(self.stored) if spec.type in VARIABLE)

    @cached_property
    def nested_columns(self) -> tuple[int, ...]:
        """Stored positions of lists and records."""
        return tuple(i for i, spec in enumerate(self.stored) if is_nested(spec.type))

    @cached_property
    def is_sized(self) -> bool:
        """Whether rows differ in size."""
        return bool(self.variable_columns or self.nested_columns)

    @property
    def key_specs(self) -> tuple[ColumnSpec, ...]:
        return self.stored[: len(self.key)]
