"""ArrangementSchema: the columns of a row, and which of them are the key.

Rows are written and read in row order. An arrangement stores the key columns first, in key order, and then
the others in row order, because that is the order it sorts by. Everything that depends on the two orders is
computed here once.

Does not: know the bytes (layout.py), nor compare (rows.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from shm_arrangements.rows import RowSpec
from shm_arrangements.types import ColumnSpec


@dataclass(frozen=True)
class ArrangementSchema:
    """`columns` in row order; `key` distinct positions in it, in key order; `()` is one group of all rows."""

    columns: tuple[ColumnSpec, ...]
    key: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(set(self.key)) != len(self.key):
            raise ValueError(f"a key names each column once: {self.key}")
        for position in self.key:
            if not 0 <= position < len(self.columns):
                raise ValueError(f"key column {position} of {len(self.columns)} columns")

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
