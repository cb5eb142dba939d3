"""Chain: batches as the read kernels see them, and the columns they give.

The updates of a chain that are read come in two ways: by reference (kernels/find.py), or as whole stretches
of a batch but for some rows. Either way a column is made once, at its final size, whatever the encodings of
the batches; of one batch it stays as it is encoded, and a column that is one constant in all of them stays
constant.

Does not: decide what is read (read.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from shm_arrangements.batch import Batch
from shm_arrangements.columns import Column, Encoding, Ints
from shm_arrangements.errors import InvariantViolation
from shm_arrangements.kernels import cells, collect, find
from shm_arrangements.kernels.refs import ROW_BITS, ROW_MASK
from shm_arrangements.layout import address_of
from shm_arrangements.rows import Words
from shm_arrangements.table import Table
from shm_arrangements.types import DTYPES, VARIABLE, WIDE, AnyType, ColumnType, value_bytes

NO_ROWS: Final[Ints] = np.empty(0, np.int64)
NO_ROWS.flags.writeable = False
_MOST_ROWS: Final = 1 << ROW_BITS


@dataclass(frozen=True, slots=True)
class Stretch:
    """Rows [lo, hi) of batch `b` of a chain, but for `left_out` (k,), ascending."""

    b: int
    lo: int
    hi: int
    left_out: Ints

    def __len__(self) -> int:
        return self.hi - self.lo - len(self.left_out)


class Chain:
    """m > 0 batches of one schema, none empty. rows (m, 8), cells (m, columns, 8): kernels/find.py."""

    __slots__ = ("_kept", "batches", "cells", "rows", "schema")

    def __init__(self, batches: Sequence[Batch]) -> None:
        self.batches = tuple(batches)
        self.schema = self.batches[0].schema
        self._kept = [batch.table for batch in self.batches]
        self.rows = np.zeros((len(self.batches), find.FIELDS), np.int64)
        for row, batch in zip(self.rows, self.batches, strict=True):
            if len(batch) >= _MOST_ROWS:
                raise InvariantViolation("a batch of too many updates to be read", rows=len(batch))
            times, diffs = batch.time_cells, batch.diff_cells
            row[find.CODES], row[find.ROWS] = address_of(batch.codes), len(batch)
            row[find.TIMES], row[find.TIME_STEP] = address_of(times), 8 if len(times) > 1 else 0
            row[find.DIFFS], row[find.DIFF_STEP] = address_of(diffs), 8 if len(diffs) > 1 else 0
        self.cells = np.stack([table.cells for table in self._kept])

    def __len__(self) -> int:
        return len(self.batches)

    def heads(self) -> Ints:
        """Scratch that folding needs."""
        return np.empty((len(self), 3), np.int64)

    def gather(self, refs: Ints) -> tuple[Column, ...]:
        """The columns, stored order, of references (k,), in their order."""
        return self.assemble((), refs)

    def times(self, refs: Ints) -> Words:
        """(k,) the times of references."""
        out = np.empty(len(refs), np.uint64)
        collect.gather_times(self.rows, refs, out, 0)
        return out

    def assemble(self, stretches: Sequence[Stretch], refs: Ints) -> tuple[Column, ...]:
        """The columns, stored order, of whole stretches and then of references."""
        return tuple(self.column(i, stretches, refs) for i in range(len(self.schema.stored)))

    def column(self, i: int, stretches: Sequence[Stretch], refs: Ints) -> Column:
        """Of `assemble`, the column at position i in stored order.

        Without a copy if it is one stretch as it is.
        """
        if len(stretches) == 1 and not len(stretches[0].left_out) and not len(refs):
            whole = stretches[0]
            column = self.batches[whole.b].columns[i]
            return column if len(whole) == len(column) else column.slice(whole.lo, whole.hi)
        if not stretches and len(self) == 1:
            return self.batches[0].columns[i].take(refs)
        return self._made(i, self.schema.stored[i].type, stretches, refs)

    def counts(self, stretches: Sequence[Stretch], sums: Ints) -> Ints:
        """The diffs of stretches, then `sums`; one cell shown n times if all are the same."""
        n = sum(map(len, stretches)) + len(sums)
        if len(stretches) == 1 and not len(stretches[0].left_out) and not len(sums):
            diffs = self.batches[stretches[0].b].diff_cells
            if len(diffs) > 1:
                return diffs[stretches[0].lo : stretches[0].hi]
        constant = {int(self.batches[s.b].diff_cells[0]) for s in stretches if len(s)}
        if len(constant) == 1 and all(len(self.batches[s.b].diff_cells) == 1 for s in stretches if len(s)):
            only = constant.pop()
            if (sums == only).all():
                return np.broadcast_to(np.int64(only), n)
        out = np.empty(n, np.int64)
        at = 0
        for s in stretches:
            cells_of = self.batches[s.b].diff_cells
            if len(cells_of) == 1:
                out[at : at + len(s)] = cells_of[0]
            else:
                collect.copy_diffs(self.rows, s.b, s.lo, s.hi, s.left_out, out, at)
            at += len(s)
        out[at:] = sums
        return out

    def _made(self, i: int, type_: AnyType, stretches: Sequence[Stretch], refs: Ints) -> Column:
        columns = [batch.columns[i] for batch in self.batches]
        n = sum(map(len, stretches)) + len(refs)
        only = _only_constant(columns)
        if only is not None:
            return Column.repeated(only, n)
        if not isinstance(type_, ColumnType):
            return _nested(type_, columns, stretches, refs)
        validity = self._validity(i, n, stretches, refs) if any(c.has_validity for c in columns) else None
        if type_ in VARIABLE:
            return self._texts(i, type_, n, validity, stretches, refs)
        width = value_bytes(type_)
        values = np.empty((n, 2) if type_ in WIDE else n, DTYPES[type_])
        out = values.view(np.uint8).reshape(-1)
        at = 0
        for s in stretches:
            collect.copy_fixed(self.cells, s.b, i, width, s.lo, s.hi, s.left_out, out, at)
            at += len(s)
        collect.gather_fixed(self.cells, i, width, refs, out, at)
        return Column(type_, values, None, validity)

    def _validity(self, i: int, n: int, stretches: Sequence[Stretch], refs: Ints) -> NDArray[np.bool_] | None:
        out = np.empty(n, np.bool_)
        at = nulls = 0
        for s in stretches:
            nulls += collect.copy_valid(self.cells, s.b, i, s.lo, s.hi, s.left_out, out, at)
            at += len(s)
        nulls += collect.gather_valid(self.cells, i, refs, out, at)
        return out if nulls else None

    def _texts(
        self,
        i: int,
        type_: ColumnType,
        n: int,
        validity: NDArray[np.bool_] | None,
        stretches: Sequence[Stretch],
        refs: Ints,
    ) -> Column:
        offsets = np.empty(n + 1, np.int64)
        offsets[0] = at = 0
        for s in stretches:
            collect.copy_offsets(self.cells, s.b, i, s.lo, s.hi, s.left_out, offsets, at)
            at += len(s)
        collect.gather_offsets(self.cells, i, refs, offsets, at)
        out = np.empty(int(offsets[-1]), np.uint8)
        at = 0
        for s in stretches:
            collect.copy_texts(self.cells, s.b, i, s.lo, s.hi, s.left_out, offsets, out, at)
            at += len(s)
        collect.gather_texts(self.cells, i, refs, offsets, out, at)
        return Column(type_, out, offsets, validity)


def _only_constant(columns: Sequence[Column]) -> Column | None:
    """The one value that all columns consist of, if each is stored as a constant."""
    if any(column.encoding is not Encoding.CONSTANT for column in columns):
        return None
    stored = [column.stored for column in columns]
    first = Table((stored[0],)) if stored[0] is not None else None
    assert first is not None
    here, same = np.zeros(1, np.int64), np.empty(1, np.bool_)
    for other in stored[1:]:
        assert other is not None
        if not cells.equal_pairs(first.cells, here, Table((other,)).cells, here, 1, same):
            return None
    return stored[0]


def _nested(type_: AnyType, columns: list[Column], stretches: Sequence[Stretch], refs: Ints) -> Column:
    """Lists and records, column by column: what is referred to is taken batch by batch, and put in order."""
    parts = []
    for s in stretches:
        rows = np.delete(np.arange(s.lo, s.hi), s.left_out - s.lo) if len(s.left_out) else None
        part = columns[s.b]
        parts.append(part.slice(s.lo, s.hi) if rows is None else part.take(rows))
    if len(refs):
        batches, rows = refs >> ROW_BITS, refs & ROW_MASK
        order = np.argsort(batches, kind="stable")
        ends = np.searchsorted(batches, np.arange(len(columns) + 1), sorter=order)
        taken = [columns[b].take(rows[order[ends[b] : ends[b + 1]]]) for b in range(len(columns))]
        back = np.empty(len(refs), np.int64)
        back[order] = np.arange(len(refs))
        parts.append(Column.concat(type_, taken).take(back))
    return Column.concat(type_, parts)
