"""OrderedRows: rows by group in an order, for min, max, lists and top-k; the home of one set of treaps.

It owns a row table (rows under group numbers), the counts of its rows, the trees over them, and what the
round adds. The kernels keep a tree exact under any counts; a row whose count is negative stands in no tree
and is a fault, named with its count, as long as that lasts. Rows are freed at the end of a round, so within
one a slot means one row.

Does not: own groups (the caller numbers them, and learns from `holders` which are still named by rows).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clusterd.operators.growable import Growable
from clusterd.operators.kernels import steps as steps_kernels
from clusterd.operators.kernels import treap, windows
from clusterd.operators.row_table import Partials, RowTable, count_holders
from clusterd.operators.time_steps import Steps, Work, pausing, pieces
from shm_arrangements.columns import Column
from shm_arrangements.rows import RowImage, RowSpec
from shm_arrangements.types import ColumnSpec, ColumnType

__all__ = [
    "BUDGET_NODES", "MOST_COPIES", "MOST_OFFSET", "NOTHING", "Bools", "Edges", "Ints", "OrderColumn",
    "OrderedRows", "Tell", "fault_arrays", "lane_flips",
]  # fmt: skip

Ints = NDArray[np.int64]
Words = NDArray[np.uint64]
Bools = NDArray[np.bool_]
Edges = NDArray[np.int32]
Tell = Callable[[Ints, Words, Words], None]  # of rows (m,), times, words (m, 4): counts gone wrong

BUDGET_NODES = 100_000  # of one piece of work: 5-20 ms, by how well the tree fits the caches
_FAULTS = 1024  # of one piece: a message costs some microseconds
UNLIMITED = 1 << 62
_SWEPT_FROM = 4096  # changes: below, a sort costs more than it saves
_SWEPT = 131_072  # changes sorted at once: some 20 ms
NOTHING: Ints = np.zeros(0, np.int64)
NO_TIMES: Words = np.zeros(0, np.uint64)
MOST_COPIES = 1 << 40  # of a row in the window: sums of copies below a node stay far from 2^63
MOST_OFFSET = UNLIMITED >> 1  # beyond all copies; an end of the window is then below 2^63


@dataclass(frozen=True, slots=True)
class OrderColumn:
    """One column of an order; NULLs go last unless `nulls_first`, whichever way the values go."""

    column: int
    descending: bool = False
    nulls_first: bool = False


def lane_flips(columns: Sequence[tuple[ColumnSpec, OrderColumn]]) -> list[int]:
    """Which lanes of rows of these columns are reversed, each column ordered as it is said beside it."""
    flips: list[int] = []
    for spec, item in columns:
        lanes = len(RowSpec.of((spec,)).kinds)
        if spec.nullable:
            flips.append(int(item.nulls_first))
        flips += [int(item.descending)] * (lanes - int(spec.nullable))
    return flips


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
        self._steps: Steps | None = None
        self._order = self._starts = NOTHING
        self._state: Ints = np.zeros(treap.STATE_SIZE, np.int64)
        self._faults = fault_arrays()
        self.visited = 0

    def __len__(self) -> int:
        return len(self.table)

    @property
    def nbytes(self) -> int:
        sized: tuple[Growable[Any], ...] = (
            self._counts, self._links, self._weights, self._marks, self._counted, self._touched, self._root,
        )  # fmt: skip
        return self.table.nbytes + self.partials.nbytes + sum(a.nbytes for a in sized)

    def add(
        self, image: RowImage, groups: Ints, times: Words, diffs: Ints, owners: Ints | None = None
    ) -> None:
        """Take updates into the round. owners: the partials of their groups, if it is walked by steps."""
        slots = self.table.assign(image, groups)
        self.partials.add(slots, times, diffs, self.table.capacity, owners)

    def _make_room(self, groups: int) -> None:
        slots = self.table.capacity
        by_slot: tuple[Growable[Any], ...] = (
            self._counts, self._links, self._weights, self._marks, self._counted, self._no_holders,
        )  # fmt: skip
        for sized in by_slot:
            sized.grow(slots)
        self._root.grow(groups)

    def open(self, steps: Steps, groups: int) -> Work[None]:
        """Begin to apply the round's updates, step by step. groups: slots of the groups' table."""
        self._make_room(groups)
        self._order, self._starts = yield from steps.split(self.partials)
        self._steps = steps
        self._state[:] = 0
        if len(self._order) >= _SWEPT_FROM:
            numbers = yield from steps.numbers()
            owners, codes = self.partials.owners, np.empty(len(self.partials), np.uint64)
            for lo, hi in pieces(len(codes)):
                codes[lo:hi] = numbers.take(owners[lo:hi])
                yield
            yield from self._sweep(self._order, codes)

    def extremes(self, end: int, tell: Tell) -> Iterator[Edges | None]:
        """Apply the steps up to `end`; the last value is (steps, 4), rows first and last before and after.

        Values before the last are None: the end of a piece of work.
        """
        steps, state, t = self._steps, self._state, self.table
        assert steps is not None
        out = np.empty((end - int(state[treap.STEP]), 4), np.int32)
        while True:
            done = steps_kernels.extremes(
                steps.groups, self._starts, self._order, end,
                self.partials.slots, self.partials.times, self.partials.words, BUDGET_NODES,
                t.lanes, t.text_lo, t.text_hi, t.text, t.kinds, self._flips,
                self._counts.a, self._links.a, self._weights.a, self._root.a, out, *self._faults, state,
            )  # fmt: skip
            self._tell(state, *self._faults, tell)
            if done:
                break
            yield None
        yield out

    def sequences(
        self,
        end: int,
        most: int,
        cap: int,
        elements: Edges,
        spans: NDArray[np.int64],
        changed: Bools,
        tell: Tell,
    ) -> int | None:
        """Apply steps up to `end` until a piece of work is done; arguments are the kernel's.

        Returns the elements that the next step needs if there is no room for them, None otherwise.
        """
        steps, state, t = self._steps, self._state, self.table
        assert steps is not None
        done = steps_kernels.sequences(
            steps.groups, self._starts, self._order, end,
            self.partials.slots, self.partials.times, self.partials.words, BUDGET_NODES, cap, most,
            t.lanes, t.text_lo, t.text_hi, t.text, t.kinds, self._flips,
            self._counts.a, self._links.a, self._weights.a, self._root.a,
            elements, spans, changed, *self._faults, state,
        )  # fmt: skip
        self._tell(state, *self._faults, tell)
        return int(state[treap.NEEDED]) if done == 2 else None

    @property
    def step(self) -> int:
        """The next step to apply."""
        return int(self._state[treap.STEP])

    @property
    def elements_used(self) -> int:
        """How many `sequences` has written."""
        return int(self._state[treap.USED])

    def forget_elements(self) -> None:
        """What `sequences` has written is used up: write from the begin again."""
        self._state[treap.USED] = 0

    def windows(
        self,
        offset: int,
        limit: int | None,
        groups: int,
        block: int,
        faults: Tell,
    ) -> Iterator[tuple[Ints, Words, Ints]]:
        """Apply the round's updates; gives (rows, times, diffs) of how [offset, offset + limit) changes.

        offset: at most MOST_OFFSET.
        """
        self._make_room(groups)
        self._touched.grow(self.table.capacity)
        nothing = NOTHING, NO_TIMES, NOTHING
        order = yield from pausing(self.partials.order(), nothing)
        yield from pausing(self._sweep(order, self.partials.times), nothing)
        state = np.zeros(treap.STATE_SIZE, np.int64)
        fault_rows, fault_times, fault_words = fault_arrays()
        rows, times, diffs = np.empty(block, np.int64), np.empty(block, np.uint64), np.empty(block, np.int64)
        # Copies beyond the end of the window are never seen, so they need not be counted.
        limit = UNLIMITED if limit is None else min(limit, UNLIMITED)
        cap = min(offset + limit, MOST_COPIES)
        most = MOST_COPIES if offset + limit > MOST_COPIES else -1
        t = self.table
        while True:
            done = windows.top_k(
                order, self.partials.slots, self.partials.times, self.partials.words,
                offset, limit, cap, most, BUDGET_NODES,
                t.lanes, t.text_lo, t.text_hi, t.text, t.kinds, self._flips,
                self._counts.a, self._links.a, self._weights.a, self._root.a, self._marks.a, self._touched.a,
                rows, times, diffs, fault_rows, fault_times, fault_words, state,
            )  # fmt: skip
            self._tell(state, fault_rows, fault_times, fault_words, faults)
            emitted = int(state[treap.EMITTED])
            yield rows[:emitted], times[:emitted], diffs[:emitted]
            if done:
                break
        self.visited += int(state[treap.VISITED])

    def _sweep(self, order: Ints, codes: Words) -> Work[None]:
        """Sort pieces of a long `order`, in place, by the partials' codes and then by group and row.

        A tree is then walked from one end to the other instead of at random, which its caches thank with a
        multiple of the speed; what comes out is the same, if the codes ascend already.
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
            piece[:] = piece.take(image.sort_order(codes.take(piece)))
            yield

    def retire(self, holders: NDArray[np.int32]) -> Work[None]:
        """End of the round: keep `holders` (by group) right and free the rows whose count is zero."""
        self.visited += int(self._state[treap.VISITED])
        self._state[:] = 0
        self._steps, self._order, self._starts = None, NOTHING, NOTHING
        self._make_room(0)
        changed = self.partials.slots[: len(self.partials)]
        yield from count_holders(changed, self._counts.a, self.table.lanes, self._counted.a, holders)
        gone = yield from self.partials.retire(self._counts.a, self._no_holders.a)
        yield from self.table.freeing(gone)

    def columns(self, rows: NDArray[np.int32] | Ints) -> tuple[Column, ...]:
        return self.table.columns(rows.astype(np.int64, copy=False))

    def _tell(
        self,
        state: Ints,
        rows: Ints,
        times: Words,
        words: Words,
        faults: Tell,
    ) -> None:
        count = int(state[treap.FAULTS])
        if count:
            faults(rows[:count], times[:count], words[:count])


def fault_arrays() -> tuple[Ints, Words, Words]:
    """Room for rows, times and words of a piece's faults."""
    return np.empty(_FAULTS, np.int64), np.empty(_FAULTS, np.uint64), np.empty((_FAULTS, 4), np.uint64)
