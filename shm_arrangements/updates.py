"""Updates: columns, times and diffs of some updates, in any order; the thing that flows.

An update is (row, time, diff). A collection at time t is the sum of its updates at times up to t, so the
order of updates and how a diff is split among equal ones say nothing; `consolidate` gives the one least
form.

Does not: own a schema (names live with whoever interprets the columns), or say which interval it covers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from shm_arrangements.columns import Bools, Column, Ints
from shm_arrangements.conversion import column_of_values
from shm_arrangements.errors import InvariantViolation
from shm_arrangements.rows import RowSpec, Words, encode
from shm_arrangements.types import AnyType, ColumnSpec, ColumnType


class Updates:
    """columns in row order, each (n,); times (n,) uint64; diffs (n,) int64."""

    __slots__ = ("columns", "diffs", "times")

    def __init__(self, columns: tuple[Column, ...], times: Words, diffs: Ints) -> None:
        n = len(times)
        if len(diffs) != n or any(len(c) != n for c in columns):
            raise InvariantViolation(
                "columns, times and diffs differ in length",
                columns=[len(c) for c in columns],
                times=n,
                diffs=len(diffs),
            )
        self.columns = columns
        self.times = np.ascontiguousarray(times)
        self.diffs = np.ascontiguousarray(diffs)

    @classmethod
    def empty(cls, types: Sequence[AnyType]) -> Updates:
        return cls(tuple(Column.empty(t) for t in types), np.empty(0, np.uint64), np.empty(0, np.int64))

    @classmethod
    def from_rows(
        cls, types: Sequence[AnyType | ColumnSpec], rows: Sequence[tuple[Sequence[Any], int, int]]
    ) -> Updates:
        """Of (row, time, diff) triples of Python values. For tests and small inputs.

        types: columns of a schema (`schema.columns`) take values as reads give them: dates, times, decimals.
        Bare types take those of values.py: a date as days, a numeric as its digits without the point.
        Raises: ValueError as `Column.from_pylist`, or naming what is no such triple.
        """
        for update in rows:
            if len(update) != 3:
                raise ValueError(f"not a (row, time, diff): {update!r}")
            row = update[0]
            if not isinstance(row, tuple | list) or len(row) != len(types):
                raise ValueError(f"not a row of {len(types)} values: {row!r}")
        columns = (_column(t, [row[i] for row, _, _ in rows]) for i, t in enumerate(types))
        times = Column.from_pylist(ColumnType.UINT64, [time for _, time, _ in rows])
        diffs = Column.from_pylist(ColumnType.INT64, [diff for _, _, diff in rows])
        if times.has_validity or diffs.has_validity:
            raise ValueError("neither a time nor a diff is None")
        return cls(tuple(columns), times.values, diffs.values)

    @classmethod
    def concat(cls, parts: Sequence[Updates]) -> Updates:
        """All updates of at least one part."""
        if len(parts) == 1:
            return parts[0]
        columns = tuple(Column.concat(cs[0].type, cs) for cs in zip(*(p.columns for p in parts), strict=True))
        times = np.concatenate([p.times for p in parts])
        return cls(columns, times, np.concatenate([p.diffs for p in parts]))

    def __len__(self) -> int:
        return len(self.times)

    @property
    def types(self) -> tuple[AnyType, ...]:
        return tuple(c.type for c in self.columns)

    @property
    def nbytes(self) -> int:
        return sum(c.nbytes for c in self.columns) + self.times.nbytes + self.diffs.nbytes

    def take(self, rows: Ints) -> Updates:
        return Updates(
            tuple(c.take(rows) for c in self.columns), self.times.take(rows), self.diffs.take(rows)
        )

    def slice(self, lo: int, hi: int) -> Updates:
        """Updates lo..hi, sharing memory."""
        return Updates(tuple(c.slice(lo, hi) for c in self.columns), self.times[lo:hi], self.diffs[lo:hi])

    def filter(self, mask: Bools) -> Updates:
        return self.take(np.flatnonzero(mask))

    def consolidate(self) -> Updates:
        """Sorted by row, then time; equal (row, time) summed; zero sums dropped.

        Raises: MultiplicityOverflow if a sum leaves 64 bits.
        """
        image = encode(self.columns, self._row_spec(), rows=len(self))
        rows, sums = image.consolidate(image.sort_order(times=self.times), self.diffs, self.times)
        columns = tuple(c.take(rows) for c in self.columns)
        return Updates(columns, self.times.take(rows), sums)

    def to_rows(self) -> list[tuple[tuple[Any, ...], int, int]]:
        """The (row, time, diff) triples as Python values. For tests and printing."""
        values = [c.to_pylist() for c in self.columns]
        rows = list(zip(*values, strict=True)) if values else [()] * len(self)
        return list(zip(rows, self.times.tolist(), self.diffs.tolist(), strict=True))

    def _row_spec(self) -> RowSpec:
        return RowSpec(tuple((c.type, c.has_validity) for c in self.columns))

    def __repr__(self) -> str:
        return f"Updates({', '.join(t.name for t in self.types)}, n={len(self)})"


def _column(type_: AnyType | ColumnSpec, values: Sequence[Any]) -> Column:
    if isinstance(type_, ColumnSpec):
        return column_of_values(type_, values)
    return Column.from_pylist(type_, values)
