"""OrderedRows: rows by group in an order, for min, max and top-k; the home of one set of treaps.

It owns a row table (rows under group numbers), the counts of its rows, the trees over them, and what the
round adds. The kernels keep a tree exact under any counts; a row whose count is negative stands in no tree
and is a fault, named with its count, as long as that lasts. Rows are freed at the end of a round, so within
one a slot means one row.

Does not: own groups (the caller numbers them, and learns from `holders` which are still named by rows).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clusterd.operators.growable import Growable
from clusterd.operators.kernels import ordered as kernels
from clusterd.operators.kernels import table as table_kernels
from clusterd.operators.row_table import Partials, RowTable
from shm_arrangements.columns import Column
from shm_arrangements.rows import RowImage, RowSpec
from shm_arrangements.types import ColumnType

__all__ = ["MOST_COPIES", "MOST_OFFSET", "OrderedRows"]

Ints = NDArray[np.int64]
Words = NDArray[np.uint64]

BUDGET_NODES = 100_000  # of one piece of work: 5-20 ms, by how well the tree fits the caches
_FAULTS = 1024  # of one piece: a message costs some microseconds
UNLIMITED = 1 << 62
_SWEPT_FROM = 4096  # changes: below, a sort costs more than it saves
_SWEPT = 131_072  # changes sorted at once: some 20 ms
NOTHING: Ints = np.zeros(0, np.int64)
NO_TIMES: Words = np.zeros(0, np.uint64)
MOST_COPIES = 1 << 40  # of a row in the window: sums of copies below a node stay far from 2^63
MOST_OFFSET = UNLIMITED >> 1  # beyond all copies; an end of the window is then below 2^63


class OrderedRows:
    """Rows of `spec` in the order of their columns; `flips` (L,) uint8 reverses single lanes."""

    def __init__(self, spec: RowSpec, flips: Sequence[int] | None = None) -> None:
        self.table = RowTable(spec, grouped=True)
        self.partials = Partials(2)
        lanes = len(spec.kinds)
        self._flips = np.array([0, *(flips if flips is not None else [0] * lanes)], np.uint8)
        self._counts = Growable(np.uint64, (2,))
        self._links = Growable(np.int32, (3,))
        self._weights = Growable(np.int64, (3,))
        self._marks = Growable(np.uint8)
        self._counted = Growable(np.uint8)
        self._touched = Growable(np.int64)
        self._root = Growable(np.int32, fill=-1)
        self._no_holders = Growable(np.int32)
        self.visited = 0

    def __len__(self) -> int:
        return len(self.table)

    @property
    def nbytes(self) -> int:
        sized: tuple[Growable[Any], ...] = (
            self._counts, self._links, self._weights, self._marks, self._counted, self._touched, self._root,
        )  # fmt: skip
        return self.table.nbytes + self.partials.nbytes + sum(a.nbytes for a in sized)

    def add(self, image: RowImage, groups: Ints, times: Words, diffs: Ints) -> None:
        """Take updates into the round."""
        slots = self.table.assign(image, groups)
        self.partials.add(slots, times, diffs, self.table.capacity)

    def _make_room(self, groups: int) -> None:
        slots = self.table.capacity
        by_slot: tuple[Growable[Any], ...] = (
            self._counts, self._links, self._weights, self._marks, self._counted, self._no_holders,
        )  # fmt: skip
        for sized in by_slot:
            sized.grow(slots)
        self._root.grow(groups)

    def extremes(
        self,
        order: Ints,
        slots: Ints,
        times: Words,
        groups: int,
        faults: Callable[[Ints, Words, Words], None],
    ) -> Iterator[NDArray[np.int32] | None]:
        """Apply the round's updates; the last value is (len(order), 4), rows first and last before and after.

        order: over (slots, times), the groups and times that changed, ascending in time, each pair once.
        groups: slots of the groups' table. faults: is told (rows, times, words (m, 4)) of counts gone wrong.
        Values before the last are None: the end of a piece of work.
        """
        self._make_room(groups)
        out = np.empty((len(order), 4), np.int32)
        mine = self.partials.order()
        for _ in self._sweep(mine):
            yield None
        state = np.zeros(kernels.STATE_SIZE, np.int64)
        fault_rows, fault_times, fault_words = _fault_arrays()
        t = self.table
        while True:
            done = kernels.extremes(
                order, slots, times, mine, self.partials.slots, self.partials.times, self.partials.words,
                BUDGET_NODES, t.lanes, t.text_lo, t.text_hi, t.text, t.kinds, self._flips,
                self._counts.a, self._links.a, self._weights.a, self._root.a,
                out, fault_rows, fault_times, fault_words, state,
            )  # fmt: skip
            self._tell(state, fault_rows, fault_times, fault_words, faults)
            if done:
                break
            yield None
        self.visited += int(state[kernels.VISITED])
        yield out

    def windows(
        self,
        offset: int,
        limit: int | None,
        groups: int,
        block: int,
        faults: Callable[[Ints, Words, Words], None],
    ) -> Iterator[tuple[Ints, Words, Ints]]:
        """Apply the round's updates; gives (rows, times, diffs) of how [offset, offset + limit) changes.

        offset: at most MOST_OFFSET.
        """
        self._make_room(groups)
        self._touched.grow(self.table.capacity)
        order = self.partials.order()
        for _ in self._sweep(order):
            yield NOTHING, NO_TIMES, NOTHING
        state = np.zeros(kernels.STATE_SIZE, np.int64)
        fault_rows, fault_times, fault_words = _fault_arrays()
        rows, times, diffs = np.empty(block, np.int64), np.empty(block, np.uint64), np.empty(block, np.int64)
        # Copies beyond the end of the window are never seen, so they need not be counted.
        limit = UNLIMITED if limit is None else min(limit, UNLIMITED)
        cap = min(offset + limit, MOST_COPIES)
        most = MOST_COPIES if offset + limit > MOST_COPIES else -1
        t = self.table
        while True:
            done = kernels.top_k(
                order, self.partials.slots, self.partials.times, self.partials.words,
                offset, limit, cap, most, BUDGET_NODES,
                t.lanes, t.text_lo, t.text_hi, t.text, t.kinds, self._flips,
                self._counts.a, self._links.a, self._weights.a, self._root.a, self._marks.a, self._touched.a,
                rows, times, diffs, fault_rows, fault_times, fault_words, state,
            )  # fmt: skip
            self._tell(state, fault_rows, fault_times, fault_words, faults)
            emitted = int(state[kernels.EMITTED])
            yield rows[:emitted], times[:emitted], diffs[:emitted]
            if done:
                break
        self.visited += int(state[kernels.VISITED])

    def _sweep(self, order: Ints) -> Iterator[None]:
        """Sort pieces of a long `order`, in place, by time and then by group and row.

        A tree is then walked from one end to the other instead of at random, which its caches thank with a
        multiple of the speed; what comes out is the same.
        """
        if len(order) < _SWEPT_FROM:
            return
        table = self.table
        spec = RowSpec(((ColumnType.INT64, False), *table.spec.types))  # the group is a lane before the row's
        for lo in range(0, len(order), _SWEPT):
            piece = order[lo : lo + _SWEPT]
            slots = self.partials.slots.take(piece)
            image = RowImage(
                spec,
                table.lanes.take(slots, axis=0),
                table.text_lo.take(slots, axis=0),
                table.text_hi.take(slots, axis=0),
                table.text,
            )
            piece[:] = piece.take(image.sort_order(self.partials.times.take(piece)))
            yield

    def retire(self, holders: NDArray[np.int32]) -> None:
        """End of the round: keep `holders` (by group) right and free the rows whose count is zero."""
        self._make_room(0)
        changed = self.partials.slots[: len(self.partials)]
        table_kernels.count_holders(changed, self._counts.a, self.table.lanes, self._counted.a, holders)
        self.table.free(self.partials.retire(self._counts.a, self._no_holders.a))

    def columns(self, rows: NDArray[np.int32] | Ints) -> tuple[Column, ...]:
        return self.table.columns(rows.astype(np.int64, copy=False))

    def _tell(
        self,
        state: Ints,
        rows: Ints,
        times: Words,
        words: Words,
        faults: Callable[[Ints, Words, Words], None],
    ) -> None:
        count = int(state[kernels.FAULTS])
        if count:
            faults(rows[:count], times[:count], words[:count])


def _fault_arrays() -> tuple[Ints, Words, Words]:
    return np.empty(_FAULTS, np.int64), np.empty(_FAULTS, np.uint64), np.empty((_FAULTS, 4), np.uint64)
