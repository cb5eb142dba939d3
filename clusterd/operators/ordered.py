"""OrderedRows: rows by group in an order, for min, max and top-k; the home of one set of treaps.

It owns a row table (rows under group numbers), the counts of its rows, the trees over them, and what the
round adds. The kernels keep a tree exact under any counts; a row whose count is negative stands in no tree
and is a fault, named with its count, as long as that lasts. Rows are freed at the end of a round, so within
one a slot means one row.

Does not: own groups (the caller numbers them, and learns from `holders` which are still named by rows).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from clusterd.operators.kernels import ordered as kernels
from clusterd.operators.kernels import table as table_kernels
from clusterd.operators.row_table import Partials, RowTable, grown
from shm_arrangements.columns import Column
from shm_arrangements.rows import RowImage, RowSpec

__all__ = ["MOST_COPIES", "OrderedRows"]

Ints = NDArray[np.int64]
Words = NDArray[np.uint64]

BUDGET_NODES = 100_000  # of one piece of work: 5-20 ms, by how well the tree fits the caches
_FAULTS = 1024  # of one piece: a message costs some microseconds
UNLIMITED = 1 << 62
MOST_COPIES = 1 << 40  # of a row without a limit: sums of copies below a node stay far from 2^63


class OrderedRows:
    """Rows of `spec` in the order of their columns; `flips` (L,) uint8 reverses single lanes."""

    def __init__(self, spec: RowSpec, flips: Sequence[int] | None = None) -> None:
        self.table = RowTable(spec, grouped=True)
        self.partials = Partials(2)
        lanes = len(spec.kinds)
        self._flips = np.array([0, *(flips if flips is not None else [0] * lanes)], np.uint8)
        self._counts: Words = np.zeros((0, 2), np.uint64)
        self._links = np.zeros((0, 3), np.int32)
        self._weights: Ints = np.zeros((0, 3), np.int64)
        self._marks = np.zeros(0, np.uint8)
        self._counted = np.zeros(0, np.uint8)
        self._touched: Ints = np.zeros(0, np.int64)
        self._root = np.zeros(0, np.int32)
        self._no_holders = np.zeros(0, np.int32)
        self.visited = 0

    def __len__(self) -> int:
        return len(self.table)

    @property
    def nbytes(self) -> int:
        arrays = (self._counts, self._links, self._weights, self._marks, self._touched, self._root)
        return self.table.nbytes + self.partials.nbytes + sum(a.nbytes for a in arrays)

    def add(self, image: RowImage, groups: Ints, times: Words, diffs: Ints) -> None:
        """Take updates into the round."""
        slots = self.table.assign(image, groups)
        self.partials.add(slots, times, diffs, self.table.capacity)

    def _make_room(self, groups: int) -> None:
        slots = self.table.capacity
        self._counts = grown(self._counts, slots)
        self._links = grown(self._links, slots)
        self._weights = grown(self._weights, slots)
        self._marks = grown(self._marks, slots)
        self._counted = grown(self._counted, slots)
        self._no_holders = grown(self._no_holders, slots)
        self._root = grown(self._root, groups, -1)

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
        state = np.zeros(kernels.STATE_SIZE, np.int64)
        fault_rows, fault_times, fault_words = _fault_arrays()
        t = self.table
        while True:
            done = kernels.extremes(
                order, slots, times, mine, self.partials.slots, self.partials.times, self.partials.words,
                BUDGET_NODES, t.lanes, t.text_lo, t.text_hi, t.text, t.kinds, self._flips,
                self._counts, self._links, self._weights, self._root,
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
        """Apply the round's updates; gives (rows, times, diffs) of how [offset, offset + limit) changes."""
        self._make_room(groups)
        self._touched = grown(self._touched, self.table.capacity)
        order = self.partials.order()
        state = np.zeros(kernels.STATE_SIZE, np.int64)
        fault_rows, fault_times, fault_words = _fault_arrays()
        rows, times, diffs = np.empty(block, np.int64), np.empty(block, np.uint64), np.empty(block, np.int64)
        # Copies beyond the end of the window are never seen, so they need not be counted.
        cap = MOST_COPIES if limit is None else offset + limit
        most = MOST_COPIES if limit is None else -1
        t = self.table
        while True:
            done = kernels.top_k(
                order, self.partials.slots, self.partials.times, self.partials.words,
                offset, UNLIMITED if limit is None else limit, cap, most, BUDGET_NODES,
                t.lanes, t.text_lo, t.text_hi, t.text, t.kinds, self._flips,
                self._counts, self._links, self._weights, self._root, self._marks, self._touched,
                rows, times, diffs, fault_rows, fault_times, fault_words, state,
            )  # fmt: skip
            self._tell(state, fault_rows, fault_times, fault_words, faults)
            emitted = int(state[kernels.EMITTED])
            yield rows[:emitted], times[:emitted], diffs[:emitted]
            if done:
                break
        self.visited += int(state[kernels.VISITED])

    def retire(self, holders: NDArray[np.int32]) -> None:
        """End of the round: keep `holders` (by group) right and free the rows whose count is zero."""
        self._make_room(0)
        changed = self.partials.slots[: len(self.partials)]
        table_kernels.count_holders(changed, self._counts, self.table.lanes, self._counted, holders)
        self.table.free(self.partials.retire(self._counts, self._no_holders))

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
