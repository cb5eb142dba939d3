"""Threshold: the rows with a positive count, as often as that.

The net count of every row is kept, and at each time of a round what is emitted is the difference of its
positive part before and after: of the total, not of the change (BUG38). A row whose count falls to zero is
forgotten at the end of the round. A negative count is no error here: that is what the operator is for.

Counts are 128 bits wide; one beyond 64 is an error in data that names the row, and heals.

Does not: sort, or look at any row that the round does not change.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from clusterd.dataflow.operator import (
    BLOCK_ROWS,
    NO_ERRS,
    Columns,
    Delta,
    OperatorStatistics,
    Round,
    types_of,
)
from clusterd.operators.faults import Faults
from clusterd.operators.growable import Growable
from clusterd.operators.kernels.table import fold
from clusterd.operators.row_table import Partials, RowTable
from clusterd.operators.time_steps import Work, pausing, pieces
from shm_arrangements.rows import RowSpec, encode
from shm_arrangements.updates import Updates

__all__ = ["ThresholdOperator"]

Ints = NDArray[np.int64]
Words = NDArray[np.uint64]

_MOST: Final = (1 << 63) - 1
_COUNT: Final = np.array([[0, 2]], np.int64)  # the one number in a row's words
_PIECE: Final = BLOCK_ROWS // 2


class ThresholdOperator:
    """Rows of `columns`."""

    def __init__(self, columns: Columns) -> None:
        self.schema: Columns = columns
        self._types = types_of(columns)
        self._pause = Delta.empty(self._types)
        self._spec = RowSpec.of(columns)
        self._touched = 0
        self._reset()

    def _reset(self) -> None:
        self._rows = RowTable(self._spec)
        self._counts = Growable(np.uint64, (2,))
        self._holders = Growable(np.int32)  # nobody else holds a row
        self._partials = Partials(2)

    def start(self, round: Round) -> None:
        """Nothing is kept of a round's bounds: the times of its updates say all."""

    def push(self, port: int, delta: Delta) -> Iterator[Delta]:
        updates = delta.oks
        if len(updates):
            yield from pausing(self._make_room(len(updates)), self._pause)
            slots = self._rows.assign(encode(updates.columns, self._spec, len(updates)))
            self._partials.add(slots, updates.times, updates.diffs, self._rows.capacity)
        if len(delta.errs):
            yield Delta(Updates.empty(self._types), delta.errs)

    def _make_room(self, rows: int) -> Work[None]:
        yield from self._rows.make_room(rows)
        yield from self._partials.make_room(rows, self._rows.capacity)

    def finish(self) -> Iterator[Delta]:
        count = len(self._partials)
        if count == 0:
            return
        self._touched += count
        self._counts.grow(self._rows.capacity)
        self._holders.grow(self._rows.capacity)
        order = yield from pausing(self._partials.order(), self._pause)
        shape = (min(_PIECE, count), 2)
        before: Words = np.empty(shape, np.uint64)
        after: Words = np.empty(shape, np.uint64)
        for start, end in pieces(count, _PIECE):
            yield self._step(order, start, end, before, after)
        gone = yield from pausing(self._partials.retire(self._counts.a, self._holders.a), self._pause)
        yield from pausing(self._rows.freeing(gone), self._pause)

    def _step(self, order: Ints, start: int, end: int, before: Words, after: Words) -> Delta:
        """Fold the partials order[start:end] and give what changed."""
        partials = self._partials
        fold(order, start, end, partials.slots, partials.words, self._counts.a, _COUNT, before, after)
        before, after = before[: end - start], after[: end - start]
        was, was_wide = _positive(before)
        now, now_wide = _positive(after)
        diffs = now - was
        changed = np.flatnonzero(diffs)
        mine = order[start:end]
        slots, times = partials.slots.take(mine), partials.times.take(mine)
        columns = self._rows.columns(slots.take(changed))
        oks = Updates(columns, times.take(changed), diffs.take(changed))
        wide = np.flatnonzero(was_wide | now_wide)
        if not len(wide):
            return Delta(oks, NO_ERRS)
        faults = Faults()
        words = np.concatenate([before.take(wide, axis=0), after.take(wide, axis=0)], axis=1)
        faults.changes(self._rows.columns(slots.take(wide)), times.take(wide), words, _complaint)
        return Delta(oks, faults.take())

    def statistics(self) -> OperatorStatistics:
        held = self._rows.nbytes + self._counts.nbytes + self._partials.nbytes
        return OperatorStatistics(len(self._rows), held, self._touched)

    def close(self) -> None:
        self._reset()


def _positive(words: Words) -> tuple[Ints, NDArray[np.bool_]]:
    """(m,) the positive part of each count, 0 where it does not fit; and where it does not."""
    low, high = words[:, 0], words[:, 1].view(np.int64)
    wide = (high > 0) | ((high == 0) & (low > np.uint64(_MOST)))
    there = (high == 0) & ~wide
    return np.where(there, low, np.uint64(0)).view(np.int64), wide


def _complaint(row: str, count: int) -> str | None:
    return f"multiplicity-overflow: threshold: row {row} has multiplicity {count}" if count > _MOST else None
