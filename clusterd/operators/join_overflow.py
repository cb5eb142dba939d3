"""Rows of a join whose multiplicity leaves 64 bits: an error in data, that heals.

A join adds products of changes, and a row's true multiplicity is the product of two sums. Products that may
leave 62 bits are not emitted but noted here, by the pair of rows they belong to. For these pairs alone both
sums are looked up at every time of the round, in Python's integers: while the product fits the row is emitted
with it, else the row is not there and an error names it and the product. `corrections` is what has to be
added to the products that were emitted. A pair is remembered only while its product does not fit.

Cost: some 100 us a pair; a join has none, unless its multiplicities are beyond any use.

Does not: find pairs, or emit blocks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from clusterd.operators.faults import Faults, show_row
from clusterd.operators.join_tactic import Pairs, Part
from shm_arrangements.columns import Column
from shm_arrangements.rows import RowSpec, encode
from shm_arrangements.schema import ArrangementSchema

__all__ = ["Correction", "OverflowWatch"]

_MOST = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Correction:
    """Add `diff` at `time` to the row made of one row of each side (columns of one row, in row order)."""

    left: tuple[Column, ...]
    right: tuple[Column, ...]
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
class _Pair:
    left: _Row
    right: _Row
    skipped: dict[int, int]


class OverflowWatch:
    """The pairs of one join that do not fit, and in a round those that may not."""

    def __init__(self, left: ArrangementSchema, right: ArrangementSchema) -> None:
        self._schemas = left, right
        self._lasting: dict[object, _Pair] = {}
        self._noted: dict[object, _Pair] = {}

    def __len__(self) -> int:
        return len(self._lasting)

    def note(self, left: Part, right: Part, pairs: Pairs, as_of: int) -> None:
        """Take the wide pairs of a piece."""
        a, b = left.batch, right.batch
        for i, j in zip(pairs.wide[0].tolist(), pairs.wide[1].tolist(), strict=True):
            x = _Row(self._schemas[0], tuple(c.slice(i, i + 1) for c in a.columns))
            y = _Row(self._schemas[1], tuple(c.slice(j, j + 1) for c in b.columns))
            pair = self._noted.setdefault((x.identity, y.identity), _Pair(x, y, defaultdict(int)))
            time = max(int(a.times_at(i, i + 1)[0]), int(b.times_at(j, j + 1)[0]), as_of)
            pair.skipped[time] += int(a.diffs_at(i, i + 1)[0]) * int(b.diffs_at(j, j + 1)[0])

    def corrections(
        self,
        old: tuple[Sequence[Part], Sequence[Part]],
        new: tuple[Sequence[Part], Sequence[Part]],
        as_of: int,
        faults: Faults,
    ) -> Iterator[Correction]:
        """End of the round: what to add to what was emitted; messages go to `faults`."""
        todo = self._noted
        self._noted = {}
        for identity, pair in self._lasting.items():
            if identity not in todo and self._may_change(pair, new):
                todo[identity] = _Pair(pair.left, pair.right, {})
        for identity, pair in todo.items():
            yield from self._correct(identity, pair, old, new, as_of, faults)

    def _may_change(self, pair: _Pair, new: tuple[Sequence[Part], Sequence[Part]]) -> bool:
        for row, parts in zip((pair.left, pair.right), new, strict=True):
            for part in parts:
                at = int(np.searchsorted(part.batch.codes, row.code))
                if at < len(part.batch) and part.batch.codes[at] == row.code:
                    return True
        return False

    def _correct(
        self,
        identity: object,
        pair: _Pair,
        old: tuple[Sequence[Part], Sequence[Part]],
        new: tuple[Sequence[Part], Sequence[Part]],
        as_of: int,
        faults: Faults,
    ) -> Iterator[Correction]:
        a, b = (
            sum(row.changes(parts, as_of).values())
            for row, parts in zip((pair.left, pair.right), old, strict=True)
        )
        of_a, of_b = (
            row.changes(parts, as_of) for row, parts in zip((pair.left, pair.right), new, strict=True)
        )
        product = a * b
        lasting = identity in self._lasting
        shown = 0 if lasting else product
        complaint = self._complaint(pair, product) if lasting else None
        for time in sorted({*of_a, *of_b}):
            a += of_a.get(time, 0)
            b += of_b.get(time, 0)
            fits = -_MOST - 1 <= a * b <= _MOST
            now = a * b if fits else 0
            told = None if fits else self._complaint(pair, a * b)
            faults.change(time, complaint, told)
            emitted = (a * b - product) - pair.skipped.get(time, 0)
            rest = (now - shown) - emitted
            while rest:
                diff = max(-_MOST, min(_MOST, rest))
                yield Correction(pair.left.row(), pair.right.row(), time, diff)
                rest -= diff
            product, shown, complaint = a * b, now, told
        if complaint is None:
            self._lasting.pop(identity, None)
        else:
            self._lasting[identity] = pair

    def _complaint(self, pair: _Pair, product: int) -> str:
        row = show_row(c.to_pylist()[0] for c in (*pair.left.row(), *pair.right.row()))
        return f"multiplicity-overflow: join: row {row} has multiplicity {product}"
