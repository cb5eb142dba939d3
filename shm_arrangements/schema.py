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

from shm_arrangements.columns import Column, Table
from shm_arrangements.kernels import cells
from shm_arrangements.rows import RowSpec, Words
from shm_arrangements.types import ColumnSpec, ColumnType


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


@dataclass(frozen=True)
class ArrangementSchema:
    """`columns` in row order; `key` distinct positions in it, in key order; `()` is one group of all rows.

    ordered: keys that are near in order are near in the arrangement, so that a range of them can be read.
    """

    columns: tuple[ColumnSpec, ...]
    key: tuple[int, ...]
    ordered: bool = False

    def __post_init__(self) -> None:
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
        n = len(key_columns[0]) if key_columns else int(rows or 0)
        if self.code is CodeKind.IDENTITY:
            return np.ascontiguousarray(key_columns[0].values).view(np.uint64)
        out = np.empty(n, np.uint64)
        if self.code is CodeKind.HASH:
            cells.hash_table(Table(key_columns).cells, 0, len(key_columns), out)
        else:
            cells.ordered_codes(Table(key_columns).cells, len(key_columns), out)
        return out

    def route_of(self, key_columns: Sequence[Column], rows: int | None = None) -> Words:
        """(n,) the hash of keys, whatever their codes are: what decides which worker owns a row."""
        out = np.empty(len(key_columns[0]) if key_columns else int(rows or 0), np.uint64)
        cells.hash_table(Table(key_columns).cells, 0, len(key_columns), out)
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
    def stored_image(self) -> RowSpec:
        """How stored rows are compared."""
        return RowSpec.of(self.stored)

    @cached_property
    def key_image(self) -> RowSpec:
        """How keys are compared: the first lanes of `stored_image`."""
        return RowSpec.of(self.key_specs)

    @property
    def key_specs(self) -> tuple[ColumnSpec, ...]:
        return self.stored[: len(self.key)]
