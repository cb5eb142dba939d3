"""Rows of a join whose multiplicity leaves 64 bits: an error in data, that heals.

A join adds products of changes, and a row's true multiplicity is the product of one sum an input. Products
of 48 bits or more are not emitted but noted here, by the rows they belong to. For these alone all sums are
looked up at every time of the round, in Python's integers: while the product fits the row is emitted with it,
else the row is not there and an error names it and the product. `corrections` is what has to be added to the
products that were emitted. A combination of rows is remembered while its product does not fit or nearly does
not (62 bits); so what is neither remembered nor noted could leave 64 bits only by tens of thousands of
changes of the same rows in one round.

Cost: some 100 us a combination; a join has none, unless its multiplicities are beyond any use.

Does not: find combinations, or emit blocks.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from clusterd.operators.faults import Faults, show_row
from clusterd.operators.join_tactic import Part
from shm_arrangements.batch import Batch
from shm_arrangements.columns import Column
from shm_arrangements.rows import RowSpec, encode
from shm_arrangements.schema import ArrangementSchema

__all__ = ["Correction", "OverflowWatch"]

_MOST = (1 << 63) - 1
_NEAR = 1 << 62


@dataclass(frozen=True, slots=True)
class Correction:
    """Add `diff` at `time` to the row made of one row of each input (columns of one row, in row order)."""

    rows: tuple[tuple[Column, ...], ...]
    time: int
    diff: int


class _Row:
    """One row of a side: its columns in stored order, and its code."""

    def __init__(self, schema: ArrangementSchema, columns: tuple[Column, ...]) -> None:
        self.schema = schema
        self.columns = columns
        self._spec = RowSpec(tuple((c.type, True) for c in columns))
        self._image = encode(columns, self._spec, 1)
        texts = tuple(
            self._image.text[lo:hi].tobytes()
            for lo, hi in zip(self._image.text_lo[0].tolist(), self._image.text_hi[0].tolist(), strict=True)
        )
        self.identity = (self._image.lanes.tobytes(), texts)
        self.code = schema.codes_of(columns[: len(schema.key)], rows=1)[0]

    def row(self) -> tuple[Column, ...]:
        return tuple(self.columns[i] for i in self.schema.row_order)

    def changes(self, parts: Sequence[Part], as_of: int) -> dict[int, int]:
        """Time -> sum of diffs of this row in the parts."""
        out: dict[int, int] = defaultdict(int)
        for part in parts:
            codes = part.batch.codes
            lo, hi = (int(np.searchsorted(codes, self.code, side)) for side in ("left", "right"))
            if lo == hi:
                continue
            image = encode([c.slice(lo, hi) for c in part.batch.columns], self._spec, hi - lo)
            times, diffs = part.batch.times_at(lo, hi), part.batch.diffs_at(lo, hi)
            zeros = np.zeros(hi - lo, np.int64)
            for k in np.flatnonzero(image.equal(np.arange(hi - lo), self._image, zeros)).tolist():
                time = max(int(times[k]), as_of)
                if part.first <= time <= part.last:
                    out[time] += int(diffs[k])
        return out


@dataclass(slots=True)
class _Combination:
    """One row of each input; skipped: by time, the products that were not emitted."""

    rows: tuple[_Row, ...]
    skipped: dict[int, int]


class OverflowWatch:
    """The combinations of one join that do not fit, or nearly, and in a round those that may not.

    schemas: of the arrangement of each input in which its rows are looked up.
    """

    def __init__(self, *schemas: ArrangementSchema) -> None:
        self._schemas = schemas
        self._lasting: dict[object, _Combination] = {}
        self._noted: dict[object, _Combination] = {}

    def __len__(self) -> int:
        return len(self._lasting)

    def note(self, rows: Sequence[tuple[Batch, int]], as_of: int) -> None:
        """Take a combination that was found and not emitted. rows: of each input a batch and a place in it,
        of an arrangement by any key.
        """
        made, time, product = [], as_of, 1
        for schema, (batch, at) in zip(self._schemas, rows, strict=True):
            columns = batch.row_columns()
            stored = tuple(columns[i].slice(at, at + 1) for i in schema.stored_order)
            made.append(_Row(schema, stored))
            time = max(time, int(batch.times_at(at, at + 1)[0]))
            product *= int(batch.diffs_at(at, at + 1)[0])
        identity = tuple(row.identity for row in made)
        found = self._noted.setdefault(identity, _Combination(tuple(made), defaultdict(int)))
        found.skipped[time] += product

    def corrections(
        self,
        old: Sequence[Sequence[Part]],
        new: Sequence[Sequence[Part]],
        as_of: int,
        faults: Faults,
    ) -> Iterator[Correction]:
        """End of the round: what to add to what was emitted; messages go to `faults`.

        old, new: of each input, the parts of the arrangement whose schema the watch was made with.
        """
        todo = self._noted
        self._noted = {}
        for identity, combination in self._lasting.items():
            if identity not in todo and _may_change(combination, new):
                todo[identity] = _Combination(combination.rows, {})
        for identity, combination in todo.items():
            yield from self._correct(identity, combination, old, new, as_of, faults)

    def _correct(
        self,
        identity: object,
        combination: _Combination,
        old: Sequence[Sequence[Part]],
        new: Sequence[Sequence[Part]],
        as_of: int,
        faults: Faults,
    ) -> Iterator[Correction]:
        rows = combination.rows
        counts = [sum(row.changes(parts, as_of).values()) for row, parts in zip(rows, old, strict=True)]
        changes = [row.changes(parts, as_of) for row, parts in zip(rows, new, strict=True)]
        product = math.prod(counts)
        lasting = identity in self._lasting
        hidden = lasting and not _fits(product)
        shown = 0 if hidden else product
        complaint = _complaint(rows, product) if hidden else None
        for time in sorted(set().union(*changes)):
            counts = [count + change.get(time, 0) for count, change in zip(counts, changes, strict=True)]
            after = math.prod(counts)
            now = after if _fits(after) else 0
            told = None if _fits(after) else _complaint(rows, after)
            faults.change(time, complaint, told)
            emitted = (after - product) - combination.skipped.get(time, 0)
            rest = (now - shown) - emitted
            while rest:
                diff = max(-_MOST, min(_MOST, rest))
                yield Correction(tuple(row.row() for row in rows), time, diff)
                rest -= diff
            product, shown, complaint = after, now, told
        if abs(product) < _NEAR:
            self._lasting.pop(identity, None)
        else:
            self._lasting[identity] = combination


def _fits(product: int) -> bool:
    return -_MOST - 1 <= product <= _MOST


def _may_change(combination: _Combination, new: Sequence[Sequence[Part]]) -> bool:
    for row, parts in zip(combination.rows, new, strict=True):
        for part in parts:
            at = int(np.searchsorted(part.batch.codes, row.code))
            if at < len(part.batch) and part.batch.codes[at] == row.code:
                return True
    return False


def _complaint(rows: Sequence[_Row], product: int) -> str:
    row = show_row(c.to_pylist()[0] for each in rows for c in each.row())
    return f"multiplicity-overflow: join: row {row} has multiplicity {product}"
