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
from clusterd.operators.kernels.ahead import AHEAD
from clusterd.operators.row_table import Partials, RowTable, count_holders
from clusterd.operators.time_steps import Steps, Work, by_digit, pausing, pieces
from clusterd.operators.waiting import SWEPT_FROM, WaitingRows, cuts, sorted_at_once
from shm_arrangements.columns import Column
from shm_arrangements.rows import RowImage, RowSpec
from shm_arrangements.types import ColumnSpec, ColumnType

__all__ = [
    "BUDGET_NODES", "MOST_COPIES", "MOST_OFFSET", "NOTHING", "UNLIMITED", "Bools", "Edges", "Ints",
    "OrderColumn", "OrderedRows", "Tell", "fault_arrays", "lane_flips",
]  # fmt: skip

Ints = NDArray[np.int64]
Words = NDArray[np.uint64]
Bools = NDArray[np.bool_]
Edges = NDArray[np.int32]
Tell = Callable[[Ints, Words, Words], None]  # of rows (m,), times, words (m, 4): counts gone wrong

BUDGET_NODES = 100_000  # of one piece of work: 5-20 ms, by how well the tree fits the caches
_FAULTS = 1024  # of one piece: a message costs some microseconds
UNLIMITED = 1 << 62
_SPARSE = 8  # times as many slots as rows: then the rows move to a table of their own size
_LEAST_SPARSE = 4096
_PIECE_REBUILT = 16_384  # rows of a piece: some 10 ms
_PIECE_TAKEN = 16_384  # updates that get their slots in one piece: up to 15 ms, with long texts
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
        lanes = len(spec.kinds)
        self._flips = np.array([0, *(flips if flips is not None else [0] * lanes)], np.uint8)
        self._inverting: Words = np.where(self._flips != 0, ~np.uint64(0), np.uint64(0))
        self.waiting = WaitingRows(self._inverting[1:])
        self._is_in_order = False
        self._root = Growable(np.int32, fill=-1)
        self._start()
        self._steps: Steps | None = None
        self._order = self._starts = NOTHING
        self._state: Ints = np.zeros(treap.STATE_SIZE, np.int64)
        self._faults = fault_arrays()
        self.visited = 0
        self._sizes = (0, 0, 0)  # groups, largest, and `visited` when they were counted

    def _start(self) -> None:
        """What is kept by row of the table."""
        self.partials = Partials(2)
        self._counts = Growable(np.uint64, (2,))
        self._nodes = Growable(np.int64, (treap.NODE,))
        self._counted = Growable(np.uint8)
        self._touched = Growable(np.int64)
        self._evicted = Growable(np.int64)
        self._gone = NOTHING
        self._no_holders = Growable(np.int32)

    def __len__(self) -> int:
        return len(self.table)

    def group_sizes(self) -> tuple[int, int]:
        """How many groups have rows, and how many rows the largest has, each as often as it occurs.

        Counted anew when as many nodes were visited as there are groups, so it costs what work costs.
        """
        groups, largest, visited = self._sizes
        if not groups or self.visited - visited >= groups:
            roots = self._root.a[self._root.a >= 0]
            sizes = self._nodes.a[roots, treap.BELOW]
            groups, largest = len(roots), int(sizes.max(initial=0))
            self._sizes = groups, largest, self.visited
        return groups, largest

    @property
    def nbytes(self) -> int:
        sized: tuple[Growable[Any], ...] = (
            self._counts, self._nodes, self._counted, self._touched, self._evicted,
            self._root,
        )  # fmt: skip
        held = self.table.nbytes + self.partials.nbytes + self.waiting.nbytes
        return held + sum(a.nbytes for a in sized)

    def add(
        self, image: RowImage, groups: Ints, times: Words, diffs: Ints, owners: Ints | None = None
    ) -> None:
        """Take updates into the round. owners: the partials of their groups, if it is walked by steps."""
        slots = self.table.assign(image, groups)
        self.partials.add(slots, times, diffs, self.table.capacity, owners)

    def settle(self, groups: int) -> Work[None]:
        """Take into the round what waits. groups: slots of the groups' table.

        What is settled at once is in the order of groups and rows, if it is enough to gain by that.
        """
        left, found_before = len(self.waiting), len(self.table)
        taken = 0
        self._is_in_order = self.waiting.are_many and len(self.partials) == 0
        for updates in self.waiting.take(groups):
            if updates is None:
                yield
                continue
            for lo, hi in pieces(len(updates), _PIECE_TAKEN):
                # Of what is left as many rows are likely to be new as of what was taken.
                new = left * (len(self.table) - found_before) // taken if taken else 0
                yield from self.table.make_room(max(hi - lo, new))
                yield from self.partials.make_room(max(hi - lo, new), self.table.capacity)
                part = updates.slice(lo, hi)
                self.add(part.image, part.groups, part.times, part.diffs)
                taken, left = taken + hi - lo, left - (hi - lo)
                yield

    def _make_room(self, groups: int) -> None:
        slots = self.table.capacity
        by_slot: tuple[Growable[Any], ...] = (
            self._counts, self._nodes, self._counted, self._no_holders,
        )  # fmt: skip
        for sized in by_slot:
            sized.grow(slots)
        self._root.grow(groups)

    def open(self, steps: Steps, groups: int) -> Work[None]:
        """Begin to apply the round's updates, step by step. groups: slots of the groups' table."""
        yield from self._root.growing(groups)
        self._make_room(groups)
        self._order, self._starts = yield from steps.split(self.partials)
        self._steps = steps
        self._state[:] = 0
        if len(self._order) >= SWEPT_FROM:
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
                self._counts.a, self._nodes.a, self._root.a, out, *self._faults, state,
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
            self._counts.a, self._nodes.a, self._root.a,
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
        bounds: Ints,
        groups: int,
        block: int,
        faults: Tell,
        *,
        grows: bool,
    ) -> Iterator[tuple[Ints, Words, Ints]]:
        """Apply the round's updates; gives (rows, times, diffs) of how the windows of groups change.

        bounds, faults: as the kernel's. grows: no row is taken away, so none behind its window is kept.
        """
        nothing = NOTHING, NO_TIMES, NOTHING
        yield from pausing(self._root.growing(groups), nothing)
        self._make_room(groups)
        self._touched.grow(self.table.capacity)
        order = yield from pausing(self._by_group(groups), nothing)
        state = np.zeros(treap.STATE_SIZE, np.int64)
        fault_rows, fault_times, fault_words = fault_arrays()
        rows, times, diffs = np.empty(block, np.int64), np.empty(block, np.uint64), np.empty(block, np.int64)
        ahead = np.empty((AHEAD, 3), np.int64)
        if grows:
            self._evicted.grow(self.table.capacity)
        t = self.table
        while True:
            done = windows.top_k(
                order, self.partials.slots, self.partials.times, self.partials.words,
                bounds, MOST_COPIES, int(grows), BUDGET_NODES,
                t.lanes, t.text_lo, t.text_hi, t.text, t.kinds, self._flips,
                self._counts.a, self._nodes.a, self._root.a, self._touched.a, self._evicted.a, ahead,
                rows, times, diffs, fault_rows, fault_times, fault_words, state,
            )  # fmt: skip
            self._tell(state, fault_rows, fault_times, fault_words, faults)
            emitted = int(state[treap.EMITTED])
            yield rows[:emitted], times[:emitted], diffs[:emitted]
            if done:
                break
        self.visited += int(state[treap.VISITED])
        self._gone = self._evicted.a[: int(state[treap.EVICTED])]

    def _sweep(self, order: Ints, codes: Words) -> Work[None]:
        """Sort pieces of a long `order`, in place, by the partials' codes and then by group and row.

        A tree is then walked from one end to the other instead of at random, which its caches thank with a
        multiple of the speed; what comes out is the same, if the codes ascend already.
        """
        for lo, hi in pieces(len(order), sorted_at_once(self.table.spec)):
            piece = order[lo:hi]
            piece[:] = self._sorted(piece, codes.take(piece))
            yield

    def _by_group(self, groups: int) -> Work[Ints]:
        """The partials by group, of each its times ascending, and of a time its rows, mostly.

        A group too large for a piece is in several: of each of them that is true.
        """
        order = yield from self.partials.order()
        n, times = len(order), self.partials.times
        is_one_time = bool(times[order[0]] == times[order[-1]])
        if is_one_time and self._is_in_order:
            return order
        ends, most = np.array([n]), sorted_at_once(self.table.spec)
        if n > most:
            codes = np.empty(n, np.uint64)
            for lo, hi in pieces(n):
                codes[lo:hi] = self.table.lanes[self.partials.slots[lo:hi], 0]
                yield
            order, ends = yield from by_digit(codes, groups, order)
        for lo, hi in cuts(ends, n, most):
            piece = order[lo:hi]
            if is_one_time:
                piece[:] = self._sorted(piece)
            else:
                codes = self.table.lanes[self.partials.slots.take(piece), 0]
                piece[:] = self._sorted(piece, codes, times.take(piece))
            yield
        return order

    def _sorted(self, piece: Ints, codes: Words | None = None, first: Words | None = None) -> Ints:
        """Partials by their codes, if given, then by group, or what is given as `first` in place of it, then
        by row.
        """
        table, slots = self.table, self.partials.slots.take(piece)
        lanes = table.lanes.take(slots, axis=0)
        if self._inverting.any():
            lanes ^= self._inverting
        if first is not None:
            lanes[:, 0] = first
        spec = RowSpec(((ColumnType.INT64, False), *table.spec.types))  # the group is a lane before the row's
        lo, hi = table.text_lo.take(slots, axis=0), table.text_hi.take(slots, axis=0)
        order = RowImage(spec, lanes, lo, hi, table.text).sort_order(codes)
        return np.asarray(piece.take(order))

    def retire(self, holders: NDArray[np.int32], *, grows: bool = False) -> Work[None]:
        """End of the round: keep `holders` (by group) right and free the rows whose count is zero.

        grows: as of `windows`.
        """
        self.visited += int(self._state[treap.VISITED])
        self._state[:] = 0
        self._steps, self._order, self._starts = None, NOTHING, NOTHING
        self._is_in_order = False
        self._make_room(0)
        gone, self._gone = self._gone[~self.partials.have(self._gone)], NOTHING
        for changed in (self.partials.slots[: len(self.partials)], gone):
            yield from count_holders(changed, self._counts.a, self.table.lanes, self._counted.a, holders)
        empty = yield from self.partials.retire(self._counts.a, self._no_holders.a)
        for freed in (empty, gone):
            yield from self.table.freeing(freed)
        if grows and self.table.capacity > max(_LEAST_SPARSE, _SPARSE * len(self.table)):
            yield from self._rebuild()

    def _rebuild(self) -> Work[None]:
        """Keep the same rows in as little memory as they need: a round may have seen many more."""
        old, old_counts, old_nodes = self.table, self._counts.a, self._nodes.a
        rows = np.flatnonzero(old_counts[:, 0])  # no count is negative, nor beyond the end of its window
        self.table = RowTable(old.spec, grouped=True)
        self._start()
        self._root.a[:] = -1
        for lo, hi in pieces(len(rows), _PIECE_REBUILT):
            if lo:
                yield
            part = rows[lo:hi]
            yield from self.table.make_room(hi - lo)
            slots = self.table.assign(old.image(part), old.groups(part))
            self._make_room(0)
            self._counts.a[slots] = old_counts[part]
            self._counted.a[slots] = 1
            t = self.table
            windows.plant(
                slots, old_nodes[part, treap.OWN],
                t.lanes, t.text_lo, t.text_hi, t.text, t.kinds, self._flips,
                self._nodes.a, self._root.a,
            )  # fmt: skip

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
